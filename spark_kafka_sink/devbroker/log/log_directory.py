"""The directory of a log, in memory or on disk with Kafka's file names.

    00000000000000000042.log        batches from offset 42 on
    00000000000000000042.index      offset index
    00000000000000000042.timeindex  time index
    00000000000000000042.txnindex   transaction index, if a transaction was aborted
    00000000000000000042.snapshot   producers as of offset 42
    leader-epoch-checkpoint         leader epochs

The log decides what is written and when, the same for both.

A cleaned segment takes effect as soon as its `.log` file is renamed to `.log.swap`. From then on
the log uses it, whatever the names of its files. The replaced files are removed and the `.swap`
suffixes dropped at once or, if that fails, with the next change of segments or the next start.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.files import AppendFile, OpenFiles, read_file, replace_file
from spark_kafka_sink.devbroker.log.indexes import (
    IndexFile,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from spark_kafka_sink.devbroker.log.log_segment import FileRecords, LogSegment, MemoryRecords

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
#: The suffixes of a segment while the cleaner writes it, and while it replaces others.
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"

_SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_FILE_NAME = re.compile(r"(\d{20})(\.\w+(?:\.\w+)?)")


class LogDirectory:
    """The storage of a log, here in memory, where only segments are needed.

    All methods may raise OSError.
    """

    def new_segment(self, base_offset: int, suffix: str = "", *, now_ms: int) -> LogSegment:  # noqa: ARG002
        """Open or create a segment, whose files have names that end with `suffix`."""
        return LogSegment(
            base_offset,
            MemoryRecords(),
            OffsetIndex(base_offset),
            TimeIndex(base_offset),
            TransactionIndex(),
            now_ms=now_ms,
        )

    def delete_segment(self, segment: LogSegment) -> None:
        """Remove a segment's files, `.log` last, and the snapshot at its base offset."""

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> None:
        """Replace segments with a cleaned one, which was created with `CLEANED_SUFFIX`."""

    def write_snapshot(self, offset: int, content: bytes) -> None:
        """Store the snapshot of the producers at an offset."""

    def delete_snapshots(self, *, keep: set[int]) -> None:
        """Remove all snapshots except those at the given offsets."""

    def write_leader_epochs(self, content: bytes) -> None:
        """Store the leader epochs."""

    def flush(self) -> None:
        """Flush the directory, so that its entries survive a crash of the machine."""

    def close(self) -> None:
        """Close every file."""


class FileLogDirectory(LogDirectory):
    """The directory of a log on disk."""

    def __init__(self, path: Path, open_files: OpenFiles) -> None:
        """Open or create the directory; its parent must exist. Raises OSError."""
        self.path = path
        self._open_files = open_files
        #: Cleaned segments in effect whose files may still be named `.swap`, with those replaced.
        self._swapped: list[tuple[LogSegment, list[LogSegment]]] = []
        disk.make_directory(path)

    def file_path(self, offset: int, suffix: str) -> Path:
        """Return the path of a file that belongs to an offset."""
        return self.path / f"{offset:020d}{suffix}"

    def offsets(self, *suffixes: str) -> list[int]:
        """Return the offsets that have a file with these suffixes, sorted."""
        ending = "".join(suffixes)
        matches = (_FILE_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(match[1]) for match in matches if match and match[2] == ending)

    def new_segment(self, base_offset: int, suffix: str = "", *, now_ms: int) -> LogSegment:
        """Open or create a segment's files; remove what an earlier cleaning has left."""
        if suffix == CLEANED_SUFFIX:
            for path in self.path.glob(f"{base_offset:020d}.*{CLEANED_SUFFIX}"):
                self._remove(path)
        log, index, time_index, txn_index = (
            self.file_path(base_offset, kind + suffix) for kind in _SEGMENT_SUFFIXES
        )
        return LogSegment(
            base_offset,
            FileRecords(self._file(log)),
            OffsetIndex(base_offset, IndexFile(lambda: self._file(index))),
            TimeIndex(base_offset, IndexFile(lambda: self._file(time_index))),
            TransactionIndex(
                IndexFile(
                    lambda: self._file(txn_index),
                    # A cleaned segment always has one, which replaces that of the old segment.
                    lazily=suffix != CLEANED_SUFFIX and not txn_index.exists(),
                )
            ),
            now_ms=now_ms,
        )

    def delete_segment(self, segment: LogSegment) -> None:
        """Remove a segment's files, `.log` last, and the snapshot at its base offset."""
        self.finish_swaps()
        self._remove(self.file_path(segment.base_offset, SNAPSHOT_SUFFIX))
        self.delete_files(segment.base_offset)

    def delete_files(self, base_offset: int) -> None:
        """Remove a segment's files, `.log` last. Raises OSError."""
        for suffix in reversed(_SEGMENT_SUFFIXES):
            self._remove(self.file_path(base_offset, suffix))

    def delete_indexes(self, base_offset: int) -> None:
        """Remove a segment's indexes, which can be rebuilt from its batches."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            self._remove(self.file_path(base_offset, suffix))

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> None:
        """Replace segments with a `.cleaned` one (LocalLog.replaceSegments).

        It is flushed and then renamed to `.swap`, `.log` last: with that it takes effect. Raises
        OSError if that fails, and then nothing has changed.
        """
        self.finish_swaps()
        cleaned.flush()
        for file in cleaned.files:
            file.rename(file.path.with_suffix(SWAP_SUFFIX))
        self._swapped.append((cleaned, replaced))
        try:
            self.finish_swaps()
        except OSError as error:
            logger.warning("%s: cannot complete the compaction yet: %s", self.path, error)

    def finish_swaps(self) -> None:
        """Remove replaced segments, and rename the cleaned ones. Raises OSError."""
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
        """Rename the `.swap` files that an earlier broker has left, `.log` last."""
        for suffix in reversed(_SEGMENT_SUFFIXES):
            source = self.file_path(base_offset, suffix + SWAP_SUFFIX)
            target = self.file_path(base_offset, suffix)
            self._open_files.close(source)
            self._open_files.close(target)
            if source.exists():
                disk.rename(source, target)
        self.flush()

    def write_snapshot(self, offset: int, content: bytes) -> None:
        """Store the snapshot of the producers at an offset."""
        replace_file(self.file_path(offset, SNAPSHOT_SUFFIX), content, flush=False)

    def read_snapshot(self, offset: int) -> bytes:
        """Read the snapshot of the producers at an offset."""
        return read_file(self.file_path(offset, SNAPSHOT_SUFFIX)) or b""

    def delete_snapshots(self, *, keep: set[int]) -> None:
        """Remove all snapshots except those at the given offsets."""
        for offset in self.offsets(SNAPSHOT_SUFFIX):
            if offset not in keep:
                disk.remove(self.file_path(offset, SNAPSHOT_SUFFIX))

    def write_leader_epochs(self, content: bytes) -> None:
        """Store the leader epochs."""
        replace_file(self.path / LEADER_EPOCH_CHECKPOINT, content, flush=False)

    def read_leader_epochs(self) -> bytes | None:
        """Read the leader epochs; None if there is no file."""
        return read_file(self.path / LEADER_EPOCH_CHECKPOINT)

    def flush(self) -> None:
        """Flush the directory, so that its entries survive a crash of the machine."""
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
