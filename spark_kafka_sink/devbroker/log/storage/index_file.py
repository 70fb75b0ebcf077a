"""The file of a segment's index, which follows the index in memory.

Entries are written when the segment is flushed, not when they are added: an append to the log
writes only the batch, so it cannot fail halfway. Nothing is lost by that: the recovery point only
advances with a flush, and after a kill the indexes of everything after it are rebuilt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.log.storage.files import AppendFile


class IndexFile:
    """A file of index entries, which all have the same size."""

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
