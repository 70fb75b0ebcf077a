"""Everything the broker changes on disk, it changes through these functions.

They are the operating system's, and may all fail: a disk is full, a file system goes read-only. One
place, so that a test can make any of them fail. Callers import the module, not the functions, and
no other module of the broker opens, writes, renames or removes a file.

What is in the files may be confidential: only the broker's own user has access to them.
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
    """Open a file to read and write; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), _FILE_MODE)


def write(descriptor: int, buffer: bytes | memoryview, position: int) -> int:
    """Write at a position; return how many bytes were written, which may be fewer than given."""
    return os.pwrite(descriptor, buffer, position)


def truncate(descriptor: int, size: int) -> None:
    """Cut a file off behind its first `size` bytes."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Make what was written to a file survive a crash of the machine."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make names that were given, changed or removed survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory; a file takes the place of one that has the name."""
    source.replace(target)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def make_directory(path: Path, *, parents: bool = False) -> None:
    """Create a directory, unless it is there."""
    path.mkdir(mode=_DIRECTORY_MODE, parents=parents, exist_ok=True)


def remove_directory(path: Path) -> None:
    """Remove a directory with everything in it."""
    shutil.rmtree(path)
