"""A segment's indexes: of offsets, of timestamps and of aborted transactions.

Kafka's OffsetIndex, TimeIndex and TransactionIndex. Entries are kept in memory, sorted, and written
to the index's file with every flush; relative offsets are those to the segment's base offset:

    .index      relative offset int32, position int32
    .timeindex  timestamp int64, relative offset int32
    .txnindex   version int16 (0), producerId, firstOffset, lastOffset, lastStableOffset, all int64

The first two are sparse. An entry of the offset index has the last offset of the batch at the
position; one of the time index has the largest timestamp up to and including the batch with that
last offset. The index of aborted transactions, whose records consumers must skip, has those whose
markers are in the segment; its file normally exists only if there are any. An index can always be
rebuilt from the batches. Unlike Kafka's, the files are never longer than their entries.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.log.files import AppendFile

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
#: The largest difference between an offset and its segment's base offset that fits in an index.
MAX_RELATIVE_OFFSET = 2**31 - 1
NO_TIMESTAMP = -1
_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class IndexFile:
    """The file of an index, which follows the index in memory; all entries have the same size.

    Entries are written when the segment is flushed, not when they are added: an append to the log
    writes only the batch, so it cannot fail halfway. Nothing is lost by that: the recovery point
    only advances with a flush, and after a kill the indexes of everything after it are rebuilt.
    """

    __slots__ = ("_open_file", "_pending", "file")

    def __init__(self, open_file: Callable[[], AppendFile], *, lazily: bool = False) -> None:
        """Open or create the file; with `lazily`, only once it has entries. Raises OSError."""
        self._open_file = open_file
        #: None until the file has been opened.
        self.file: AppendFile | None = None if lazily else open_file()
        self._pending = bytearray()

    @property
    def is_dirty(self) -> bool:
        """Whether the file lacks entries, or still has some that were removed."""
        return bool(self._pending) or (self.file is not None and self.file.is_torn)

    def load(self, entry_size: int) -> bytes:
        """Return all entries; truncate a partial one that a crash has left. Raises OSError."""
        if self.file is None:
            return b""
        self.file.truncate(self.file.size - self.file.size % entry_size)
        return self.file.read(0, self.file.size)

    def append(self, entry: bytes) -> None:
        """Add an entry, to be written with the next flush."""
        self._pending += entry

    def clear(self) -> None:
        """Remove every entry. Raises OSError."""
        self._pending.clear()
        if self.file is not None:
            self.file.truncate(0)

    def flush(self) -> None:
        """Write and flush the entries, so that they survive a machine crash. Raises OSError."""
        if self._pending:
            if self.file is None:
                self.file = self._open_file()
            # A copy: a kept exception would hold a view of the buffer, which could not be resized.
            self.file.append(bytes(self._pending))
            self._pending.clear()
        if self.file is not None:
            self.file.flush()


class OffsetPosition(NamedTuple):
    """An entry of the offset index, or the segment's start."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """An entry of the time index; timestamp -1 if there is none."""

    timestamp: int
    offset: int


class OffsetIndex:
    """The positions of some of a segment's batches, by offset."""

    def __init__(self, base_offset: int, file: IndexFile | None = None) -> None:
        """Load the entries of the file; without a file, start empty."""
        self.base_offset = base_offset
        self.file = file
        self._offsets: list[int] = []
        self._positions: list[int] = []
        if file is not None:
            entries = file.load(_OFFSET_ENTRY.size)
            for relative_offset, position in _OFFSET_ENTRY.iter_unpack(entries):
                self._offsets.append(base_offset + relative_offset)
                self._positions.append(position)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_entry(self) -> OffsetPosition:
        """The last entry; the segment's start if there is none."""
        if not self._offsets:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self._offsets[-1], self._positions[-1])

    def is_full(self, max_size_in_bytes: int) -> bool:
        """Return whether there is no space for another entry."""
        return len(self._offsets) >= max_size_in_bytes // _OFFSET_ENTRY.size

    def append(self, offset: int, position: int) -> None:
        """Add the batch at `position` under its last offset."""
        if self.file is not None:
            self.file.append(_OFFSET_ENTRY.pack(offset - self.base_offset, position))
        self._offsets.append(offset)
        self._positions.append(position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry with an offset not above the given one, or the segment's start."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def lookup_position(self, position: int) -> OffsetPosition:
        """Return the last entry with a position not above the given one, or the segment's start."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def first_at_or_after(self, position: int) -> OffsetPosition | None:
        """Return the first entry with a position not below the given one, or None."""
        index = bisect_left(self._positions, position)
        return None if index == len(self._positions) else self._entry(index)

    def check(self, size_in_bytes: int) -> None:
        """Raise CorruptRecordError unless the entries are plausible for batches of this size."""
        for entries in (self._offsets, self._positions):
            if any(second <= first for first, second in itertools.pairwise(entries)):
                raise CorruptRecordError(f"the offset index of {self.base_offset} is not sorted")
        last = self.last_entry
        if last.offset < self.base_offset or last.position > max(size_in_bytes - 1, 0):
            raise CorruptRecordError(
                f"the offset index of {self.base_offset} ends with {last}, "
                f"outside the segment of {size_in_bytes} bytes"
            )

    def reset(self) -> None:
        """Remove all entries."""
        self._offsets.clear()
        self._positions.clear()
        if self.file is not None:
            self.file.clear()

    def _entry(self, index: int) -> OffsetPosition:
        if index < 0:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self._offsets[index], self._positions[index])


class TimeIndex:
    """The largest timestamps up to some of a segment's batches."""

    def __init__(self, base_offset: int, file: IndexFile | None = None) -> None:
        """Load the entries of the file; without a file, start empty."""
        self.base_offset = base_offset
        self.file = file
        #: Timestamp of the last entry; -1 if there is none.
        self.last_timestamp = NO_TIMESTAMP
        self._timestamps: list[int] = []
        self._offsets: list[int] = []
        if file is not None:
            entries = file.load(_TIME_ENTRY.size)
            for timestamp, relative_offset in _TIME_ENTRY.iter_unpack(entries):
                self._timestamps.append(timestamp)
                self._offsets.append(base_offset + relative_offset)
                self.last_timestamp = timestamp

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; the segment's base offset without a timestamp if there is none."""
        return self._entry(len(self._offsets) - 1)

    def is_full(self, max_size_in_bytes: int) -> bool:
        """Return whether there is only space for the entry that completes a segment."""
        return len(self._offsets) >= max_size_in_bytes // _TIME_ENTRY.size - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry, if it is later than the last one."""
        if timestamp <= self.last_timestamp:
            return
        if self.file is not None:
            self.file.append(_TIME_ENTRY.pack(timestamp, offset - self.base_offset))
        self._timestamps.append(timestamp)
        self._offsets.append(offset)
        self.last_timestamp = timestamp

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry with a timestamp not above the given one, or the start."""
        return self._entry(bisect_right(self._timestamps, timestamp) - 1)

    def check(self) -> None:
        """Raise CorruptRecordError unless the entries are in ascending order."""
        for entries in (self._offsets, self._timestamps):
            if any(second <= first for first, second in itertools.pairwise(entries)):
                raise CorruptRecordError(f"the time index of {self.base_offset} is not sorted")
        if self._offsets and self._offsets[0] < self.base_offset:
            raise CorruptRecordError(
                f"the time index of {self.base_offset} begins before that offset"
            )

    def reset(self) -> None:
        """Remove all entries."""
        self.last_timestamp = NO_TIMESTAMP
        self._timestamps.clear()
        self._offsets.clear()
        if self.file is not None:
            self.file.clear()

    def _entry(self, index: int) -> TimestampOffset:
        if index < 0:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(self._timestamps[index], self._offsets[index])


class AbortedTxn(NamedTuple):
    """An aborted transaction."""

    producer_id: int
    first_offset: int
    #: Offset of the marker.
    last_offset: int
    #: The last stable offset once this transaction had ended.
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of a segment, in the order of their markers."""

    def __init__(self, file: IndexFile | None = None) -> None:
        """Load the entries of the file; without a file, start empty. Raises CorruptRecordError."""
        self.file = file
        self._entries: list[AbortedTxn] = []
        if file is not None:
            for version, *values in _ENTRY.iter_unpack(file.load(_ENTRY.size)):
                if version != _VERSION:
                    raise CorruptRecordError(
                        f"a transaction index entry of version {version} is not supported"
                    )
                self._entries.append(AbortedTxn(*values))

    @property
    def entries(self) -> tuple[AbortedTxn, ...]:
        """All transactions, in the order of their markers."""
        return tuple(self._entries)

    def append(self, aborted: AbortedTxn) -> None:
        """Add a transaction whose marker has just been appended."""
        if self.file is not None:
            self.file.append(_ENTRY.pack(_VERSION, *aborted))
        self._entries.append(aborted)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions with records from `fetch_offset` to below `upper_bound`.

        Also returns True if later segments cannot have more of them (collectAbortedTxns).
        """
        first = bisect_left(self._entries, fetch_offset, key=lambda aborted: aborted.last_offset)
        transactions = []
        for aborted in itertools.islice(self._entries, first, None):
            if aborted.first_offset < upper_bound:
                transactions.append(aborted)
            if aborted.last_stable_offset >= upper_bound:
                return transactions, True
        return transactions, False

    def check(self, base_offset: int) -> None:
        """Raise CorruptRecordError unless the markers are in the segment and in order."""
        last_offset = base_offset - 1
        for aborted in self._entries:
            if aborted.last_offset <= last_offset:
                raise CorruptRecordError(f"the transaction index of {base_offset} is not sorted")
            last_offset = aborted.last_offset

    def reset(self) -> None:
        """Remove all transactions."""
        self._entries.clear()
        if self.file is not None:
            self.file.clear()
