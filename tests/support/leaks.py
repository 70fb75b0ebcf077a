"""Detect threads and sockets that a test has left open.

A producer and an embedded broker each have a thread, which reveals one that was not closed. What
existed before the test began, such as the threads of fixtures with a larger scope, is not
attributed to the test.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

#: Where Linux lists the open files of this process; on other systems only threads are checked.
_DESCRIPTORS: Final = Path("/proc/self/fd")
#: How long a thread may take to end, or a fixture's broker to close the socket of a client that
#: disconnected. A test that leaves nothing open never waits.
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.01

#: Threads that may outlive a test, by the prefixes of their names, each with the reason.
ALLOWED: Final[dict[str, str]] = {
    # The producers have threads of their own, which are detected.
    "kafka-idle-producers": "sleeps until the producers that a test has used would be too old",
}


class Open(NamedTuple):
    """The open threads and sockets at one moment."""

    threads: frozenset[threading.Thread]
    #: Named by the system, which does not reuse the names.
    sockets: frozenset[str]


def look() -> Open:
    """Return what is open now."""
    return Open(
        frozenset(thread for thread in threading.enumerate() if not _is_allowed(thread)),
        frozenset(_sockets()),
    )


def left_since(before: Open) -> list[str]:
    """Return sentences that describe what was opened since `before` and does not close in time."""
    left = _new(before)
    if not any(left):
        return []
    # This closes sockets that only a reference cycle keeps open, with a ResourceWarning.
    gc.collect()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while any(left := _new(before)) and time.monotonic() < deadline:
        if not left.threads:
            # A thread that has ended since may have left such a cycle.
            gc.collect()
        time.sleep(_PAUSE_SECONDS)
    return sorted(
        [f"the thread {thread.name!r} runs" for thread in left.threads]
        + [f"{name} is open" for name in left.sockets]
    )


def _new(before: Open) -> Open:
    now = look()
    return Open(now.threads - before.threads, now.sockets - before.sockets)


def _is_allowed(thread: threading.Thread) -> bool:
    # Python keeps a record of each thread that a library such as DuckDB has called it from.
    is_foreign = isinstance(thread, threading._DummyThread)
    return is_foreign or thread.name.startswith(tuple(ALLOWED))


def _sockets() -> list[str]:
    if not _DESCRIPTORS.is_dir():
        return []
    names = []
    for descriptor in os.listdir(_DESCRIPTORS):  # noqa: PTH208  called twice for each test
        # The listing's own descriptor is closed by now, and others may be.
        with suppress(OSError):
            names.append(os.readlink(f"{_DESCRIPTORS}/{descriptor}"))  # noqa: PTH115  likewise
    return [name for name in names if name.startswith("socket:")]
