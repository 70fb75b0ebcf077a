from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.config_def import (
    REQUIRED,
    ConfigDef,
    ConfigKey,
    ConfigType,
    Importance,
    NotEmpty,
    OneOf,
    OneOfAnyCase,
    Password,
    Range,
    RangeOr,
    RequestName,
    RequestText,
    declared_in,
    nearest_name,
    setting,
)
from spark_kafka_sink.errors import ConfigError


def single_setting(kind, default=None, validator=None):
    return ConfigDef([ConfigKey("a.b", kind, default, validator, Importance.LOW, "What it is.")])


def parse(kind, value, validator=None):
    return single_setting(kind, validator=validator).parse({"a.b": value})["a.b"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.BOOLEAN, "False", False),
        (ConfigType.BOOLEAN, True, True),
        (ConfigType.STRING, "  a b ", "a b"),
        (ConfigType.STRING, -1, "-1"),
        (ConfigType.INT, " +10 ", 10),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.INT, 2**31 - 1, 2**31 - 1),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.LIST, " a , b,c ", ("a", "b", "c")),
        (ConfigType.LIST, "", ()),
        (ConfigType.LIST, [" a", "b"], ("a", "b")),
        (ConfigType.PASSWORD, " secret ", Password("secret")),
        (ConfigType.PASSWORD, Password(" as it is "), Password(" as it is ")),
        (ConfigType.PASSWORD, "\x00 secret\xa0\n", Password("secret\xa0")),
        (ConfigType.LONG, "0" * 5_000 + "7", 7),
        (ConfigType.LONG, "-" + "0" * 5_000, 0),
        (ConfigType.CLASS, " a.b:c ", "a.b:c"),
        (ConfigType.CLASS, len, len),
        (ConfigType.CLASSES, " a , b,c ", ("a", "b", "c")),
        (ConfigType.CLASSES, "", ()),
        (ConfigType.CLASSES, [" a", len], ("a", len)),
        (ConfigType.CLASSES, len, (len,)),
    ],
)
def test_values_are_parsed_as_in_java(kind, value, expected):
    """Text is trimmed and parsed by type; Python values of that type are accepted."""
    assert expected == parse(kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (ConfigType.BOOLEAN, "yes", "must be true or false, not 'yes'"),
        (ConfigType.BOOLEAN, 1, "must be true or false, not 1"),
        (ConfigType.STRING, True, "must be a string, not True"),
        (ConfigType.STRING, None, "must be a string, not None"),
        (ConfigType.INT, "1e3", "must be a 32-bit integer without a unit, not '1e3'"),
        (ConfigType.INT, "1_000", "must be a 32-bit integer without a unit, not '1_000'"),
        (ConfigType.INT, "10ms", "must be a 32-bit integer without a unit, not '10ms'"),
        (ConfigType.INT, "٣", "must be a 32-bit integer without a unit, not '٣'"),
        (ConfigType.INT, "\xa05", "must be a 32-bit integer without a unit, not '\\xa05'"),
        (ConfigType.INT, "- 5", "must be a 32-bit integer without a unit, not '- 5'"),
        (
            ConfigType.INT,
            "9" * 5_000,
            f"must be a 32-bit integer without a unit, not '{'9' * 198}\u2026",
        ),
        (
            ConfigType.INT,
            "2147483648",
            "must be a 32-bit integer without a unit, not '2147483648'",
        ),
        (
            ConfigType.INT,
            "-2147483649",
            "must be a 32-bit integer without a unit, not '-2147483649'",
        ),
        (ConfigType.INT, "64k", "must be a 32-bit integer without a unit, not '64k'"),
        (ConfigType.INT, "", "must be a 32-bit integer without a unit, not ''"),
        (ConfigType.INT, 2**31, f"must be a 32-bit integer without a unit, not {2**31}"),
        (ConfigType.INT, True, "must be a 32-bit integer without a unit, not True"),
        (ConfigType.INT, 1.0, "must be a 32-bit integer without a unit, not 1.0"),
        (ConfigType.LONG, 2**63, f"must be a 64-bit integer without a unit, not {2**63}"),
        (ConfigType.LIST, [1], "must be a comma-separated list, not [1]"),
    ],
)
def test_a_malformed_value_is_rejected(kind, value, problem):
    """The error for a value of the wrong type shows the value."""
    with pytest.raises(ConfigError) as caught:
        parse(kind, value)
    assert f"a.b {problem}" == str(caught.value)


@pytest.mark.parametrize(
    ("validator", "value", "problem"),
    [
        (Range(1), "0", "must be at least 1"),
        (Range(1, 9), "10", "must be at most 9"),
        (RangeOr(Range(1, 9), -1), "0", "must be between 1 and 9, or -1"),
    ],
)
def test_a_number_out_of_range_is_rejected(validator, value, problem):
    """The error for a number out of range shows the range."""
    with pytest.raises(ConfigError, match=f"^a.b {problem}, not '{value}'$"):
        parse(ConfigType.INT, value, validator)


@pytest.mark.parametrize("value", [-1, 1, 9])
def test_a_range_includes_its_ends(value):
    """A range includes both ends, and the number that stands for the default."""
    assert value == parse(ConfigType.INT, value, RangeOr(Range(1, 9), -1))


def test_words_are_case_sensitive_by_default():
    """Words are case-sensitive, as in Java's ValidString."""
    with pytest.raises(ConfigError, match=r"^a\.b must be one of: x, y, not 'X'$"):
        parse(ConfigType.STRING, "X", OneOf(("x", "y")))


@pytest.mark.parametrize("value", ["x", "X", "Y"])
def test_words_can_be_case_insensitive(value):
    """Case-insensitive words are accepted in any case, and returned unchanged."""
    assert value == parse(ConfigType.STRING, value, OneOfAnyCase(("x", "Y")))


def test_an_unknown_case_insensitive_word_is_rejected():
    """The error for an unknown word lists the valid ones."""
    with pytest.raises(ConfigError, match=r"^a\.b must be one of: x, y, not 'Z'$"):
        parse(ConfigType.STRING, "Z", OneOfAnyCase(("x", "y")))


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_text_can_be_forbidden(value):
    """An empty or blank text is an error if the setting must not be empty."""
    with pytest.raises(ConfigError, match=rf"^a\.b must not be empty, not '{value}'$"):
        parse(ConfigType.STRING, value, NotEmpty())


@pytest.mark.parametrize("validator", [RequestText(), RequestName()])
def test_a_text_for_requests_has_a_limit_and_is_utf_8(validator):
    """Kafka's texts have at most 32,767 bytes of UTF-8; the error shows the first characters."""
    longest = "\u00e9" * 16_383
    assert longest == parse(ConfigType.STRING, longest, validator)
    with pytest.raises(ConfigError, match=r"^a\.b must be at most 32767 bytes of UTF-8, not '"):
        parse(ConfigType.STRING, longest + "xy", validator)
    for value in ("\udc80" + "x" * 300, "a\ud800"):
        with pytest.raises(ConfigError, match=r"^a\.b must have only characters of UTF-8, not '"):
            parse(ConfigType.STRING, value, validator)


def test_only_a_name_for_requests_must_not_be_empty():
    """An empty client id is a text; an empty group is none."""
    assert parse(ConfigType.STRING, "", RequestText()) == ""
    with pytest.raises(ConfigError, match=r"^a\.b must not be empty, not ''$"):
        parse(ConfigType.STRING, "", RequestName())


def test_a_secret_value_of_any_type_is_not_shown():
    """The error for an invalid secret value of any type does not show it."""
    for value in ("hunter2", "-5"):
        with pytest.raises(ConfigError, match=r", not \[hidden\]$"):
            single_setting(ConfigType.INT, 1, Range(0)).parse({"a.b": value}, secret={"a.b"})


def test_a_malformed_password_is_not_shown():
    """The error for a malformed password does not show it."""
    with pytest.raises(ConfigError, match=r"^a\.b must be a string, not \[hidden\]$"):
        parse(ConfigType.PASSWORD, 12345)


def test_a_password_hides_its_value():
    """Neither repr, str, format nor the repr of a container shows a password."""
    password = Password("hunter2")
    texts = [repr(password), str(password), f"{password}", repr({"p": password})]
    assert ["[hidden]", "[hidden]", "[hidden]", "{'p': [hidden]}"] == texts
    assert "hunter2" == password.value


def test_a_password_can_be_pickled():
    """A password equals itself after pickling."""
    assert Password("x") == pickle.loads(pickle.dumps(Password("x")))  # noqa: S301 -- our own bytes
    assert 1 == len({Password("x"), Password("x")})
    assert Password("x") != Password("y")
    assert Password("x") != "x"


def test_missing_settings_have_their_defaults():
    """A setting that is not given has its default."""
    assert {"a.b": 5} == single_setting(ConfigType.INT, 5).parse({})


def test_a_required_setting_must_be_given():
    """The error for a missing required setting includes its documentation."""
    with pytest.raises(ConfigError, match=r"^kafka\.a\.b is required: What it is\.$"):
        single_setting(ConfigType.INT, REQUIRED).parse({}, prefix="kafka.")


def test_the_error_for_an_unknown_setting_suggests_the_nearest_one():
    """The error for a mistyped name suggests the nearest known one."""
    with pytest.raises(ConfigError, match=r"^unknown option 'kafka\.a\.c'; did you mean 'kafka\.a"):
        single_setting(ConfigType.INT).parse({"a.c": "secret"}, prefix="kafka.")


def test_an_unrecognizable_setting_gets_no_suggestion():
    """The error for an unrecognizable name has no suggestion and no value."""
    with pytest.raises(ConfigError, match=r"^unknown option 'zzzzzz'$"):
        single_setting(ConfigType.INT).parse({"zzzzzz": "secret"})


def test_the_nearest_name_ignores_case():
    """A name in another case is recognised, and suggested with its proper case."""
    assert "reportPath" == nearest_name("REPORTPATH", ["topic", "reportPath"])


def test_a_default_must_be_valid():
    """A table cannot have a default that its validator rejects."""
    with pytest.raises(ConfigError, match="must be at least 1"):
        single_setting(ConfigType.INT, 0, Range(1))


def test_a_setting_cannot_be_defined_twice():
    """Defining a setting twice is an error."""
    with pytest.raises(ValueError, match=r"a\.b is defined twice"):
        ConfigDef([*single_setting(ConfigType.INT), *single_setting(ConfigType.LONG)])


def test_a_table_provides_its_names_and_rows():
    """A table provides its names and rows."""
    table = single_setting(ConfigType.INT)
    assert ("a.b",) == table.names
    assert "a.b" in table
    assert ["a.b"] == [key.name for key in table]


def test_a_dataclass_declares_a_table():
    """Fields are settings in their order, named with dots; `doc` gives the meaning."""

    @dataclass(kw_only=True)
    class Settings:
        first_one: int = setting(ConfigType.INT, REQUIRED, Importance.HIGH).doc("First.")
        not_a_setting: int = 1
        second: str = setting(ConfigType.STRING, "x", Importance.LOW, NotEmpty()).doc("Second.")

    first, second = ConfigDef.of(Settings)
    assert (
        ConfigKey("first.one", ConfigType.INT, REQUIRED, None, Importance.HIGH, "First.") == first
    )
    assert ("second", "x", "Second.") == (second.name, second.default, second.doc)
    assert {"first_one": 2, "second": "y", "not_a_setting": 1} == vars(
        Settings(first_one=2, second="y")
    )
    with pytest.raises(TypeError, match="second"):
        Settings(first_one=2)


def test_a_derived_dataclass_adds_to_the_table():
    """Own settings follow the first inherited one, or the named one; replaced ones stay."""

    def an_int(default, **where):
        return setting(ConfigType.INT, default, Importance.LOW, **where).doc("A number.")

    @dataclass(kw_only=True)
    class Base:
        a: int = an_int(1)
        b: int = an_int(2)
        c: int = an_int(3)

    @dataclass(kw_only=True)
    class Derived(Base):
        d: int = an_int(4)
        c: int = an_int(30)
        e: int = an_int(5)
        f: int = an_int(6, after="b")
        g: int = an_int(7)

    @dataclass(kw_only=True)
    class Other(Base):
        h: int = declared_in(ConfigDef.of(Derived), "f", after="c")

    @dataclass(kw_only=True)
    class Whole:
        parts: object = declared_in(ConfigDef.of(Base))

    def defaults(kind):
        return {key.name: key.default for key in ConfigDef.of(kind)}

    expected = {"a": 1, "d": 4, "e": 5, "b": 2, "f": 6, "g": 7, "c": 30}
    assert list(expected.items()) == list(defaults(Derived).items())
    assert [("a", 1), ("b", 2), ("c", 3), ("f", 6)] == list(defaults(Other).items())
    assert defaults(Base) == defaults(Whole)


def test_options_are_named_by_their_mapping():
    """A table may have names that no attribute could have."""
    option = setting(ConfigType.INT, 1, Importance.LOW).doc("A number.")
    assert ("a.bC",) == ConfigDef.named({"a.bC": option}).names


def test_a_table_is_printed_as_markdown():
    """Each Markdown row has all columns of the table, with pipes escaped."""
    table = ConfigDef(
        [
            ConfigKey("n", ConfigType.INT, 3, Range(1, 9), Importance.LOW, "A | B."),
            ConfigKey("r", ConfigType.STRING, REQUIRED, None, Importance.HIGH, "Must be."),
            ConfigKey(
                "o", ConfigType.STRING, None, OneOf(("x", "y")), Importance.MEDIUM, "May be."
            ),
            ConfigKey("b", ConfigType.BOOLEAN, False, None, Importance.LOW, "Switch."),
            ConfigKey("l", ConfigType.LIST, ("p", "q"), None, Importance.LOW, "List."),
            ConfigKey(
                "c", ConfigType.STRING, "x", OneOfAnyCase(("x", "Y")), Importance.LOW, "Case."
            ),
            ConfigKey("e", ConfigType.STRING, None, NotEmpty(), Importance.LOW, "Text."),
        ]
    )
    assert [
        "| setting | type | default | valid values | importance | meaning |",
        "|---|---|---|---|---|---|",
        r"| `k.n` | int | `3` | [1,...,9] | low | A \| B. |",
        "| `k.r` | string | required |  | high | Must be. |",
        "| `k.o` | string |  | [x, y] | medium | May be. |",
        "| `k.b` | boolean | `false` |  | low | Switch. |",
        "| `k.l` | list | `p,q` |  | low | List. |",
        "| `k.c` | string | `x` | (case insensitive) [x, Y] | low | Case. |",
        "| `k.e` | string |  | non-empty string | low | Text. |",
    ] == table.to_markdown(prefix="k.").splitlines()


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_32_bit_int_is_accepted(number):
    """Any 32-bit number is accepted as text and as an int."""
    assert number == parse(ConfigType.INT, str(number)) == parse(ConfigType.INT, number)


@given(st.text() | st.integers() | st.none() | st.floats() | st.lists(st.text()))
def test_any_value_is_parsed_or_rejected(value):
    """Any value is either parsed or raises ConfigError."""
    for kind in ConfigType:
        try:
            parse(kind, value)
        except ConfigError:
            continue
