"""Reading the files that options name: secrets, key stores, keytabs, tokens.

Only regular files of at most 1 MiB are read: a device or a pipe could deliver data without end, or
none, and no secret or store is larger. The environment may restrict the files (`allow_lists`).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.lookup.allow_lists import NotAllowedError, allow_lists

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES: Final = 1 << 20
#: Opening a pipe must not wait for a writer, and a terminal must not become the controlling one.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def read_named_file(path: Path | str) -> bytes:
    """Return the content of a file.

    Raises OSError, whose `strerror` gives the reason, if the file cannot or must not be read.
    """
    try:
        allow_lists().check_path(str(path))
        descriptor = os.open(path, _FLAGS)
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    except ValueError:
        raise OSError(errno.EINVAL, "it is not a valid path") from None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    """Read to the end, ignoring the size that the system reports: files in /proc have none."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    content = bytearray()
    while chunk := os.read(descriptor, MAX_BYTES + 1 - len(content)):
        content += chunk
        if len(content) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES} bytes")
    return bytes(content)
