from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.config_def import INT_MAX, LONG_MAX
from spark_kafka_sink.config.offset_specs import (
    PartitionJsonError,
    parse_numbers,
    parse_numbers_and_words,
    parse_partitions,
    shown,
)
from spark_kafka_sink.model import TopicPartition

TOPICS = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
PARTITIONS = st.integers(0, INT_MAX)
#: What errors say about a number.
WANTED = "a number"


def problem(parse, text, *arguments):
    with pytest.raises(PartitionJsonError) as caught:
        parse(text, *arguments)
    return str(caught.value)


def test_partitions_are_parsed():
    """Each topic has a list of partitions."""
    assert (
        TopicPartition("a", 0),
        TopicPartition("a", 1),
        TopicPartition("b", 4),
        TopicPartition("b", 6),
    ) == parse_partitions('{"b":[6,4],"a":[0,1]}')


def test_numbers_are_parsed():
    """Each partition has a number, which may be negative if that has a meaning."""
    assert {
        TopicPartition("a", 0): 23,
        TopicPartition("a", 1): -1,
        TopicPartition("b", 0): -2,
    } == parse_numbers('{"a":{"0":23,"1":-1},"b":{"0":-2}}', -2, WANTED)


def test_a_word_stands_for_all_partitions_of_a_topic():
    """The numbers of single partitions are given beside it, for other topics."""
    assert ({TopicPartition("a", 0): 23}, {"b": -2, "c": -2}) == parse_numbers_and_words(
        '{"b":"first","a":{"0":23},"c":"FIRST"}', -2, WANTED, {"first": -2}
    )


@pytest.mark.parametrize("value", ['"last"', "7", "null", '["first"]'])
def test_another_word_for_a_topic_is_rejected(value):
    """The error has the words that are accepted."""
    words = {"first": -2, "next": -1}
    assert "has no object of partitions or first or next for topic 'a'" == problem(
        parse_numbers_and_words, f'{{"a":{value}}}', -2, WANTED, words
    )


@given(st.dictionaries(TOPICS, st.dictionaries(PARTITIONS, st.integers(-2, LONG_MAX))))
def test_any_numbers_survive_a_round_trip(topics):
    """Numbers that are written as JSON are parsed as they were, sorted by partition."""
    parsed = parse_numbers(json.dumps(topics), -2, WANTED)
    expected = {
        TopicPartition(topic, partition): number
        for topic, numbers in topics.items()
        for partition, number in numbers.items()
    }
    assert expected == parsed
    assert sorted(expected) == list(parsed)


@given(st.dictionaries(TOPICS, st.sets(PARTITIONS)))
def test_any_partitions_survive_a_round_trip(topics):
    """Partitions that are written as JSON are parsed as they were, sorted."""
    text = json.dumps({topic: list(partitions) for topic, partitions in topics.items()})
    expected = sorted(
        TopicPartition(topic, partition)
        for topic, partitions in topics.items()
        for partition in partitions
    )
    assert tuple(expected) == parse_partitions(text)


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps)
)
def test_any_text_is_parsed_or_rejected(text):
    """No text raises another error, or gives a partition or a number out of its range."""
    for parse in (parse_partitions, lambda each: parse_numbers(each, 0, WANTED)):
        try:
            parsed = parse(text)
        except PartitionJsonError:
            continue
        assert all(0 <= partition <= INT_MAX for _, partition in parsed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latst", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 5_000, "is not JSON"),
        ("5", "is not an object of topics"),
        ("null", "is not an object of topics"),
        ('{"a b":{}}', "has 'a b', which is not a valid topic name"),
        ('{"a":{},"a":{}}', "names 'a' twice"),
        ('{"a":{"0":1,"0":2}}', "names '0' twice"),
        ('{"a":{"0":1,"00":2}}', "names a-0 twice"),
        ('{"a":[0]}', "has no object of partitions for topic 'a'"),
        ('{"a":{"x":1}}', "has 'x' as a partition of topic 'a'"),
        ('{"a":{"-1":1}}', "has '-1' as a partition of topic 'a'"),
        ('{"a":{"2147483648":1}}', "has 2147483648 as a partition of topic 'a'"),
        ('{"a":{"0":"23"}}', "has '23' for a-0, which must be a number"),
        ('{"a":{"0":1.0}}', "has 1.0 for a-0, which must be a number"),
        ('{"a":{"0":true}}', "has True for a-0, which must be a number"),
        ('{"a":{"0":null}}', "has None for a-0, which must be a number"),
        ('{"a":{"0":-3}}', "has -3 for a-0, which must be a number"),
        (
            '{"a":{"0":9223372036854775808}}',
            "has 9223372036854775808 for a-0, which must be a number",
        ),
    ],
)
def test_malformed_numbers_are_rejected(text, expected):
    """The error says what is wrong, and where."""
    assert expected == problem(parse_numbers, text, -2, WANTED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("[0]", "is not an object of topics"),
        ('{"":[0]}', "has '', which is not a valid topic name"),
        ('{"a":{"0":1}}', "has no list of partitions for topic 'a'"),
        ('{"a":["0"]}', "has '0' as a partition of topic 'a'"),
        ('{"a":[true]}', "has True as a partition of topic 'a'"),
        ('{"a":[-1]}', "has -1 as a partition of topic 'a'"),
        ('{"a":[2147483648]}', "has 2147483648 as a partition of topic 'a'"),
        ('{"a":[0,0]}', "names a partition twice"),
        ('{"a":[0],"a":[1]}', "names 'a' twice"),
    ],
)
def test_malformed_partitions_are_rejected(text, expected):
    """The error says what is wrong, and where."""
    assert expected == problem(parse_partitions, text)


def test_errors_show_the_beginning_of_a_long_text():
    """Errors show no more than 200 characters of a text."""
    assert repr("x" * 200) == shown("x" * 200)
    assert repr("x" * 200) + "..." == shown("x" * 201)
