"""Topics that are deleted and recreated while a producer keeps running, on a real Kafka."""

from __future__ import annotations

from spark_kafka_sink.errors import InvalidPartitionError
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
