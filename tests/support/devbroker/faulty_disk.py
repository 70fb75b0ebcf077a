"""A disk that fails on demand, patched below all of the broker's writes."""

from __future__ import annotations

import errno
import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.log import disk

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

#: All functions of the `disk` module.
OPERATIONS = (
    "open_file",
    "create_file",
    "write",
    "truncate",
    "sync",
    "sync_directory",
    "rename",
    "remove",
    "make_directory",
    "remove_directory",
)

#: The number of lines of a call stack by which operations are distinguished.
_DEPTH = 5
_BROKER = f"spark_kafka_sink{os.sep}devbroker"


class Failure(StrEnum):
    """The ways in which the disk fails."""

    #: One operation fails; the following ones succeed.
    ONCE = "once"
    #: The disk is full until it is freed: only operations that need space fail.
    FULL = "full"
    #: No change succeeds until the disk is "freed", as on a file system remounted read-only.
    READ_ONLY = "read-only"


class FaultyDisk:
    """A wrapper of the disk functions that counts operations and can make them fail.

    A write that fails first writes half of its data. Syncs are skipped, which no code in this
    process can observe.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the disk functions until `patch` is undone."""
        #: The number of operations so far.
        self.count = 0
        #: For each call stack in the broker, the number of its first operation.
        self.first_by_way: dict[tuple[object, ...], int] = {}
        #: The names of the operations that failed.
        self.failed: list[str] = []
        self._fail_at: int | None = None
        self._failure = Failure.ONCE
        self._half_written: tuple[int, int] | None = None
        for name in OPERATIONS:
            patch.setattr(disk, name, self._watched(name, getattr(disk, name)))

    @property
    def is_failing(self) -> bool:
        """Whether the disk has begun to fail, and has not been freed."""
        return self._fail_at is not None and self.count >= self._fail_at

    def forget(self) -> None:
        """Reset all counts."""
        self.count = 0
        self.first_by_way.clear()
        self.failed.clear()

    def fail_after(self, number: int, failure: Failure) -> None:
        """Fail after this many more operations."""
        self._fail_at = self.count + number
        self._failure = failure

    def free(self) -> None:
        """Make all operations succeed from now on."""
        self._fail_at = None

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            self.first_by_way.setdefault((name, *_way()), self.count)
            if self.is_failing and self._concerns(name, args, kwargs):
                if name == "write" and len(args[1]) > 1:
                    descriptor, buffer, position = args
                    if self._half_written != (descriptor, position):
                        half = real(descriptor, memoryview(buffer)[: len(buffer) // 2], position)
                        self._half_written = (descriptor, position + half)
                        return half
                if self._failure is Failure.ONCE:
                    self.free()
                self.failed.append(name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.count += 1
            return None if name.startswith("sync") else real(*args, **kwargs)

        return act

    def _concerns(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._failure is not Failure.FULL:
            return True
        creates = kwargs.get("create", name in {"create_file", "make_directory"})
        return name == "write" or (creates and not args[0].exists())


def _way() -> list[tuple[str, int]]:
    """Return the innermost lines of the broker's call stack that led to an operation."""
    way = []
    frame = sys._getframe(2)
    while frame is not None and len(way) < _DEPTH and _BROKER in frame.f_code.co_filename:
        way.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return way
