"""Which partition a record without key and partition goes to (Kafka's BuiltInPartitioner, KIP-794).

Such records stick to one partition until it has had about a batch's worth, and then go to another
one chosen at random: full batches, and an even share in the long run. The start is random too, or
all tasks of a job would begin with the same partition. Records with a key are placed by the kernel
(murmur2), those with a partition go where they say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


class BuiltInPartitioner:
    """Chooses the next sticky partition of a topic."""

    def __init__(self, rng: random.Random) -> None:
        """Draw from `rng`."""
        self._rng = rng

    def next_partition(self, available: Sequence[int], current: int | None) -> int:
        """Choose among `available`, another one than `current` if there is one."""
        others = [partition for partition in available if partition != current]
        return self._rng.choice(others or list(available))
