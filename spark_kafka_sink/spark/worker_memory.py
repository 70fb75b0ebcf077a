"""The garbage collector of a Python worker."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def importing_much() -> Iterator[None]:
    """Import large modules without the garbage collector, which would walk all of them in vain.

    It takes a sixth of the time of such an import.
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
