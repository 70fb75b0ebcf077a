"""A target with a mistake that random bytes do not find: it needs several right ones in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_MAGIC = b"KAFKA"


class CarelessTarget:
    """Fails for what begins with one word, which it reads byte by byte."""

    name = "careless"

    def make(self, random_: random.Random) -> bytes:
        """Make bytes that do no harm."""
        return random_.randbytes(8)

    def take(self, data: bytes) -> None:
        """Compare byte by byte, as parsers do."""
        for position, expected in enumerate(_MAGIC):
            if len(data) <= position or data[position] != expected:
                return
        raise IndexError("out of range")


TARGETS = {CarelessTarget.name: CarelessTarget}
