"""A target that makes room for as much as anybody announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


class GreedyTarget:
    """Takes memory by the length of what it gets."""

    name = "greedy"

    def make(self, random_: random.Random) -> bytes:
        """Return bytes that do no harm."""
        return random_.randbytes(1)

    def take(self, data: bytes) -> None:
        """Make room for 4 GiB per byte."""
        bytearray(len(data) << 32)


TARGETS = {GreedyTarget.name: GreedyTarget}
