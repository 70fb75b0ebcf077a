"""One metric: a name, and how its value is found (org.apache.kafka.common.metrics.KafkaMetric)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metric_name import MetricName


class KafkaMetric:
    """What reporters and `KafkaProducer.metrics()` are given. Any thread may read it."""

    __slots__ = ("_clock", "_measure", "metric_name")

    def __init__(
        self,
        metric_name: MetricName,
        measure: Callable[[float], float],
        clock: Callable[[], float],
    ) -> None:
        """`measure` gives the value at a time; `clock` tells the time where the reader does not."""
        self.metric_name = metric_name
        self._measure = measure
        self._clock = clock

    def measure(self, now: float) -> float:
        """Give the value at `now`, in monotonic seconds; NaN where nothing was recorded."""
        return self._measure(now)

    def value(self) -> float:
        """Give the value as it is now; NaN where nothing was recorded."""
        return self._measure(self._clock())

    def __repr__(self) -> str:
        """Name it; reading a value takes a lock, which a debugger must not."""
        return f"KafkaMetric({self.metric_name})"
