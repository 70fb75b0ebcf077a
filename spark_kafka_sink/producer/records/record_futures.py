"""The futures that callers get (Kafka's FutureRecordMetadata, and the same for a table).

Every send of a single record creates a future, so it is a bare object. It is given its batch when a
chunk of records is written at once, and computes the rest on demand.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink import display
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.model import (
    UNKNOWN_OFFSET,
    UNKNOWN_PARTITION,
    AcksByPartition,
    PartitionAcks,
    RecordMetadata,
)
from spark_kafka_sink.producer.batch.produce_result import NO_LOG_APPEND_TIME, call_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch.produce_result import ProduceResult
    from spark_kafka_sink.producer.record_staging import ThreadedStaging


Headers: TypeAlias = "Sequence[tuple[str, bytes | None]]"
#: Records that were written at once.
WrittenRecords: TypeAlias = "WrittenChunk | WrittenRecord"
_NO_ROWS = np.array([], np.int32)
_start = attrgetter("start")


class Stretch(NamedTuple):
    """Adjacent records of a chunk that were written without closing or opening a batch between."""

    start: int
    stop: int
    #: The open batch of each slot that any of the records went to.
    results: Mapping[int, ProduceResult]


class WrittenChunk:
    """The batches of a chunk's records, and the data for their metadata; one entry per record."""

    __slots__ = (
        "_row_indexes",
        "_row_slots",
        "_stretches",
        "key_sizes",
        "timestamps",
        "unheld",
        "value_sizes",
    )

    def __init__(
        self,
        timestamps: NDArray[np.int64],
        key_sizes: NDArray[np.int64],
        value_sizes: NDArray[np.int64],
    ) -> None:
        """Create it for records whose batches are not known yet."""
        self.timestamps = timestamps
        self.key_sizes = key_sizes
        self.value_sizes = value_sizes
        self._row_indexes = self._row_slots = _NO_ROWS
        self._stretches: list[Stretch] = []
        #: Futures of records in batches that no caller holds, so that they can be reused.
        self.unheld: list[FutureRecordMetadata] = []

    def add(
        self, stretch: Stretch, row_slots: NDArray[np.int32], row_indexes: NDArray[np.int32]
    ) -> None:
        """Add the slots of more records, and their indexes in their batches.

        The arrays have an entry for each record of the chunk, valid up to the stretch's end.
        """
        self._row_slots = row_slots
        self._row_indexes = row_indexes
        self._stretches.append(stretch)

    def place(self, row: int) -> tuple[ProduceResult, int]:
        """Return the result of a record's batch, and its index in it; the record must be in one."""
        number = bisect_right(self._stretches, row, key=_start) - 1
        if number >= 0 and row < self._stretches[number].stop:
            results = self._stretches[number].results
            return results[int(self._row_slots[row])], int(self._row_indexes[row])
        raise KafkaError("a record was lost before it reached a batch: please report this bug")


class WrittenRecord(NamedTuple):
    """The same for a record that was written alone: a chunk of one."""

    result: ProduceResult
    timestamps: tuple[int]
    key_sizes: tuple[int]
    value_sizes: tuple[int]

    def place(self, row: int) -> tuple[ProduceResult, int]:
        """Return the result of the record's batch, and its index in it."""
        return self.result, row


class FutureRecordMetadata:
    """The outcome of one send; like a `concurrent.futures.Future` that cannot be cancelled.

    It is the only object that a send creates, and does not refer to the record: the caller may keep
    it for long. Its creator sets the attributes up to `error`: a constructor would cost more than
    everything else.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     future = producer.send("orders", b"a book")
    ...     future.result(timeout=30).offset
    0
    >>> future.done(), future.exception()
    (True, None)
    """

    __slots__ = ("chunk", "error", "producer", "row")

    producer: ThreadedStaging
    #: The chunk that the record was written in; None until it is in a batch.
    chunk: WrittenRecords | None
    #: Why the record is in no batch; None if there is no error.
    error: Exception | None
    #: The index of the record in its chunk, if there is one.
    row: int
    #: Attributes that most records do not have; see `FutureOfFullRecord`.
    headers: Headers | None = None
    partition: int | None = None
    timestamp: int | None = None
    callback: Callable[[FutureRecordMetadata], object] | None = None

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed."""
        if self.chunk is None:
            return self.error is not None
        result, index = self.chunk.place(self.row)
        return result.is_done(index)

    def cancelled(self) -> bool:
        """Return False: a record that was sent cannot be cancelled."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds; return the record's metadata, or raise its error.

        Raises a KafkaError if the record has failed, and TimeoutError when the timeout expires: the
        record may still be delivered.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait up to `timeout` seconds; return the record's error, or None if it was delivered.

        Raises TimeoutError when the timeout expires.
        """
        if not self.done():
            self.producer.check_may_wait()
            deadline = None if timeout is None else self.producer.monotonic() + timeout
            while not self.done():
                if self.chunk is None:
                    with suppress(KafkaTimeoutError):
                        self._written(deadline)
                    if self.done():
                        break
                left = None if deadline is None else deadline - self.producer.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"the record was not acknowledged within {timeout} s")
                if self.chunk is not None:
                    result, index = self.chunk.place(self.row)
                    result.wait(index, left)
        if self.chunk is None:
            return self.error
        result, index = self.chunk.place(self.row)
        result, index = result.final(index)
        return result.error_of(index)

    def add_done_callback(self, callback: Callable[[FutureRecordMetadata], object]) -> None:
        """Call `callback(future)` on the network thread when it is done; here if it already is.

        The callbacks of a batch are called in the order of registration, those of `send` in the
        order of the records. Exceptions are logged, including SystemExit. A callback must not
        block: nothing is sent meanwhile.
        """
        chunk = self._written()
        if chunk is None:
            call_back(callback, self)
        else:
            result, index = chunk.place(self.row)
            result.call_when_done(index, partial(callback, self))

    def __repr__(self) -> str:
        """Show the outcome, if there is one yet; this never waits or sends anything."""
        if not self.done():
            return "<FutureRecordMetadata: not acknowledged yet>"
        error = self.exception()
        if error is not None:
            return f"<FutureRecordMetadata: failed with {type(error).__name__}: {error}>"
        metadata = self._metadata()
        known = metadata.offset != UNKNOWN_OFFSET
        offset = f"at offset {metadata.offset}" if known else "at an unknown offset"
        return f"<FutureRecordMetadata: {metadata.topic}-{metadata.partition} {offset}>"

    def _repr_html_(self) -> str:
        """Show the record's metadata once there is any."""
        if self.done() and self.exception() is None:
            return self._metadata()._repr_html_()
        return display.block(repr(self).strip("<>"))

    def fail(self, error: Exception) -> None:
        """Fail a record that was added to no batch; called by the producer, not by users."""
        self.error = error

    def _written(self, give_up_at: float | None = None) -> WrittenRecords | None:
        """Return the chunk, writing it now if needed; None if the record failed.

        Also returns None if it could not be written by `give_up_at`.
        """
        if not self._is_written():
            self.producer.write_staged(give_up_at, self._is_written)
        return self.chunk

    def _is_written(self) -> bool:
        return self.chunk is not None or self.error is not None

    def _metadata(self) -> RecordMetadata:
        chunk, row = self._written(), self.row
        if chunk is None:
            raise KafkaError("a record that failed has no metadata")
        result, index = chunk.place(row)
        result, index = result.final(index)
        timestamp = result.log_append_time_ms
        return RecordMetadata(
            topic=result.topic_partition.topic,
            partition=result.topic_partition.partition,
            offset=result.offset(index),
            timestamp=int(chunk.timestamps[row]) if timestamp == NO_LOG_APPEND_TIME else timestamp,
            serialized_key_size=int(chunk.key_sizes[row]),
            serialized_value_size=int(chunk.value_sizes[row]),
        )


class FutureOfFullRecord(FutureRecordMetadata):
    """The future of a record with more than topic, key and value."""

    __slots__ = ("callback", "headers", "partition", "timestamp")


class TablePart(NamedTuple):
    """Rows of one call in one batch; they are adjacent, because a call owns the open batches."""

    result: ProduceResult
    #: The index of the first of them in the batch.
    first_index: int
    record_count: int


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where one row of a call is."""

    result: ProduceResult
    #: Its index in the batch.
    row_index: int

    def __call__(self) -> tuple[int, int]:
        """Return partition and offset, once acknowledged; `UNKNOWN_OFFSET` if there is none."""
        result, index = self.result.final(self.row_index)
        return result.topic_partition.partition, result.offset(index)


class FutureTableMetadata:
    """The outcome of a table's send: done when every batch with rows of it has ended.

    >>> import pyarrow as pa
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     future = producer.send_arrow(pa.table({"value": ["a book", "a pen"]}), topic="orders")
    ...     acks = future.result(timeout=30)
    >>> acks[TopicPartition("orders", 0)].records
    2
    """

    def __init__(
        self,
        producer: ThreadedStaging,
        parts: Sequence[TablePart],
        schemas: tuple[str, ...] = (),
    ) -> None:
        self.producer = producer
        self._parts = parts
        #: The schemas by which keys and values were encoded, such as "values by schema 7 (subject
        #: orders-value, version 1)".
        self.schemas = schemas

    def done(self) -> bool:
        """Return whether every batch with rows of the table has ended."""
        return all(result.is_done(indexes[0]) for result, indexes in self._batches())

    def result(self, timeout: float | None = None) -> dict[TopicPartition, PartitionAcks]:
        """Wait up to `timeout` seconds; return the rows' acknowledgements per partition.

        Their `bytes` is 0, because a batch may hold the rows of several calls. Raises the error of
        the first row that a broker rejected, or otherwise of the first batch that failed, and
        TimeoutError when the timeout expires.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return table_acks(self._parts)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait up to `timeout` seconds; return a row's error, or None if all were delivered."""
        self.producer.check_may_wait()
        deadline = None if timeout is None else self.producer.monotonic() + timeout
        for result, indexes in self._batches():
            while not result.is_done(indexes[0]):
                left = None if deadline is None else deadline - self.producer.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"not every row was acknowledged within {timeout} s")
                result.wait(indexes[0], left)
        return table_error(self._parts)

    def __repr__(self) -> str:
        """Show the outcome, if there is one yet; this never waits."""
        if not self.done():
            return "<FutureTableMetadata: not acknowledged yet>"
        error = table_error(self._parts)
        if error is not None:
            return f"<FutureTableMetadata: failed with {type(error).__name__}: {error}>"
        return f"<FutureTableMetadata: {repr(table_acks(self._parts)).strip('<>')}>"

    def _repr_html_(self) -> str:
        """Show a table of offsets once every row is acknowledged."""
        if self.done() and table_error(self._parts) is None:
            return table_acks(self._parts)._repr_html_()
        return display.block(repr(self).strip("<>"))

    def _batches(self) -> list[tuple[ProduceResult, range]]:
        return table_batches(self._parts)


def table_acks(parts: Sequence[TablePart]) -> AcksByPartition:
    """Return the acknowledgements of the rows of a table; every batch has been acknowledged."""
    acks = AcksByPartition()
    for part in parts:
        first, last = (
            result.offset(index)
            for result, index in (
                part.result.final(part.first_index),
                part.result.final(part.first_index + part.record_count - 1),
            )
        )
        topic_partition = part.result.topic_partition
        known = UNKNOWN_OFFSET not in {first, last}
        part_acks = PartitionAcks(
            first_offset=first if known else UNKNOWN_OFFSET,
            last_offset=last if known else UNKNOWN_OFFSET,
            records=part.record_count,
            bytes=0,
            log_append_time=part.result.final(part.first_index)[0].log_append_time_ms
            != NO_LOG_APPEND_TIME,
        )
        earlier = acks.get(topic_partition)
        acks[topic_partition] = part_acks if earlier is None else earlier.merged(part_acks)
    return acks


def table_error(parts: Sequence[TablePart]) -> Exception | None:
    """Return the error of a row of a table; every batch has ended."""
    # A batch may have been split meanwhile, so the results of its parts are looked up again.
    failed = [(result, rows) for result, rows in table_batches(parts) if result.error is not None]
    blamed = (entry for entry in failed if any(row in entry[0].refused for row in entry[1]))
    failure = next(blamed, failed[0] if failed else None)
    return None if failure is None else failure[0].error_of_rows(failure[1])


def table_batches(parts: Sequence[TablePart]) -> list[tuple[ProduceResult, range]]:
    """Return the rows' indexes in every batch, and in every part of a batch that was split."""
    return [
        batch
        for part in parts
        for batch in part.result.batches(part.first_index, part.record_count)
    ]


def call_back_once(future: FutureRecordMetadata) -> None:
    """Call the callback of a future, unless it has been called.

    It may be registered twice: an interrupt hides whether the first registration has succeeded.
    """
    if isinstance(future, FutureOfFullRecord) and future.callback is not None:
        callback, future.callback = future.callback, None
        callback(future)


def deliver(
    on_delivery: Callable[[RecordMetadata | None, Exception | None], object],
    future: FutureRecordMetadata,
) -> None:
    """Call a delivery callback with its record's outcome."""
    error = future.exception()
    on_delivery(None if error is not None else future.result(), error)


def deliver_to_all(
    on_acknowledgement: Callable[[RecordMetadata, Exception | None, Headers], object],
    on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None,
    topic: str,
    future: FutureRecordMetadata,
) -> None:
    """Call the interceptors, and then the callback if there is one."""
    error = future.exception()
    metadata = None if error is not None else future.result()
    on_acknowledgement(metadata or failed_metadata(topic, future), error, future.headers or ())
    if on_delivery is not None:
        on_delivery(metadata, error)


def failed_metadata(topic: str, future: FutureRecordMetadata) -> RecordMetadata:
    """Return the metadata of a record that failed: its place as far as it is known, as in Java."""
    partition = future.partition
    if future.chunk is not None:
        result, _ = future.chunk.place(future.row)
        partition = result.topic_partition.partition
    return RecordMetadata(
        topic=topic,
        partition=UNKNOWN_PARTITION if partition is None else partition,
        offset=UNKNOWN_OFFSET,
        timestamp=NO_LOG_APPEND_TIME,
        serialized_key_size=-1,
        serialized_value_size=-1,
    )
