"""Metrics of one group, such as `producer-metrics`, that share their tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.metrics.stats import Avg, Max

if TYPE_CHECKING:
    from spark_kafka_sink.metrics.metric_name import MetricName
    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.metrics.sensor import Sensor


class MetricGroup:
    """A factory for a group's metrics; it creates several per sensor where Kafka pairs them."""

    def __init__(self, metrics: Metrics, group: str, **tags: str) -> None:
        """Create the group; `tags` are added to every metric, besides the client's own."""
        self._metrics = metrics
        self._group = group
        self._tags = tags

    def name(self, name: str, description: str) -> MetricName:
        """Return the name of a metric of the group."""
        return self._metrics.metric_name(name, self._group, description, **self._tags)

    def average(self, sensor: Sensor, name: str, description: str) -> None:
        """Add the average of a sensor's values."""
        sensor.add(self.name(name, description), Avg())

    def average_and_maximum(self, sensor: Sensor, name: str, what: str) -> None:
        """Add NAME-avg and NAME-max; `what` follows "The average" in a description."""
        self.average(sensor, f"{name}-avg", f"The average {what}.")
        sensor.add(self.name(f"{name}-max", f"The maximum {what}."), Max())

    def rate_and_total(self, name: str, what: str) -> tuple[MetricName, MetricName]:
        """Return the names NAME-rate and NAME-total; `what` follows "number of"."""
        return (
            self.name(f"{name}-rate", f"The average number of {what} per second."),
            self.name(f"{name}-total", f"The total number of {what}."),
        )

    def meter(self, sensor: Sensor, name: str, what: str) -> None:
        """Add NAME-rate and NAME-total of the sum of a sensor's values."""
        sensor.add_meter(*self.rate_and_total(name, what))

    def count_meter(self, sensor: Sensor, name: str, what: str) -> None:
        """Add NAME-rate and NAME-total of the number of a sensor's values."""
        sensor.add_count_meter(*self.rate_and_total(name, what))
