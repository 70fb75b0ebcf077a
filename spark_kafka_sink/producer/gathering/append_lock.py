"""The lock of a producer's open batches: see `record_gatherer`."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


class AppendLock:
    """A lock that knows whether the caller holds it, and that signals its release.

    Ctrl-C may strike after each C function and at the start of each Python function. So a caller
    that may be interrupted releases the lock by hand: nothing comes before `unlock`.

        if lock.acquire(timeout):
            try:
                ...
            finally:
                lock.is_held = False
                lock.unlock()
                lock.signal_release()
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
