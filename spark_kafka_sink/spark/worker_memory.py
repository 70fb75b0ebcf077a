"""The memory of a Python worker: its garbage collector, and what its allocator keeps."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The settings in glibc's malloc.h for how much freed memory is kept, and from which size on a
#: block has a mapping of its own, which is never kept; and users' own variables for them.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_VARIABLES: Final = frozenset({"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"})
#: How GLIBC_TUNABLES begins the names of the same settings.
_TUNABLES: Final = "glibc.malloc."
_KEPT_BYTES: Final = 16 * 1024 * 1024
_MAPPED_BYTES: Final = 16 * 1024 * 1024


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
