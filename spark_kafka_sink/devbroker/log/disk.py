"""The functions through which the broker makes all of its changes on disk.

They wrap calls of the operating system, and any of them can raise OSError: a disk is full, a file
system becomes read-only. They are in one place so that a test can make any of them fail: callers
import the module, not the functions, and no other module of the broker opens, writes, renames or
removes a file.

The contents of the files may be confidential: only the broker's own user can access them. The
directory may have been prepared by somebody else: no function follows a symbolic link, neither in
place of a file nor of its directory.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


def open_file(path: Path, *, create: bool) -> int:
    """Open a file for reading and writing; return its descriptor."""
    return _open(path, os.O_CREAT if create else 0)


def create_file(path: Path) -> int:
    """Create a file, which must not exist, for reading and writing; return its descriptor."""
    return _open(path, os.O_CREAT | os.O_EXCL)


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
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename an entry of a directory; a file replaces an existing one of that name."""
    with _opened(source.parent) as parent:
        os.replace(source.name, target.name, src_dir_fd=parent, dst_dir_fd=parent)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    with _opened(path.parent) as parent, suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=parent)


def make_directory(path: Path) -> None:
    """Create a directory, unless it exists."""
    with _opened(path.parent) as parent, suppress(FileExistsError):
        os.mkdir(path.name, _DIRECTORY_MODE, dir_fd=parent)


def remove_directory(path: Path) -> None:
    """Remove a directory with everything in it."""
    with _opened(path.parent) as parent:
        shutil.rmtree(path.name, dir_fd=parent)


def _open(path: Path, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with _opened(path.parent) as parent:
        return os.open(path.name, flags, _FILE_MODE, dir_fd=parent)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open a directory for functions that take a descriptor; their errors name the whole path."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = str(directory / error.filename)
        raise
    finally:
        os.close(descriptor)
