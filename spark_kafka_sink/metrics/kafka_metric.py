"""A metric: a name and a measurement (org.apache.kafka.common.metrics.KafkaMetric)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metric_name import MetricName


class KafkaMetric:
    """A metric as reporters and `KafkaProducer.metrics()` receive it; any thread may read it."""

    __slots__ = ("_clock", "_measure", "metric_name")

    def __init__(
        self,
        metric_name: MetricName,
        measure: Callable[[float], float],
        clock: Callable[[], float],
    ) -> None:
        """`measure` returns the value at a given time; `clock`, the current time for `value`."""
        self.metric_name = metric_name
        self._measure = measure
        self._clock = clock

    def measure(self, now: float) -> float:
        """Return the value at `now`, in monotonic seconds; NaN if nothing was recorded."""
        return self._measure(now)

    def value(self) -> float:
        """Return the current value; NaN if nothing was recorded."""
        return self._measure(self._clock())

    def __repr__(self) -> str:
        """Show the name only: reading a value takes a lock, which a debugger must not do."""
        return f"KafkaMetric({self.metric_name})"
