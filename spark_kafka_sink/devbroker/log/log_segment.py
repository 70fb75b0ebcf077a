"""A segment of a log: batches from one offset on, with their indexes (Kafka's LogSegment).

Only the last segment of a log, the active one, grows. It is rolled, that is, followed by a new one,
when it is too large or too old, when an index is full, or when an offset no longer fits in the
indexes. Every `index.interval.bytes` of batches get an entry in the offset and the time index; a
lookup goes to the entry before its target, and from there from batch to batch.

An append writes the batch, and everything else is in memory: it succeeds as a whole or has no
effect. The index files are written with the next flush (`indexes`).

Records, in memory or in a file, are a sequence of whole batches, each at its position in bytes.
Nothing here reads beyond the header of a batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from spark_kafka_sink.devbroker.log.indexes import (
    MAX_RELATIVE_OFFSET,
    NO_TIMESTAMP,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.files import AppendFile

#: Base offset, length, last offset delta and largest timestamp, at their positions in a header.
_SPAN = struct.Struct(">qi11xi8xq")
_LOG_OVERHEAD = 12
#: Size of each read when the headers in a file are scanned.
_SCAN_BYTES = 64 * 1024
_NOT_SCANNED = -2


class BatchSpan(NamedTuple):
    """The position, size, offsets and largest timestamp of a batch."""

    #: Position of the first byte in the segment.
    position: int
    size_in_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def _last_offset(batch: memoryview) -> int:
    base_offset, _, last_offset_delta, _ = _SPAN.unpack_from(batch)
    last_offset: int = base_offset + last_offset_delta
    return last_offset


def _span(position: int, header: bytes | memoryview, at: int = 0) -> BatchSpan:
    base_offset, length, last_offset_delta, max_timestamp = _SPAN.unpack_from(header, at)
    return BatchSpan(
        position,
        length + _LOG_OVERHEAD,
        base_offset,
        base_offset + last_offset_delta,
        max_timestamp,
    )


class MemoryRecords:
    """The batches of a segment in memory, where they are kept without a copy."""

    __slots__ = ("_batches", "_positions", "size_in_bytes")

    is_torn = False
    location = "memory"

    def __init__(self) -> None:
        self.size_in_bytes = 0
        self._batches: list[memoryview] = []
        self._positions: list[int] = []

    def append(self, batch: memoryview) -> None:
        """Append a batch without copying it."""
        self._positions.append(self.size_in_bytes)
        self._batches.append(batch)
        self.size_in_bytes += len(batch)

    def read(self, start: int, end: int) -> list[memoryview]:
        """Return the batches between two positions."""
        positions = self._positions
        return self._batches[bisect_left(positions, start) : bisect_left(positions, end)]

    def spans(self, position: int) -> Iterator[BatchSpan]:
        """Iterate over the batches starting at `position`."""
        for index in range(bisect_left(self._positions, position), len(self._batches)):
            yield _span(self._positions[index], self._batches[index])

    def find_offset(self, offset: int, position: int) -> BatchSpan | None:
        """Return the first batch at or after `position` whose last offset is at least `offset`."""
        first = bisect_left(self._positions, position)
        return self._at(bisect_left(self._batches, offset, lo=first, key=_last_offset))

    def find_position(self, limit: int, position: int) -> BatchSpan | None:
        """Return the first batch at or after `position` that ends after `limit`."""
        first = bisect_left(self._positions, position)
        index = bisect_right(self._positions, limit, lo=first) - 1
        return self._at(max(index, first))

    def _at(self, index: int) -> BatchSpan | None:
        if index == len(self._batches):
            return None
        return _span(self._positions[index], self._batches[index])

    def truncate(self, size: int) -> None:
        """Truncate the batches to the first `size` bytes."""
        first = bisect_left(self._positions, size)
        del self._batches[first:]
        del self._positions[first:]
        self.size_in_bytes = min(size, self.size_in_bytes)

    def flush(self) -> None:
        """Do nothing: memory does not survive a crash."""


class FileRecords:
    """The batches of a segment in its `.log` file (Kafka's FileRecords)."""

    __slots__ = ("file",)

    def __init__(self, file: AppendFile) -> None:
        self.file = file

    @property
    def is_torn(self) -> bool:
        """Whether there may be bytes after the end, which must still be truncated."""
        return self.file.is_torn

    @property
    def location(self) -> str:
        """The file's path."""
        return str(self.file.path)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches."""
        return self.file.size

    def append(self, batch: memoryview) -> None:
        """Append a batch. Raises OSError; then none of it is appended."""
        self.file.append(batch)

    def read(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes between two positions, in one piece."""
        return [memoryview(self.file.read(start, end - start))] if end > start else []

    def spans(self, position: int) -> Iterator[BatchSpan]:
        """Iterate over the batches starting at `position`, until one is not whole."""
        chunk_start = position
        chunk = b""
        while position + RECORD_BATCH_OVERHEAD <= self.file.size:
            at = position - chunk_start
            if at + RECORD_BATCH_OVERHEAD > len(chunk):
                chunk_start, at = position, 0
                chunk = self.file.read(position, _SCAN_BYTES)
            span = _span(position, chunk, at)
            end = position + span.size_in_bytes
            if span.size_in_bytes < RECORD_BATCH_OVERHEAD or end > self.file.size:
                return
            yield span
            position = end

    def find_offset(self, offset: int, position: int) -> BatchSpan | None:
        """Return the first batch at or after `position` whose last offset is at least `offset`."""
        return next((span for span in self.spans(position) if span.last_offset >= offset), None)

    def find_position(self, limit: int, position: int) -> BatchSpan | None:
        """Return the first batch at or after `position` that ends after `limit`."""
        return next(
            (span for span in self.spans(position) if span.position + span.size_in_bytes > limit),
            None,
        )

    def truncate(self, size: int) -> None:
        """Truncate the file to its first `size` bytes. Raises OSError."""
        self.file.truncate(size)

    def flush(self) -> None:
        """Flush the file, so that it survives a crash of the machine. Raises OSError."""
        self.file.flush()


SegmentRecords: TypeAlias = MemoryRecords | FileRecords


class FetchedRecords(NamedTuple):
    """Whole batches of one segment."""

    #: One or several batches in each piece.
    batches: list[memoryview]
    size_in_bytes: int
    #: The bytes that Kafka would have returned, which cuts the last batch off at the limit.
    readable_bytes: int
    #: An offset after the last batch, and not after the start of the next one.
    end_offset: int
    #: Kafka lists the aborted transactions that began before this offset, that of the next index
    #: entry (LogSegment.fetchUpperBoundOffset): some may have begun after the batches.
    upper_bound: int


class LogSegment:
    """Batches from `base_offset` on."""

    __slots__ = (
        "_bytes_since_last_index_entry",
        "_created_ms",
        "_index_is_full",
        "_last_possible_offset",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_rolling_based_timestamp",
        "base_offset",
        "offset_index",
        "records",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        base_offset: int,
        records: SegmentRecords,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        transaction_index: TransactionIndex,
        *,
        now_ms: int,
    ) -> None:
        """Create a segment of these parts, which ages from `now_ms` if it has no timestamps."""
        self.base_offset = base_offset
        self.records = records
        self.offset_index = offset_index
        self.time_index = time_index
        self.transaction_index = transaction_index
        self._created_ms = now_ms
        self._last_possible_offset = base_offset + MAX_RELATIVE_OFFSET
        self._bytes_since_last_index_entry = 0
        self._index_is_full = False
        # The rest is read from existing records when it is first needed: see `_scan_records`.
        is_empty = self.records.size_in_bytes == 0
        #: Timestamp of the first batch.
        self._rolling_based_timestamp = NO_TIMESTAMP if is_empty else _NOT_SCANNED
        #: The largest timestamp, and the last offset of the first batch with it.
        self._max_timestamp = NO_TIMESTAMP if is_empty else _NOT_SCANNED
        self._offset_of_max_timestamp = base_offset

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches."""
        return self.records.size_in_bytes

    @property
    def max_timestamp_so_far(self) -> TimestampOffset:
        """The largest timestamp, with the last offset of the first batch with it."""
        if self._max_timestamp == _NOT_SCANNED:
            self._scan_records()
        return TimestampOffset(self._max_timestamp, self._offset_of_max_timestamp)

    @property
    def latest_ms(self) -> int:
        """The largest timestamp, or when the segment was created if no record has one."""
        latest = self.max_timestamp_so_far.timestamp
        return latest if latest >= 0 else self._created_ms

    def _scan_records(self) -> None:
        """Find the first and the largest timestamp of the records that existed at opening."""
        first = next(self.records.spans(0), None)
        self._rolling_based_timestamp = NO_TIMESTAMP if first is None else first.max_timestamp
        largest = self.time_index.last_entry
        # Batches after the last entry may have later timestamps.
        for span in self.records.spans(self.offset_index.lookup(largest.offset).position):
            if span.max_timestamp > largest.timestamp:
                largest = TimestampOffset(span.max_timestamp, span.last_offset)
        self._max_timestamp, self._offset_of_max_timestamp = largest

    @property
    def is_dirty(self) -> bool:
        """Whether the segment has changes in memory that are not in its files."""
        return self.records.is_torn or any(
            index.file is not None and index.file.is_dirty for index in self._indexes
        )

    @property
    def _indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        return self.offset_index, self.time_index, self.transaction_index

    @property
    def files(self) -> list[AppendFile]:
        """The segment's files, `.log` last; none in memory."""
        files = [
            index.file.file
            for index in reversed(self._indexes)
            if index.file is not None and index.file.file is not None
        ]
        return [*files, self.records.file] if isinstance(self.records, FileRecords) else files

    def append(
        self,
        batch: memoryview,
        last_offset: int,
        max_timestamp: int,
        config: TopicConfig,
        *,
        flush: bool = False,
    ) -> None:
        """Append a batch that has its offsets; `flush` makes it survive a machine crash.

        Raises OSError, and then the segment is unchanged. The batch is written first, and nothing
        after that can fail.
        """
        records = self.records
        position = records.size_in_bytes
        records.append(batch)
        if flush:
            try:
                records.flush()
            except OSError:
                with suppress(OSError):  # It is then truncated before the next write.
                    records.truncate(position)
                raise
        self._track_batch(position, len(batch), last_offset, max_timestamp, config)

    def recover_batch(self, span: BatchSpan, config: TopicConfig) -> None:
        """Index an existing batch, as when it was appended (LogSegment.recover)."""
        self._track_batch(
            span.position, span.size_in_bytes, span.last_offset, span.max_timestamp, config
        )

    def _track_batch(
        self, position: int, size: int, last_offset: int, max_timestamp: int, config: TopicConfig
    ) -> None:
        if position == 0:
            self._rolling_based_timestamp = max_timestamp
        elif self._max_timestamp == _NOT_SCANNED:
            self._scan_records()
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_last_index_entry > config.index_interval_bytes:
            offset_index, time_index = self.offset_index, self.time_index
            offset_index.append(last_offset, position)
            if self._max_timestamp > time_index.last_timestamp:
                time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
            self._index_is_full = offset_index.is_full(
                config.segment_index_bytes
            ) or time_index.is_full(config.segment_index_bytes)
            self._bytes_since_last_index_entry = 0
        self._bytes_since_last_index_entry += size

    def should_roll(
        self, config: TopicConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> bool:
        """Return whether a batch of `size` bytes belongs in a new segment."""
        position = self.records.size_in_bytes
        if position == 0:
            self._created_ms = now_ms
            return False
        if (
            position > config.segment_bytes - size
            or self._index_is_full
            or last_offset > self._last_possible_offset
        ):
            return True
        if self._rolling_based_timestamp == _NOT_SCANNED:
            self._scan_records()
        first = self._rolling_based_timestamp
        # The segment's age is that of its records or, without timestamps, by the clock.
        waited = max_timestamp - first if first >= 0 else now_ms - self._created_ms
        return waited > config.segment_ms

    def become_inactive(self) -> None:
        """Add the last entry to the time index, because the segment is complete or closed."""
        self.time_index.maybe_append(*self.max_timestamp_so_far)

    def spans(self, offset: int | None = None) -> Iterator[BatchSpan]:
        """Iterate over the batches, starting at the one that contains `offset` or the next one."""
        if offset is None:
            return self.records.spans(0)
        first = self.translate_offset(offset)
        return self.records.spans(self.size_in_bytes if first is None else first.position)

    def batch(self, span: BatchSpan) -> memoryview:
        """Return one whole batch."""
        (batch,) = self.records.read(span.position, span.position + span.size_in_bytes)
        return batch

    def translate_offset(self, offset: int) -> BatchSpan | None:
        """Return the batch that contains an offset, or the next one; None if there is none."""
        return self.records.find_offset(offset, self.offset_index.lookup(offset).position)

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        max_position: int,
        next_offset: int,
        min_one_batch: bool,
    ) -> FetchedRecords | None:
        """Return whole batches, starting at the one that contains `offset` or the next one.

        None if there is no such batch. As many are returned as fit in `max_bytes` and end by
        `max_position`. With `min_one_batch`, the first one is returned whatever its size if it
        begins before `max_position`. `next_offset` is the first offset after the segment.
        """
        first = self.translate_offset(offset)
        if first is None:
            return None
        start = first.position
        limit = min(start + max_bytes, max_position)
        if limit >= self.records.size_in_bytes:
            end, end_offset = self.records.size_in_bytes, next_offset
        else:
            hint = self.offset_index.lookup_position(limit).position
            behind = self.records.find_position(limit, max(hint, start)) or first
            end, end_offset = behind.position, behind.base_offset
        if end <= start:
            if not min_one_batch or start >= max_position:
                return FetchedRecords([], 0, 0, offset, offset)
            end, end_offset = start + first.size_in_bytes, first.last_offset + 1
        size = end - start
        readable = max(size, min(max_bytes, max_position - start))
        entry = self.offset_index.first_at_or_after(start + readable)
        upper_bound = next_offset if entry is None else entry.offset
        batches = self.records.read(start, end)
        return FetchedRecords(batches, size, readable, end_offset, upper_bound)

    def read_next_offset(self) -> int:
        """Return the offset after the last batch, found by scanning from the last index entry."""
        offset = self.base_offset
        for span in self.records.spans(self.offset_index.last_entry.position):
            offset = span.last_offset + 1
        return offset

    def flush(self) -> None:
        """Flush batches and indexes, so that they survive a machine crash. Raises OSError."""
        self.records.flush()
        for index in self._indexes:
            if index.file is not None:
                index.file.flush()

    def reset_indexes(self) -> None:
        """Clear the indexes and timestamps, which can be rebuilt from the batches."""
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._rolling_based_timestamp = NO_TIMESTAMP
        self._bytes_since_last_index_entry = 0
        self._index_is_full = False
