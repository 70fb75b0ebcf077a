"""Where in a log each leader epoch began (Kafka's LeaderEpochFileCache).

Epochs and offsets of the entries both increase strictly. A leader adds its epoch when it takes
over. A batch with an unknown epoch adds one, too, so that a log that is loaded has its epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.model import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable


class EpochEntry(NamedTuple):
    """An epoch and the first offset that may belong to it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch and the first offset after it."""

    epoch: int
    end_offset: int


class LeaderEpochCache:
    """The leader epochs of one log."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        """Start with these entries, which must be in order."""
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, in order."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """The newest epoch, None without entries."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch, removing conflicting entries; ignore an epoch that is not new."""
        if self._entries and self._entries[-1].epoch >= epoch:
            return
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Return where an epoch ends; None for -1, for one newer than all, or without entries.

        For an unknown epoch between two entries it is the end of the earlier one, and for one
        older than all it is where the first one begins (endOffsetFor).
        """
        if epoch == NO_LEADER_EPOCH:
            return None
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        following = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if following == len(self._entries):
            return None
        end_offset = self._entries[following].start_offset
        return EpochEnd(self._entries[following - 1].epoch if following else epoch, end_offset)

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of an offset; None before the first entry."""
        found = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[found - 1].epoch if found else None

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before the log starts; the first remaining one begins there."""
        found = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if found:
            self._entries[:found] = [EpochEntry(self._entries[found - 1].epoch, start_offset)]

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin after the log's end; one that begins at the end remains."""
        while self._entries and self._entries[-1].start_offset > end_offset:
            self._entries.pop()
