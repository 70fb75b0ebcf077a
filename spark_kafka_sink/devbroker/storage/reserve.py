"""Room on the disk that is kept for what frees a full one.

Deleting topics or records begins with writing down that they are deleted, which needs room itself.
A file of zeros keeps some: on a full disk it is removed, and filled again once that is written.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.storage import disk
from spark_kafka_sink.devbroker.storage.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

#: Enough for the names and settings of more than a thousand topics; for larger files, as much as
#: they take.
RESERVED_BYTES: Final = 256 * 1024
#: Of what is free on a small disk, records get the rest.
RESERVED_SHARE: Final = 1 / 16
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """A file that takes up room until it is needed."""

    def __init__(self, path: Path) -> None:
        """Take over what an earlier broker has reserved; reserve nothing more yet."""
        self._path = path
        self._size = path.stat().st_size if path.exists() else 0
        self._largest = RESERVED_BYTES

    def replace_file(self, path: Path, content: bytes) -> None:
        """Replace a file as `files.replace_file` does; on a full disk, use what is reserved."""
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
        """Remove the file, and return its size."""
        released, self._size = self._size, 0
        disk.remove(self._path)
        return released

    def _fill(self, released: int) -> None:
        """Reserve again what was `released`, or else what is missing and can be spared.

        Where there is less room, the next call goes on.
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
        """Return how much is free, beside what is reserved."""
        disk_space = os.statvfs(self._path.parent)
        return disk_space.f_bavail * disk_space.f_frsize
