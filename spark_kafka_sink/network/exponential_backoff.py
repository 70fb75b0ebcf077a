"""The delay before a retry (org.apache.kafka.common.utils.ExponentialBackoff).

Doubling the delay spares a broker that is down; the jitter keeps a thousand tasks that lost the
same broker from reconnecting in the same millisecond.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

#: The time of an event that will not happen, or that needs no timer.
NEVER: Final = float("inf")


MULTIPLIER = 2
#: The share by which a delay may be shorter or longer (KIP-580).
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays in seconds: `initial * 2**attempts`, at most `maximum`, plus or minus the jitter.

    If `maximum` leaves no room to grow, the delay is always `maximum`, as in Java.
    """

    initial: float
    maximum: float
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, attempts: int) -> float:
        """Return the delay after `attempts` earlier failures; 0 is the first failure."""
        if self.maximum <= self.initial:
            return self.maximum
        term: float = min(self.initial * MULTIPLIER ** min(attempts, 63), self.maximum)
        return min(term * self.rng.uniform(1 - JITTER, 1 + JITTER), self.maximum)
