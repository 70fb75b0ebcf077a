"""Where a log keeps its files: nowhere, or in a directory with Kafka's names.

    00000000000000000042.log        batches from offset 42 on
    00000000000000000042.index      offset index
    00000000000000000042.timeindex  time index
    00000000000000000042.txnindex   transaction index, if a transaction was aborted
    00000000000000000042.snapshot   producers as of offset 42
    leader-epoch-checkpoint         leader epochs

The log decides what is written when, the same for both; a directory in memory makes segments and
forgets the rest.

A cleaned segment counts from the moment when its batches are named `.swap`. From then on the log
uses it, under whatever names its files have; the replaced files go, and the names become the usual
ones, at once, or if that fails with the next cleaning or the next start.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Protocol

from spark_kafka_sink.devbroker.storage import disk
from spark_kafka_sink.devbroker.storage.files import AppendFile, OpenFiles, replace_file
from spark_kafka_sink.devbroker.storage.index_file import IndexFile
from spark_kafka_sink.devbroker.storage.indexes import OffsetIndex, TimeIndex
from spark_kafka_sink.devbroker.storage.log_segment import LogSegment, SegmentParts
from spark_kafka_sink.devbroker.storage.segment_records import FileRecords, MemoryRecords
from spark_kafka_sink.devbroker.storage.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
#: While the cleaner writes a segment, and while it puts it in the place of others.
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"

_SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_FILE_NAME = re.compile(r"(\d{20})(\.\w+(?:\.\w+)?)")


class LogDirectory(Protocol):
    """What a log needs of the place where it lies."""

    def new_segment(self, base_offset: int, suffix: str = "") -> SegmentParts:
        """Make, or open, a segment's files; their names end with `suffix`."""

    def delete_segment(self, segment: LogSegment) -> None:
        """Remove a segment's files, and the snapshot of its first offset."""

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> None:
        """Put a segment that was made under another name in the place of others."""

    def write_snapshot(self, offset: int, content: bytes) -> None:
        """Keep what is known of the producers at an offset."""

    def delete_snapshots(self, *, keep: set[int]) -> None:
        """Remove all snapshots but those at some offsets."""

    def write_leader_epochs(self, content: bytes) -> None:
        """Keep the leader epochs."""

    def flush(self) -> None:
        """Let the files' names survive the end of the machine."""

    def close(self) -> None:
        """Close every file."""


class MemoryLogDirectory:
    """A log in memory only."""

    def new_segment(self, base_offset: int, suffix: str = "") -> SegmentParts:  # noqa: ARG002
        """Make an empty segment."""
        return SegmentParts(
            MemoryRecords(), OffsetIndex(base_offset), TimeIndex(base_offset), TransactionIndex()
        )

    def delete_segment(self, segment: LogSegment) -> None:
        """Do nothing: what nobody holds is gone."""

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> None:
        """Do nothing."""

    def write_snapshot(self, offset: int, content: bytes) -> None:
        """Do nothing: the log itself remembers."""

    def delete_snapshots(self, *, keep: set[int]) -> None:
        """Do nothing."""

    def write_leader_epochs(self, content: bytes) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class FileLogDirectory:
    """A log in a directory of the file system."""

    def __init__(self, path: Path, open_files: OpenFiles) -> None:
        """Use, or make, a directory; only its last name may be new."""
        self.path = path
        self._open_files = open_files
        #: Cleaned segments that count and have not got their names yet, and what they replace.
        self._swapped: list[tuple[LogSegment, list[LogSegment]]] = []
        disk.make_directory(path)

    def file_path(self, offset: int, suffix: str) -> Path:
        """Return the path of one of the files that belong to an offset."""
        return self.path / f"{offset:020d}{suffix}"

    def offsets(self, *suffixes: str) -> list[int]:
        """List the offsets for which there are files whose names end so."""
        ending = "".join(suffixes)
        matches = (_FILE_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(match[1]) for match in matches if match and match[2] == ending)

    def new_segment(self, base_offset: int, suffix: str = "") -> SegmentParts:
        """Make, or open, a segment's files; what was left of a cleaned one is not used."""
        if suffix == CLEANED_SUFFIX:
            for path in self.path.glob(f"{base_offset:020d}.*{CLEANED_SUFFIX}"):
                self._remove(path)
        log, index, time_index, txn_index = (
            self.file_path(base_offset, kind + suffix) for kind in _SEGMENT_SUFFIXES
        )
        return SegmentParts(
            FileRecords(self._file(log)),
            OffsetIndex(base_offset, IndexFile(lambda: self._file(index))),
            TimeIndex(base_offset, IndexFile(lambda: self._file(time_index))),
            TransactionIndex(
                IndexFile(
                    lambda: self._file(txn_index),
                    # A cleaned segment always has one, so that none of a replaced one is left.
                    lazily=suffix != CLEANED_SUFFIX and not txn_index.exists(),
                )
            ),
        )

    def delete_segment(self, segment: LogSegment) -> None:
        """Remove a segment's files, the batches last, and the snapshot of its first offset."""
        self.finish_swaps()
        self._remove(self.file_path(segment.base_offset, SNAPSHOT_SUFFIX))
        self.delete_files(segment.base_offset)

    def delete_files(self, base_offset: int) -> None:
        """Remove a segment's files, the batches last. Raises OSError."""
        for suffix in reversed(_SEGMENT_SUFFIXES):
            self._remove(self.file_path(base_offset, suffix))

    def delete_indexes(self, base_offset: int) -> None:
        """Remove what can be had again from a segment's batches."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            self._remove(self.file_path(base_offset, suffix))

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> None:
        """Put a `.cleaned` segment in the place of others (LocalLog.replaceSegments).

        It is flushed and then named `.swap`, the batches last: with that it counts. Raises OSError
        before that, and nothing has changed then.
        """
        self.finish_swaps()
        cleaned.flush()
        for file in cleaned.files:
            file.rename(file.path.with_suffix(SWAP_SUFFIX))
        self._swapped.append((cleaned, replaced))
        try:
            self.finish_swaps()
        except OSError as error:
            logger.warning("%s: compaction goes on later: %s", self.path, error)

    def finish_swaps(self) -> None:
        """Remove what cleaned segments have replaced, and give them their names. Raises OSError."""
        while self._swapped:
            cleaned, replaced = self._swapped[0]
            self.flush()
            for segment in replaced:
                if segment.base_offset != cleaned.base_offset:
                    self._remove(self.file_path(segment.base_offset, SNAPSHOT_SUFFIX))
                    self.delete_files(segment.base_offset)
            for file in cleaned.files:
                if file.path.suffix == SWAP_SUFFIX:
                    file.rename(file.path.with_suffix(""))
            self.flush()
            self._swapped.pop(0)

    def finish_swap(self, base_offset: int) -> None:
        """Rename the `.swap` files that a broker has left, the batches last."""
        for suffix in reversed(_SEGMENT_SUFFIXES):
            source = self.file_path(base_offset, suffix + SWAP_SUFFIX)
            target = self.file_path(base_offset, suffix)
            self._open_files.close(source)
            self._open_files.close(target)
            if source.exists():
                disk.rename(source, target)
        self.flush()

    def write_snapshot(self, offset: int, content: bytes) -> None:
        """Keep what is known of the producers at an offset."""
        replace_file(self.file_path(offset, SNAPSHOT_SUFFIX), content, flush=False)

    def read_snapshot(self, offset: int) -> bytes:
        """Read what was known of the producers at an offset."""
        return self.file_path(offset, SNAPSHOT_SUFFIX).read_bytes()

    def delete_snapshots(self, *, keep: set[int]) -> None:
        """Remove all snapshots but those at some offsets."""
        for offset in self.offsets(SNAPSHOT_SUFFIX):
            if offset not in keep:
                disk.remove(self.file_path(offset, SNAPSHOT_SUFFIX))

    def write_leader_epochs(self, content: bytes) -> None:
        """Keep the leader epochs."""
        replace_file(self.path / LEADER_EPOCH_CHECKPOINT, content, flush=False)

    def read_leader_epochs(self) -> bytes | None:
        """Read the leader epochs, if there are any."""
        path = self.path / LEADER_EPOCH_CHECKPOINT
        return path.read_bytes() if path.exists() else None

    def flush(self) -> None:
        """Make the files' names survive a crash of the machine. Raises OSError."""
        disk.sync_directory(self.path)

    def close(self) -> None:
        """Close every file."""
        for entry in self.path.iterdir():
            self._open_files.close(entry)

    def _file(self, path: Path) -> AppendFile:
        return AppendFile(path, self._open_files)

    def _remove(self, path: Path) -> None:
        self._open_files.close(path)
        disk.remove(path)
