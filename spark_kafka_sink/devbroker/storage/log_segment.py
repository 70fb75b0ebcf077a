"""A part of a log: batches from one offset on, with their indexes (Kafka's LogSegment).

Only the last segment of a log grows. It is rolled, that is, followed by a new one, when it has
become too large or too old, when an index is full, or when an offset does not fit the indexes any
more. Every `index.interval.bytes` of batches get an entry in the offset and the time index; a
look-up goes to the entry before what it looks for, and on from batch to batch.

An append writes the batch, and the rest is memory: it succeeds as a whole or leaves nothing. The
index files are written with the next flush (`index_file`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.storage.indexes import (
    MAX_RELATIVE_OFFSET,
    NO_TIMESTAMP,
    TimestampOffset,
)
from spark_kafka_sink.devbroker.storage.segment_records import FileRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.storage.files import AppendFile
    from spark_kafka_sink.devbroker.storage.indexes import OffsetIndex, TimeIndex
    from spark_kafka_sink.devbroker.storage.segment_records import BatchSpan, SegmentRecords
    from spark_kafka_sink.devbroker.storage.transaction_index import TransactionIndex
    from spark_kafka_sink.devbroker.topic_config import TopicConfig

_NOT_LOOKED_FOR = -2


class SegmentParts(NamedTuple):
    """What a segment is made of, in memory or on disk."""

    records: SegmentRecords
    offset_index: OffsetIndex
    time_index: TimeIndex
    transaction_index: TransactionIndex


class SegmentRead(NamedTuple):
    """What a read of one segment gives."""

    batches: list[memoryview]
    size_in_bytes: int
    #: What Kafka would have given, which cuts the last batch off where the limit lies.
    readable_bytes: int
    #: First offset behind the batches, or a later one before the next batch.
    end_offset: int


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

    def __init__(self, base_offset: int, parts: SegmentParts, *, now_ms: int) -> None:
        """Have what the parts hold; `now_ms` is when that begins to count, if it has no times."""
        self.base_offset = base_offset
        self.records, self.offset_index, self.time_index, self.transaction_index = parts
        self._created_ms = now_ms
        self._last_possible_offset = base_offset + MAX_RELATIVE_OFFSET
        self._bytes_since_last_index_entry = 0
        self._index_is_full = False
        # The rest is looked for in the records, and only if it is needed: see `_look_through`.
        is_empty = self.records.size_in_bytes == 0
        #: Timestamp of the first batch.
        self._rolling_based_timestamp = NO_TIMESTAMP if is_empty else _NOT_LOOKED_FOR
        #: The largest timestamp, and the last offset of the first batch that has it.
        self._max_timestamp = NO_TIMESTAMP if is_empty else _NOT_LOOKED_FOR
        self._offset_of_max_timestamp = base_offset

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches."""
        return self.records.size_in_bytes

    @property
    def max_timestamp_so_far(self) -> TimestampOffset:
        """The largest timestamp, with the last offset of the first batch that has it."""
        if self._max_timestamp == _NOT_LOOKED_FOR:
            self._look_through()
        return TimestampOffset(self._max_timestamp, self._offset_of_max_timestamp)

    @property
    def latest_ms(self) -> int:
        """How late the records are; without times, since when the segment counts."""
        latest = self.max_timestamp_so_far.timestamp
        return latest if latest >= 0 else self._created_ms

    def _look_through(self) -> None:
        """Find out how late the records are that were there before the log was opened."""
        first = next(self.records.spans(0), None)
        self._rolling_based_timestamp = NO_TIMESTAMP if first is None else first.max_timestamp
        found = self.time_index.last_entry
        # What lies behind the last entry may be later still.
        for span in self.records.spans(self.offset_index.lookup(found.offset).position):
            if span.max_timestamp > found.timestamp:
                found = TimestampOffset(span.max_timestamp, span.last_offset)
        self._max_timestamp, self._offset_of_max_timestamp = found

    @property
    def is_dirty(self) -> bool:
        """Whether the files do not yet say what the segment says in memory."""
        return self.records.is_torn or any(
            index.file is not None and index.file.is_dirty for index in self._indexes
        )

    @property
    def _indexes(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        return self.offset_index, self.time_index, self.transaction_index

    @property
    def files(self) -> list[AppendFile]:
        """The segment's files, the batches last; none in memory."""
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
        """Append a batch that has its offsets, and with `flush` make it survive a crash.

        Raises OSError; the segment is then as it was. The batch is written first, and nothing that
        follows can fail.
        """
        records = self.records
        position = records.size_in_bytes
        records.append(batch)
        if flush:
            try:
                records.flush()
            except OSError:
                with suppress(OSError):  # Then it is cut off before anything else is written.
                    records.truncate(position)
                raise
        self._take_in(position, len(batch), last_offset, max_timestamp, config)

    def recover_batch(self, span: BatchSpan, config: TopicConfig) -> None:
        """Index a batch that is there already, as when it was appended (LogSegment.recover)."""
        self._take_in(
            span.position, span.size_in_bytes, span.last_offset, span.max_timestamp, config
        )

    def _take_in(
        self, position: int, size: int, last_offset: int, max_timestamp: int, config: TopicConfig
    ) -> None:
        if position == 0:
            self._rolling_based_timestamp = max_timestamp
        elif self._max_timestamp == _NOT_LOOKED_FOR:
            self._look_through()
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
        """Tell whether a batch of `size` bytes belongs into the next segment."""
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
        if self._rolling_based_timestamp == _NOT_LOOKED_FOR:
            self._look_through()
        first = self._rolling_based_timestamp
        # How old the segment is: by its records, or else by the clock.
        waited = max_timestamp - first if first >= 0 else now_ms - self._created_ms
        return waited > config.segment_ms

    def become_inactive(self) -> None:
        """Add the last entry to the time index: the segment is complete, or closed."""
        self.time_index.maybe_append(*self.max_timestamp_so_far)

    def spans(self, offset: int | None = None) -> Iterator[BatchSpan]:
        """Give the batches from the one that holds `offset` on, or else comes next behind it."""
        if offset is None:
            return self.records.spans(0)
        first = self.translate_offset(offset)
        return self.records.spans(self.size_in_bytes if first is None else first.position)

    def translate_offset(self, offset: int) -> BatchSpan | None:
        """Return the batch that holds an offset, or else comes next behind it."""
        return self.records.find_offset(offset, self.offset_index.lookup(offset).position)

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        max_position: int,
        next_offset: int,
        min_one_batch: bool,
    ) -> SegmentRead | None:
        """Return whole batches from the one that holds `offset` on; None if there is none behind.

        As many as fit `max_bytes` and begin before `max_position`; with `min_one_batch` the first
        of them whatever its size. `next_offset` is the one behind the segment.
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
                return SegmentRead([], 0, 0, offset)
            end, end_offset = start + first.size_in_bytes, first.last_offset + 1
        size = end - start
        readable = max(size, min(max_bytes, max_position - start))
        return SegmentRead(self.records.read(start, end), size, readable, end_offset)

    def read_next_offset(self) -> int:
        """Return the offset behind the last batch; looked for on the way from the last entry."""
        offset = self.base_offset
        for span in self.records.spans(self.offset_index.last_entry.position):
            offset = span.last_offset + 1
        return offset

    def flush(self) -> None:
        """Write the indexes, and make the segment survive a crash of the machine."""
        self.records.flush()
        for index in self._indexes:
            if index.file is not None:
                index.file.flush()

    def reset_indexes(self) -> None:
        """Forget what can be had from the batches."""
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._rolling_based_timestamp = NO_TIMESTAMP
        self._bytes_since_last_index_entry = 0
        self._index_is_full = False
