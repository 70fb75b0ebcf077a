"""The file of a segment's index, which follows the index in memory.

Entries are written when the segment is flushed, not when they are added: an append to the log
writes the batch and nothing else, so it cannot fail half-way. Nothing is lost by that. The recovery
point moves only with a flush, and after a kill everything behind it is indexed anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.storage.files import AppendFile


class IndexFile:
    """Entries of one size, on disk."""

    __slots__ = ("_open_file", "_pending", "file")

    def __init__(self, open_file: Callable[[], AppendFile], *, lazily: bool = False) -> None:
        """Open the file, or create it; with `lazily` not before it has entries. Raises OSError."""
        self._open_file = open_file
        #: None before it is there.
        self.file: AppendFile | None = None if lazily else open_file()
        self._pending = bytearray()

    @property
    def is_dirty(self) -> bool:
        """Whether the file lacks entries, or has some that are gone."""
        return bool(self._pending) or (self.file is not None and self.file.is_torn)

    def load(self, entry_size: int) -> bytes:
        """Return all entries; a part of one, left by a crash, is cut off. Raises OSError."""
        if self.file is None:
            return b""
        self.file.truncate(self.file.size - self.file.size % entry_size)
        return self.file.read(0, self.file.size)

    def append(self, entry: bytes) -> None:
        """Add an entry, which is written with the next flush."""
        self._pending += entry

    def clear(self) -> None:
        """Remove every entry. Raises OSError."""
        self._pending.clear()
        if self.file is not None:
            self.file.truncate(0)

    def flush(self) -> None:
        """Write the entries and make them survive a crash of the machine. Raises OSError."""
        if self._pending:
            if self.file is None:
                self.file = self._open_file()
            # A copy: an error that somebody keeps would keep the buffer from growing.
            self.file.append(bytes(self._pending))
            self._pending.clear()
        if self.file is not None:
            self.file.flush()
