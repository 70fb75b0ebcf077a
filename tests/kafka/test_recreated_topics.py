"""Topics that are deleted and created again while a producer lives on, on a real Kafka."""

from __future__ import annotations

from tests.support.recreated_topic import AFTER, BEFORE, write_around_a_shrinking


def test_records_follow_a_topic_that_comes_back_with_fewer_partitions(own_kafka):
    """No record goes to a partition that is not there any more."""
    topic = own_kafka.create_topic(BEFORE, replication_factor=1)
    before, after = set(range(BEFORE)), set(range(AFTER))
    assert [before, before, after, after] == write_around_a_shrinking(own_kafka, topic)
