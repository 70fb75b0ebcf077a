"""The remaining time of a call that makes many requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Budget:
    """A timeout shared by many requests; `clock` returns seconds, and is never set back."""

    clock: Callable[[], float]
    ends_at: float

    @classmethod
    def of(cls, clock: Callable[[], float], seconds: float) -> Budget:
        """Start a budget of this many seconds now."""
        return cls(clock, clock() + seconds)

    def left(self, what: str) -> float:
        """Return the seconds left; raise KafkaTimeoutError, naming `what`, if there are none."""
        left = self.ends_at - self.clock()
        if left <= 0:
            raise KafkaTimeoutError(f"{what} timed out")
        return left
