"""Disk space that is reserved for the operations that free space on a full disk.

Deleting topics or records begins with writing a file that records the deletion, which itself needs
space. A file of zeros reserves some: on a full disk it is removed before the write, and filled
again after it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.log.storage import disk
from spark_kafka_sink.devbroker.log.storage.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

#: Enough for the names and settings of more than a thousand topics. Once a larger file has been
#: written, its size is reserved.
RESERVED_BYTES: Final = 256 * 1024
#: At most this share of the free space is reserved; on a small disk, the rest is for records.
RESERVED_SHARE: Final = 1 / 16
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """A file that takes up disk space until it is needed."""

    def __init__(self, path: Path) -> None:
        """Use the space that an earlier broker has reserved; reserve no more yet."""
        self._path = path
        self._size = path.stat().st_size if path.exists() else 0
        self._largest = RESERVED_BYTES

    def replace_file(self, path: Path, content: bytes) -> None:
        """Replace a file as `files.replace_file` does; on a full disk, use the reserved space."""
        self._largest = max(self._largest, len(content))
        released = 0
        try:
            replace_file(path, content)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            released = self._release()
            replace_file(path, content)
        finally:
            self._fill(released)

    def _release(self) -> int:
        """Release the reserved space, and return its size."""
        released, self._size = self._size, 0
        disk.remove(self._path)
        return released

    def _fill(self, released: int) -> None:
        """Reserve `released` bytes again or, if that is 0, what is missing, limited by the share.

        If the disk has less space than that, the next call continues.
        """
        wanted = released or min(self._largest, int(self._free_bytes() * RESERVED_SHARE))
        if wanted <= self._size:
            return
        with suppress(OSError):
            descriptor = disk.open_file(self._path, create=True)
            try:
                while self._size < wanted:
                    self._size += disk.write(descriptor, bytes(wanted - self._size), self._size)
            finally:
                os.close(descriptor)

    def _free_bytes(self) -> int:
        """Return the free space of the disk, without the reserved space."""
        disk_space = os.statvfs(self._path.parent)
        return disk_space.f_bavail * disk_space.f_frsize
