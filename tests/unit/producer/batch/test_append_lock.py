"""The lock of the open batches: which threads wait for it, and which never do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.interrupts import AppendLock
from tests.support.producer.gatherer_harness import GathererHarness
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable


class _HeldElsewhere:
    """A stand-in for the inner `threading.RLock` that records the timeout of each attempt."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def acquire(self, *, timeout: float) -> bool:
        self.waits.append(timeout)
        return False

    def _is_owned(self) -> bool:
        return False


@pytest.mark.parametrize(
    "use",
    [
        lambda gatherer: gatherer.gather(5.0),
        lambda gatherer: gatherer.write_without_waiting(),
    ],
    ids=["gather", "write_without_waiting"],
)
def test_the_network_thread_does_not_wait_for_a_held_lock(
    use: Callable[[object], float | None],
):
    """The network thread tries the lock once, because waiting would stall every connection."""
    harness = GathererHarness(**{"linger.ms": 5_000})
    future = harness.stage(b"v")
    held = harness.gatherer._lock._lock = _HeldElsewhere()
    assert use(harness.gatherer) in {None, NEVER}
    assert [0] == held.waits
    assert future.chunk is None


def test_a_thread_that_can_be_woken_by_progress_does_not_block_in_the_lock():
    """A thread blocked in the lock would not notice that its condition has become true."""
    lock = AppendLock(lambda: None)
    held = lock._lock = _HeldElsewhere()
    lock.is_held = True
    assert not lock.acquire_unless(lambda: False, timeout=0)
    assert [0, 0] == held.waits


def test_acquire_waits_for_a_held_lock_indefinitely():
    """A plain `acquire`, like the context manager, waits until the holder releases the lock."""
    lock = AppendLock(lambda: None)
    held = lock._lock = _HeldElsewhere()
    lock.acquire()
    assert [-1] == held.waits


def test_a_thread_cannot_acquire_the_lock_twice():
    """A thread that holds the lock is refused at once, however long it would wait."""
    lock = AppendLock(lambda: None)
    assert lock.acquire()
    assert not lock.acquire(60)
    lock.release()
    assert (False, False) == (lock.is_held, lock.is_held_here)


# --- how long a caller waits for the lock


class _NeverFree:
    """A harness whose lock is never released, and whose clock advances with every wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = GathererHarness(**{"linger.ms": 5_000, "max.block.ms": 60_000})
        self.harness.now = 100.0
        self.waits: list[float] = []
        #: The longest that a single wait takes before the thread is woken.
        self.cut_short = NEVER
        monkeypatch.setattr(AppendLock, "acquire", lambda _, timeout=-1: self._wait(timeout))
        monkeypatch.setattr(
            AppendLock, "acquire_unless", lambda _, condition, timeout: self._wait(timeout)
        )

    def _wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        self.harness.now += min(timeout, self.cut_short)
        return False


@pytest.fixture
def never_free(monkeypatch) -> _NeverFree:
    return _NeverFree(monkeypatch)


@pytest.mark.parametrize(
    ("give_up_at", "wait"), [(None, 61.0), (1_000.0, 61.0), (104.0, 4.0), (100.0, 0), (90.0, 0)]
)
def test_writing_staged_records_waits_for_the_lock_for_max_block_ms(never_free, give_up_at, wait):
    """The wait is at most max.block.ms plus the second that waiting for memory may take."""
    with pytest.raises(KafkaTimeoutError):
        never_free.harness.gatherer.write_staged(give_up_at)
    assert [wait] == never_free.waits


def test_a_thread_that_is_woken_early_waits_until_its_deadline(never_free):
    """A wake-up caused by another thread's progress does not extend the deadline."""
    never_free.cut_short = 30.5
    with pytest.raises(KafkaTimeoutError):
        never_free.harness.gatherer.write_staged()
    assert [61.0, 30.5] == never_free.waits


def test_a_wait_that_is_no_longer_needed_ends_without_the_lock(never_free):
    """The wait ends without the lock once another thread has written the thread's record."""
    never_free.harness.gatherer.write_staged(unless=lambda: bool(never_free.waits))
    assert [61.0] == never_free.waits


_CALLS = {
    "close_batches": lambda gatherer, at: gatherer.close_batches(at),
    "abort": lambda gatherer, at: gatherer.abort(KafkaError("aborted"), at),
    "end_transaction": lambda gatherer, at: gatherer.end_transaction(lambda: None, at),
    "begin_transaction": lambda gatherer, at: gatherer.begin_transaction(
        lambda: None, KafkaError("late"), at
    ),
    "write_columns": lambda gatherer, at: gatherer.write_columns(columns([b"v"]), [1], 0, at),
    "write_table": lambda gatherer, at: gatherer.write_table(columns([b"v"]), [1], 0, at),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
@pytest.mark.parametrize(("give_up_at", "wait"), [(None, -1), (104.0, 4.0), (100.0, 0), (90.0, 0)])
def test_other_calls_wait_for_the_lock_until_their_deadline(never_free, call, give_up_at, wait):
    """A call that cannot get the lock until its deadline raises and does nothing."""
    future = never_free.harness.stage(b"v")
    with pytest.raises(KafkaTimeoutError):
        call(never_free.harness.gatherer, give_up_at)
    assert [wait] == never_free.waits
    assert (None, None) == (future.chunk, future.error)


@pytest.mark.parametrize(("give_up_at", "wait"), [(104.0, 4.0), (100.0, 0), (90.0, 0)])
def test_a_record_that_fills_a_chunk_stays_staged_without_the_lock(never_free, give_up_at, wait):
    """A record that fills a chunk stays staged for the next writer if the lock is not free."""
    future = never_free.harness.stage(b"v")
    never_free.harness.gatherer.staged_since = None
    never_free.harness.gatherer.write_for(future, give_up_at)
    assert [wait] == never_free.waits
    assert 100.0 + wait == never_free.harness.gatherer.staged_since
    assert (None, None) == (future.chunk, future.error)
