"""Regular expressions for transactional ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.id_pattern import MAX_PATTERN_LENGTH, IdPattern

_ONE = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[b-c]", r"\w", r"\.", r"\D", "-"])
_COUNT = st.sampled_from(["", "*", "+", "?", "*?", "{2}", "{1,}", "{0,2}", "{0}"])
_REPEATS = st.builds(str.__add__, _ONE, _COUNT) | st.sampled_from(["^", "$"])
PATTERNS = st.recursive(
    _REPEATS,
    lambda inner: (
        st.lists(inner, max_size=4).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda each: f"({'|'.join(each)})")
        | inner.map("(?:{})".format)
    ),
    max_leaves=8,
)


@given(pattern=PATTERNS, text=st.text("abc.-1", max_size=8))
def test_supported_expressions_match_as_pythons(pattern, text):
    """Every supported expression matches the same ids as in Python's `re`."""
    # PATTERNS may contain "$", which also matches before a final newline; the texts have none.
    expected = re.fullmatch(pattern, text, re.ASCII) is not None

    assert expected == IdPattern(pattern).matches(text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|a)*",
        "(a){2}",
        r"(a)\1",
        "(?=a)",
        "(?i)a",
        "a**",
        "(",
        ")",
        "[",
        "[b-a]",
        "a{2,1}",
        "*",
        "[a&&b]",
        "\\",
        r"\b",
        "a" * (MAX_PATTERN_LENGTH + 1),
    ],
)
def test_other_expressions_are_refused(pattern):
    """Malformed expressions, and those without a linear time match, raise ValueError."""
    with pytest.raises(ValueError, match=r"malformed|parenthesis|range|repe|characters|class"):
        IdPattern(pattern)


@pytest.mark.parametrize("pattern", ["a*" * 100 + "b", "a?" * 100 + "a{100}b", "(a|a)" * 50 + "b"])
def test_no_expression_backtracks(pattern):
    """Expressions that take a backtracking matcher exponential time are matched quickly."""
    assert not IdPattern(pattern).matches("a" * 5000)
