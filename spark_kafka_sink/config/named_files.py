"""The files that options name: secrets, key stores, keytabs, tokens, checkpoints, reports.

Only regular files of at most 1 MiB are read: a device or a pipe could deliver data without end, or
none, and no secret or store is larger. The environment may restrict the files (`allow_lists`).

A name may lead elsewhere once it has been checked: somebody may exchange a link on its way. So the
file that was opened is checked, too. Where the name is used again, by a library or to write,
`pinned_file` and `pinned_target` return a path that leads to what was opened.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.allow_lists import DESCRIPTORS, NotAllowedError, allow_lists

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES: Final = 1 << 20
#: Opening a pipe must not wait for a writer, and a terminal must not become the controlling one.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def read_named_file(path: Path | str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Raises OSError, whose `strerror` gives the reason, if the file cannot or must not be read.
    """
    with _opened(path) as descriptor:
        return _read(descriptor, max_bytes)


@contextmanager
def pinned_file(path: Path | str) -> Iterator[str]:
    """Yield a path to a file for a library that opens it by name. Raises OSError.

    If files are restricted, the path leads to the file that was checked.
    """
    if not allow_lists().restricts_paths:
        yield str(path)
        return
    with _opened(path) as descriptor:
        yield f"{DESCRIPTORS}/{descriptor}"


@contextmanager
def pinned_target(path: Path) -> Iterator[Path]:
    """Yield a path to a file that is to be written. Raises OSError.

    If files are restricted, the path leads to the directory that was checked, so do not follow a
    link in place of the file itself.
    """
    lists = allow_lists()
    if not lists.restricts_paths:
        yield path
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lists.check_opened(descriptor, path.name)
        yield Path(DESCRIPTORS, str(descriptor), path.name)
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    except OSError as error:
        if str(error.filename).startswith(DESCRIPTORS):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: Path | str) -> Iterator[int]:
    """Open a file for reading that the environment allows."""
    lists = allow_lists()
    try:
        # By its name first: who may not read a file need not know whether it exists.
        lists.check_path(str(path))
        descriptor = os.open(path, _FLAGS)
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    except ValueError:
        raise OSError(errno.EINVAL, "it is not a valid path") from None
    try:
        lists.check_opened(descriptor)
        yield descriptor
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Read to the end, ignoring the size that the system reports: files in /proc have none."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    content = bytearray()
    while chunk := os.read(descriptor, max_bytes + 1 - len(content)):
        content += chunk
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return bytes(content)
