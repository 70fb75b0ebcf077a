"""Files of a log, opened when they are used.

Rules:

- A broker may have many more files than a process may have open: `OpenFiles` keeps those open that
  were used last. Nothing is lost when one is closed: no byte waits in a buffer of ours.
- What has been written survives the end of the process, by whatever signal. What has been flushed
  (fsync) also survives the end of the machine.
- An append is there as a whole, or the file is cut back to where it was. Whoever is interrupted
  between the two leaves a torn tail, which recovery cuts off.
- Small files are replaced as a whole: written under another name, flushed, renamed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: What is in the files may be confidential: only the broker's own user gets at it.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_MAX_OPEN_FILES = 256


class OpenFiles:
    """File descriptors, those used last."""

    def __init__(self, max_open_files: int = _MAX_OPEN_FILES) -> None:
        """Have none open."""
        self._max_open_files = max_open_files
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path) -> int:
        """Return a file's descriptor; the file is created if it is not there."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
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
    """A file that grows at its end."""

    __slots__ = ("_open_files", "path", "size")

    def __init__(self, path: Path, open_files: OpenFiles) -> None:
        """Go on with what the file holds, or begin it. Raises OSError."""
        self.path = path
        self._open_files = open_files
        #: Bytes in the file.
        self.size = os.fstat(open_files.descriptor(path)).st_size

    def append(self, buffer: bytes | memoryview) -> None:
        """Write all of a buffer behind what is there. Raises OSError, and nothing is written."""
        descriptor = self._open_files.descriptor(self.path)
        written = 0
        try:
            written = os.pwrite(descriptor, buffer, self.size)
            # A full disk and very large buffers are written in part.
            while written < len(buffer):
                written += os.pwrite(descriptor, memoryview(buffer)[written:], self.size + written)
        except OSError:
            os.ftruncate(descriptor, self.size)
            raise
        self.size += written

    def read(self, position: int, size: int) -> bytes:
        """Return bytes from a position on, fewer where the file ends."""
        return os.pread(self._open_files.descriptor(self.path), size, position)

    def truncate(self, size: int) -> None:
        """Cut off what lies behind the first `size` bytes."""
        if size < self.size:
            os.ftruncate(self._open_files.descriptor(self.path), size)
            self.size = size

    def flush(self) -> None:
        """Let what was written survive the end of the machine."""
        os.fsync(self._open_files.descriptor(self.path))

    def rename(self, path: Path) -> None:
        """Give the file another name, in place of the file that has it."""
        self._open_files.close(self.path)
        self._open_files.close(path)
        self.path.rename(path)
        self.path = path

    def delete(self) -> None:
        """Remove the file."""
        self._open_files.close(self.path)
        self.path.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write a small file so that it holds the old content or the new, whatever happens.

    What can be had again if it is lost or broken need not be flushed: then "whatever" means the end
    of the process.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb", opener=_open_private) as file:
        file.write(content)
        if flush:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if flush:
        flush_directory(path.parent)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def flush_directory(path: Path) -> None:
    """Let names that were given, changed or removed in a directory survive (Utils.flushDir)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
