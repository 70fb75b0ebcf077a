"""A target with a bug that random bytes do not find: it needs several correct bytes in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_MAGIC = b"KAFKA"


class CarelessTarget:
    """A parser that compares its input with one word byte by byte, and fails if it matches."""

    name = "careless"

    def make(self, random_: random.Random) -> bytes:
        """Return bytes that do no harm."""
        return random_.randbytes(8)

    def take(self, data: bytes) -> None:
        """Compare byte by byte, as parsers do."""
        for position, expected in enumerate(_MAGIC):
            if len(data) <= position or data[position] != expected:
                return
        raise IndexError("out of range")


TARGETS = {CarelessTarget.name: CarelessTarget}
