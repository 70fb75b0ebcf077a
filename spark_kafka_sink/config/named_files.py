"""Files that options name: secrets, key stores, keytabs, tokens.

Only regular files of at most 1 MiB are read. A device or a pipe could go on for ever, or never
begin; no secret or store is larger. The environment may restrict which files (`allow_lists`).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES: Final = 1 << 20
#: Opening a pipe must not wait for a writer, nor a terminal become this process's own.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def read_named_file(path: Path | str) -> bytes:
    """Return the content of a file; OSError, whose `strerror` says why, if it cannot be had."""
    try:
        allow_lists().check_path(str(path))
        descriptor = os.open(path, _FLAGS)
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    except ValueError:
        raise OSError(errno.EINVAL, "this is not a path") from None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    """Read to the end, whatever size the system reports: files of /proc have none."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    content = bytearray()
    while chunk := os.read(descriptor, MOST_BYTES + 1 - len(content)):
        content += chunk
        if len(content) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES} bytes")
    return bytes(content)
