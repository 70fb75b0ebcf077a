from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1\nb:2\rc 3\r\nd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("  # a=1\n! b=2\n\n \t\f\nc=3", {"c": "3"}),
        ("a", {"a": ""}),
        ("a = = b ", {"a": "= b "}),
        ("a=1\na=2", {"a": "2"}),
        (r"a\=b\:c\ d=x\\y", {"a=b:c d": "x\\y"}),
        (r"t=\t\n\r\f\z\"", {"t": '\t\n\r\fz"'}),
        ("a=1,\\\n   2,\\\r\n3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("a=1\\", {"a": "1"}),
        ("# no\\\na=1", {"a": "1"}),
        (r"a=\u00e4\u20AC", {"a": "ä€"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ('jaas=x required password="a=b";', {"jaas": 'x required password="a=b";'}),
        ("=1", {"": "1"}),
    ],
)
def test_properties_are_parsed_as_in_java(text, expected):
    """Comments, separators, escapes and continuation lines are parsed as in Java."""
    assert expected == parse_properties(text)


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\uzzzz", r"\u=1"])
def test_a_malformed_escape_is_rejected(text):
    r"""A `\u` without four hexadecimal digits is an error, as in Java."""
    with pytest.raises(ValueError, match=r"not followed by four hexadecimal digits$"):
        parse_properties(text)


def test_a_value_over_many_lines_is_parsed_in_linear_time():
    """A value over many lines is parsed in linear time."""
    lines = 200_000
    assert {"key": "a" * lines} == parse_properties("key=" + "a\\\n" * lines)


@given(st.text())
def test_any_text_is_parsed_or_rejected(text):
    """Any text is either parsed or raises ValueError."""
    try:
        properties = parse_properties(text)
    except ValueError:
        return
    assert all(isinstance(part, str) for entry in properties.items() for part in entry)


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
)
def test_entries_escaped_as_by_java_are_parsed(properties):
    """Entries with every UTF-16 code unit escaped are parsed correctly."""

    def escaped(text):
        units = text.encode("utf-16-be")
        return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))

    text = "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in properties.items())
    assert properties == parse_properties(text)
