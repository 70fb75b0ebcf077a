"""The lock of a producer's open batches: see `record_gatherer`."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


class AppendLock:
    """A lock that knows whether the caller holds it, and that signals its release."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        """Create an unlocked lock; `on_release` is called after every release except quiet ones."""
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._on_release = on_release
        #: One for each thread in `acquire_unless`; plain locks, which no interrupt can break.
        self._turns: list[threading.Lock] = []

    def acquire(self, timeout: float = -1) -> bool:
        """Acquire the lock; wait at most `timeout` seconds unless that is negative."""
        taken = self._lock.acquire(timeout=timeout)
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self, *, quietly: bool = False) -> None:
        """Release the lock."""
        self._holder = None
        self._lock.release()
        self.note_progress()
        if not quietly:
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
            if not condition() and self._lock.locked():
                turn.acquire(timeout=timeout)
        finally:
            self._turns.remove(turn)
        return not condition() and self.acquire(timeout=0)

    @property
    def is_held(self) -> bool:
        """Whether any thread holds the lock."""
        return self._lock.locked()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        """Acquire the lock, waiting without limit."""
        self.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()


def lock_timeout(seconds: float) -> KafkaTimeoutError:
    """Return the error of a thread that waited `seconds` for the lock."""
    return KafkaTimeoutError(
        f"timed out after {seconds:g} s (max.block.ms, or the call's timeout if that is shorter) "
        "because another thread is waiting for buffer memory. Check that the brokers keep up"
    )
