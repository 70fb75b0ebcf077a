"""Directories that nobody but this user can change, for files that are trusted when read.

A directory is only as safe as the way to it: whoever can write to one of its ancestors can put
another directory in its place. So every step of the way is checked, symbolic links and their
targets included, before the next one is looked at or created:

- it belongs to this user or to root,
- and others cannot write to it, unless its sticky bit keeps them from replacing what is not theirs.

The directory itself, and each file in it, must belong to this user.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

#: As many links as Linux follows in one path.
_MAX_LINKS: Final = 40
_ROOT: Final = 0
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN_TO_OTHERS: Final = stat.S_IXGRP | stat.S_IXOTH


class UnsafeDirectoryError(OSError):
    """Another user could change what is in a directory."""


def make_private_directory(directory: Path) -> None:
    """Create a directory that only this user can change, or check an existing one.

    Missing ancestors are created too. Raises UnsafeDirectoryError where another user could change
    what is in the directory, and OSError where it cannot be created.
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
    """Raise UnsafeDirectoryError for anything in a private directory that is not a file of ours.

    A file that others may write counts as theirs, unless the directory keeps them away from it.
    Raises OSError where the directory cannot be read.
    """
    is_open = directory.lstat().st_mode & _OPEN_TO_OTHERS
    for path in directory.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # Another process of ours has just renamed it.
        if status.st_uid != os.geteuid():
            raise UnsafeDirectoryError(f"{path} belongs to user {status.st_uid}")
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeDirectoryError(f"{path} is not a file")
        if is_open and status.st_mode & _WRITABLE_BY_OTHERS:
            raise UnsafeDirectoryError(f"other users can write to {path}")


def _walk(path: Path) -> None:
    """Check every directory and link on the way to a directory, from the root on."""
    pending = list(reversed(path.parts))
    reached = Path()
    links = 0
    while pending:
        name = pending.pop()
        if name == os.pardir:
            # No link is in `reached`: its parent is where ".." leads, and has been checked.
            reached = reached.parent
            continue
        step = reached / name
        if not stat.S_ISLNK(_step(step).st_mode):
            reached = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        # An absolute target begins with the root, which the next step goes to.
        pending += reversed(step.readlink().parts)


def _step(path: Path) -> os.stat_result:
    """Check one step of the way without following a link, and create it where it is missing."""
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
