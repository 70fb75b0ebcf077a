"""Where in a log each leader epoch began (Kafka's LeaderEpochFileCache).

Entries are ordered by epoch and offset, strictly. A leader enters its epoch as it takes over, and a
batch of an epoch that is not known yet does, too, so that a log that is read back knows its epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class EpochEntry(NamedTuple):
    """An epoch, and the first offset that may have been written in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch, and the first offset that was not written in it."""

    epoch: int
    end_offset: int


class LeaderEpochCache:
    """The leader epochs of one log."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        """Know these, in order."""
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All that is known, in order."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """The newest epoch."""
        return self._entries[-1].epoch if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let an epoch begin; what contradicts it goes, and an older epoch changes nothing."""
        if self._entries and self._entries[-1].epoch >= epoch:
            return
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Tell where an epoch ends; None for one that is newer than all, or where none is known.

        For an epoch in which nothing was written it is the one before it that is told of, and for
        one older than all the place where the first one begins (endOffsetFor).
        """
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        following = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if following == len(self._entries):
            return None
        end_offset = self._entries[following].start_offset
        return EpochEnd(self._entries[following - 1].epoch if following else epoch, end_offset)

    def epoch_at(self, offset: int) -> int | None:
        """Tell in which epoch an offset was written."""
        found = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[found - 1].epoch if found else None

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before the log starts; the first one left begins there."""
        found = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if found:
            self._entries[:found] = [EpochEntry(self._entries[found - 1].epoch, start_offset)]

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that have begun only behind the log's end; one at the end may go on."""
        while self._entries and self._entries[-1].start_offset > end_offset:
            self._entries.pop()
