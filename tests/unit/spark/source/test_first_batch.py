from __future__ import annotations

import pytest

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.first_batch import (
    TRANSITIONS,
    FirstBatch,
    Phase,
    Start,
)
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LATEST = Start(StreamOffsets({A: 5, B: 7}), frozenset({A, B}))
EARLIEST = Start(StreamOffsets({A: 0, B: 0}))


def latest_offset(first, start, latest):
    """Return what `latestOffset` does with the rule: the latest offsets, but for pinned ones."""
    pinned = first.pinned(start)
    first.plan(latest)
    return {**latest, **(pinned or {})}


def test_a_start_at_latest_is_pinned():
    """The first batch of a new query ends where it starts; the second reads from there."""
    first = FirstBatch()
    start = first.begin(LATEST)
    assert start == latest_offset(first, start, {A: 9, B: 9})
    assert first.divide(start)
    assert {A: 9, B: 9} == latest_offset(first, start, {A: 9, B: 9})
    assert Phase.OVER is first.phase


@pytest.mark.parametrize("start", [EARLIEST, Start({A: 3, B: 7})])
def test_other_starts_are_read_at_once(start):
    """A start at earliest, given or matched offsets is not pinned: Trigger.Once reads its rows."""
    first = FirstBatch()
    offsets = first.begin(start)
    assert {A: 9, B: 9} == latest_offset(first, offsets, {A: 9, B: 9})


def test_only_partitions_that_start_at_latest_are_pinned():
    """Partitions with given offsets are read in the first batch, the others are not."""
    first = FirstBatch()
    offsets = first.begin(Start({A: 3, B: 7}, frozenset({B})))
    assert {A: 9, B: 7} == latest_offset(first, offsets, {A: 9, B: 9})


def test_a_start_without_partitions_is_pinned():
    """If there is no partition at first, a new one waits until the start is in the checkpoint."""
    first = FirstBatch()
    assert {} == first.pinned(first.begin(Start({})))
    assert FirstBatch().pinned({}) is None


def test_a_continued_query_skips_nothing():
    """A query that continues from its checkpoint reads in its first trigger."""
    first = FirstBatch()
    assert {A: 9, B: 9} == latest_offset(first, {A: 5, B: 7}, {A: 9, B: 9})
    assert not first.divide({A: 5, B: 7})


def test_a_replayed_first_batch_has_a_newer_start():
    """A replayed batch has no rows if its start is newer than its end, and the next goes on."""
    first = FirstBatch()
    start = first.begin(Start({A: 50, B: 70}, frozenset({A, B})))
    assert first.divide(start)
    assert {A: 99, B: 99} == latest_offset(first, {A: 5, B: 7}, {A: 99, B: 99})
    assert not first.divide({A: 5, B: 7})


def test_a_replayed_first_batch_is_not_pinned_again():
    """If nothing was written meanwhile, the batch after a replay reads as usual."""
    first = FirstBatch()
    start = first.begin(LATEST)
    assert first.divide(start)
    assert {A: 9, B: 9} == latest_offset(first, start, {A: 9, B: 9})
    assert Phase.OVER is first.phase


@pytest.mark.parametrize(("is_planned", "phase"), [(True, Phase.PLANNED), (False, Phase.REPLAYED)])
def test_a_replayed_first_batch_is_told_apart_from_a_new_one(is_planned, phase):
    """A first batch whose end this process has not planned is a replay of an earlier one."""
    first = FirstBatch()
    start = first.begin(EARLIEST)
    if is_planned:
        first.plan(StreamOffsets({A: 9, B: 9}))
    assert EARLIEST == first.divide(start)
    assert phase is first.phase


def test_only_the_first_batch_has_a_start_of_its_own():
    """The second batch starts at an offset of the checkpoint, even if it is the same one."""
    first = FirstBatch()
    start = first.begin(LATEST)
    latest_offset(first, start, {A: 9, B: 9})
    assert first.divide(start)
    latest_offset(first, start, {A: 9, B: 9})
    assert not first.divide(start)


def test_where_the_end_is_asked_for_first_the_start_is_taken_from_it():
    """In PySpark 4.1 the first end is the start of partitions that start at latest."""
    first = FirstBatch()
    first.plan(StreamOffsets({A: 5, B: 7}))
    expected = {A: 3, B: 7}
    assert expected == first.begin(Start(StreamOffsets({A: 3, B: 99}), frozenset({B})))
    assert first.divide(expected)
    first.plan(StreamOffsets({A: 9, B: 9}))
    assert not first.divide(expected)


def test_an_empty_range_before_a_replay_changes_nothing():
    """PySpark 4.1 begins a restart with an empty range, also if it replays the first batch."""
    first = FirstBatch()
    assert not first.divide({A: 5, B: 7})
    start = first.begin(Start({A: 50, B: 70}, frozenset({A, B})))
    assert first.divide(start)


def test_a_start_is_determined_once():
    """When Spark asks for the start again, the first answer counts."""
    first = FirstBatch()
    first.begin(LATEST)
    assert LATEST.offsets == first.begin(Start({A: 99, B: 99}, LATEST.from_latest))


def test_a_new_partition_keeps_its_own_latest_offset():
    """A partition that the first end lacks starts at its own latest offset."""
    first = FirstBatch()
    first.plan(StreamOffsets({A: 5}))
    assert {A: 5, B: 7} == first.begin(LATEST)


def test_the_phases_only_move_on():
    """No call leads back to an earlier phase, and a phase is left by each of its calls once."""
    order = list(Phase)
    for (phase, call), following in TRANSITIONS.items():
        assert order.index(phase) < order.index(following), (phase, call)
    assert not any(phase is Phase.OVER for phase, _ in TRANSITIONS)
