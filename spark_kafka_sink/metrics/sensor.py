"""Takes values in, for the statistics made of them (org.apache.kafka.common.metrics.Sensor)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spark_kafka_sink.metrics.metric_config import RecordingLevel
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

    from spark_kafka_sink.metrics.metric_config import MetricConfig
    from spark_kafka_sink.metrics.metric_name import MetricName
    from spark_kafka_sink.metrics.stats import Stat

#: How long a sensor may be idle that is never to go.
NEVER_EXPIRES = float("inf")
NANOSECONDS_PER_SECOND = 1e9


class Sensor:
    """A sequence of values with the metrics made of it. Made by `Metrics.sensor`; thread-safe."""

    __slots__ = (
        "_enabled",
        "_inactive_expiration",
        "_last_record_time",
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
        now: float,
        level: RecordingLevel = RecordingLevel.INFO,
        inactive_expiration: float = NEVER_EXPIRES,
    ) -> None:
        """Make it without metrics; `register` makes a metric of a name and a way to measure it."""
        self.name = name
        self.metric_names: list[MetricName] = []
        self._register = register
        self._windows = SampledWindows(config)
        self._enabled = level.should_record(config.recording_level)
        self._inactive_expiration = inactive_expiration
        self._last_record_time = now
        self._lock = threading.Lock()

    def record(self, value: float, now: float) -> None:
        """Take in a value; nothing happens if the sensor's level is finer than is recorded."""
        if self._enabled:
            with self._lock:
                self._windows.record(value, now)
                self._last_record_time = now

    def add(self, metric_name: MetricName, stat: Stat) -> None:
        """Have a metric made of the values; ValueError if there is one of that name."""

        def measure(now: float) -> float:
            with self._lock:
                return stat.measure(self._windows, now)

        self._register(metric_name, measure)
        self.metric_names.append(metric_name)

    def add_meter(self, rate: MetricName, total: MetricName) -> None:
        """Have the values' sum per second, and their sum, as two metrics (Kafka's Meter)."""
        self.add(rate, Rate())
        self.add(total, CumulativeSum())

    def add_count_meter(self, rate: MetricName, total: MetricName) -> None:
        """Have events per second, and their number, whatever their values."""
        self.add(rate, CountRate())
        self.add(total, CumulativeCount())

    def add_time_meter(self, ratio: MetricName, total: MetricName) -> None:
        """Have the fraction of time that the values, in nanoseconds, make up, and their sum."""
        self.add(ratio, Rate(units_per_second=NANOSECONDS_PER_SECOND))
        self.add(total, CumulativeSum())

    def has_expired(self, now: float) -> bool:
        """Whether it has been idle for longer than it may."""
        return now - self._last_record_time > self._inactive_expiration

    def summary(self) -> Summary:
        """Sum up all values since the beginning, which no window bounds."""
        with self._lock:
            windows = self._windows
            return Summary(
                count=windows.count,
                total=windows.total,
                maximum=windows.maximum if windows.count else None,
            )
