"""A Python worker: its memory, and what makes its next task begin sooner.

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

import ctypes
import gc
import os
import socket
import sys
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

#: The settings in glibc's malloc.h for how much freed memory is kept, and from which size on a
#: block has a mapping of its own, which is never kept; and users' own variables for them.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_VARIABLES: Final = frozenset({"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"})
#: How GLIBC_TUNABLES begins the names of the same settings.
_TUNABLES: Final = "glibc.malloc."
_KEPT_BYTES: Final = 16 * 1024 * 1024
_MAPPED_BYTES: Final = 16 * 1024 * 1024
#: How many tasks import, compile or cache something: the second may take over what the first left.
_FREEZES: Final = 2
_DAEMON: Final = "pyspark.daemon"
#: The generation of the objects that have survived most collections.
_OLDEST: Final = 2


@contextmanager
def without_collector() -> Iterator[None]:
    """Run without the garbage collector, as while importing large modules.

    It would walk all of them in vain, which takes a sixth of the time of such an import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def freeze_imported_objects() -> None:
    """Hide the imported objects from the garbage collector, once per worker.

    PySpark's daemon runs a full collection after every task, and modules consist of a hundred
    thousand permanent objects, or of several where numba compiles: walking those took a seventh of
    a warm worker's time.
    """
    gc.freeze()


@cache
def keep_freed_memory() -> None:
    """Keep up to 16 MiB of freed memory in the C library, once per worker, if it is glibc.

    Each compressed batch is a new object of up to a megabyte, for which zstd reserves as much as
    the records take before. By default its memory goes back to the operating system, and the next
    one touches fresh pages, which took 4 % of a worker's time (10 % with zstd), and more on a
    machine where pages are dearer. Users' own variables for this take precedence.
    """
    if _VARIABLES.isdisjoint(os.environ) and _TUNABLES not in os.environ.get("GLIBC_TUNABLES", ""):
        with suppress(AttributeError):  # another C library
            set_option = ctypes.CDLL(None).mallopt
            set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
            set_option(_MMAP_THRESHOLD, _MAPPED_BYTES)


@contextmanager
def preparing_writer() -> Iterator[None]:
    """Prepare a worker for writing: the caller imports what it writes with meanwhile."""
    with without_collector():
        yield
        # PySpark has pyarrow import it, if it is installed, once the first task returns its result:
        # 30,000 objects more, which the collection after that task need not walk either.
        with suppress(ImportError):
            import pandas as pd  # type: ignore[import-untyped]  # noqa: F401
    freeze_imported_objects()
    keep_freed_memory()


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
