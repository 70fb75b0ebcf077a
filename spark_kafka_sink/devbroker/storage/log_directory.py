"""Where a log keeps its files: nowhere, or in a directory with Kafka's names.

    00000000000000000042.log        batches from offset 42 on
    00000000000000000042.index      offset index
    00000000000000000042.timeindex  time index
    00000000000000000042.txnindex   transaction index, if a transaction was aborted
    00000000000000000042.snapshot   producers as of offset 42
    leader-epoch-checkpoint         leader epochs

The log decides what is written when, the same for both; a directory in memory makes segments and
forgets the rest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from spark_kafka_sink.devbroker.storage.files import (
    DIRECTORY_MODE,
    AppendFile,
    OpenFiles,
    flush_directory,
    replace_file,
)
from spark_kafka_sink.devbroker.storage.indexes import OffsetIndex, TimeIndex
from spark_kafka_sink.devbroker.storage.log_segment import LogSegment, SegmentParts
from spark_kafka_sink.devbroker.storage.segment_records import FileRecords, MemoryRecords
from spark_kafka_sink.devbroker.storage.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from pathlib import Path

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

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> LogSegment:
        """Put a segment that was made under another name in the place of others; give it anew."""

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

    def replace_segments(
        self,
        cleaned: LogSegment,
        replaced: list[LogSegment],  # noqa: ARG002
    ) -> LogSegment:
        """Give the segment as it is."""
        return cleaned

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
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

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
                self._open_files.close(path)
                path.unlink()
        log, index, time_index, txn_index = (
            self.file_path(base_offset, kind + suffix) for kind in _SEGMENT_SUFFIXES
        )
        return SegmentParts(
            FileRecords(self._file(log)),
            OffsetIndex(base_offset, self._file(index)),
            TimeIndex(base_offset, self._file(time_index)),
            TransactionIndex(
                file=self._file(txn_index) if txn_index.exists() else None,
                new_file=lambda: self._file(txn_index),
            ),
        )

    def delete_segment(self, segment: LogSegment) -> None:
        """Remove a segment's files, the batches last, and the snapshot of its first offset."""
        for suffix in (SNAPSHOT_SUFFIX, *reversed(_SEGMENT_SUFFIXES)):
            path = self.file_path(segment.base_offset, suffix)
            self._open_files.close(path)
            path.unlink(missing_ok=True)

    def delete_indexes(self, base_offset: int) -> None:
        """Remove what can be had again from a segment's batches."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            path = self.file_path(base_offset, suffix)
            self._open_files.close(path)
            path.unlink(missing_ok=True)

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> LogSegment:
        """Put a `.cleaned` segment in the place of others (LocalLog.replaceSegments).

        It is flushed and then named `.swap`, the batches last: with that it counts. Whoever is
        interrupted before that begins anew, and after that goes on (`log_loader`).
        """
        # There is one in every case, so that none of a replaced segment is left.
        self._file(self.file_path(cleaned.base_offset, TXN_INDEX_SUFFIX + CLEANED_SUFFIX))
        cleaned.flush()
        for suffix in reversed(_SEGMENT_SUFFIXES):
            source = self.file_path(cleaned.base_offset, suffix + CLEANED_SUFFIX)
            self._open_files.close(source)
            source.rename(self.file_path(cleaned.base_offset, suffix + SWAP_SUFFIX))
        flush_directory(self.path)
        for segment in replaced:
            if segment.base_offset != cleaned.base_offset:
                self.delete_segment(segment)
        self.finish_swap(cleaned.base_offset)
        return LogSegment(cleaned.base_offset, self.new_segment(cleaned.base_offset), now_ms=0)

    def finish_swap(self, base_offset: int) -> None:
        """Give `.swap` files their names, in place of those that have them, the batches last."""
        for suffix in reversed(_SEGMENT_SUFFIXES):
            source = self.file_path(base_offset, suffix + SWAP_SUFFIX)
            target = self.file_path(base_offset, suffix)
            self._open_files.close(target)
            if source.exists():
                source.rename(target)
        flush_directory(self.path)

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
                self.file_path(offset, SNAPSHOT_SUFFIX).unlink()

    def write_leader_epochs(self, content: bytes) -> None:
        """Keep the leader epochs."""
        replace_file(self.path / LEADER_EPOCH_CHECKPOINT, content, flush=False)

    def read_leader_epochs(self) -> bytes | None:
        """Read the leader epochs, if there are any."""
        path = self.path / LEADER_EPOCH_CHECKPOINT
        return path.read_bytes() if path.exists() else None

    def flush(self) -> None:
        """Let the files' names survive the end of the machine."""
        flush_directory(self.path)

    def close(self) -> None:
        """Close every file."""
        for entry in self.path.iterdir():
            self._open_files.close(entry)

    def _file(self, path: Path) -> AppendFile:
        return AppendFile(path, self._open_files)
