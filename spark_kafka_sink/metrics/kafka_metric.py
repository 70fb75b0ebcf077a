"""A metric: a name and a measurement (org.apache.kafka.common.metrics.KafkaMetric)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metric_name import MetricName


class KafkaMetric:
    """A metric as reporters and `KafkaProducer.metrics()` receive it; any thread may read it.

    `metric_name` is its `MetricName`.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    ...     [metric] = [
    ...         metric
    ...         for name, metric in producer.metrics().items()
    ...         if (name.group, name.name) == ("producer-metrics", "record-send-total")
    ...     ]
    ...     metric.value()
    1.0
    """

    __slots__ = ("_clock", "_measure", "metric_name")

    def __init__(
        self,
        metric_name: MetricName,
        measure: Callable[[float], float],
        clock: Callable[[], float],
    ) -> None:
        """Create a metric; `measure` returns its value at a given time, and `clock` the time."""
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

    def _repr_html_(self) -> str:
        """Show the current value and its meaning."""
        return display.block(
            str(self.metric_name),
            display.facts({"value": self.value()}),
            notes=[self.metric_name.description] if self.metric_name.description else (),
        )
