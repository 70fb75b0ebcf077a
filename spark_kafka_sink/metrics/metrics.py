"""The registry of sensors and metrics (org.apache.kafka.common.metrics.Metrics).

Recording a value does not use the registry, since the recording code keeps its sensor. So one lock
for the registry is enough. Reporters are called while it is held, so that they are notified of all
changes in order; the lock is reentrant, so they may call back.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.metrics.kafka_metric import (
    KafkaMetric,
    MetricConfig,
    MetricName,
    RecordingLevel,
)
from spark_kafka_sink.metrics.sensor import Sensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.metrics.reporter import MetricsReporter

logger = logging.getLogger(__name__)

COUNT_GROUP: Final = "kafka-metrics-count"


class Metrics:
    """All sensors and metrics of one client, and the reporters that are notified of them."""

    def __init__(
        self,
        config: MetricConfig,
        *,
        clock: Callable[[], float],
        reporters: Iterable[MetricsReporter] = (),
    ) -> None:
        """Create an empty registry; `clock` returns monotonic seconds, for values read now."""
        self.config = config
        self.clock = clock
        self._lock = threading.RLock()
        self._metrics: dict[MetricName, KafkaMetric] = {}
        self._sensors: dict[str, Sensor] = {}
        self._reporters: list[MetricsReporter] = []
        for reporter in reporters:
            self.add_reporter(reporter)
        count = self.metric_name("count", COUNT_GROUP, "The total number of registered metrics.")
        self.add_gauge(count, lambda _: len(self._metrics))

    def metric_name(self, name: str, group: str, description: str = "", **tags: str) -> MetricName:
        """Return a name with the registry's own tags and `tags`, in which `_` becomes `-`."""
        own = {tag.replace("_", "-"): value for tag, value in tags.items()}
        return MetricName(name, group, description, {**self.config.tags, **own})

    # --- sensors

    def sensor(
        self,
        name: str,
        *,
        level: RecordingLevel = RecordingLevel.INFO,
        replaces: bool = False,
    ) -> Sensor:
        """Return the sensor of that name, and create it if there is none.

        A sensor that `replaces` takes the place of metrics that already exist. So its creation can
        be repeated after Ctrl-C has interrupted it, or its removal.
        """
        with self._lock:
            sensor = self._sensors.get(name)
            if sensor is None:
                sensor = self._sensors[name] = Sensor(
                    name,
                    config=self.config,
                    register=partial(self.add_gauge, replaces=replaces),
                    level=level,
                )
            return sensor

    def get_sensor(self, name: str) -> Sensor | None:
        """Return the sensor of that name, or None."""
        return self._sensors.get(name)

    def remove_sensor(self, name: str) -> None:
        """Remove a sensor, if it exists, and its metrics; later values it records are lost."""
        with self._lock:
            sensor = self._sensors.pop(name, None)
            if sensor is not None:
                for metric_name in sensor.metric_names:
                    self.remove_metric(metric_name)

    # --- metrics

    def add_gauge(
        self,
        metric_name: MetricName,
        measure: Callable[[float], float],
        *,
        replaces: bool = False,
    ) -> None:
        """Register a metric whose value at a given time is `measure(time)`.

        Raises ValueError if there already is a metric of that name, unless this one `replaces` it.
        """
        with self._lock:
            if replaces:
                self.remove_metric(metric_name)
            if metric_name in self._metrics:
                raise ValueError(f"a metric named {metric_name} already exists")
            metric = KafkaMetric(metric_name, measure, self.clock)
            self._metrics[metric_name] = metric
            self._notify("metric_change", lambda reporter: reporter.metric_change(metric))

    def remove_metric(self, metric_name: MetricName) -> KafkaMetric | None:
        """Remove a metric and return it, or None if there was none."""
        with self._lock:
            metric = self._metrics.pop(metric_name, None)
            if metric is not None:
                self._notify("metric_removal", lambda reporter: reporter.metric_removal(metric))
            return metric

    def metric(self, metric_name: MetricName) -> KafkaMetric | None:
        """Return the metric of that name, or None."""
        return self._metrics.get(metric_name)

    def metrics(self) -> dict[MetricName, KafkaMetric]:
        """Return all current metrics in a new dictionary."""
        with self._lock:
            return dict(self._metrics)

    # --- reporters

    def add_reporter(self, reporter: MetricsReporter) -> None:
        """Add a reporter, which is notified of all metrics now and of each later change.

        A reporter whose `init` raises is left out.
        """
        with self._lock:
            try:
                reporter.init(list(self._metrics.values()))
            except Exception:
                logger.exception(
                    "metrics reporter %s raised an exception in init() and will not be used",
                    type(reporter).__qualname__,
                )
            else:
                self._reporters.append(reporter)

    def close(self) -> None:
        """Close the reporters; metrics can still be read. A second call does nothing."""
        with self._lock:
            self._notify("close", lambda reporter: reporter.close())
            self._reporters.clear()

    def _notify(self, event: str, call: Callable[[MetricsReporter], None]) -> None:
        for reporter in self._reporters:
            try:
                call(reporter)
            except Exception:
                logger.exception(
                    "metrics reporter %s raised an exception in %s(); the client is not affected",
                    type(reporter).__qualname__,
                    event,
                )
