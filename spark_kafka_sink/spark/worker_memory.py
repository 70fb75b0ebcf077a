"""The garbage collector of a Python worker."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imported_objects() -> None:
    """Hide the imported objects from the garbage collector, once per worker.

    PySpark's daemon runs a full collection after every task. numba and its compiler consist of
    hundreds of thousands of permanent objects: walking them took a seventh of a warm worker's time.
    """
    gc.freeze()
