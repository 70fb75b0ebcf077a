"""Directories that only this user can change, for files that are trusted when they are read.

A directory is only as safe as its path: a user who can write to one of its ancestors can replace
it. So each component of the path, including symbolic links and their targets, is checked before the
next one is read or created:

- it belongs to this user or to root,
- and others cannot write to it, unless its sticky bit prevents them from replacing others' files.

The directory itself, and each file in it, must belong to this user.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The number of links that Linux follows in one path.
_MAX_LINKS: Final = 40
_ROOT: Final = 0
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN_TO_OTHERS: Final = stat.S_IXGRP | stat.S_IXOTH


class UnsafeDirectoryError(OSError):
    """Another user could change the content of a directory."""


def make_private_directory(directory: Path) -> None:
    """Create a directory that only this user can change, or check an existing one.

    Missing ancestors are created too. Raises UnsafeDirectoryError if another user could change the
    content of the directory, and OSError if it cannot be created.
    """
    _walk(directory.parent.absolute())
    status = _step(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeDirectoryError(f"{directory} is not a directory")
    if status.st_uid != os.geteuid():
        raise UnsafeDirectoryError(f"{directory} belongs to user {status.st_uid}")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise UnsafeDirectoryError(f"other users can write to {directory}")


def check_private_files(directory: Path) -> None:
    """Raise UnsafeDirectoryError if a private directory contains anything but this user's files.

    A file that others can write to is unsafe too, unless they cannot enter the directory. Raises
    OSError if the directory cannot be read.
    """
    is_open = directory.lstat().st_mode & _OPEN_TO_OTHERS
    for path in directory.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # Another process of this user has just renamed it.
        if status.st_uid != os.geteuid():
            raise UnsafeDirectoryError(f"{path} belongs to user {status.st_uid}")
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeDirectoryError(f"{path} is not a file")
        if is_open and status.st_mode & _WRITABLE_BY_OTHERS:
            raise UnsafeDirectoryError(f"other users can write to {path}")


def _walk(path: Path) -> None:
    """Check every directory and link on the path to a directory, starting at the root."""
    pending = list(reversed(path.parts))
    reached = Path()
    links = 0
    while pending:
        name = pending.pop()
        if name == os.pardir:
            # `reached` contains no link, so ".." leads to its parent, which has been checked.
            reached = reached.parent
            continue
        step = reached / name
        if not stat.S_ISLNK(_step(step).st_mode):
            reached = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        # An absolute target begins with the root, so the next step starts there.
        pending += reversed(step.readlink().parts)


def _step(path: Path) -> os.stat_result:
    """Check one component of a path without following a link; create it if it is missing."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        with suppress(FileExistsError):
            path.mkdir(mode=stat.S_IRWXU)
        status = path.lstat()
    if status.st_uid not in {_ROOT, os.geteuid()}:
        raise UnsafeDirectoryError(f"{path} belongs to user {status.st_uid}")
    if (
        stat.S_ISDIR(status.st_mode)
        and status.st_mode & _WRITABLE_BY_OTHERS
        and not status.st_mode & stat.S_ISVTX
    ):
        raise UnsafeDirectoryError(f"other users can write to {path}")
    return status
