"""The protection of a consumer from two threads at once, and from a forked process."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Iterator


class CallGuard:
    """The call that is running; those of the listener's are nested in another one."""

    def __init__(self) -> None:
        """Start without a call, in the current process."""
        self._process_id = os.getpid()
        #: How many calls are nested in each other.
        self.depth = 0
        self._thread: int | None = None
        self._lock = threading.Lock()

    @property
    def is_forked(self) -> bool:
        """Whether this is another process than that of the consumer."""
        return os.getpid() != self._process_id

    @contextmanager
    def call(self) -> Iterator[None]:
        """Run a call; raises IllegalStateError beside another thread's, and after a fork."""
        if self.is_forked:
            raise IllegalStateError(
                "the consumer was created in another process: create one in each process"
            )
        thread = threading.get_ident()
        has_entered = False
        try:
            with self._lock:
                if self._thread not in {None, thread}:
                    raise IllegalStateError(
                        "the consumer is used by two threads at once: give each thread a consumer "
                        "of its own, or a lock; only wakeup() may be called by any thread"
                    )
                self._thread = thread
                self.depth += 1
                has_entered = True
            yield
        finally:
            # Also if Ctrl-C comes while the lock is released; otherwise not even `close` could run.
            if has_entered:
                with self._lock:
                    self.depth -= 1
                    if not self.depth:
                        self._thread = None
