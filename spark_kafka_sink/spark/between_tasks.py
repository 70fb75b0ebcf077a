"""What makes the next task of a Python worker begin sooner, done between two of them.

PySpark's daemon runs the tasks of a worker one after another, with a full garbage collection after
each; its callbacks are the moment between two tasks.

- **The collector.** What the first tasks have imported, compiled and cached is permanent, and more
  than 100,000 objects. The collections after later tasks would walk all of it, which took half of
  a worker's time in a read of many small partitions; so it is frozen once it has survived one.
  Objects that are a cycle by then and end later, as a client in the cache, are never freed: one or
  two of them in each worker.
- **The socket.** Over TCP, the JVM sends a task in several small parts. Each waits until the
  worker's system has acknowledged the one before (Nagle), and systems delay acknowledgements by
  some 40 ms. TCP_QUICKACK ends the delay until the worker next sends something, so it is set after
  each result; TCP_NODELAY lets the worker send its own small parts at once. Unix domain sockets
  delay nothing.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

#: How many tasks import, compile or cache something: the second may take over what the first left.
_FREEZES: Final = 2
_DAEMON: Final = "pyspark.daemon"
#: The generation of the objects that have survived most collections.
_OLDEST: Final = 2


class _Daemon(NamedTuple):
    """PySpark's daemon in a worker process."""

    #: Its loop, which runs tasks and collects garbage.
    loop: CodeType
    #: Its socket to the JVM.
    held: socket.socket


@cache
def prepare_next_tasks() -> None:
    """Prepare this worker, once, from within a task; do nothing in any other process."""
    daemon = _daemon(sys._getframe())  # noqa: SLF001  there is no other way to it
    if daemon is None:
        return
    is_tcp = daemon.held.family in {socket.AF_INET, socket.AF_INET6}
    if is_tcp:
        _set(daemon.held, socket.TCP_NODELAY)
    # Only Linux has it.
    quick = getattr(socket, "TCP_QUICKACK", None) if is_tcp else None
    freezes = iter(range(_FREEZES))

    def after(phase: str, about: dict[str, int]) -> None:
        caller = sys._getframe().f_back  # noqa: SLF001
        is_between = caller is not None and caller.f_code is daemon.loop
        # The daemon collects all generations; Python itself may collect a young one there.
        if phase != "stop" or about["generation"] < _OLDEST or not is_between:
            return
        if next(freezes, None) is not None:
            gc.freeze()
        if quick is not None:
            _set(daemon.held, quick)

    gc.callbacks.append(after)


def _set(held: socket.socket, option: int) -> None:
    # A task need not fail because it might be slower.
    with suppress(OSError):
        held.setsockopt(socket.IPPROTO_TCP, option, 1)


def _daemon(frame: FrameType | None) -> _Daemon | None:
    """Return the daemon that runs this task; None if there is none, or one that is not known."""
    while frame is not None:
        # The daemon is the main module of its process.
        spec = frame.f_globals.get("__spec__")
        if frame.f_code.co_name == "worker" and getattr(spec, "name", None) == _DAEMON:
            held = frame.f_locals.get("sock")
            if isinstance(held, socket.socket) and frame.f_back is not None:
                return _Daemon(frame.f_back.f_code, held)
            return None
        frame = frame.f_back
    return None
