"""A log's leader epochs as a file, Kafka's `leader-epoch-checkpoint`.

The file is text: a version, the number of entries, and a line with epoch and first offset for each.

It is written when an epoch begins, but that may fail: each batch has its epoch, recovery reads the
batches after the last flush, and the next flush writes the file. Entries from before the log start
offset do no harm in it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from spark_kafka_sink.errors import CorruptRecordError

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.log.storage.log_directory import LogDirectory

logger = logging.getLogger(__name__)

_VERSION = 0
_HEADER_LINES = 2


def encode_leader_epochs(leader_epochs: LeaderEpochCache) -> bytes:
    """Encode the file."""
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


class LeaderEpochFile:
    """A log's leader epochs, in memory and on disk."""

    def __init__(self, directory: LogDirectory, epochs: LeaderEpochCache) -> None:
        """Create it with the epochs that were read from the directory."""
        self._directory = directory
        self.epochs = epochs
        #: Whether `epochs` has changes that are not in the file.
        self.is_dirty = False

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start an epoch; see `LeaderEpochCache.assign`."""
        self.epochs.assign(epoch, start_offset)
        self.is_dirty = True
        try:
            self.flush()
        except OSError as error:
            logger.warning("cannot write the leader epochs before the next flush: %s", error)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before the log start offset."""
        self.epochs.truncate_from_start(start_offset)
        self.is_dirty = True

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin after the log's end."""
        self.epochs.truncate_from_end(end_offset)
        self.is_dirty = True

    def flush(self) -> None:
        """Write the file, if it is out of date. Raises OSError."""
        if self.is_dirty:
            self._directory.write_leader_epochs(encode_leader_epochs(self.epochs))
            self.is_dirty = False
