"""Regular expressions of subscriptions; the cases were checked with RE2/J 1.8."""

from __future__ import annotations

import re
import time
from unittest.mock import patch

import pytest

from spark_kafka_sink.devbroker.base.topic_pattern import TopicPattern


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
    compiled = TopicPattern(pattern)
    assert compiled.matches(matching)
    assert not compiled.matches(other)


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
        TopicPattern(pattern)


def test_a_hostile_expression_takes_little_time():
    """The time does not grow exponentially with the length of the name."""
    started = time.process_time()
    assert not TopicPattern("((a+)+)+b").matches("a" * 249)
    assert time.process_time() - started < 5


def test_a_long_expression_is_rejected_before_it_is_read():
    """An expression with more characters than the limit is not parsed at all."""
    with (
        patch("spark_kafka_sink.devbroker.base.topic_pattern._Parser") as parser,
        pytest.raises(ValueError, match="it is too large"),
    ):
        TopicPattern("(" * 1001)
    parser.assert_not_called()


def test_names_with_the_same_beginning_are_matched_by_remembered_moves():
    """A second name costs only the moves that differ from those of the first."""
    pattern = TopicPattern("(.*){100}(.?){100}")
    program = pattern._program
    assert pattern.matches("orders-1")
    moves = len(program._moves)
    assert pattern.matches("orders-2")
    assert moves + 1 == len(program._moves)


def test_remembered_moves_are_bounded_and_change_no_result(monkeypatch):
    """An automaton that forgets its moves gives the same results, with and without assertions."""
    names = ["a", "ab", "abab", "b", "a-b", "ab-ab", ""]
    patterns = ["(ab)*", r"\bab\b.*", "^a.*b$", "(a|ab)(b|-.*)?"]
    expected = [[TopicPattern(each).matches(name) for name in names] for each in patterns]
    monkeypatch.setattr("spark_kafka_sink.devbroker.base.topic_pattern._MAX_MOVES", 1)
    found = []
    for each in patterns:
        pattern = TopicPattern(each)
        found.append([pattern.matches(name) for name in names])
        assert len(pattern._program._moves) <= 1
    assert expected == found
    assert [[re.fullmatch(each, name) is not None for name in names] for each in patterns] == found
