"""Writers that write until they are stopped, so that any disturbance happens during a write.

A writer numbers its rows and tracks which of them must be found. Its threads share one producer;
each writes its own run of numbers, so that the order is checked for each of them.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import pyarrow as pa

from spark_kafka_sink.record.arrow.record_columns import record_columns
from tests.support.producer.producing import producer_for
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.record.text_rows import numbered_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.producer.producing import Bootstrap
    from tests.support.record.numbered_rows import RowNumbers

#: Settings for large batches, a small buffer, and patience with brokers that restart on a busy
#: machine.
IN_BULK = {
    "most_rows": 10_000,
    "buffer.memory": 2**21,
    "max.block.ms": 300_000,
    "delivery.timeout.ms": 300_000,
}
#: The numbers of one thread's rows begin at a multiple of this.
_RUN = 10**8
_START_SECONDS = 120
#: Longer than delivery.timeout.ms.
_FINISH_SECONDS = 300


class Writer(Protocol):
    """The interface that a soak requires of a writer."""

    topic: str

    @property
    def error(self) -> BaseException | None:
        """The error that ended the writing, if any."""

    @property
    def rows(self) -> int:
        """The number of rows passed to the producer."""

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged rows."""

    def start(self) -> None:
        """Start writing."""

    def finish(self) -> int:
        """Stop, wait for delivery, and close; return the number of rows, or raise the error."""

    def abandon(self) -> None:
        """Close without waiting, unless the writer has finished."""

    def check(self, bootstrap_servers: str) -> RowCheck:
        """Compare what a confluent-kafka consumer reads with what was written."""


class SteadyWriter:
    """A writer that appends columns in bulk; a context manager that finishes on exit."""

    def __init__(
        self,
        kafka: Bootstrap,
        topic: str,
        *,
        threads: int = 1,
        rows_per_second: float = 20_000,
        most_rows: int = 200,
        flushes: bool = True,
        seed: int = 0,
        **settings: object,
    ) -> None:
        """Create the producer. Each append has a random number of rows, at most `most_rows`.

        Unless `flushes` is false, threads now and then wait until all their rows are acknowledged:
        while one partition cannot be written, such a thread writes to no other partition either.
        """
        self.topic = topic
        self._rows_per_second = rows_per_second / threads
        self._most_rows = most_rows
        self._flushes = flushes
        self._seed = seed
        self._stop = threading.Event()
        #: The error that ended the writing, if any.
        self.error: BaseException | None = None
        self._rows = [0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"writer-{topic}-{i}", daemon=True)
            for i in range(threads)
        ]
        self._producer = producer_for(kafka, **settings)

    def __enter__(self) -> Self:
        """Start, and wait until the first rows are acknowledged."""
        self.start()
        deadline = time.monotonic() + _START_SECONDS
        while self.is_alive and not self.acknowledged:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no row was acknowledged within {_START_SECONDS} s")
            time.sleep(0.01)
        return self

    def __exit__(self, exception_type: object, *_: object) -> None:
        """Finish, or only stop if the block raised an exception."""
        if exception_type is None:
            self.finish()
        else:
            self.abandon()

    def start(self) -> None:
        """Start writing."""
        for thread in self._threads:
            thread.start()

    @property
    def rows(self) -> int:
        """The number of appended rows."""
        return sum(self._rows)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged rows."""
        return sum(acks.records for acks in self._producer.acks().values())

    @property
    def is_alive(self) -> bool:
        """Whether the writer has neither been stopped nor failed."""
        return self.error is None and not self._stop.is_set()

    def write_on(self, rows: int) -> None:
        """Wait until this many more rows are acknowledged than have been appended so far."""
        wanted = self.rows + rows
        deadline = time.monotonic() + _FINISH_SECONDS
        while self.is_alive and self.acknowledged < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {self.acknowledged} of {wanted} rows were acknowledged")
            time.sleep(0.01)

    def finish(self) -> int:
        """Stop, wait for acknowledgement, and close; return the number of rows, or raise."""
        if self._stop.is_set():
            return self.rows
        self._end(timeout=_FINISH_SECONDS)
        if self.acknowledged != self.rows:
            raise AssertionError(
                f"{self.rows} rows were appended, but {self.acknowledged} were acknowledged"
            )
        return self.rows

    def abandon(self) -> None:
        """Close without waiting, unless the writer has finished."""
        if not self._stop.is_set():
            self._end(timeout=0)

    def _end(self, *, timeout: float) -> None:
        self._stop.set()
        deadline = time.monotonic() + _FINISH_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                raise TimeoutError(f"{thread.name} did not end within {_FINISH_SECONDS} s")
        self._producer.close(timeout if self.error is None else 0)
        # By now, delivery callbacks have set any error that was not raised.
        if self.error is not None:
            raise self.error

    def check(self, bootstrap_servers: str) -> RowCheck:
        """Compare what confluent-kafka reads with what was appended."""
        return check_runs(read_numbers(bootstrap_servers, self.topic), self._rows)

    def _run(self, thread: int) -> None:
        try:
            self._write(thread)
        except BaseException as error:  # noqa: BLE001  # raised when the writer is finished
            self.error = self.error or error

    def _write(self, thread: int) -> None:
        chance = random.Random(f"{self._seed} {thread}")
        base = thread * _RUN
        started = time.monotonic()
        while self.is_alive:
            first = base + self._rows[thread]
            count = chance.randint(1, self._most_rows)
            self._append(first, count)
            self._rows[thread] += count
            if chance.random() < 0.01 and self._flushes:
                self._producer.flush()
            due = started + self._rows[thread] / self._rows_per_second
            self._stop.wait(max(due - time.monotonic(), 0))

    def _append(self, first: int, count: int) -> None:
        batch = pa.record_batch({"value": numbered_values(first, first + count)})
        self._producer.append(record_columns(batch, topic=self.topic), first_row=first)


def check_runs(partitions: dict[int, RowNumbers], rows: list[int]) -> RowCheck:
    """Compare what was read with `rows[i]` rows of each thread i, numbered from its own start."""
    checks = [
        check_rows(
            {p: numbers[numbers // _RUN == i] - i * _RUN for p, numbers in partitions.items()},
            count,
        )
        for i, count in enumerate(rows)
    ]
    known = [np.isin(numbers // _RUN, np.arange(len(rows))) for numbers in partitions.values()]
    strangers = RowCheck(foreign=sum(int((~part).sum()) for part in known))
    return RowCheck(*(sum(counts) for counts in zip(*checks, strangers, strict=True)))


def write_during(
    kafka: Bootstrap,
    topic: str,
    disturb: Callable[[], object],
    *,
    settle: Callable[[], object] = lambda: None,
    bootstrap_servers: str | None = None,
    rows_afterwards: int = 5000,
    **settings: object,
) -> RowCheck:
    """Write before, during and after a disturbance; return the check of the written rows.

    `settle` is called after all writing, and waits until the cluster is in a stable state.
    """
    with SteadyWriter(kafka, topic, **settings) as writer:
        writer.write_on(rows_afterwards)
        disturb()
        writer.write_on(rows_afterwards)
    settle()
    return writer.check(bootstrap_servers or kafka.bootstrap_servers)
