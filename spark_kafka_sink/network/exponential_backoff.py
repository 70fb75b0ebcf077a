"""How long to wait before the next try (org.apache.kafka.common.utils.ExponentialBackoff).

Doubling spares a broker that is down; the jitter keeps a thousand tasks that lost the same broker
from coming back in the same millisecond.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MULTIPLIER = 2
#: Share of the term by which a delay may be shorter or longer (KIP-580).
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays in seconds: `initial * 2**attempts`, at most `maximum`, give or take the jitter.

    Where `maximum` leaves no room to grow it is the delay, always, as in Java.
    """

    initial: float
    maximum: float
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, attempts: int) -> float:
        """Give the delay after `attempts` earlier failures, the first failure being 0."""
        if self.maximum <= self.initial:
            return self.maximum
        term: float = min(self.initial * MULTIPLIER ** min(attempts, 63), self.maximum)
        return min(term * self.rng.uniform(1 - JITTER, 1 + JITTER), self.maximum)
