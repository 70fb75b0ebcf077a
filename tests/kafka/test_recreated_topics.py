"""Topics that are deleted and recreated while a client keeps running, on a real Kafka."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.errors import InvalidPartitionError
from tests.support.consumer.recreated_topics import EXPECTED, read_before_and_after
from tests.support.faults.recreated_topic import (
    AFTER,
    BEFORE,
    KEYS,
    send_before_a_shrinking,
    write_before_and_after_shrinking,
)


def test_records_follow_a_topic_recreated_with_fewer_partitions(kafka):
    """After a topic is recreated with fewer partitions, records go only to existing ones."""
    topic = kafka.create_topic(BEFORE, replication_factor=1)
    before, after = set(range(BEFORE)), set(range(AFTER))
    assert [before, before, after, after] == write_before_and_after_shrinking(kafka, topic)


def test_a_lingering_record_whose_partition_is_gone_fails_alone(kafka):
    """A record whose partition no longer exists fails alone; all others sent with it arrive."""
    topic = kafka.create_topic(BEFORE, replication_factor=1)
    other = kafka.create_topic(1, replication_factor=1)
    ended = send_before_a_shrinking(kafka, topic, other)
    assert isinstance(ended.gone, InvalidPartitionError)
    assert [None] * 2 * KEYS == ended.others


@pytest.fixture
def group():
    """Return the name of a new group."""
    return f"readers-{uuid.uuid4().hex[:8]}"


def test_a_consumer_reads_a_recreated_topic_from_its_beginning(kafka, group):
    """The position in the old topic says nothing about the new one, which has more records."""
    topic = kafka.create_topic(1)
    settings = {"enable.auto.commit": False}
    assert EXPECTED == read_before_and_after(kafka, topic, group, **settings)


def test_a_member_of_the_consumer_protocol_reads_a_recreated_topic_once(kafka_4, group):
    """The coordinator assigns the new topic by its id, and no record comes twice."""
    topic = kafka_4.create_topic(1)
    settings = {"group.protocol": "consumer", "enable.auto.commit": False}
    assert EXPECTED == read_before_and_after(kafka_4, topic, group, **settings)
