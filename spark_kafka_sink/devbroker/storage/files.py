"""Files of a log, opened when they are used.

Rules:

- A broker may have many more files than a process may have open: `OpenFiles` keeps those open that
  were used last. Nothing is lost when one is closed: no byte waits in a buffer of ours.
- What has been written survives the end of the process, by whatever signal. What has been flushed
  (fsync) also survives the end of the machine.
- An append is there as a whole, or the file is cut back to where it was. A file that cannot be cut
  back is cut before anything else is written to it, or flushed; a broker that is killed before that
  leaves a torn tail, which recovery cuts off.
- A file is created when it is opened for the first time, and never by being used: one that was
  removed stays so.
- Small files are replaced as a whole: written under another name, flushed, renamed.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.storage import disk

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

_MAX_OPEN_FILES = 256


class OpenFiles:
    """File descriptors, those used last."""

    def __init__(self, max_open_files: int = _MAX_OPEN_FILES) -> None:
        """Have none open."""
        self._max_open_files = max_open_files
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def create(self, path: Path) -> int:
        """Return a file's descriptor; the file is created if it is not there. Raises OSError."""
        return self._use(path, create=True)

    def descriptor(self, path: Path) -> int:
        """Return the descriptor of a file that is there. Raises OSError."""
        return self._use(path, create=False)

    def _use(self, path: Path, *, create: bool) -> int:
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
    """A file that grows at its end."""

    __slots__ = ("_is_torn", "_open_files", "path", "size")

    def __init__(self, path: Path, open_files: OpenFiles) -> None:
        """Go on with what the file holds, or begin it. Raises OSError."""
        self.path = path
        self._open_files = open_files
        #: Bytes that count; see `is_torn`.
        self.size = os.fstat(open_files.create(path)).st_size
        self._is_torn = False

    @property
    def is_torn(self) -> bool:
        """Whether the file may hold bytes behind its end, which are yet to be cut off."""
        return self._is_torn

    def append(self, buffer: bytes | bytearray | memoryview) -> None:
        """Write all of a buffer at the end. Raises OSError; then nothing of it counts."""
        self._cut()
        descriptor = self._open_files.descriptor(self.path)
        view = memoryview(buffer)
        written = 0
        try:
            # A full disk and very large buffers are written in part.
            while written < len(view):
                written += disk.write(descriptor, view[written:], self.size + written)
        except OSError:
            self._is_torn = True
            with suppress(OSError):  # The next append or flush tries again.
                self._cut()
            raise
        self.size += written

    def read(self, position: int, size: int) -> bytes:
        """Return bytes from a position on, fewer where the file ends."""
        return os.pread(self._open_files.descriptor(self.path), size, position)

    def truncate(self, size: int) -> None:
        """Cut off everything behind the first `size` bytes.

        Raises OSError; the bytes do not count even so.
        """
        if size < self.size:
            self.size = size
            self._is_torn = True
            self._cut()

    def flush(self) -> None:
        """Make the file survive a crash of the machine. Raises OSError."""
        self._cut()
        disk.sync(self._open_files.descriptor(self.path))

    def rename(self, path: Path) -> None:
        """Rename the file; it replaces a file of that name. Raises OSError."""
        self._open_files.close(self.path)
        self._open_files.close(path)
        disk.rename(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Remove the file. Raises OSError."""
        self._open_files.close(self.path)
        disk.remove(self.path)

    def _cut(self) -> None:
        if self._is_torn:
            disk.truncate(self._open_files.descriptor(self.path), self.size)
            self._is_torn = False


def replace_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write a small file so that it holds the old content or the new, whatever happens.

    A file that can be made again if it is lost or broken need not be flushed: then "whatever" means
    the end of the process. Raises OSError, and the file has the old content then: once it has the
    new one that is not taken back, even if the directory cannot be flushed.
    """
    temporary = path.with_name(path.name + ".tmp")
    descriptor = disk.open_file(temporary, create=True)
    try:
        disk.truncate(descriptor, 0)
        written = 0
        while written < len(content):
            written += disk.write(descriptor, content[written:], written)
        if flush:
            disk.sync(descriptor)
    except OSError:
        with suppress(OSError):  # What it takes up may be all that is left of the disk.
            disk.remove(temporary)
        raise
    finally:
        os.close(descriptor)
    disk.rename(temporary, path)
    if flush:
        try:
            disk.sync_directory(path.parent)
        except OSError as error:
            logger.warning("%s may not survive a crash of the machine: %s", path, error)
