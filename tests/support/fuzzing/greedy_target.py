"""A fuzz target that allocates as much memory as its input's length demands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


class GreedyTarget:
    """A target that allocates memory by the length of its input."""

    name = "greedy"

    def make(self, random_: random.Random) -> bytes:
        """Return bytes that do no harm."""
        return random_.randbytes(1)

    def take(self, data: bytes) -> None:
        """Allocate 4 GiB per byte."""
        bytearray(len(data) << 32)


TARGETS = {GreedyTarget.name: GreedyTarget}
