"""Regular expressions of subscriptions and filters; the cases were checked with RE2/J 1.8."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base import regular_expression
from spark_kafka_sink.devbroker.base.regular_expression import (
    RegularExpression,
    TooMuchWorkError,
    Work,
)

_ONE = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[b-c]", r"\w", r"\.", r"\D", "-"])
_COUNT = st.sampled_from(["", "*", "+", "?", "*?", "{2}", "{1,}", "{0,2}", "{0}"])
_REPEATS = st.builds(str.__add__, _ONE, _COUNT) | st.sampled_from(["^", "$"])
PATTERNS = st.recursive(
    _REPEATS,
    lambda inner: (
        st.lists(inner, max_size=4).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda each: f"({'|'.join(each)})*")
        | inner.map("(?:{}){{0,2}}".format)
    ),
    max_leaves=8,
)


def compiled(pattern, steps=10**9):
    return RegularExpression(pattern, Work(steps))


@given(pattern=PATTERNS, text=st.text("abc.-1", max_size=8))
def test_expressions_match_as_pythons(pattern, text):
    """Expressions that Python's `re` knows too match the same texts."""
    expected = re.fullmatch(pattern, text, re.ASCII) is not None

    assert expected == compiled(pattern).matches(text)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", "orders", "orders-1"),
        ("orders|returns", "returns", "order"),
        ("(?:orders|returns)-[0-9]+", "returns-12", "returns-"),
        ("a.c", "a-c", "ac"),
        ("(ab)*", "abab", "aba"),
        ("((a*)*)*b", "aaab", "aaa"),
        ("a{2,3}", "aaa", "aaaa"),
        ("a{2,}", "aaaa", "a"),
        ("a{0}b", "b", "ab"),
        ("a??b", "ab", "aab"),
        ("^a$", "a", "aa"),
        (r"\Aa\z", "a", "ab"),
        (r"a\b.b", "a-b", "a_b"),
        (r"a\B.b", "axb", "a-b"),
        ("(?i)ORDERS", "orders", "order"),
        ("(?i:a)b", "Ab", "AB"),
        ("(?i)a(?-i)b", "Ab", "aB"),
        ("(?i)\u212a", "k", "x"),
        ("(?P<name>a)(?<other>b)", "ab", "a"),
        ("[^a-y]", "z", "a"),
        ("[]a]", "a", "b"),
        ("[a-]", "-", "b"),
        (r"[\d.]+", "1.2", "1-2"),
        ("[[:alpha:]_]+", "a_b", "a1"),
        ("[[:^digit:]]", "a", "1"),
        (r"\pN\p{Lu}\P{L}", "1A-", "1aA"),
        (r"\p{^Lu}\p{Latin}\p{Greek}*", "ab", "a1"),
        (r"\Qa.b\E+", "a.bb", "axb"),
        (r"\x61\x{62}\143\_", "abc_", "abc"),
        ("", "", "a"),
    ],
)
def test_names_match_as_a_whole(pattern, matching, other):
    """An expression matches one name as a whole, and another one not."""
    expression = compiled(pattern)
    assert expression.matches(matching)
    assert not expression.matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "(a", "*", "a|*", "(*)", "a**", "a*+", "a{2}{3}", "{+", "a{1001}", "a{2,1}"),
        *("[", "[a", "[a-", "[b-a]", "[[:other:]]", r"\pX", r"\p{", r"\p{Klingon}"),
        *(
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?>a)",
            "(?x)a",
            "(?i",
            "(?-)",
            "(?P<>a)",
            "(?P<n>a)(?P<n>b)",
        ),
        *(r"(a)\1", r"\Z", r"\C", r"\q", r"\x", r"\x{110000}", r"\8", "\\"),
        "(" * 200 + ")" * 200,
        "((((a{50}){50}){50}){50})",
        "a" * 1001,
        "a{501}b{501}",
        "((((){1000}){1000}){1000}){1000}",
    ],
)
def test_what_re2_rejects_is_rejected(pattern):
    """An expression that RE2/J rejects, or one that is too large, is an error."""
    with pytest.raises(ValueError):  # noqa: PT011 - the message is for the client
        compiled(pattern)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.*", "a \u00e9\U0001f600", "a\n"),
        (r"\PL", "\u20ac", "\u00e9"),
        (r"\p{Latin}\p{Greek}", "\u00e9\u03b1", "\u03b1\u00e9"),
        (r"\p{Common}\p{Any}", "1\u00e9", "a1"),
        (r"[[:space:]]\s", "\v\t", "\t\v"),
        ("[[:ascii:]][^[:ascii:]]", "\x7f\u00e9", "\u00e9a"),
        ("(?i)\u00e9\u00df", "\u00c9\u00df", "\u00e9s"),
        (r"(?i)\p{Lu}", "x", "1"),
    ],
)
def test_an_alphabet_may_have_any_characters(pattern, matching, other):
    """Transactional ids, which may have any characters, match as they do with RE2/J."""
    expression = RegularExpression(pattern, Work(10**6), frozenset(matching + other))
    assert expression.matches(matching)
    assert not expression.matches(other)


@pytest.mark.parametrize(
    "pattern", ["((a+)+)+b", "a*" * 100 + "b", "a?" * 100 + "a{100}b", "(a|a)" * 50 + "b"]
)
def test_the_work_grows_with_the_length_of_the_text_at_most(pattern):
    """A text that is four times as long takes at most four times the steps, and the end."""
    steps = []
    for length in (60, 240):
        work = Work(10**9)
        expression = RegularExpression(pattern, work)
        before = work.left
        assert not expression.matches("a" * length)
        steps.append(before - work.left)
    assert steps[1] <= 4.5 * steps[0]


def test_a_hostile_expression_ends_with_its_budget():
    """An expression with many states stops as soon as it has taken all of its steps."""
    work = Work(200_000)
    expression = RegularExpression("(.?){250}(.{0,9}a){20}x", work)
    with pytest.raises(TooMuchWorkError, match="too long"):
        expression.matches("ab" * 120)
    assert -2_000 < work.left < 0


def test_compiling_counts_as_work():
    """An expression is not even read if reading it takes more steps than are left."""
    with pytest.raises(TooMuchWorkError):
        compiled("x" * 1_000, 100_000)
    with pytest.raises(TooMuchWorkError):
        compiled("x{900}", 50_000)


def test_a_long_expression_is_rejected_before_it_is_read():
    """An expression with more characters than the limit is not parsed at all."""
    with (
        patch.object(regular_expression, "_Parser") as parser,
        pytest.raises(ValueError, match="it is too large"),
    ):
        compiled("(" * 1001)
    parser.assert_not_called()


def test_names_with_the_same_beginning_are_matched_by_remembered_moves():
    """A second name costs only the moves that differ from those of the first."""
    pattern = compiled("(.*){100}(.?){100}")
    assert pattern.matches("orders-1")
    moves = len(pattern._moves)
    assert pattern.matches("orders-2")
    assert moves + 1 == len(pattern._moves)


def test_remembered_moves_are_bounded_and_change_no_result(monkeypatch):
    """An automaton that forgets its moves gives the same results, with and without assertions."""
    names = ["a", "ab", "abab", "b", "a-b", "ab-ab", ""]
    patterns = ["(ab)*", r"\bab\b.*", "^a.*b$", "(a|ab)(b|-.*)?"]
    expected = [[compiled(each).matches(name) for name in names] for each in patterns]
    monkeypatch.setattr(regular_expression, "_MAX_REMEMBERED_STATES", 1)
    found = []
    for each in patterns:
        pattern = compiled(each)
        found.append([pattern.matches(name) for name in names])
        assert len(pattern._moves) <= 1
    assert expected == found
    assert [[re.fullmatch(each, name) is not None for name in names] for each in patterns] == found
