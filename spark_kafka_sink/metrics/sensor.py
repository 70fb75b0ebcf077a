"""Sensors, which record values for statistics (org.apache.kafka.common.metrics.Sensor)."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from spark_kafka_sink.metrics.kafka_metric import RecordingLevel
from spark_kafka_sink.metrics.snapshot import Summary
from spark_kafka_sink.metrics.stats import (
    CountRate,
    CumulativeCount,
    CumulativeSum,
    Rate,
    SampledWindows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.kafka_metric import MetricConfig, MetricName
    from spark_kafka_sink.metrics.stats import Stat

NANOSECONDS_PER_SECOND = 1e9


class Sensor:
    """A sequence of values and its metrics; created by `Metrics.sensor`, thread-safe."""

    __slots__ = (
        "_enabled",
        "_lock",
        "_register",
        "_windows",
        "metric_names",
        "name",
    )

    def __init__(
        self,
        name: str,
        *,
        config: MetricConfig,
        register: Callable[[MetricName, Callable[[float], float]], None],
        level: RecordingLevel = RecordingLevel.INFO,
    ) -> None:
        """Create it without metrics; `register` adds a metric, given its name and measurement."""
        self.name = name
        self.metric_names: list[MetricName] = []
        self._register = register
        self._windows = SampledWindows(config)
        self._enabled = level.should_record(config.recording_level)
        self._lock = threading.Lock()

    def record(self, value: float, now: float) -> None:
        """Record a value, unless the sensor's level is finer than the configured one."""
        if self._enabled:
            with self._lock:
                self._windows.record(value, now)

    def add(self, metric_name: MetricName, stat: Stat) -> None:
        """Add a metric of the values; raise ValueError if there already is one of that name."""

        def measure(now: float) -> float:
            with self._lock:
                return stat.measure(self._windows, now)

        self.add_gauge(metric_name, measure)

    def add_gauge(self, metric_name: MetricName, measure: Callable[[float], float]) -> None:
        """Add a metric that is removed with the sensor, although it does not use its values."""
        self._register(metric_name, measure)
        self.metric_names.append(metric_name)

    def add_meter(self, rate: MetricName, total: MetricName) -> None:
        """Add two metrics: the sum of the values per second, and their total (Kafka's Meter)."""
        self.add(rate, Rate())
        self.add(total, CumulativeSum())

    def add_count_meter(self, rate: MetricName, total: MetricName) -> None:
        """Add two metrics: the events per second, and their number, whatever their values."""
        self.add(rate, CountRate())
        self.add(total, CumulativeCount())

    def add_time_meter(self, ratio: MetricName, total: MetricName) -> None:
        """Add two metrics of values in nanoseconds: their share of the time, and their total."""
        self.add(ratio, Rate(units_per_second=NANOSECONDS_PER_SECOND))
        self.add(total, CumulativeSum())

    def summary(self) -> Summary:
        """Return the totals of all values since creation, independent of the windows.

        The maximum is that since creation, or since `forget_maximum` was last called.
        """
        with self._lock:
            windows = self._windows
            maximum = None if windows.maximum == -math.inf else windows.maximum
            return Summary(count=windows.count, total=windows.total, maximum=maximum)

    def forget_maximum(self) -> None:
        """Begin a new maximum for `summary`; the metrics stay as they are."""
        with self._lock:
            self._windows.maximum = -math.inf
