"""Directories that only this user can change, for files that are trusted when they are read.

A directory is only as safe as its path: a user who can write to one of its ancestors can replace
it. So each component of the path, including symbolic links and their targets, is checked before the
next one is read or created:

- it belongs to this user or to root,
- and others cannot write to it, unless its sticky bit prevents them from replacing others' files.

The directory itself, and each file in it, must belong to this user.

The members of a group count as others, except for a group of this user alone: many systems give
each user such a group, and with it a umask of 002 (pam_umask, `usergroups`).
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The number of links that Linux follows in one path.
_MAX_LINKS: Final = 40
_ROOT: Final = 0
_OPEN_TO_OTHERS: Final = stat.S_IXGRP | stat.S_IXOTH


class UnsafeDirectoryError(OSError):
    """Another user could change the content of a directory."""


def make_private_directory(directory: Path, *, follow_link: bool = False) -> Path:
    """Create a directory that only this user can change, or check an existing one; return its path.

    Missing ancestors are created too. With `follow_link`, the path itself may be a link to a
    directory; the returned path contains no link. Raises UnsafeDirectoryError if another user could
    change the content of the directory, and OSError if it cannot be created.
    """
    reached = _walk(directory.absolute() if follow_link else directory.parent.absolute())
    directory = reached if follow_link else reached / directory.name
    status = _step(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeDirectoryError(f"{directory} is not a directory")
    if status.st_uid != os.geteuid():
        raise UnsafeDirectoryError(f"{directory} belongs to user {status.st_uid}")
    if _others_can_write(status):
        raise UnsafeDirectoryError(f"other users can write to {directory}")
    return directory


def check_private_files(directory: Path, *, levels: int = 1) -> None:
    """Raise UnsafeDirectoryError if a private directory contains anything but this user's files.

    It may have subdirectories, `levels` - 1 deep. What others can write to is unsafe too, unless
    they cannot enter the directory. Raises OSError if a directory cannot be read.
    """
    _check_files(directory, levels, is_open=True)


def _check_files(directory: Path, levels: int, *, is_open: bool) -> None:
    is_open = is_open and bool(directory.lstat().st_mode & _OPEN_TO_OTHERS)
    for path in directory.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # Another process of this user has just renamed it.
        if status.st_uid != os.geteuid():
            raise UnsafeDirectoryError(f"{path} belongs to user {status.st_uid}")
        is_subdirectory = levels > 1 and stat.S_ISDIR(status.st_mode)
        if not stat.S_ISREG(status.st_mode) and not is_subdirectory:
            raise UnsafeDirectoryError(f"{path} is not a file")
        if is_open and _others_can_write(status):
            raise UnsafeDirectoryError(f"other users can write to {path}")
        if is_subdirectory:
            _check_files(path, levels - 1, is_open=is_open)


def _walk(path: Path) -> Path:
    """Check every directory and link on the path to a directory, starting at the root.

    Returns the path without links.
    """
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
    return reached


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
        and _others_can_write(status)
        and not status.st_mode & stat.S_ISVTX
    ):
        raise UnsafeDirectoryError(f"other users can write to {path}")
    return status


def _others_can_write(status: os.stat_result) -> bool:
    """Return whether the mode of a directory or file lets other users write to it."""
    if status.st_mode & stat.S_IWGRP and not _is_group_of_one(status.st_gid, status.st_uid):
        return True
    return bool(status.st_mode & stat.S_IWOTH)


def _is_group_of_one(group_id: int, user_id: int) -> bool:
    """Return whether a group is a user's own: it has the user's name, and no other member."""
    try:
        user, group = pwd.getpwuid(user_id), grp.getgrgid(group_id)
    except KeyError:
        return False
    return (
        user.pw_gid == group_id
        and group.gr_name == user.pw_name
        and set(group.gr_mem) <= {user.pw_name}
    )
