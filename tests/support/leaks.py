"""What a test has left behind: threads that run, and sockets that are open.

A producer and an embedded broker each have a thread, so one that was not closed is found by it.
What was there before the test began, such as the threads of fixtures with a larger scope, is not
the test's.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

#: Where Linux lists the open files of this process; elsewhere only threads are looked at.
_DESCRIPTORS: Final = Path("/proc/self/fd")
#: How long the end of a thread may take, or a fixture's broker to close the socket of a client that
#: has left. A test that leaves nothing never waits.
_PATIENCE_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.01

#: Threads that may outlive a test, by the beginning of their names, each with the reason.
ALLOWED: Final[dict[str, str]] = {
    # The producers themselves have threads of their own, and are found.
    "kafka-idle-producers": "sleeps until the producers that a test has used would be too old",
}


class Open(NamedTuple):
    """What is there at a moment."""

    threads: frozenset[threading.Thread]
    #: By the system's names, which are not used again.
    sockets: frozenset[str]


def look() -> Open:
    """Return what is there now."""
    return Open(
        frozenset(thread for thread in threading.enumerate() if not _is_allowed(thread)),
        frozenset(_sockets()),
    )


def left_since(before: Open) -> list[str]:
    """Return what has come since then and stays, as sentences."""
    left = _new(before)
    if not any(left):
        return []
    # Sockets that only a cycle of references keeps open are closed by this, with a ResourceWarning.
    gc.collect()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while any(left := _new(before)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return sorted(
        [f"the thread {thread.name!r} runs" for thread in left.threads]
        + [f"{name} is open" for name in left.sockets]
    )


def _new(before: Open) -> Open:
    now = look()
    return Open(now.threads - before.threads, now.sockets - before.sockets)


def _is_allowed(thread: threading.Thread) -> bool:
    return thread.name.startswith(tuple(ALLOWED))


def _sockets() -> list[str]:
    if not _DESCRIPTORS.is_dir():
        return []
    names = []
    for descriptor in os.listdir(_DESCRIPTORS):  # noqa: PTH208  called twice for each test
        # The descriptor of the listing itself is gone, and others may be.
        with suppress(OSError):
            names.append(os.readlink(f"{_DESCRIPTORS}/{descriptor}"))  # noqa: PTH115  likewise
    return [name for name in names if name.startswith("socket:")]
