"""The lock that goes with the open batches of a producer: see `record_gatherer`."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


class AppendLock:
    """A lock that tells whether the caller itself has it, and when somebody has let go of it."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        """Start free; `on_release` is called after every release but quiet ones."""
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._on_release = on_release
        #: One for each thread in `acquire_unless`; plain locks, which no interrupt can break.
        self._turns: list[threading.Lock] = []

    def acquire(self, timeout: float = -1) -> bool:
        """Wait for it, `timeout` seconds at most, where that is not negative."""
        taken = self._lock.acquire(timeout=timeout)
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self, *, quietly: bool = False) -> None:
        """Let go of it."""
        self._holder = None
        self._lock.release()
        self.note_progress()
        if not quietly:
            self._on_release()

    def note_progress(self) -> None:
        """Wake the threads in `acquire_unless`."""
        for turn in list(self._turns):
            # That of a thread that has been woken already, and has not run since.
            with suppress(RuntimeError):
                turn.release()

    def acquire_unless(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait for the lock or for `note_progress`; False without the lock, or if `condition()`."""
        if condition():
            return False
        if self.acquire(timeout=0):
            return True
        turn = threading.Lock()
        turn.acquire()
        self._turns.append(turn)
        try:
            # Looked at once more: what comes from now on wakes us.
            if not condition() and self._lock.locked():
                turn.acquire(timeout=timeout)
        finally:
            self._turns.remove(turn)
        return not condition() and self.acquire(timeout=0)

    @property
    def is_held(self) -> bool:
        """Whether any thread has it."""
        return self._lock.locked()

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread has it."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        """Wait for it, however long."""
        self.acquire()

    def __exit__(self, *_: object) -> None:
        """Let go of it."""
        self.release()


def lock_timeout(seconds: float) -> KafkaTimeoutError:
    """Return the error of a thread that has waited for the lock for so long."""
    return KafkaTimeoutError(
        f"another thread has been waiting for memory for {seconds:g} s (max.block.ms, if not less "
        "time was given): check that the brokers keep up"
    )
