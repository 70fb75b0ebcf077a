"""The record batches of `read_arrow`, until the process ends.

Libraries read ahead on threads of their own: after a LIMIT, or a Ctrl-C, DuckDB leaves a thread of
pyarrow behind that asks for some more batches. A thread that calls Python while the interpreter is
finalized crashes the process, or never ends, and then the process does not end either. So all reads
are ended before: a batch that is being read is given up, and no other can be read.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    import pyarrow as pa

    from spark_kafka_sink.config.consumer_config import ConsumerConfig

#: Seconds for a thread that has just received a batch, to ask for the next one and fail. Nothing
#: shows whether there is such a thread; it needs microseconds.
_LAST_CALLS: Final = 0.05
#: Seconds between two looks at a batch that is being read, and how often to look: no answer of a
#: broker is waited for, so it takes as long as the decoding of an answer.
_LOOK_AGAIN: Final = 0.1
_MOST_LOOKS: Final = 100


class OpenRead:
    """An iterator over the batches of one read; any thread may ask for the next one."""

    def __init__(
        self, config: ConsumerConfig, read: Callable[[ConsumerClient], Iterator[pa.RecordBatch]]
    ) -> None:
        """Connect to nothing yet; `read` is given a client, and must close it."""
        self._config = config
        self._read = read
        self._client: ConsumerClient | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._process_id = os.getpid()
        self._is_ended = False
        #: Held while a batch is being read.
        self._reading = threading.Lock()

    def __iter__(self) -> Self:
        """Return the iterator itself."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Read the next batch; raise IllegalStateError once the process ends."""
        with self._reading:
            if self._is_ended:
                raise IllegalStateError("nothing can be read any more: the process is ending")
            if self._batches is None:
                # A client of its own: a result that is never iterated must leave no connection
                # behind.
                self._client = ConsumerClient(self._config)
                self._batches = self._read(self._client)
            try:
                return next(self._batches)
            except BaseException:
                # This was the last one, and the client is closed.
                self._client = None
                raise

    def end(self) -> bool:
        """Interrupt the batch that is being read, and allow no other.

        Returns whether the read had begun, and was not at its end.
        """
        if self._process_id != os.getpid():
            # The connections belong to the process that this one was forked from.
            return False
        self._is_ended = True
        was_open = False
        for _ in range(_MOST_LOOKS):
            client = self._client
            if client is not None:
                was_open = True
                client.close()
            if self._reading.acquire(timeout=_LOOK_AGAIN):
                self._reading.release()
                break
        return was_open


class OpenReads:
    """The reads of a process that are not deleted yet."""

    def __init__(self) -> None:
        """Begin without any."""
        self._reads: WeakSet[OpenRead] = WeakSet()

    def add(self, read: OpenRead) -> OpenRead:
        """Return the read, which will be ended with the others."""
        self._reads.add(read)
        return read

    def end(self) -> None:
        """End all reads; from then on, none of their threads is in Python, or will be."""
        were_open = [read.end() for read in list(self._reads)]
        if any(were_open):
            threading.Event().wait(_LAST_CALLS)


#: The reads of this process.
open_reads: Final = OpenReads()
atexit.register(open_reads.end)
