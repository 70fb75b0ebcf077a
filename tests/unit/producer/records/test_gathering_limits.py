"""When a chunk is full, which records stay staged without memory, and who is woken for them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import BufferExhaustedError, DeliveryError
from spark_kafka_sink.network.exponential_backoff import NEVER
from tests.support.producer.gatherer_harness import GathererHarness
from tests.support.record.record_columns import columns

SETTINGS = {
    "linger.ms": 5_000,
    "max.block.ms": 60_000,
    "buffer.memory": 2_048,
    "max.request.size": 1_024,
}


def _without_memory() -> tuple[GathererHarness, list[float]]:
    """Build a harness at 100 seconds whose memory is never freed, and the list of its waits."""
    harness = GathererHarness(**SETTINGS)
    harness.now = 100.0
    waits: list[float] = []

    def wait_for(size: int, timeout: float) -> bool:
        del size
        waits.append(timeout)
        harness.now += timeout
        return False

    harness.hold_memory()
    harness.pool.wait_for = wait_for
    return harness, waits


@pytest.mark.parametrize(
    ("records", "heavy_bytes", "is_full"),
    [
        (2_047, 0, False),
        (2_048, 0, True),
        (2_049, 0, True),
        (1, 1_048_576, False),
        (1, 1_048_577, True),
    ],
)
def test_a_chunk_is_limited_by_records_and_by_bytes(records, heavy_bytes, is_full):
    """A chunk is full at 2,048 records, or if its large records exceed 1 MiB together."""
    harness = GathererHarness(**SETTINGS)
    for _ in range(records):
        harness.stage(b"v")
    harness.gatherer.staged.weigh(heavy_bytes)
    assert is_full == harness.gatherer.is_full


@pytest.mark.parametrize(
    ("give_up_at", "wait", "fails"),
    [(None, 60.0, True), (161.0, 60.0, True), (160.0, 60.0, True), (159.5, 59.5, False)],
)
def test_a_record_fails_after_waiting_for_memory_for_max_block_ms(give_up_at, wait, fails):
    """A record whose writer gives up before max.block.ms stays staged for one that can wait."""
    harness, waits = _without_memory()
    future = harness.stage(b"v")
    harness.gatherer.write_staged(give_up_at)
    assert [wait] == waits
    assert fails == isinstance(future.error, BufferExhaustedError)
    assert [1] * fails == [records for _, records in harness.refused]
    assert (1 - fails) == len(harness.gatherer.staged)


def test_the_network_thread_fails_no_record_for_lack_of_memory():
    """The network thread never waits, so the records stay staged for a thread that does."""
    harness, waits = _without_memory()
    futures = [harness.stage(b"v") for _ in range(3)]
    harness.now = 105.0
    assert 110.0 == harness.gather()
    assert [0.0] == waits
    assert [None] * 3 == [future.error for future in futures]
    assert (3, []) == (len(harness.gatherer.staged), harness.refused)


def test_only_the_record_that_filled_a_chunk_fails_for_lack_of_memory():
    """Only the sender of that record has waited for long enough, so the others stay staged."""
    harness, waits = _without_memory()
    first, last = harness.stage(b"a"), harness.stage(b"b")
    harness.gatherer.write_for(last, 104.0)
    assert [4.0] == waits
    assert (None, True) == (first.error, isinstance(last.error, BufferExhaustedError))
    assert [(last.error, 1)] == harness.refused
    assert 1 == len(harness.gatherer.staged)


def test_a_written_record_does_not_fail_for_lack_of_memory():
    """A record that is already written is not affected by the shortage of those behind it."""
    harness, _ = _without_memory()
    first, last = harness.stage(b"a"), harness.stage(b"b")
    harness.gatherer.staged.withdraw(first, DeliveryError("gone"))
    harness.gatherer.write_for(first, 104.0)
    assert (None, []) == (last.error, harness.refused)


def test_records_behind_a_rejected_one_stay_staged():
    """A refused record fails and is counted, and the records behind it stay staged."""
    harness, _ = _without_memory()
    futures = [harness.stage(value) for value in (bytes(1_500), bytes(1_500), b"a", b"b")]
    harness.gatherer.write_staged(104.0)
    assert [True, True, False, False] == [future.error is not None for future in futures]
    assert [(futures[0].error, 1), (futures[1].error, 1)] == harness.refused
    assert futures[2:] == list(harness.gatherer.staged.take(0, 10).futures)


def test_a_record_in_a_batch_is_not_staged_again():
    """Records that are in a batch are not staged again with the rest of their chunk."""
    harness, _ = _without_memory()
    harness.pool.release(1_024)
    futures = [harness.stage(bytes(400)) for _ in range(4)]
    harness.gatherer.write_staged(104.0)
    assert [True, True, False, False] == [future.chunk is not None for future in futures]
    assert futures[2:] == list(harness.gatherer.staged.take(0, 10).futures)


# --- wake-ups


@pytest.mark.parametrize(
    ("lingers", "wakeups", "next_check_at"), [(False, 0, NEVER), (True, 2, 5.0)]
)
def test_only_a_lingering_producer_schedules_checks_on_the_network_thread(
    lingers, wakeups, next_check_at
):
    """In the bulk form the network thread neither checks batches nor is woken for them."""
    harness = GathererHarness(lingers=lingers, **SETTINGS)
    harness.gatherer.write_columns(columns([b"v"]), [1], 0)
    harness.stage(b"v")
    assert wakeups == harness.wakeups
    assert next_check_at == harness.gather()
    assert wakeups == harness.wakeups


def test_a_check_by_the_network_thread_does_not_wake_it():
    """A check by the network thread does not wake it, because it knows when to check again."""
    harness = GathererHarness(**SETTINGS)
    for now in (0.0, 1.0, 5.0):
        harness.now = now
        harness.stage(b"v")
        wakeups = harness.wakeups
        harness.gather()
        assert wakeups == harness.wakeups


@pytest.mark.parametrize(("age", "wakes"), [(0.0, 0), (-0.5, 1), (0.5, 0)])
def test_the_network_thread_is_woken_for_a_batch_due_before_its_next_check(age, wakes):
    """The network thread is woken for a batch only if that is due before its next check."""
    harness = GathererHarness(**SETTINGS, partitions=2)
    harness.now = 100.0
    harness.gatherer.write_columns(columns([b"v"], partitions=[0]), [2], 0)
    assert 105.0 == harness.gather()
    wakeups = harness.wakeups
    harness.now += age
    harness.gatherer.write_columns(columns([b"v"], partitions=[1]), [2], 0)
    assert wakeups + wakes == harness.wakeups
