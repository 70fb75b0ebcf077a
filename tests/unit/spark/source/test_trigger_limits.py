from __future__ import annotations

import pytest

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.planning import MinimumOffsets, new_offsets

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
START = {A: 10, B: 20}


@pytest.fixture
def minimum():
    limit = MinimumOffsets(5, 60.0)
    assert not limit.must_wait(START, START, 1000.0)
    return limit


def test_the_first_trigger_never_waits():
    """The first trigger after a start reads whatever there is."""
    assert not MinimumOffsets(1000, 60.0).must_wait(START, START, 0.0)


def test_a_trigger_waits_for_the_minimum(minimum):
    """A trigger with fewer new offsets waits, one with enough of all partitions reads."""
    assert minimum.must_wait(START, {A: 12, B: 22}, 1001.0)
    assert not minimum.must_wait(START, {A: 12, B: 23}, 1002.0)


def test_a_trigger_waits_no_longer_than_the_delay(minimum):
    """After the delay, a trigger reads what there is, and the next delay begins."""
    latest = {A: 11, B: 20}
    assert minimum.must_wait(START, latest, 1059.9)
    assert not minimum.must_wait(START, latest, 1060.0)
    assert minimum.must_wait(START, latest, 1119.9)


def test_the_delay_begins_with_the_last_trigger_that_read(minimum):
    """A trigger that had enough offsets postpones the end of the delay."""
    assert not minimum.must_wait(START, {A: 15, B: 20}, 1050.0)
    assert minimum.must_wait(START, START, 1109.0)


def test_offsets_of_new_partitions_count():
    """A new partition counts whole, and a log that has become shorter counts nothing."""
    assert 7 == new_offsets({A: 10}, {A: 3, B: 7})
