"""The protection of a consumer from two threads at once, from a forked process, and after close."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable

_NESTED: Final = nullcontext()


def closed_error() -> IllegalStateError:
    """Return the error of calls after `close`."""
    return IllegalStateError("the consumer is closed: create another one")


class CallGuard:
    """The call that is running; those of the listener's are nested in another one.

    The lock is all its state, and one of the C library, so that no Ctrl-C leaves a call behind
    that has ended. Then not even `close` could run.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        """Start without a call, in the current process; `settle` begins each that is not nested."""
        self._settle = settle
        self._process_id = os.getpid()
        self.is_closed = False
        self._lock = threading.Lock()
        #: The thread of the last call, which may have ended.
        self._thread: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this is another process than that of the consumer."""
        return os.getpid() != self._process_id

    @property
    def is_calling(self) -> bool:
        """Whether a call of this thread is running."""
        return self._lock.locked() and self._thread == threading.get_ident()

    def call(self, *, closes: bool = False) -> AbstractContextManager[Any]:
        """Return what to hold during a call.

        Raises IllegalStateError beside another thread's call, after a fork, and unless it `closes`
        the consumer, after that.
        """
        if self.is_forked:
            raise IllegalStateError(
                "the consumer was created in another process: create one in each process"
            )
        is_nested = self.is_calling
        if self._lock.locked() and not is_nested:
            raise IllegalStateError(
                "the consumer is used by two threads at once: give each thread a consumer "
                "of its own, or a lock; only wakeup() may be called by any thread"
            )
        if self.is_closed and not closes:
            raise closed_error()
        if is_nested:
            return _NESTED
        self._settle()
        self._thread = threading.get_ident()
        return self._lock
