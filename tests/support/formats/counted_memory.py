"""Count what pyarrow allocates."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Buffers of a pool must not outlive it.
_POOLS: list[Any] = []


@contextmanager
def counted_memory() -> Iterator[Any]:
    """Make pyarrow allocate from a pool of its own, and return that."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
