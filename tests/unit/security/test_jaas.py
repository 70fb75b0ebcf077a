from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.security.login import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"  {PLAIN}\n REQUIRED\n a = 'b'\n c=d ;\n", {"a": "b", "c": "d"}),
        (f"{PLAIN} optional a=\"x;y='z'\" ;", {"a": "x;y='z'"}),
        (f'{PLAIN} required a="\\"\\\\\\t\\101\\q";', {"a": '"\\\tAq'}),
        (f'{PLAIN} required a="\\41\\7\\1014";', {"a": "!\x07A4"}),
        (f'{PLAIN} required a="";', {"a": ""}),
        (f'{PLAIN} required a="=" b=";";', {"a": "=", "b": ";"}),
        (f"{PLAIN} required a=1234 b=p-w_$;", {"a": "1234", "b": "p-w_$"}),
        (f'/* x="y" */ {PLAIN} required // c="d"\n a="b//c";', {"a": "b//c"}),
        (f'/* x="y"\n */ {PLAIN} required a="b";', {"a": "b"}),
    ],
)
def test_entries_are_parsed_as_in_java(text, options):
    """Module and options are parsed, with Java's quotes, escapes and comments."""
    module = parse_jaas(text)
    assert (PLAIN, options) == (module.name, module.options)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must begin with a login module"),
        (PLAIN, "must begin with a login module"),
        (f"{PLAIN} a=b;", "must begin with a login module"),
        ("= required;", "must begin with a login module"),
        (f"{PLAIN} required", "must end with a semicolon"),
        (f'{PLAIN} required password="planted-secret"', "must end with a semicolon"),
        (f"{PLAIN} required planted-secret;", "must give options as"),
        (f'{PLAIN} required password "planted-secret";', "must give options as"),
        (f"{PLAIN} required password=;", "must give options as"),
        (f"{PLAIN} required planted secret words;", "must give options as"),
        (f"{PLAIN} required = = planted;", "must give options as"),
        (f'{PLAIN} required password="planted"secret";', "quote that is not closed"),
        (f'{PLAIN} required password="planted-secret', "quote that is not closed"),
        (f"{PLAIN} required; {PLAIN} required;", "must name one login module"),
    ],
)
def test_a_malformed_entry_is_refused_without_being_shown(text, problem):
    """The error says what is wrong and shows none of the values."""
    with pytest.raises(ValueError, match=problem) as caught:
        parse_jaas(text)
    assert "planted" not in str(caught.value)


def test_a_repr_shows_no_options():
    """The repr of a module shows only its class."""
    module = parse_jaas(f'{PLAIN} required password="planted-secret";')
    assert f"LoginModule(name='{PLAIN}')" == repr(module)


@pytest.mark.parametrize(("prefix", "expected"), [("", True), ("kafkashaded.", True), ("x", False)])
def test_a_class_may_have_a_platforms_prefix(prefix, expected):
    """Some platforms ship Kafka's classes in another package, which is accepted."""
    assert expected == parse_jaas(f"{prefix}{PLAIN} required;").is_class(PLAIN)


@given(st.text(alphabet="a=;'\"\\/* \nrequired", max_size=30))
def test_garbage_is_parsed_or_refused(text):
    """Any text is either parsed or refused with ValueError."""
    with contextlib.suppress(ValueError):
        parse_jaas(text)
