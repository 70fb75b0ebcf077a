"""Open batches by slot and by age, through every change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.producer_batch import RowOrigin
from spark_kafka_sink.producer.records import open_batches
from spark_kafka_sink.producer.records.open_batches import MAX_STALE, NO_SLOT, OpenBatches
from tests.support.producer.gatherer_harness import GathererHarness
from tests.support.record.record_columns import columns

LINGER = 5.0
#: The default of delivery.timeout.ms, in seconds.
DELIVERY_TIMEOUT = 120.0
ORIGIN = RowOrigin(0, None, 0)
AGES = st.sampled_from([0.0, 0.1, 0.30000000000000004, 1.0, 2.5])


def _open(batches: OpenBatches, slot: int, opened_at: float) -> None:
    batches.open(slot, np.empty(512, np.uint8), 512, origin=ORIGIN, now=opened_at)


class _OpenBatchesByAge(RuleBasedStateMachine):
    """A state machine that compares the due batches with a plain list of all open ones."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = OpenBatches()
        self.partition_count = 2
        self.opened_at: dict[TopicPartition, float] = {}

    def _slot(self, partition: int) -> int:
        return self.batches.topic("t", self.partition_count).first_slot + partition

    @rule(partition=st.integers(0, 1), opened_at=AGES)
    def open(self, partition: int, opened_at: float) -> None:
        slot = self._slot(partition)
        if slot not in self.batches:
            _open(self.batches, slot, opened_at)
            self.opened_at[TopicPartition("t", partition)] = opened_at

    @precondition(lambda self: self.opened_at)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.opened_at)))
        assert place == self.batches.take(self._slot(place.partition)).topic_partition
        del self.opened_at[place]

    @rule()
    def grow_topic(self) -> None:
        self.partition_count += 1
        self._slot(0)

    @invariant()
    def due_batches_are_found(self) -> None:
        for now in (LINGER, LINGER + 0.1, LINGER + 0.3, LINGER + 2.5):
            due = {place for place, at in self.opened_at.items() if at + LINGER <= now}
            later = [at for place, at in self.opened_at.items() if place not in due]
            slots, next_opened_at = self.batches.due(now, LINGER)
            ages = [self.batches[slot].opened_at for slot in slots]
            assert due == {self.batches.topic_partition(slot) for slot in slots}
            assert sorted(ages) == ages
            assert min(later, default=None) == next_opened_at


TestOpenBatchesByAge = _OpenBatchesByAge.TestCase


@given(st.permutations(range(6)))
def test_the_oldest_batch_is_due_first(order):
    """Due batches are sorted by age, whatever the order of opening."""
    batches = OpenBatches()
    first_slot = batches.topic("t", 6).first_slot
    for age in order:
        _open(batches, first_slot + age, float(age))
    assert ([first_slot, first_slot + 1, first_slot + 2], 3.0) == batches.due(2.0 + LINGER, LINGER)


def test_closed_batches_are_forgotten():
    """The memory used is bounded even if every batch is closed because it is full."""
    batches = OpenBatches()
    slot = batches.topic("t", 2).first_slot
    _open(batches, slot, 0.0)
    for number in range(10 * MAX_STALE):
        _open(batches, slot + 1, 1.0 + number)
        batches.take(slot + 1)
    assert len(batches._by_age) <= MAX_STALE + 4
    assert ([slot], None) == batches.due(LINGER, LINGER)
    assert NO_SLOT not in batches.open_slots()


def test_closed_batches_are_forgotten_many_at_a_time(monkeypatch):
    """Stale entries are dropped many at a time, because scanning all open batches takes long."""
    lengths = []
    monkeypatch.setattr(open_batches, "heapify", lambda heap: lengths.append(len(heap)))
    batches = OpenBatches()
    slot = batches.topic("t", 2).first_slot
    _open(batches, slot, 0.0)
    for number in range(3 * (MAX_STALE + 2)):
        _open(batches, slot + 1, 1.0 + number)
        batches.take(slot + 1)
    assert [1, 1] == lengths


def test_closed_batches_are_dropped_once_they_are_the_majority(monkeypatch):
    """Stale entries are dropped once all entries exceed 64 plus two per open batch."""
    opened = []
    monkeypatch.setattr(open_batches, "heapify", lambda heap: dropped_at.append(len(opened)))
    for kept, expected in ((1, [69, 137]), (3, [73, 143])):
        dropped_at: list[int] = []
        opened.clear()
        batches = OpenBatches()
        slot = batches.topic("t", kept + 1).first_slot
        for number in range(150):
            _open(batches, slot + min(number, kept), float(number))
            opened.append(number)
            if number >= kept:
                batches.take(slot + kept)
        assert expected == dropped_at


def test_a_slot_is_reset_when_its_batch_is_taken():
    """A slot has room and no record when its batch opens, and is zero again after `take`."""
    batches = OpenBatches()
    slot = batches.topic("t", 2).first_slot + 1
    block = np.empty(512, np.uint8)
    before = batches.slots[slot].tolist()
    assert {0} == set(before)
    batches.open(slot, block, 500, origin=ORIGIN, now=0.0)
    names = ["address", "position", "limit", "record_count", "max_record_bytes"]
    assert (block.ctypes.data, 61, 500, 0, 0) == batches.slots[names][slot].tolist()
    assert 0 == batches.take(slot).record_count
    assert before == batches.slots[slot].tolist()


def test_the_fullest_batch_is_found():
    """A slot without an open batch counts as empty."""
    batches = OpenBatches()
    slot = batches.topic("t", 3).first_slot
    for number in range(3):
        _open(batches, slot + number, 0.0)
    for number, used in ((0, 100), (1, 300), (2, 200)):
        batches.slots["position"][slot + number] = used
    assert slot + 1 == batches.fullest()
    batches.take(slot + 1)
    assert slot + 2 == batches.fullest()
    assert 300 == batches.last_bytes[slot + 1]


# --- through the builder


def _append(harness: GathererHarness, topic: str, partition: int, **given: float) -> None:
    harness.builder.append(
        columns([b"v"], topics=[topic], partitions=[partition]),
        partition_counts=[harness.partitions],
        first_row=0,
        now_ms=0,
        **given,
    )


@pytest.fixture
def harness():
    return GathererHarness(partitions=2, **{"linger.ms": int(LINGER * 1000)})


def test_a_batch_opened_after_a_younger_one_is_due_first(harness):
    """A batch opened after a younger one is still due first."""
    harness.now = 4.0
    _append(harness, "t", 0)
    _append(harness, "t", 1, began_at=1.0)
    assert 1.0 + LINGER == harness.builder.close_due(5.5)
    assert 4.0 + LINGER == harness.builder.close_due(6.0)
    assert [TopicPartition("t", 1)] == [batch.topic_partition for batch in harness.batches]


def test_a_batch_whose_topic_has_grown_is_due_on_time(harness):
    """A batch whose slot has moved behind those of younger batches is still due first."""
    _append(harness, "grows", 0)
    harness.now = 4.0
    _append(harness, "t", 0)
    harness.partitions = 3
    _append(harness, "grows", 2)
    assert 4.0 + LINGER == harness.builder.close_due(LINGER)
    assert [TopicPartition("grows", 0)] == [batch.topic_partition for batch in harness.batches]


def test_a_batch_that_cannot_be_sent_does_not_delay_the_next(harness):
    """A due batch that cannot be sent stays open, and is checked last, when it expires."""
    _append(harness, "t", 0)
    harness.now = 1.0
    _append(harness, "t", 1)
    blocked = TopicPartition("t", 0)
    harness.is_drainable = lambda place: place != blocked
    assert 1.0 + LINGER == harness.builder.close_due(LINGER)
    assert DELIVERY_TIMEOUT == harness.builder.close_due(1.0 + LINGER)
    assert [TopicPartition("t", 1)] == [batch.topic_partition for batch in harness.batches]


@pytest.mark.parametrize("has_record", [False, True])
def test_aborting_open_batches_returns_whether_a_record_is_lost(harness, has_record):
    """Aborting returns whether any open batch had a record, since an empty one loses nothing."""
    if has_record:
        _append(harness, "t", 0)
    slots, pool = harness.builder._open, harness.pool
    slot = slots.topic("t", 2).first_slot + 1
    slots.open(slot, pool.try_allocate(512), 512, origin=ORIGIN, now=0.0)
    assert has_record == harness.builder.abort_open(KafkaError("ended"))
    assert (0, pool.total_bytes) == (len(slots), pool.available_bytes)


def test_an_empty_batch_is_dropped(harness):
    """A batch interrupted before its first record is dropped, because brokers reject empty ones."""
    slots, pool = harness.builder._open, harness.pool
    slot = slots.topic("t", 2).first_slot
    slots.open(slot, pool.try_allocate(512), 512, origin=ORIGIN, now=0.0)
    harness.builder.close_all()
    assert ([], 0, pool.total_bytes) == (harness.batches, len(slots), pool.available_bytes)
