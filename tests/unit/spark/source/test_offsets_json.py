from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets, offsets_json, parse_offsets

TOPIC_ID = UUID("6f1b0f5c-0000-4000-8000-0123456789ab")
PARTITIONS = st.builds(
    TopicPartition,
    st.text("abcdefghijklmnopqrstuvwxyzABC0123456789._-", min_size=1, max_size=20),
    st.integers(0, 2**31 - 1),
)
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1))


@given(OFFSETS, st.randoms())
def test_equal_offsets_have_equal_texts(offsets, random):
    """The text does not depend on the order in which the offsets were gathered."""
    shuffled = list(offsets.items())
    random.shuffle(shuffled)
    assert json.dumps(offsets_json(offsets)) == json.dumps(offsets_json(dict(shuffled)))


@given(OFFSETS)
def test_offsets_survive_the_checkpoint(offsets):
    """Parsing the stored text returns the same offsets."""
    assert offsets == parse_offsets(json.loads(json.dumps(offsets_json(offsets))))


def test_the_ids_of_topics_survive_the_checkpoint():
    """They are in keys that are no names of topics, with no partitions."""
    offsets = StreamOffsets({TopicPartition(topic, 0): 7 for topic in "ba"}, {"a": TOPIC_ID})
    text = json.dumps(offsets_json(offsets))
    assert f'{{"a": {{"0": 7}}, "b": {{"0": 7}}, "a?topicId={TOPIC_ID}": {{}}}}' == text
    found = parse_offsets(json.loads(text))
    assert (offsets, {"a": TOPIC_ID}) == (found, found.topic_ids)


@pytest.mark.parametrize(
    ("topic_ids", "key"),
    [
        ({}, "a?leaderEpochs=9:0,10:4"),
        ({"a": TOPIC_ID}, f"a?topicId={TOPIC_ID}&leaderEpochs=9:0,10:4"),
    ],
    ids=["without an id", "with an id"],
)
def test_leader_epochs_survive_the_checkpoint(topic_ids, key):
    """Those of partitions that have an offset are stored, by their numbers."""
    places = [TopicPartition("a", number) for number in (9, 10, 11)]
    epochs = {places[1]: 4, places[0]: 0, TopicPartition("b", 0): 7}
    offsets = StreamOffsets(dict.fromkeys(places, 1), topic_ids, epochs)
    text = json.dumps(offsets_json(offsets))
    assert [("a", {"9": 1, "10": 1, "11": 1}), (key, {})] == list(json.loads(text).items())
    found = parse_offsets(json.loads(text))
    assert (offsets, topic_ids) == (found, found.topic_ids)
    assert {places[0]: 0, places[1]: 4} == found.epochs


@pytest.mark.parametrize(
    "key",
    ["", "b", "?", "a?topicId=7", "a?topicId=", "a?later=1", "a?leaderEpochs=", "a?leaderEpochs=1"],
)
def test_other_keys_without_partitions_are_ignored(key):
    """A later version may store more."""
    found = parse_offsets({"a": {"0": 7}, key: {}})
    assert ({("a", 0): 7}, {}, {}) == (found, found.topic_ids, found.epochs)


def test_partitions_are_sorted_as_numbers():
    """Partition 10 follows partition 9, and topics are in order."""
    offsets = {TopicPartition(topic, number): 7 for topic in "ba" for number in (10, 9, 0)}
    expected = '{"a": {"0": 7, "9": 7, "10": 7}, "b": {"0": 7, "9": 7, "10": 7}}'
    assert expected == json.dumps(offsets_json(offsets))


def test_offsets_of_sparks_own_source_are_read():
    """The text of Spark's own Kafka source is understood, in whatever order it is."""
    stored = json.loads('{"b":{"10":1,"9":2},"a":{"0":0}}')
    expected = {("b", 10): 1, ("b", 9): 2, ("a", 0): 0}
    assert expected == parse_offsets(stored)


def test_no_offsets_are_offsets():
    """A pattern that no topic matches yet has no offsets."""
    assert {} == parse_offsets(offsets_json({}))


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        7,
        {"topic": 7},
        {"topic": [1]},
        {"topic": {"x": 7}},
        {"topic": {"-1": 7}},
        {"topic": {"01": 7}},
        {"topic": {"4294967296": 7}},
        {"topic": {"0": "7"}},
        {"topic": {"0": 7.0}},
        {"topic": {"0": True}},
        {"topic": {"0": None}},
        {"topic": {"0": -1}},
        {"topic": {"0": 2**63}},
    ],
)
def test_anything_else_is_refused(stored):
    """Offsets of another source, or damaged ones, are an error that shows what is stored."""
    with pytest.raises(ConfigError, match="the checkpoint does not have the offsets of a Kafka"):
        parse_offsets(stored)
