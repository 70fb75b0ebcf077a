"""Reused memory for decoded records.

The memory of an output is used again as soon as its record batch is released: to touch
new memory for the first time costs more than to decode into it. Capacities grow with what the
records need, so only the first outputs of a partition are copied, and memory that is not needed is
never touched.

The buffers of a record batch point into an `Arena`, and hold a `Lease` on it. When the last of them
is freed, in whatever thread, the arena returns to its pool. No code in Python runs then: in the
main thread it would take the KeyboardInterrupt of a Ctrl-C, which cannot be raised from there, away
from whoever waits for the next batch (DuckDB, for instance).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

#: More arenas than this are not kept for later use.
_MOST_IDLE: Final = 2
_GROWTH: Final = 4


class Arena:
    """Arrays of a decoder, by name, whose sizes can grow."""

    def __init__(self, sizes: Mapping[str, tuple[int, npt.DTypeLike]]) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.addresses: dict[str, int] = {}
        #: The most bytes that an output has used.
        self.touched = 0
        for name, (size, dtype) in sizes.items():
            self._set(name, np.empty(size, dtype))

    def grow(self, name: str, needed: int, used: int, largest: int) -> None:
        """Make room for `needed` entries of an array; keep the `used` ones.

        So that an array seldom grows, it becomes larger than needed, up to `largest` bytes.
        """
        before = self.arrays[name]
        if needed > before.size:
            roomy = min(_GROWTH * before.size, largest // before.itemsize)
            grown = np.empty(max(needed, roomy), before.dtype)
            grown[:used] = before[:used]
            self._set(name, grown)

    def _set(self, name: str, array: npt.NDArray[Any]) -> None:
        self.arrays[name] = array
        self.addresses[name] = array.ctypes.data


class ArenaPool:
    """The arenas of one decoder that are free; arenas may return in any thread.

    `sizes` has the first sizes of the arrays, and their types. `largest` is the size in bytes of
    the largest array that is kept: only a single huge record needs more.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, npt.DTypeLike]], largest: int) -> None:
        self._sizes = dict(sizes)
        self._largest = largest
        #: A full deque forgets its oldest item.
        self._idle: deque[_Return] = deque(maxlen=_MOST_IDLE)

    def take(self) -> Arena:
        """Return an idle arena, or a new one as large as those that were returned."""
        try:
            return self._idle.pop().arena
        except IndexError:
            return Arena(self._sizes)

    def lease(self, arena: Arena) -> Lease:
        """Return an object that returns the arena when it is freed; remember the arena's sizes.

        An arena that is too large is not returned.
        """
        for name, array in arena.arrays.items():
            size, dtype = self._sizes[name]
            if size < array.size and array.nbytes <= self._largest:
                self._sizes[name] = array.size, dtype
        lease = Lease(arena)
        if all(array.nbytes <= self._largest for array in arena.arrays.values()):
            lease.arena_return = _Return(lease, self._idle.append)
            lease.arena_return.arena = arena
        return lease


class Lease:
    """The use of an arena by the buffers of a record batch, which all refer to this object."""

    __slots__ = ("__weakref__", "arena", "arena_return")

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        #: Alive as long as the lease is, whose end makes it call the pool.
        self.arena_return: _Return | None = None


class _Return(ref[Lease]):
    """An arena that is passed to a pool when its lease is freed."""

    __slots__ = ("arena",)

    arena: Arena
