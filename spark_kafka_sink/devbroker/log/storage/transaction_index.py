"""The index of a segment's aborted transactions, whose records consumers must skip.

Kafka's TransactionIndex. An entry belongs to the segment that has the transaction's marker. On disk
(`.txnindex`, which normally exists only if a transaction was aborted) it is:

    version int16 (0), producerId, firstOffset, lastOffset, lastStableOffset, all int64
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.log.storage.indexes import IndexFile

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


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
