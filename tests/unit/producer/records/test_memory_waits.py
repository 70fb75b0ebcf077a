"""How long a row waits for memory, what is closed to make room, and which metrics count it."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import BufferExhaustedError
from spark_kafka_sink.producer.records.batch_builder import MemoryWait
from tests.support.producer.gatherer_harness import GathererHarness
from tests.support.record.record_columns import columns

MAX_BLOCK = {"max.block.ms": 10_000}
SMALL = {"buffer.memory": 2_048, "max.request.size": 1_024, "batch.size": 512}
GIVE_UP_AT = 104.0


class _Waits:
    """A listener that counts waits as the metrics do, and a pool that ends waits as scripted.

    An answer is how many seconds the wait takes until memory is freed, or None for a wait that
    times out.
    """

    def __init__(self, *answers: float | None) -> None:
        self._answers = list(answers)
        self.harness: GathererHarness
        #: The bytes and the timeout of each wait.
        self.calls: list[tuple[int, float]] = []
        self.waited: list[tuple[float, float]] = []
        self.exhausted: list[float] = []

    def wait_for(self, size: int, timeout: float) -> bool:
        self.calls.append((size, timeout))
        answer = self._answers.pop(0)
        self.harness.now += timeout if answer is None else answer
        if answer is not None:
            self.harness.pool.release(size)
        return answer is not None

    def on_buffer_wait(self, seconds: float, now: float) -> None:
        self.waited.append((seconds, now))

    def on_buffer_exhausted(self, now: float) -> None:
        self.exhausted.append(now)


def _short(*answers: float | None, **settings: object) -> tuple[GathererHarness, _Waits]:
    """Build a harness at 100 seconds with no free memory and a max.block.ms of 10 seconds."""
    waits = _Waits(*answers)
    harness = GathererHarness(
        partitions=4, listener=waits, **{**SMALL, **MAX_BLOCK, "linger.ms": 60_000, **settings}
    )
    waits.harness = harness
    harness.now = 100.0
    harness.hold_memory()
    harness.pool.wait_for = waits.wait_for
    return harness, waits


def _append(harness: GathererHarness, *partitions: int, **given: object) -> None:
    harness.builder.append(
        columns([b"v"] * len(partitions), partitions=list(partitions)),
        partition_counts=[harness.partitions],
        now_ms=0,
        first_row=given.pop("first_row", 0),
        began_at=given.pop("began_at", None),
        wait=MemoryWait(**given),
    )


# --- metrics


def test_a_successful_wait_is_not_counted_as_exhausted():
    """The wait counts in bufferpool-wait-time but not as buffer-exhausted."""
    harness, waits = _short(3.0)
    _append(harness, 0)
    assert [(512, 10.0)] == waits.calls
    assert ([(3.0, 103.0)], []) == (waits.waited, waits.exhausted)


def test_a_wait_that_times_out_is_counted_as_a_wait_and_as_exhausted():
    """A wait that times out counts as a wait and as buffer-exhausted."""
    harness, waits = _short(None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0)
    assert ([(10.0, 110.0)], [110.0]) == (waits.waited, waits.exhausted)


@pytest.mark.parametrize(
    "given", [{"may_wait": False}, {"unless": lambda: True}], ids=["may not", "need not"]
)
def test_a_call_that_does_not_wait_is_not_counted(given):
    """The network thread does not wait, nor does a thread whose condition is already true."""
    harness, waits = _short(None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0, **given)
    assert [(512, 0.0)] == waits.calls
    assert ([], []) == (waits.waited, waits.exhausted)


def test_an_interrupted_wait_is_counted_as_a_wait():
    """The wait is counted, but the interrupt is not counted as a lack of memory."""
    harness, waits = _short()

    def interrupt(size: int, timeout: float) -> bool:
        harness.now += 2.0
        raise KeyboardInterrupt

    harness.pool.wait_for = interrupt
    with pytest.raises(KeyboardInterrupt):
        _append(harness, 0)
    assert ([(2.0, 102.0)], []) == (waits.waited, waits.exhausted)


# --- how long a row waits


def test_a_row_that_gets_memory_restarts_the_timeout_for_the_next():
    """A row that gets memory leaves the full max.block.ms to the next one."""
    harness, waits = _short(9.0, 9.0, 0.0)
    _append(harness, 0, 1, 2)
    assert [(512, 10.0)] * 3 == waits.calls


def test_a_wait_ends_at_the_callers_deadline():
    """A wait ends at the caller's deadline, as part of max.block.ms may have passed already."""
    harness, waits = _short(None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0, give_up_at=GIVE_UP_AT)
    assert [(512, 4.0)] == waits.calls


def test_max_block_ms_limits_a_longer_deadline():
    """No row waits longer than max.block.ms."""
    harness, waits = _short(None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0, give_up_at=200.0)
    assert [(512, 10.0)] == waits.calls


def test_a_row_does_not_wait_after_its_deadline():
    """After its deadline a row gets memory only if some is free."""
    harness, waits = _short(None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0, give_up_at=90.0)
    assert [(512, 0.0)] == waits.calls


@pytest.mark.parametrize(("renews", "second"), [(False, 1.0), (True, 10.0)])
def test_a_renewing_deadline_restarts_after_a_wait(renews, second):
    """With `renews` the deadline restarts after a wait, as freed memory shows progress."""
    harness, waits = _short(3.0, None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0, 1, give_up_at=GIVE_UP_AT, renews=renews)
    assert [(512, 4.0), (512, second)] == waits.calls


def test_a_deadline_does_not_restart_by_default():
    """Without `renews` the rows of a call share the given deadline."""
    harness, waits = _short(3.0, None)
    with pytest.raises(BufferExhaustedError):
        _append(harness, 0, 1, give_up_at=GIVE_UP_AT)
    assert [(512, 4.0), (512, 1.0)] == waits.calls


def test_a_wait_ends_as_soon_as_memory_is_free():
    """A wait returns as soon as memory is free, although it is split to check lingering batches."""
    harness, waits = _short(2.0, **{"linger.ms": 4_000})
    _append(harness, 0)
    assert [(512, 10.0)] == waits.calls
    harness, waits = _short(None, 1.0, **{"linger.ms": 4_000})
    harness.pool.release(512)
    _append(harness, 0)
    harness.is_queue_empty = lambda _: False
    _append(harness, 1)
    assert [(512, 4.0), (512, 4.0)] == waits.calls


@pytest.mark.parametrize(("linger_ms", "pause"), [(0, 0.05), (50, 0.05), (51, 0.051)])
def test_a_batch_left_open_is_checked_again_after_a_pause(linger_ms, pause):
    """With a short linger.ms the thread still pauses between checks."""
    harness, waits = _short(0.0, **{"linger.ms": linger_ms})
    harness.pool.release(512)
    _append(harness, 0)
    harness.is_queue_empty = lambda _: False
    harness.now = 101.0
    _append(harness, 1)
    assert [(512, pytest.approx(pause))] == waits.calls


def test_the_age_of_the_oldest_batch_left_open_is_kept():
    """The builder keeps the age of the oldest open batch for the network thread's next check."""
    harness, _ = _short(None, **{"linger.ms": 0})
    harness.pool.release(1_024)
    _append(harness, 0)
    harness.now = 101.0
    _append(harness, 1)
    harness.is_queue_empty = lambda _: False
    with pytest.raises(BufferExhaustedError):
        _append(harness, 2, give_up_at=101.0)
    assert 100.0 == harness.builder.first_opened_at


# --- batches closed to free memory


@pytest.mark.parametrize(("memory", "closed"), [(1_536, []), (1_535, [b"v"])])
def test_a_batch_is_closed_if_other_memory_does_not_suffice(memory, closed):
    """Memory in open batches is freed only by closing one, while other memory is freed anyway."""
    waits = _Waits(0.0)
    waits.harness = harness = GathererHarness(
        partitions=2, **{**SMALL, "buffer.memory": memory, "linger.ms": 60_000}
    )
    _append(harness, 0)
    harness.hold_memory()
    harness.pool.wait_for = waits.wait_for
    harness.builder.append(
        columns([bytes(900)], partitions=[1]), partition_counts=[2], first_row=0, now_ms=0
    )
    assert [1_024] == [size for size, _ in waits.calls]
    assert closed == harness.values()
