"""How open batches end: by the clock, by abort, by an interrupt, or for lack of memory."""

from __future__ import annotations

import numpy as np
import pytest

from spark_kafka_sink.errors import BufferExhaustedError, DeliveryError, RecordTooLargeError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.records.batch_builder import MemoryWait
from tests.support.producer.gatherer_harness import GathererHarness
from tests.support.record.record_columns import columns

LINGER = {"linger.ms": 5_000}
#: The default of delivery.timeout.ms, in seconds.
DELIVERY_TIMEOUT = 120.0
TINY_MEMORY = {"buffer.memory": 2_000, "max.request.size": 1_000, "batch.size": 600}
GIVEN_UP = DeliveryError("given up")


class _Watcher:
    """A watcher that records written and refused rows, and continues after a refusal or not."""

    def __init__(self, rows: int, *, skips: bool) -> None:
        self.row_indexes = np.zeros(rows, np.int32)
        self.written_rows: list[int] = []
        self.refused_rows: dict[int, Exception] = {}
        self._skips = skips

    def written(self, start: int, stop: int, row_slots: object) -> None:
        self.written_rows += range(start, stop)

    def refused(self, row: int, error: Exception) -> bool:
        self.refused_rows[row] = error
        return self._skips


def _append(harness: GathererHarness, values, *, partitions=None, watcher=None, **given) -> None:
    harness.builder.append(
        columns(values, partitions=partitions),
        partition_counts=[harness.partitions],
        now_ms=0,
        watcher=watcher,
        first_row=given.pop("first_row", 0),
        began_at=given.pop("began_at", None),
        wait=MemoryWait(**given),
    )


# --- by the clock


def test_each_batch_lingers_from_its_own_opening():
    """Each batch lingers from its own opening, and the time of the next one is returned."""
    harness = GathererHarness(partitions=2, **LINGER)
    _append(harness, [b"a"], partitions=[0])
    harness.now = 2.0
    _append(harness, [b"b"], partitions=[1])
    assert 5.0 == harness.builder.close_due(4.9)
    assert 7.0 == harness.builder.close_due(5.0)
    assert [b"a"] == harness.values()
    assert NEVER == harness.builder.close_due(7.0)
    assert [b"a", b"b"] == harness.values()


def test_an_overdue_batch_is_closed_as_soon_as_it_can_be_sent():
    """An overdue batch is closed by the first check at which it could be sent."""
    harness = GathererHarness(**LINGER)
    _append(harness, [b"a"])
    checks = []

    def not_yet(topic_partition: object) -> bool:
        checks.append(topic_partition)
        return len(checks) > 2

    harness.is_drainable = not_yet
    next_checks = [harness.builder.close_due(5.0 + n) for n in range(3)]
    assert [DELIVERY_TIMEOUT, DELIVERY_TIMEOUT, NEVER] == next_checks
    assert 3 == len(checks)
    assert [b"a"] == harness.values()


def test_a_batch_that_cannot_be_sent_is_checked_when_it_expires():
    """Whatever signal is missing, the oldest such batch is closed after delivery.timeout.ms."""
    harness = GathererHarness(partitions=2, **LINGER)
    harness.is_drainable = lambda topic_partition: False
    for harness.now in (1.0, 2.0):
        _append(harness, [b"%d" % harness.now], partitions=[int(harness.now) - 1])
    assert 1.0 + DELIVERY_TIMEOUT == harness.builder.close_due(60.0)
    assert [] == harness.values()
    assert 2.0 + DELIVERY_TIMEOUT == harness.builder.close_due(1.0 + DELIVERY_TIMEOUT)
    assert [b"1"] == harness.values()
    assert NEVER == harness.builder.close_due(2.0 + DELIVERY_TIMEOUT)
    assert [b"1", b"2"] == harness.values()


@pytest.mark.parametrize(("ready_at", "next_at"), [(6.5, 6.5), (8.0, 7.0), (NEVER, 7.0)])
def test_a_batch_whose_node_is_throttled_is_checked_when_the_throttle_ends(ready_at, next_at):
    """The next check is at the earlier of the throttle's end and the next batch's linger.ms."""
    harness = GathererHarness(partitions=2, **LINGER)
    _append(harness, [b"a"], partitions=[0])
    harness.now = 2.0
    _append(harness, [b"b"], partitions=[1])
    harness.sendable_at = lambda topic_partition, now: max(now, ready_at)
    assert next_at == harness.builder.close_due(5.0)
    assert [] == harness.values()


def test_the_delivery_timeout_of_a_batch_includes_lingering():
    """delivery.timeout.ms includes the lingering, as in Java, except in the bulk form."""
    for lingers, created_at in ((True, 1.0), (False, 3.0)):
        harness = GathererHarness(lingers=lingers, **LINGER)
        harness.now = 1.0
        _append(harness, [b"a"])
        harness.now = 3.0
        harness.builder.close_all()
        assert [created_at] == [batch.created_at for batch in harness.batches]


# --- aborted batches


def test_open_batches_can_be_aborted():
    """Aborted batches fail their results and free their memory; later rows open new batches."""
    harness = GathererHarness(partitions=2, **LINGER)
    watcher = _Watcher(2, skips=True)
    _append(harness, [b"a", b"b"], partitions=[0, 1], watcher=watcher)
    open_batches = harness.builder._open
    results = [open_batches[slot].result for slot in open_batches.open_slots()]
    harness.builder.abort_open(GIVEN_UP)
    assert [GIVEN_UP] * 2 == [result.error for result in results]
    assert harness.config.buffer_memory == harness.pool.available_bytes
    assert [] == open_batches.open_slots()
    _append(harness, [b"c"])
    harness.builder.close_all()
    assert [b"c"] == harness.values()


def test_an_interrupt_while_a_batch_is_closed_fails_its_result(monkeypatch):
    """An interrupt during a close fails the result, so no thread waits for it forever."""
    harness = GathererHarness(**{"compression.type": "lz4"})
    _append(harness, [b"a"])
    [slot] = harness.builder._open.open_slots()
    result = harness.builder._open[slot].result

    def interrupt(records: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(harness.compressor, "compress", interrupt)
    with pytest.raises(KeyboardInterrupt):
        harness.builder.close(slot)
    assert "KeyboardInterrupt" in str(result.error)


# --- refused rows


def test_a_watcher_can_skip_a_bad_row():
    """A row that can never be sent is reported by its index and skipped if the watcher agrees."""
    harness = GathererHarness(**TINY_MEMORY)
    watcher = _Watcher(4, skips=True)
    _append(harness, [b"a", bytes(1_500), b"b", bytes(1_500)], watcher=watcher)
    harness.builder.close_all()
    assert [b"a", b"b"] == harness.values()
    assert [0, 2] == watcher.written_rows
    assert [0, 1] == watcher.row_indexes[[0, 2]].tolist()
    assert [(1, RecordTooLargeError), (3, RecordTooLargeError)] == [
        (row, type(error)) for row, error in watcher.refused_rows.items()
    ]


def test_a_watcher_can_stop_at_a_bad_row():
    """If the watcher stops, the error is raised with the caller's number of the row."""
    harness = GathererHarness(**TINY_MEMORY)
    watcher = _Watcher(3, skips=False)
    with pytest.raises(RecordTooLargeError, match="row 101"):
        _append(harness, [b"a", bytes(1_500), b"b"], watcher=watcher, first_row=100)
    harness.builder.close_all()
    assert [b"a"] == harness.values()
    assert [1] == list(watcher.refused_rows)


# --- memory


def test_rows_that_get_no_memory_share_one_timeout():
    """Rows of a call that get no memory share one wait of max.block.ms."""
    harness = GathererHarness(**TINY_MEMORY, **{"max.block.ms": 1_000})
    waits = []

    def wait_for(size: int, timeout: float) -> bool:
        waits.append(timeout)
        harness.now += timeout
        return False

    harness.hold_memory()
    harness.pool.wait_for = wait_for
    watcher = _Watcher(3, skips=True)
    _append(harness, [b"a", b"b", b"c"], watcher=watcher)
    assert [1.0, 0.0, 0.0] == waits
    assert [BufferExhaustedError] * 3 == [type(e) for e in watcher.refused_rows.values()]


def test_each_call_has_its_own_timeout():
    """Time that an earlier call spent waiting does not count against the next call."""
    harness = GathererHarness(**TINY_MEMORY, **{"max.block.ms": 1_000})
    waits = []

    def wait_for(size: int, timeout: float) -> bool:
        waits.append(timeout)
        harness.now += timeout
        return False

    harness.hold_memory()
    harness.pool.wait_for = wait_for
    for _ in range(2):
        with pytest.raises(BufferExhaustedError, match=r"1 s \(max\.block\.ms\) for row 0, t-0"):
            _append(harness, [b"a"])
    assert [1.0, 1.0] == waits


def test_an_append_without_waiting_fails_if_no_memory_is_free():
    """An append from the network thread, which alone frees memory, fails without waiting."""
    harness = GathererHarness(**TINY_MEMORY, **{"max.block.ms": 60_000})
    held = harness.hold_memory()
    with pytest.raises(BufferExhaustedError):
        _append(harness, [b"a"], may_wait=False)
    harness.pool.release(held)
    _append(harness, [b"a"], may_wait=False)
    harness.builder.close_all()
    assert [b"a"] == harness.values()


def _time_out(harness: GathererHarness) -> list[float]:
    """Exhaust the memory, make each wait for it advance the clock, and return when waits began."""
    waits = []

    def wait_for(size: int, timeout: float) -> bool:
        assert size > harness.pool.available_bytes
        waits.append(harness.now)
        harness.now += timeout
        return False

    harness.pool.wait_for = wait_for
    harness.hold_memory()
    return waits


def _lingering(**settings: object) -> GathererHarness:
    """Build two batches due after 5 and 7 seconds, with 60 seconds to wait for memory."""
    harness = GathererHarness(partitions=3, **LINGER, **{"max.block.ms": 60_000, **settings})
    _append(harness, [b"a"], partitions=[0])
    harness.now = 2.0
    _append(harness, [b"b"], partitions=[1])
    return harness


def test_a_thread_that_waits_for_memory_closes_due_batches():
    """The waiting thread closes lingering batches on time, because no other thread can."""
    harness = _lingering()
    closed_at = []
    harness.enqueue = lambda batch: closed_at.append((batch.topic_partition.partition, harness.now))
    waits = _time_out(harness)
    with pytest.raises(BufferExhaustedError):
        _append(harness, [b"c"], partitions=[2])
    assert [(0, 5.0), (1, 7.0)] == closed_at
    assert ([2.0, 5.0, 7.0], 62.0) == (waits, harness.now)


def test_a_due_batch_stays_open_while_others_are_queued_before_it():
    """A memory shortage does not close small batches early when the broker cannot keep up."""
    harness = _lingering()
    harness.is_queue_empty = lambda place: place.partition == 1
    _time_out(harness)
    with pytest.raises(BufferExhaustedError):
        _append(harness, [b"c"], partitions=[2])
    assert [b"b"] == harness.values()


def test_a_batch_left_open_is_closed_once_its_queue_is_empty():
    """The waiting thread checks again every linger.ms, because nothing signals an empty queue."""
    harness = _lingering()
    closed_at = []
    harness.enqueue = lambda batch: closed_at.append((batch.topic_partition.partition, harness.now))
    harness.is_queue_empty = lambda place: place.partition == 1 or harness.now >= 8.0
    _time_out(harness)
    with pytest.raises(BufferExhaustedError):
        _append(harness, [b"c"], partitions=[2])
    assert [(1, 7.0), (0, 12.0)] == closed_at


def test_a_batch_left_open_by_a_failed_wait_is_checked_afterwards():
    """After a failed wait the network thread is given the age of the oldest batch left open."""
    harness = _lingering(**{"max.block.ms": 1_000})
    _time_out(harness)
    with pytest.raises(BufferExhaustedError):
        _append(harness, [b"c"], partitions=[2])
    assert ([], 0.0) == (harness.values(), harness.builder.first_opened_at)


def test_the_fullest_batch_is_closed_if_waiting_cannot_free_memory():
    """If waiting cannot free memory, the fullest open batch is closed instead."""
    harness = GathererHarness(partitions=3, **TINY_MEMORY, **{"max.block.ms": 0})
    _append(harness, [bytes(300), bytes(100)], partitions=[0, 1])
    harness.enqueue = lambda batch: (
        harness.batches.append(batch),
        harness.pool.deallocate(batch.block),
    )
    _append(harness, [bytes(900)], partitions=[2])
    assert [300] == [batch.uncompressed_bytes // 100 * 100 for batch in harness.batches]
