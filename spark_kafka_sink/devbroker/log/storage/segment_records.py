"""The record batches of one segment, in memory or in a file (Kafka's FileRecords).

Both are a sequence of whole batches, each at its position in bytes. In memory the batches are kept
without a copy; on disk they are the bytes of a `.log` file. Nothing here reads beyond the header of
a batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.log.storage.files import AppendFile

#: Base offset, length, last offset delta and largest timestamp, at their positions in a header.
_SPAN = struct.Struct(">qi11xi8xq")
_LOG_OVERHEAD = 12
#: Size of each read when the headers in a file are scanned.
_SCAN_BYTES = 64 * 1024


class BatchSpan(NamedTuple):
    """The position, size, offsets and largest timestamp of a batch."""

    #: Position of the first byte in the segment.
    position: int
    size_in_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class SegmentRecords(Protocol):
    """The batches of a segment."""

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches."""

    def append(self, batch: memoryview) -> None:
        """Append a batch."""

    @property
    def is_torn(self) -> bool:
        """Whether there may be bytes after the end, which must still be truncated."""

    @property
    def location(self) -> str:
        """Where the batches are stored, for messages."""

    def read(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes between two positions, each the start of a batch or the end."""

    def spans(self, position: int) -> Iterator[BatchSpan]:
        """Iterate over the batches starting at `position`, while they are whole."""

    def find_offset(self, offset: int, position: int) -> BatchSpan | None:
        """Return the first batch at or after `position` whose last offset is at least `offset`."""

    def find_position(self, limit: int, position: int) -> BatchSpan | None:
        """Return the first batch at or after `position` that ends after `limit`."""

    def truncate(self, size: int) -> None:
        """Truncate the batches to the first `size` bytes."""

    def flush(self) -> None:
        """Flush the batches, so that they survive a crash of the machine."""


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
    """Batches in memory."""

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
    """Batches in a file."""

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
