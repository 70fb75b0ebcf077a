from __future__ import annotations

import pytest

from spark_kafka_sink.config.offset_specs import (
    Assign,
    Subscribe,
    SubscribePattern,
    selection,
)
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def read(**given):
    return selection(SOURCE_OPTIONS_DEF.parse(given))


def refusal(given):
    with pytest.raises(ConfigError) as caught:
        read(**given)
    return str(caught.value)


def test_topics_are_separated_by_commas():
    """Topics are trimmed; empty and repeated ones are left out."""
    assert Subscribe(("b", "a")) == read(subscribe=" b ,a,, b")


def test_partitions_are_assigned_by_json():
    """The assigned partitions are sorted."""
    assert Assign((A0, A1)) == read(assign='{"a":[1,0]}')


def test_a_pattern_is_kept():
    """A pattern is trimmed; it need not match whole names."""
    assert SubscribePattern("a.*|b") == read(subscribePattern=" a.*|b ")


def test_a_selection_is_required():
    """The error for a read of nothing names the options."""
    assert (
        "one of subscribe, subscribePattern and assign is required: set subscribe to the topic"
        == refusal({})
    )


@pytest.mark.parametrize(("name", "value"), [("subscribePattern", "a"), ("assign", '{"a":[0]}')])
def test_two_selections_are_rejected(name, value):
    """The error for two selections names both."""
    assert f"subscribe and {name} exclude each other: set only one of them" == refusal(
        {"subscribe": "a", name: value}
    )


@pytest.mark.parametrize("topics", ["", " ", ", ,"])
def test_a_selection_without_topics_is_rejected(topics):
    """An empty list of topics is an error."""
    assert "subscribe contains no topic: set it to a topic, or several" == refusal(
        {"subscribe": topics}
    )


@pytest.mark.parametrize("topic", ["a b", "a*", "..", "x" * 250])
def test_an_invalid_topic_name_is_rejected(topic):
    """The error for an invalid topic name mentions patterns."""
    assert (
        f"subscribe: {topic!r} is not a valid topic name: use up to 249 letters, digits, '.', '_' "
        "and '-'; for a regular expression, set subscribePattern"
        == refusal({"subscribe": f"a,{topic}"})
    )


def test_an_empty_pattern_is_rejected():
    """An empty pattern, which would match every topic, is an error."""
    assert "subscribePattern must not be empty, not ''" == refusal({"subscribePattern": ""})


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a(", "missing ), unterminated subpattern at position 1"),
        (r"\p{Alpha}", r"bad escape \p at position 0"),
        (r"\Qa.b\E", r"bad escape \Q at position 0"),
    ],
)
def test_an_invalid_pattern_is_rejected(pattern, problem):
    """The error for a pattern that is not Python's says so: Java's syntax differs in details."""
    assert (
        f"subscribePattern {pattern!r} is not a valid regular expression in Python: {problem}"
        == refusal({"subscribePattern": pattern})
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"a":0}', "has no list of partitions for topic 'a'"),
    ],
)
def test_malformed_partitions_are_rejected(text, problem):
    """The error for malformed partitions shows an example."""
    assert f'assign {problem}: write JSON such as {{"topicA": [0, 1]}}, not {text!r}' == refusal(
        {"assign": text}
    )


@pytest.mark.parametrize("text", ["{}", '{"a":[]}'])
def test_an_assignment_of_no_partition_is_rejected(text):
    """An empty assignment is an error."""
    assert f"assign names no partition: {text!r}" == refusal({"assign": text})
