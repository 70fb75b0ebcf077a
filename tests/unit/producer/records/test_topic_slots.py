"""The slots of a topic while its number of partitions changes."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.producer_batch import RowOrigin
from spark_kafka_sink.producer.records.open_batches import NO_SLOT, OpenBatches

ORIGIN = RowOrigin(0, None, 0)
COUNTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=12)


@given(COUNTS)
def test_a_topic_has_one_slot_per_partition(changes):
    """A topic has a slot for each partition, after growth as well as after recreation."""
    batches = OpenBatches()
    for name, count in changes:
        topic = batches.topic(name, count)
        assert count == topic.partition_count
        places = [batches.topic_partition(topic.first_slot + p) for p in range(count)]
        assert [TopicPartition(name, p) for p in range(count)] == places


@given(COUNTS, st.data())
def test_open_batches_keep_their_partitions(changes, data):
    """Open batches keep their partitions, even deleted ones, whose batches end by timeout."""
    batches = OpenBatches()
    opened = set()
    for name, count in changes:
        topic = batches.topic(name, count)
        slot = topic.first_slot + data.draw(st.integers(0, count - 1))
        if slot not in batches:
            batches.open(slot, np.empty(512, np.uint8), 512, origin=ORIGIN, now=0.0)
        opened.add(batches.topic_partition(slot))
    assert opened == {batches.topic_partition(slot) for slot in batches.open_slots()}
    assert opened == {batches[slot].result.topic_partition for slot in batches.open_slots()}


def test_a_deleted_sticky_partition_is_replaced():
    """A sticky partition that still exists is kept, because its batch has room."""
    batches = OpenBatches()
    topic = batches.topic("t", 6)
    batches.sticky["slot"][topic.index] = topic.first_slot + 3
    batches.topic("t", 4)
    assert topic.first_slot + 3 == batches.sticky["slot"][topic.index]
    batches.topic("t", 3)
    assert NO_SLOT == batches.sticky["slot"][topic.index]


def test_the_largest_batch_of_a_topic_is_open_or_was_its_partitions_last():
    """The largest batch of a topic is one that is open, or the last one of a partition."""
    batches = OpenBatches()
    topic, other = batches.topic("t", 2), batches.topic("u", 1)
    assert [0, 0] == [batches.largest_bytes(each) for each in (topic, other)]
    for slot, used in ((topic.first_slot, 300), (topic.first_slot + 1, 200)):
        batches.open(slot, np.empty(512, np.uint8), 512, origin=ORIGIN, now=0.0)
        batches.slots["position"][slot] = used
    assert [300, 0] == [batches.largest_bytes(each) for each in (topic, other)]
    batches.take(topic.first_slot)
    assert [300, 0] == [batches.largest_bytes(each) for each in (topic, other)]


def test_the_slots_of_topics_are_contiguous():
    """`moves` counts moved slots, after which remembered slot numbers are invalid."""
    batches = OpenBatches()
    assert [(0, 0, 3, 3), (1, 3, 2, 2)] == [
        astuple(batches.topic(name, count)) for name, count in (("t", 3), ("u", 2))
    ]
    assert (5, 2, 5, 0) == (
        len(batches.slots),
        len(batches.sticky),
        len(batches.last_bytes),
        batches.moves,
    )
    assert (0, 5, 4, 4) == astuple(batches.topic("t", 4))
    assert (1, 3, 1, 2) == astuple(batches.topic("u", 1))
    assert (9, 2, 9, 1) == (
        len(batches.slots),
        len(batches.sticky),
        len(batches.last_bytes),
        batches.moves,
    )


@pytest.mark.parametrize("offset", range(3))
def test_the_sticky_partition_and_the_last_size_move_with_their_topic(offset):
    """A moved topic keeps its sticky partition, its last sizes and its open batches."""
    batches = OpenBatches()
    if offset:
        batches.topic("before", offset)
    topic = batches.topic("t", 3)
    first_slot = topic.first_slot
    batches.sticky["slot"][topic.index] = first_slot + 2
    batches.last_bytes[first_slot : first_slot + 3] = [7, 8, 9]
    batches.open(first_slot + 1, np.empty(512, np.uint8), 512, origin=ORIGIN, now=0.0)
    batches.slots["position"][first_slot + 1] = 300
    moved = batches.topic("t", 5)
    assert offset + 3 == moved.first_slot
    assert moved.first_slot + 2 == batches.sticky["slot"][moved.index]
    assert [7, 8, 9, 0, 0] == batches.last_bytes[moved.first_slot :].tolist()
    assert [moved.first_slot + 1] == batches.open_slots()
    assert 300 == batches.used_bytes(moved.first_slot + 1)
    assert ([moved.first_slot + 1], None) == batches.due(0.0, 0.0)
    assert 0 == batches.slots["position"][first_slot + 1]


def test_a_topic_without_a_sticky_partition_moves_without_one():
    """A topic without a sticky partition still has none after it has moved."""
    batches = OpenBatches()
    topic = batches.topic("t", 3)
    assert NO_SLOT == batches.sticky["slot"][topic.index]
    batches.topic("t", 5)
    assert NO_SLOT == batches.sticky["slot"][topic.index]
