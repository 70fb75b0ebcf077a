"""The end of the process for producers that were not closed, or are still closing after a drop.

At exit, Python waits for the non-daemon threads, calls the functions of `atexit`, and only then
stops the daemon threads. So network threads still send while `OpenProducers.end` waits for them. It
flushes for a few seconds at most, since a dead broker must not keep a process alive, and logs what
was lost. An open transaction is not ended: only its owner knows whether it is complete.

Nothing here may need a new thread: Python 3.12 and later start none at this point. Delivery never
relies on it either, because a process that is killed calls no function of `atexit`.
"""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer_core import ProducerCore

logger = logging.getLogger(__name__)

#: The seconds that the flush of all producers may take together.
EXIT_SECONDS: Final = 5.0


class OpenProducers:
    """The producers of a process that must be flushed when it ends."""

    def __init__(self) -> None:
        """Begin without any."""
        #: A producer whose network thread has ended may be garbage-collected.
        self._cores: WeakSet[ProducerCore] = WeakSet()
        # Producers that were dropped are closed by threads of their own.
        self._lock = threading.RLock()

    def add(self, core: ProducerCore) -> None:
        """Add a producer that was just started."""
        with self._lock:
            self._cores.add(core)

    def discard(self, core: ProducerCore) -> None:
        """Remove a producer that is closed, if it is there."""
        with self._lock:
            self._cores.discard(core)

    def forget_all(self) -> None:
        """Remove all producers: they belong to the process that this one was forked from."""
        self._cores, self._lock = WeakSet(), threading.RLock()

    def end(self) -> None:
        """Flush all producers within `EXIT_SECONDS`, and log what is not sent then.

        Ctrl-C ends the flush. Producers with an open transaction are not flushed.
        """
        with self._lock:
            cores = list(self._cores)
        flushed = {core: core.failed_records for core in cores if not core.has_open_transaction}
        with suppress(KeyboardInterrupt):
            give_up_at = {core: core.clock() + EXIT_SECONDS for core in flushed}
            # All of them first, so that they send at the same time.
            for core in flushed:
                _flush(core, 0)
            for core in flushed:
                _flush(core, max(give_up_at[core] - core.clock(), 0))
        for core in cores:
            if core not in flushed:
                core.warn_of_open_transaction()
            elif lost := core.unsent_records + core.failed_records - flushed[core]:
                logger.warning(
                    "%s of the producer %r had not been acknowledged when the process ended, and "
                    "may be lost: call flush() or close() before the end. Last error of a "
                    "connection: %s",
                    "1 record" if lost == 1 else f"{lost} records",
                    core.client_id,
                    core.last_error or "none",
                )


def _flush(core: ProducerCore, timeout: float) -> None:
    # What is not sent in time is counted; no error may keep the others from being flushed.
    with suppress(Exception):
        core.flush(timeout)


#: The producers of this process.
open_producers: Final = OpenProducers()
atexit.register(open_producers.end)
