"""Single records on their way to the kernel: staged, and converted to columns in bulk.

A send only appends the fields of its record to one flat list. Nothing is locked or encoded per
record, and the future is the only object created. The next thread that owns the open batches takes
all staged records as one chunk of columns, which goes through the same loops as a table.

Most callers use no future, or only the last one: they flush. The unreferenced futures of a chunk
are reused for other records, because thousands of new objects would keep the garbage collector
busy.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spark_kafka_sink.producer.batch.error_rules import missing_partition_error
from spark_kafka_sink.producer.batch.produce_result import call_back, call_now
from spark_kafka_sink.producer.records.record_futures import (
    FutureRecordMetadata,
    Stretch,
    WrittenChunk,
    WrittenRecord,
    call_back_once,
)
from spark_kafka_sink.record.columns import (
    NULL_PARTITION,
    NULL_SIZE,
    NULL_TIMESTAMP,
    RECORD_FIELDS,
    BytesColumn,
    HeaderColumns,
    RecordColumns,
    null_column,
    null_partitions,
    null_timestamps,
    plain_columns,
)
from spark_kafka_sink.record.kernel.kernel_objects import (
    ScannedItems,
    held_rows,
    reads_objects,
    scan_items,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.errors import InvalidPartitionError
    from spark_kafka_sink.producer.batch.produce_result import CallLater, ProduceResult

#: The number of spare futures above which no more are stored.
MAX_SPARE = 4_096
#: The futures of a chunk are reused if the caller holds at most this many of them: a caller that
#: sends in a loop may hold only the last one. Callers that keep futures keep most of them.
MAX_HELD = 4
_BYTES = {bytes, type(None)}


class StagedRecord(NamedTuple):
    """A staged record; its future carries anything else it has."""

    future: FutureRecordMetadata
    topic: str
    key: bytes | None
    value: bytes | None


class StagedChunk(NamedTuple):
    """Records taken out together, as columns, with the data that belongs to each."""

    futures: list[FutureRecordMetadata]
    columns: RecordColumns
    written: WrittenChunk
    now_ms: int
    #: Whether no record has more than topic, key and value.
    is_plain: bool
    #: Whether any record has a callback.
    has_callbacks: bool
    #: The staged fields of these records, unchanged.
    items: list[Any]
    #: Runs the callbacks of records that are added to no batch.
    call_later: CallLater = call_now

    def fail(self, rows: Iterable[int], error: Exception) -> None:
        """Fail the futures of these rows now, for records that are added to no batch."""
        for row in rows:
            future = self.futures[row]
            future.fail(error)
            if future.callback is not None:
                self.call_later(partial(call_back, call_back_once, future))

    def fail_rest(self, error: Exception) -> None:
        """Fail all futures that have neither a batch nor an error, after an interrupt."""
        self.fail(self.unresolved(0), error)
        self.register_callbacks()

    def register_callbacks(self) -> None:
        """Register every callback that has not been called, after an interrupt.

        It may have struck between the end of a record, or its batch, and its callback.
        """
        for future in self.futures if self.has_callbacks else ():
            if future.callback is None:
                continue
            call = partial(call_back_once, future)
            if future.chunk is not None:
                result, index = future.chunk.place(future.row)
                result.call_when_done(index, call)
            elif future.error is not None:
                self.call_later(partial(call_back, call))

    def unresolved(self, first_row: int) -> list[int]:
        """Return the rows, from `first_row` on, whose future has neither a batch nor an error."""
        rest = enumerate(self.futures[first_row:], first_row)
        return [row for row, future in rest if future.chunk is None and future.error is None]

    def missing_partitions(
        self, partition_counts: Sequence[int]
    ) -> dict[int, InvalidPartitionError]:
        """Return an error by row for each record whose partition was removed from its topic.

        `partition_counts` has an entry for each of `columns.topics`.
        """
        if self.is_plain:
            return {}
        topic_index, partition = self.columns.topic_index, self.columns.partition
        counts = np.array(partition_counts, np.int64)[topic_index]
        return {
            row: missing_partition_error(
                self.columns.topics[int(topic_index[row])], int(partition[row]), int(counts[row])
            )
            for row in np.flatnonzero(partition >= counts).tolist()
        }

    def assign_places(
        self, stretch: Stretch, row_slots: NDArray[np.int32], row_indexes: NDArray[np.int32]
    ) -> None:
        """Set the batches of the futures of the records in `stretch`.

        This must happen before any of these batches is closed: a future must know its batch when
        that ends, however long the rest of the chunk waits for memory.
        """
        self.written.add(stretch, row_slots, row_indexes)
        start, stop, results = stretch
        futures = self.futures[start:stop]
        held = _held_rows(futures, _UNHELD) if self.is_plain else None
        if held is not None:
            self._assign_held(held, futures, start)
            return
        for row, future in enumerate(futures, start):
            future.row = row
            future.chunk = self.written
        if self.has_callbacks:
            for row, future in enumerate(futures, start):
                if future.callback is not None:
                    results[int(row_slots[row])].call_when_done(
                        int(row_indexes[row]), partial(call_back_once, future)
                    )

    def _assign_held(
        self, held: Sequence[int], futures: list[FutureRecordMetadata], start: int
    ) -> None:
        """Set the batches of the held futures only; the others can never be read."""
        for row in reversed(held):
            future = futures.pop(row)
            future.row = start + row
            future.chunk = self.written
        self.written.unheld += futures


class StagedRecords:
    """The records that are in no batch yet. Any thread may stage one, only one may take them."""

    def __init__(self, call_later: CallLater = call_now) -> None:
        """Create an empty list; `call_later` runs callbacks of records that get into no batch."""
        self._call_later = call_later
        #: Future, topic, key and value of a record, then those of the next, and so on. Adding the
        #: four at once needs no lock, and slices yield the columns. The list object never changes.
        self.items: list[Any] = []
        #: Unreferenced futures without any state.
        self.spare: list[FutureRecordMetadata] = []
        #: The total size of the large records, in bytes: see `weigh`.
        self.heavy_bytes = 0
        self._weighing = threading.Lock()

    def __len__(self) -> int:
        return len(self.items) // RECORD_FIELDS

    def append(
        self, future: FutureRecordMetadata, topic: str, key: bytes | None, value: bytes | None
    ) -> None:
        """Add a record; its future carries anything else it has (`FutureOfFullRecord`)."""
        self.items.extend((future, topic, key, value))

    def weigh(self, size: int) -> None:
        """Count the bytes of a staged record that is large enough to matter."""
        with self._weighing:
            self.heavy_bytes += size

    def withdraw(self, future: FutureRecordMetadata, error: Exception) -> bool:
        """Remove and fail one record; return False if it is no longer staged.

        Like `take`, only one thread may call this at a time, while others may append.
        """
        for start in reversed(range(0, len(self.items), RECORD_FIELDS)):
            if self.items[start] is future:
                future.fail(error)
                if future.callback is not None:
                    self._call_later(partial(call_back, call_back_once, future))
                # Last: after an interrupt a record that is still staged fails again.
                del self.items[start : start + RECORD_FIELDS]
                return True
        return False

    def single(self) -> StagedRecord | None:
        """Return the only staged record, if it consists of `bytes`; it remains staged."""
        # A copy: other threads may append meanwhile.
        items = self.items[: RECORD_FIELDS + 1]
        if len(items) != RECORD_FIELDS or not _BYTES.issuperset(map(type, items[2:])):
            return None
        return StagedRecord(*items)

    def place_single(self, record: StagedRecord, result: ProduceResult, timestamp: int) -> None:
        """Remove the first record, which is in a batch of its own now, and set its future.

        The timestamp is in milliseconds.
        """
        future, _, key, value = record
        if future.callback is not None:
            result.call_when_done(0, partial(call_back_once, future))
        future.row = 0
        written = WrittenRecord(
            result,
            (timestamp,),
            (NULL_SIZE if key is None else len(key),),
            (NULL_SIZE if value is None else len(value),),
        )
        # One statement: after an interrupt the record is either staged or in its batch.
        future.chunk, self.items[:RECORD_FIELDS] = written, ()
        self._forget_weight(RECORD_FIELDS)

    def put_back(self, chunk: StagedChunk, first_row: int) -> None:
        """Put records of a chunk that was just taken back to the front, from `first_row` on."""
        self.items[:0] = chunk.items[RECORD_FIELDS * first_row :]
        self._reweigh(chunk.written, slice(first_row, None))

    def refuse(self, chunk: StagedChunk, errors: Mapping[int, Exception]) -> None:
        """Fail single records of a chunk that was just taken, and put all others back."""
        for row, error in errors.items():
            chunk.fail((row,), error)
        rows = [row for row in range(len(chunk.futures)) if row not in errors]
        starts = (RECORD_FIELDS * row for row in rows)
        self.items[:0] = [field for at in starts for field in chunk.items[at : at + RECORD_FIELDS]]
        self._reweigh(chunk.written, rows)

    def _reweigh(self, written: WrittenChunk, rows: slice | list[int]) -> None:
        for sizes in written.key_sizes[rows], written.value_sizes[rows]:
            self.weigh(int(sizes.clip(0).sum()))

    def reuse(self, chunk: StagedChunk) -> None:
        """Store the futures that no caller holds, for use by other records."""
        unheld, chunk.written.unheld = chunk.written.unheld, []
        if len(self.spare) < MAX_SPARE:
            self.spare += unheld

    def take(self, now_ms: int, max_records: int) -> StagedChunk | None:
        """Take the oldest records, in order; return None if there are none.

        `now_ms` is the timestamp of records without one.
        """
        items = self.items
        # Other threads may append meanwhile, but no other thread takes.
        end = min(len(items), RECORD_FIELDS * max_records)
        if not end:
            return None
        taken: list[Any] = []
        try:
            # One statement: an interrupt must not find a record in neither list.
            taken[:], items[:end] = items[:end], ()
            self._forget_weight(end)
            return self._chunk(taken, now_ms)
        except BaseException:
            items[:0] = taken
            raise

    def _forget_weight(self, taken: int) -> None:
        """Remove the weight of so many items that were taken."""
        if self.heavy_bytes:
            with self._weighing:
                # Which of them were heavy is not known; usually none is left.
                left = len(self.items)
                self.heavy_bytes = self.heavy_bytes * left // (left + taken)

    def _chunk(self, items: list[Any], now_ms: int) -> StagedChunk:
        futures: list[FutureRecordMetadata] = items[::RECORD_FIELDS]
        rows = len(futures)
        scanned = scan_items(items, FutureRecordMetadata) or _scan_slowly(items)
        # Most records have nothing else; checking each of them would cost as much again.
        is_plain = scanned.is_plain
        if is_plain and scanned.has_one_topic:
            columns = plain_columns(items[1], scanned.key, scanned.value)
        else:
            topics, topic_index = _topics(items[1::RECORD_FIELDS])
            columns = RecordColumns(
                num_rows=rows,
                key=scanned.key,
                value=scanned.value,
                topics=topics,
                topic_index=topic_index,
                partition=null_partitions(rows) if is_plain else _partitions(futures),
                timestamp=null_timestamps(rows) if is_plain else _timestamps(futures),
                headers=None if is_plain else _headers(futures),
            )
        return StagedChunk(
            futures=futures,
            columns=columns,
            written=WrittenChunk(
                timestamps=np.full(rows, now_ms, np.int64)
                if is_plain
                else np.where(columns.timestamp == NULL_TIMESTAMP, now_ms, columns.timestamp),
                key_sizes=scanned.key_sizes,
                value_sizes=scanned.value_sizes,
            ),
            now_ms=now_ms,
            is_plain=is_plain,
            has_callbacks=not is_plain and any(f.callback is not None for f in futures),
            items=items,
            call_later=self._call_later,
        )


def _scan_slowly(items: list[Any]) -> ScannedItems:
    """Do the same as `scan_items`, for any interpreter and for all bytes-like objects."""
    topics = items[1::RECORD_FIELDS]
    key, key_sizes = _bytes_column(items[2::RECORD_FIELDS])
    value, value_sizes = _bytes_column(items[3::RECORD_FIELDS])
    return ScannedItems(
        is_plain=set(map(type, items[::RECORD_FIELDS])) == {FutureRecordMetadata},
        has_one_topic=topics.count(topics[0]) == len(topics),
        key=key,
        key_sizes=key_sizes,
        value=value,
        value_sizes=value_sizes,
    )


def _held_rows(futures: list[FutureRecordMetadata], unheld: int) -> list[int] | None:
    """Return the futures with another reference count; None if they exceed `MAX_HELD`."""
    if reads_objects():
        return held_rows(futures, unheld, MAX_HELD)
    counts = np.fromiter(map(sys.getrefcount, futures), np.int64, len(futures))
    held: list[int] = np.flatnonzero(counts != unheld).tolist()
    return held if len(held) <= MAX_HELD else None


def _count_of_unheld() -> int:
    """Return the reference count of a future that only a chunk refers to."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Without the GIL the counts are only approximate.
        return -1
    items = [FutureRecordMetadata()]
    futures = items[:]
    # The slice that `assign_places` makes adds a reference.
    stretch = futures[:]
    return next(unheld for unheld in count() if _held_rows(stretch, unheld) == [])


_UNHELD = _count_of_unheld()


def _bytes_column(items: Sequence[bytes | None]) -> tuple[BytesColumn, NDArray[np.int64]]:
    """Join byte strings into a column; return it with their sizes, `NULL_SIZE` for null."""
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
    names = tuple(dict.fromkeys(topics))
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.fromiter(map(numbers.__getitem__, topics), np.int32, len(topics))


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
    names = [name.encode() for headers in lists for name, _ in headers]
    values = [value for headers in lists for _, value in headers]
    if not names:
        return None
    return HeaderColumns(offsets, _bytes_column(names)[0], _bytes_column(values)[0])
