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

#: Enough for the names and settings of more than a thousand topics.
RESERVED_BYTES: Final = 256 * 1024
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """A file that takes up room until it is needed."""

    def __init__(self, path: Path) -> None:
        """Reserve nothing yet, whatever an earlier broker has left at the path."""
        self._path = path
        self._size = 0

    def replace_file(self, path: Path, content: bytes) -> None:
        """Replace a file as `files.replace_file` does; on a full disk, use what is reserved."""
        try:
            replace_file(path, content)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._release()
            replace_file(path, content)
        self._fill()

    def _release(self) -> None:
        self._size = 0
        disk.remove(self._path)

    def _fill(self) -> None:
        """Reserve what is missing, or as much of it as there is room for: the next call goes on."""
        if self._size == RESERVED_BYTES:
            return
        with suppress(OSError):
            descriptor = disk.open_file(self._path, create=True)
            try:
                while self._size < RESERVED_BYTES:
                    missing = bytes(RESERVED_BYTES - self._size)
                    self._size += disk.write(descriptor, missing, self._size)
            finally:
                os.close(descriptor)
