"""How much time is left of what a call was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Budget:
    """A time-out that many requests share; `clock` gives seconds."""

    clock: Callable[[], float]
    ends_at: float

    @classmethod
    def of(cls, clock: Callable[[], float], seconds: float) -> Budget:
        """Begin now."""
        return cls(clock, clock() + seconds)

    def left(self, what: str) -> float:
        """Give the seconds left; raises KafkaTimeoutError, with `what` was begun, for none."""
        left = self.ends_at - self.clock()
        if left <= 0:
            raise KafkaTimeoutError(f"{what} was not finished within the time it was given")
        return left
