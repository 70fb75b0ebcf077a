"""Single records on their way to the kernel: gathered, and turned into columns in bulk.

A send appends one object to a deque and is done; nothing is locked and nothing is encoded per
record. Whoever next has the open batches to itself takes all that is staged out again, as one chunk
of columns that goes through the same loops as a table.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.produce_result import call_back
from spark_kafka_sink.producer.record_futures import FutureRecordMetadata
from spark_kafka_sink.record.columns import (
    NULL_PARTITION,
    NULL_TIMESTAMP,
    BytesColumn,
    HeaderColumns,
    RecordColumns,
    constant_topic,
    null_column,
    null_partitions,
    null_timestamps,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.producer.produce_result import ProduceResult

Headers: TypeAlias = "Sequence[tuple[str, bytes | None]]"

NULL_SIZE = -1


class WrittenChunk:
    """Where the records of a chunk went, and what their metadata is made of; one entry a record."""

    __slots__ = ("_indexes", "_results", "key_sizes", "timestamps", "value_sizes")

    def __init__(
        self,
        timestamps: NDArray[np.int64],
        key_sizes: NDArray[np.int64],
        value_sizes: NDArray[np.int64],
    ) -> None:
        """Know the records, but not yet where they went."""
        self.timestamps = timestamps
        self.key_sizes = key_sizes
        self.value_sizes = value_sizes
        self._results: Sequence[ProduceResult | None] = ()
        self._indexes: Sequence[int] = ()

    def tell(self, results: Sequence[ProduceResult | None], indexes: Sequence[int]) -> None:
        """Note where the records went; no result for one that went nowhere."""
        self._results = results
        self._indexes = indexes

    def place(self, row: int) -> tuple[ProduceResult, int]:
        """Give the batch of a record, and its index in it, for a record that is in one."""
        result = self._results[row]
        if result is None:
            raise KafkaError("a record was lost on its way to a batch: please report it")
        return result, self._indexes[row]


class StagedChunk(NamedTuple):
    """Records taken out together, as columns, with what belongs to each."""

    futures: Sequence[FutureRecordMetadata]
    columns: RecordColumns
    written: WrittenChunk
    now_ms: int
    #: Whether any record has a callback.
    has_callbacks: bool

    def fail(self, rows: Iterable[int], error: Exception) -> None:
        """Resolve some futures at once, for records that get into no batch."""
        for row in rows:
            future = self.futures[row]
            future.fail(error)
            if future.callback is not None:
                call_back(future.callback, future)

    def fail_rest(self, error: Exception) -> None:
        """Resolve all futures that know neither where their record is nor why it is nowhere."""
        for row, future in enumerate(self.futures):
            if future.chunk is None and future.error is None:
                self.fail((row,), error)

    def tell_places(
        self, results: Sequence[ProduceResult | None], indexes: NDArray[np.int32], count: int
    ) -> None:
        """Tell the futures of the first `count` records where they are, but those that failed."""
        written = self.written
        written.tell(results, indexes.tolist())
        for row, future in enumerate(self.futures[:count]):
            if results[row] is not None:
                future.row = row
                future.chunk = written
                # The caller may keep the future for long: not what was sent.
                future.value = future.key = None
        if self.has_callbacks:
            for row, future in enumerate(self.futures[:count]):
                if future.callback is not None and results[row] is not None:
                    result, index = written.place(row)
                    result.call_when_done(index, partial(future.callback, future))


class StagedRecords:
    """The deque of records that are in no batch yet. Any thread may append, one may take."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.records: deque[FutureRecordMetadata] = deque()
        #: `append` itself, looked up once: it is called for every record.
        self.append = self.records.append

    def put_back(self, futures: Sequence[FutureRecordMetadata]) -> None:
        """Put records back that were just taken out, before all others."""
        self.records.extendleft(reversed(futures))

    def take(self, now_ms: int, max_records: int) -> StagedChunk | None:
        """Take out the oldest, in order; None if there is nothing.

        `now_ms`: the timestamp of records that bring none.
        """
        # Other threads go on appending, and nobody else takes.
        count = min(len(self.records), max_records)
        if not count:
            return None
        futures: list[FutureRecordMetadata] = []
        try:
            # In one piece: an interrupt must not find a record neither here nor there.
            futures += islice(iter(self.records.popleft, None), count)
            return self._chunk(futures, now_ms)
        except BaseException:
            self.put_back(futures)
            raise

    def _chunk(self, futures: Sequence[FutureRecordMetadata], now_ms: int) -> StagedChunk:
        count = len(futures)
        key, key_sizes = _bytes_column([future.key for future in futures])
        value, value_sizes = _bytes_column([future.value for future in futures])
        topics, topic_index = _topics([future.topic for future in futures])
        # Most records have nothing but these; to ask them all would cost as much again.
        is_plain = {type(future) for future in futures} == {FutureRecordMetadata}
        times = null_timestamps(count) if is_plain else _timestamps(futures)
        return StagedChunk(
            futures=futures,
            columns=RecordColumns(
                num_rows=count,
                key=key,
                value=value,
                topics=topics,
                topic_index=topic_index,
                partition=null_partitions(count) if is_plain else _partitions(futures),
                timestamp=times,
                headers=None if is_plain else _headers(futures),
            ),
            written=WrittenChunk(
                timestamps=np.where(times == NULL_TIMESTAMP, now_ms, times),
                key_sizes=key_sizes,
                value_sizes=value_sizes,
            ),
            now_ms=now_ms,
            has_callbacks=not is_plain and any(f.callback is not None for f in futures),
        )


def _bytes_column(items: Sequence[bytes | None]) -> tuple[BytesColumn, NDArray[np.int64]]:
    """Join byte strings into a column; gives their sizes too, `NULL_SIZE` for null."""
    count = len(items)
    offsets = np.zeros(count + 1, np.int64)
    nulls = items.count(None)
    if nulls == count:
        return null_column(count), np.full(count, NULL_SIZE, np.int64)
    if not nulls:
        sizes = np.fromiter(map(len, items), np.int64, count)  # type: ignore[arg-type]
        np.cumsum(sizes, out=offsets[1:])
        data = np.frombuffer(b"".join(items), np.uint8)  # type: ignore[arg-type]
        return BytesColumn(offsets, data), sizes
    present = [item is not None for item in items]
    filled = [item or b"" for item in items]
    sizes = np.fromiter(map(len, filled), np.int64, count)
    np.cumsum(sizes, out=offsets[1:])
    validity = np.packbits(np.array(present, np.bool_), bitorder="little")
    column = BytesColumn(offsets, np.frombuffer(b"".join(filled), np.uint8), validity)
    return column, np.where(present, sizes, NULL_SIZE)


def _topics(topics: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    count = len(topics)
    if topics.count(topics[0]) == count:
        return (topics[0],), constant_topic(count)
    names = tuple(dict.fromkeys(topics))
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.fromiter(map(numbers.__getitem__, topics), np.int32, count)


def _partitions(futures: Sequence[FutureRecordMetadata]) -> NDArray[np.int32]:
    partitions = [future.partition for future in futures]
    return np.array([NULL_PARTITION if p is None else p for p in partitions], np.int32)


def _timestamps(futures: Sequence[FutureRecordMetadata]) -> NDArray[np.int64]:
    timestamps = [future.timestamp for future in futures]
    return np.array([NULL_TIMESTAMP if t is None else t for t in timestamps], np.int64)


def _headers(futures: Sequence[FutureRecordMetadata]) -> HeaderColumns | None:
    lists = [future.headers or () for future in futures]
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=offsets[1:])
    names = [name.encode() for each in lists for name, _ in each]
    values = [value for each in lists for _, value in each]
    if not names:
        return None
    return HeaderColumns(offsets, _bytes_column(names)[0], _bytes_column(values)[0])
