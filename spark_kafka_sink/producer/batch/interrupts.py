"""Ctrl-C in a call of the producer: what holds afterwards, and the rules that make it hold.

Python raises KeyboardInterrupt on the main thread at the start of any Python function, and after
any function of the C library. MemoryError may strike at almost as many places. After either one:

- Every future ends, and every callback is called, once.
- No lock stays held, and memory that is in no batch returns to the pool.
- No record is lost unnoticed: its transaction can only be aborted, and without a future every later
  call raises the error.
- The network thread is woken for what waits for it.

The code that callers run follows four rules:

- What belongs together changes in one statement, such as taking records out of one list and into
  another.
- What a function has taken, and not passed on, it gives back or fails in `except BaseException`,
  with `interruption_error`, before it raises the interrupt again.
- `with` takes locks of the C library only. `AppendLock.call` holds the lock of the open batches.
- A user's function is called where an exception can be handled. `is_interrupt` tells its own
  exceptions from an interrupt.

`tests/unit/producer/test_interrupts.py` interrupts the calls at every line.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def interruption_error(error: BaseException) -> KafkaError:
    """Return the error for an exception or interrupt that left a batch without an owner."""
    if isinstance(error, KafkaError):
        return error
    interrupted = KafkaError(
        f"the producer was interrupted in the middle of a batch, whose rows may be lost: {error!r}"
    )
    interrupted.__cause__ = error
    return interrupted


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception of a user's function is an interrupt, and must propagate.

    On other threads than the main thread SystemExit and KeyboardInterrupt are the function's own,
    and would end our thread.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    return on_main_thread and not isinstance(error, Exception)


class AppendLock:
    """The lock of the open batches, which knows whether the caller holds it; see `RecordGatherer`.

    A thread may also wait for it until something else has happened (`acquire_unless`).
    """

    def __init__(self, on_release: Callable[[], None]) -> None:
        """Create an unlocked lock; `on_release` is called after every release except quiet ones."""
        #: Reentrant only because such a lock knows its owner, even right after an interrupt.
        self._lock = threading.RLock()
        self._on_release = on_release
        #: Whether any thread holds the lock; set and cleared by the one that does.
        self.is_held = False
        #: A C function that releases the lock, and does nothing else.
        self.unlock = self._lock.release
        #: One for each thread in `acquire_unless`; plain locks, which no interrupt can break.
        self._turns: list[threading.Lock] = []

    def call(
        self,
        work: Callable[[], T],
        otherwise: Callable[[], T],
        timeout: float = -1,
        unless: Callable[[], bool] | None = None,
    ) -> T:
        """Call `work` with the lock held; call `otherwise` if it was not acquired in time.

        `timeout` is that of `acquire` or, with `unless`, of `acquire_unless`.
        """
        acquired = self.acquire(timeout) if unless is None else self.acquire_unless(unless, timeout)
        if not acquired:
            return otherwise()
        try:
            return work()
        finally:
            self.is_held = False
            # At the start of any function before this an interrupt would leave the lock held.
            self.unlock()
            self.signal_release()

    def acquire(self, timeout: float = -1) -> bool:
        """Acquire the lock; wait at most `timeout` seconds unless that is negative.

        Returns False at once to a thread that holds it. After an interrupt the lock is not held.
        """
        if self.is_held_here:
            return False
        try:
            acquired = self._lock.acquire(timeout=timeout)
        except BaseException:
            if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
                self._lock.release()
            raise
        if acquired:
            self.is_held = True
        return acquired

    def release(self, *, quietly: bool = False) -> None:
        """Release the lock, on a thread that no interrupt strikes.

        With `quietly`, `on_release` is not called.
        """
        self.is_held = False
        self.unlock()
        if quietly:
            self.note_progress()
        else:
            self.signal_release()

    def signal_release(self) -> None:
        """Wake the threads that wait for the release, after `unlock`."""
        self.note_progress()
        self._on_release()

    def note_progress(self) -> None:
        """Wake the threads in `acquire_unless`."""
        for turn in list(self._turns):
            # The thread was woken already, and has not run since.
            with suppress(RuntimeError):
                turn.release()

    def acquire_unless(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Acquire unless `condition()`; return False also after `note_progress` or `timeout`."""
        if condition():
            return False
        if self.acquire(timeout=0):
            return True
        turn = threading.Lock()
        turn.acquire()
        self._turns.append(turn)
        try:
            # Checked once more: any change from now on wakes this thread.
            if not condition() and self.is_held:
                turn.acquire(timeout=timeout)
        finally:
            self._turns.remove(turn)
        return not condition() and self.acquire(timeout=0)

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds the lock."""
        # As threading.Condition asks its lock.
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001


def lock_timeout(seconds: float) -> KafkaTimeoutError:
    """Return the error of a thread that waited `seconds` for the lock."""
    return KafkaTimeoutError(
        f"timed out after {seconds:g} s (max.block.ms, or the call's timeout if that is shorter) "
        "because another thread is waiting for buffer memory. Check that the brokers keep up"
    )
