"""Where in a log each leader epoch began, in memory and on disk (Kafka's LeaderEpochFileCache).

Epochs and offsets of the entries both increase strictly. A leader adds its epoch when it takes
over. A batch with an unknown epoch adds one, too, so that a log that is loaded has its epochs.

The file is written when an epoch begins, but that may fail: each batch has its epoch, recovery
reads the batches after the last flush, and the next flush writes the file. Entries from before the
log start offset do no harm in it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.log.log_directory import LogDirectory


logger = logging.getLogger(__name__)

_VERSION = 0
_HEADER_LINES = 2


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
        #: Whether there may be changes that are not in the file.
        self.is_dirty = False

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
        self.is_dirty = True
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
        count = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[count - 1].epoch if count else None

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before the log starts; the first remaining one begins there."""
        self.is_dirty = True
        count = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if count:
            self._entries[:count] = [EpochEntry(self._entries[count - 1].epoch, start_offset)]

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin after the log's end; one that begins at the end remains."""
        self.is_dirty = True
        while self._entries and self._entries[-1].start_offset > end_offset:
            self._entries.pop()

    def remove_from(self, offset: int) -> None:
        """Remove epochs that begin at or after `offset`."""
        self.is_dirty = True
        while self._entries and self._entries[-1].start_offset >= offset:
            self._entries.pop()

    def flush(self, directory: LogDirectory) -> None:
        """Write the file, if it may be out of date. Raises OSError."""
        if self.is_dirty:
            directory.write_leader_epochs(encode_leader_epochs(self))
            self.is_dirty = False

    def try_flush(self, directory: LogDirectory) -> None:
        """Write the file, or leave it to the next flush."""
        try:
            self.flush(directory)
        except OSError as error:
            logger.warning("cannot write the leader epochs before the next flush: %s", error)


def encode_leader_epochs(leader_epochs: LeaderEpochCache) -> bytes:
    """Encode the file, Kafka's `leader-epoch-checkpoint`.

    It is text: a version, the number of entries, and a line with epoch and first offset for each.
    """
    entries = leader_epochs.entries
    lines = [str(_VERSION), str(len(entries))]
    lines += [f"{entry.epoch} {entry.start_offset}" for entry in entries]
    return ("\n".join(lines) + "\n").encode()


def decode_leader_epochs(content: bytes) -> LeaderEpochCache:
    """Decode the file. Raises CorruptRecordError."""
    lines = content.decode("ascii", "replace").split("\n")
    try:
        version, count = int(lines[0]), int(lines[1])
        entries = [EpochEntry(*map(int, line.split(" "))) for line in lines[_HEADER_LINES:] if line]
    except (ValueError, IndexError, TypeError) as error:
        raise CorruptRecordError(f"leader-epoch-checkpoint is malformed: {content!r}") from error
    if version != _VERSION or count != len(entries):
        raise CorruptRecordError(
            f"leader-epoch-checkpoint has version {version} and {len(entries)} of {count} entries"
        )
    return LeaderEpochCache(entries)
