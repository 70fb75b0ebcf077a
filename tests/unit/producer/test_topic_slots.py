"""Where a topic's slots are while its number of partitions changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.open_batches import NO_SLOT, OpenBatches
from spark_kafka_sink.producer.row_history import RowOrigin

COUNTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=12)


@given(COUNTS)
def test_a_topic_has_as_many_slots_as_it_has_partitions_now(changes):
    """Whatever it had before: more after it has grown, fewer after it was created anew."""
    batches = OpenBatches()
    for name, count in changes:
        topic = batches.topic(name, count)
        assert count == topic.partition_count
        places = [batches.topic_partition(topic.first_slot + p) for p in range(count)]
        assert [TopicPartition(name, p) for p in range(count)] == places


@given(COUNTS, st.data())
def test_open_batches_stay_those_of_their_partitions(changes, data):
    """Also those of partitions that are gone, which end by their time-outs."""
    batches = OpenBatches()
    opened = set()
    for name, count in changes:
        topic = batches.topic(name, count)
        slot = topic.first_slot + data.draw(st.integers(0, count - 1))
        if slot not in batches:
            batches.open(slot, np.empty(512, np.uint8), 512, origin=RowOrigin(0, None, 0), now=0.0)
        opened.add(batches.topic_partition(slot))
    assert opened == {batches.topic_partition(slot) for slot in batches.open_slots()}
    assert opened == {batches.result(slot).topic_partition for slot in batches.open_slots()}


def test_the_sticky_partition_is_chosen_anew_when_it_is_gone():
    """One that is still there stays: its batch has room."""
    batches = OpenBatches()
    topic = batches.topic("t", 6)
    batches.sticky["slot"][topic.index] = topic.first_slot + 3
    batches.topic("t", 4)
    assert topic.first_slot + 3 == batches.sticky["slot"][topic.index]
    batches.topic("t", 3)
    assert NO_SLOT == batches.sticky["slot"][topic.index]
