"""The files of a log, opened on demand.

Rules:

- A broker may have many more files than a process may have open: `OpenFiles` keeps the most
  recently used ones open. Closing one loses nothing: writes are not buffered in the process.
- Written bytes survive the end of the process, even by SIGKILL. Flushed bytes (fsync) also survive
  a crash of the machine.
- An append is written as a whole, or the file is truncated to its previous size. If that fails, the
  file is truncated before it is next written or flushed; a broker that is killed before that leaves
  a torn tail, which recovery truncates.
- A file is only created when an `AppendFile` opens it, never by using it: a removed file is not
  recreated.
- Small files are replaced as a whole: written under another name, flushed, renamed.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.log import disk

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

_MAX_OPEN_FILES = 256


class OpenFiles:
    """The descriptors of the most recently used files."""

    def __init__(self, max_open_files: int = _MAX_OPEN_FILES) -> None:
        self._max_open_files = max_open_files
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path, *, create: bool = False) -> int:
        """Return a file's descriptor; with `create`, the file may be a new one. Raises OSError."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            descriptor = disk.open_file(path, create=create)
            self._descriptors[path] = descriptor
            if len(self._descriptors) > self._max_open_files:
                os.close(self._descriptors.popitem(last=False)[1])
        else:
            self._descriptors.move_to_end(path)
        return descriptor

    def close(self, path: Path) -> None:
        """Close a file, if it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Close every file."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class AppendFile:
    """A file that is written only by appending to it."""

    __slots__ = ("_open_files", "is_torn", "path", "size")

    def __init__(self, path: Path, open_files: OpenFiles) -> None:
        """Open an existing file at its end, or create it. Raises OSError."""
        self.path = path
        self._open_files = open_files
        #: Number of valid bytes; the file may have more, see `is_torn`.
        self.size = os.fstat(open_files.descriptor(path, create=True)).st_size
        #: Whether the file may have bytes after `size`, which must still be truncated.
        self.is_torn = False

    def append(self, buffer: bytes | bytearray | memoryview) -> None:
        """Write all of a buffer at the end. Raises OSError; then none of it is appended."""
        self._cut()
        descriptor = self._open_files.descriptor(self.path)
        view = memoryview(buffer)
        written = 0
        try:
            # On a full disk, or for a very large buffer, a write may be partial.
            while written < len(view):
                written += disk.write(descriptor, view[written:], self.size + written)
        except OSError:
            self.is_torn = True
            with suppress(OSError):  # The next append or flush retries.
                self._cut()
            raise
        self.size += written

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from a position on, fewer at the end of the file."""
        return os.pread(self._open_files.descriptor(self.path), size, position)

    def truncate(self, size: int) -> None:
        """Truncate the file to its first `size` bytes.

        Raises OSError; even then the remaining bytes are no longer valid.
        """
        if size < self.size:
            self.size = size
            self.is_torn = True
            self._cut()

    def flush(self) -> None:
        """Flush the file, so that it survives a crash of the machine. Raises OSError."""
        self._cut()
        disk.sync(self._open_files.descriptor(self.path))

    def rename(self, path: Path) -> None:
        """Rename the file, and replace an existing one of that name. Raises OSError."""
        self._open_files.close(self.path)
        self._open_files.close(path)
        disk.rename(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Remove the file. Raises OSError."""
        self._open_files.close(self.path)
        disk.remove(self.path)

    def _cut(self) -> None:
        if self.is_torn:
            disk.truncate(self._open_files.descriptor(self.path), self.size)
            self.is_torn = False


def read_file(path: Path) -> bytes | None:
    """Return the content of a small file; None if it does not exist. Raises OSError."""
    try:
        descriptor = disk.open_file(path, create=False)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def replace_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Replace a small file atomically: it always has either the old content or the new.

    That holds even after a crash of the machine; without `flush`, for a file that can be rebuilt,
    only after the end of the process. Raises OSError, and then the file has the old content. If
    only the directory cannot be flushed, the file has the new content and a warning is logged.
    """
    temporary = path.with_name(path.name + ".tmp")
    disk.remove(temporary)
    descriptor = disk.create_file(temporary)
    try:
        written = 0
        while written < len(content):
            written += disk.write(descriptor, content[written:], written)
        if flush:
            disk.sync(descriptor)
    except OSError:
        with suppress(OSError):  # It may take up the last free space of the disk.
            disk.remove(temporary)
        raise
    finally:
        os.close(descriptor)
    disk.rename(temporary, path)
    if flush:
        try:
            disk.sync_directory(path.parent)
        except OSError as error:
            logger.warning("%s may not survive a system crash: %s", path, error)
