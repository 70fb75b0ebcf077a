"""The functions through which the broker makes all of its changes on disk.

They wrap calls of the operating system, and any of them can raise OSError: a disk is full, a file
system becomes read-only. They are in one place so that a test can make any of them fail: callers
import the module, not the functions, and no other module of the broker opens, writes, renames or
removes a file.

The contents of the files may be confidential: only the broker's own user can access them.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


def open_file(path: Path, *, create: bool) -> int:
    """Open a file for reading and writing; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), _FILE_MODE)


def write(descriptor: int, buffer: bytes | memoryview, position: int) -> int:
    """Write at a position; return the number of bytes written, which may be fewer than given."""
    return os.pwrite(descriptor, buffer, position)


def truncate(descriptor: int, size: int) -> None:
    """Truncate a file to its first `size` bytes."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Flush a file to disk, so that its contents survive a crash of the machine."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory, so that created, renamed and removed entries survive a machine crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory; a file replaces an existing one of that name."""
    source.replace(target)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    path.unlink(missing_ok=True)


def make_directory(path: Path, *, parents: bool = False) -> None:
    """Create a directory, unless it exists."""
    path.mkdir(mode=_DIRECTORY_MODE, parents=parents, exist_ok=True)


def remove_directory(path: Path) -> None:
    """Remove a directory with everything in it."""
    shutil.rmtree(path)
