"""A disk that fails when a test says so: everything the broker changes on disk comes by here."""

from __future__ import annotations

import errno
import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.log.storage import disk

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

#: Every function of the `disk` module.
OPERATIONS = (
    "open_file",
    "write",
    "truncate",
    "sync",
    "sync_directory",
    "rename",
    "remove",
    "make_directory",
    "remove_directory",
)

#: So many lines make a way.
_DEPTH = 5
_BROKER = f"spark_kafka_sink{os.sep}devbroker"


class Failure(StrEnum):
    """How the disk fails."""

    #: One operation fails, and then all is well.
    ONCE = "once"
    #: The disk is full until it is freed: what takes room fails, everything else works.
    FULL = "full"
    #: Nothing can be changed until the disk is "freed", as on a file system gone read-only.
    READ_ONLY = "read-only"


class FaultyDisk:
    """Counts the operations, and makes them fail from one of them on.

    A write that fails has first written half of what it was given. Nothing is really flushed, which
    nobody in this process can tell.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Stand in for the disk until `patch` is undone."""
        #: Operations so far.
        self.count = 0
        #: The number of the first operation that came by a way through the broker.
        self.first_by_way: dict[tuple[object, ...], int] = {}
        #: Operations that have failed.
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
        """Count from 0."""
        self.count = 0
        self.first_by_way.clear()
        self.failed.clear()

    def fail_after(self, number: int, failure: Failure) -> None:
        """Fail when so many more operations have come by."""
        self._fail_at = self.count + number
        self._failure = failure

    def free(self) -> None:
        """Make everything succeed from now on."""
        self._fail_at = None

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            self.first_by_way.setdefault((name, *_way()), self.count)
            if self.is_failing and self._concerns(name, args):
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

    def _concerns(self, name: str, args: tuple[Any, ...]) -> bool:
        if self._failure is not Failure.FULL:
            return True
        return name == "write" or (name in {"open_file", "make_directory"} and not args[0].exists())


def _way() -> list[tuple[str, int]]:
    """List the last lines of the broker that have led to an operation."""
    way = []
    frame = sys._getframe(2)
    while frame is not None and len(way) < _DEPTH and _BROKER in frame.f_code.co_filename:
        way.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return way
