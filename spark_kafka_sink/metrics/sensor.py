"""Sensors and their statistics over sampled windows (org.apache.kafka.common.metrics).

Events are counted in `samples` windows of `window` seconds each, plus one that reaches back past
the start of the period. A window ends when an event arrives after its time; it counts as long as
its *last* event is younger than `samples * window`. So an average over two windows of 30 s covers
between 30 and 60 s, and nothing has to run in the background.

Kafka gives each statistic its own windows. Here the statistics of one sensor share their windows,
since they see the same events at the same times: recording costs the same for one statistic as for
five. The results are the same too, with one exception: reading a rate before the first event does
not start a window here.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from spark_kafka_sink.metrics.kafka_metric import MetricConfig, MetricName, RecordingLevel
from spark_kafka_sink.metrics.snapshot import Summary

if TYPE_CHECKING:
    from collections.abc import Callable


#: The shortest time, in seconds, that a rate is computed over: a shorter one would give noise.
_MIN_ELAPSED: Final = 0.001
NANOSECONDS_PER_SECOND = 1e9


class _Recent(NamedTuple):
    """The totals of the windows that still count."""

    events: int
    total: float
    #: The largest value; minus infinity if there was none.
    maximum: float
    #: Seconds that a rate is computed over, at least `_MIN_ELAPSED`.
    elapsed: float


@dataclass(slots=True)
class _Sample:
    start: float
    last_event: float
    count: int = 0
    total: float = 0.0
    maximum: float = -math.inf

    def reset(self, now: float) -> None:
        self.start = self.last_event = now
        self.count = 0
        self.total = 0.0
        self.maximum = -math.inf


class SampledWindows:
    """The data of a sensor: recent events by window, and totals since its creation.

    Not thread-safe; the sensor holds the lock. `now` is in monotonic seconds.
    """

    __slots__ = ("_current", "_num_samples", "_samples", "_window", "count", "maximum", "total")

    def __init__(self, config: MetricConfig) -> None:
        self._num_samples = config.samples
        self._window = config.window
        self._samples: list[_Sample] = []
        self._current = -1
        #: Since creation: the number of events, and their sum.
        self.count = 0
        self.total = 0.0
        #: The largest since creation, or since it was last set.
        self.maximum = -math.inf

    def record(self, value: float, now: float) -> None:
        """Add one event."""
        if self._current >= 0:
            sample = self._samples[self._current]
            if now - sample.start >= self._window:
                sample = self._advance(now)
        else:
            sample = self._advance(now)
        sample.count += 1
        sample.total += value
        if value > sample.maximum:  # noqa: PLR1730  without a call, for each request's sensors
            sample.maximum = value
        if value > self.maximum:  # noqa: PLR1730
            self.maximum = value
        sample.last_event = now
        self.count += 1
        self.total += value

    def _advance(self, now: float) -> _Sample:
        # One window more than configured: the oldest still overlaps the period.
        self._current = (self._current + 1) % (self._num_samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now, now))
        else:
            self._samples[self._current].reset(now)
        return self._samples[self._current]

    def recent(self, now: float) -> _Recent:
        """Return the totals of the windows that still count, and reset the expired ones."""
        expiry = self._num_samples * self._window
        count, total, maximum, oldest = 0, 0.0, -math.inf, now
        for sample in self._samples:
            if now - sample.last_event >= expiry:
                sample.reset(now)
            count += sample.count
            total += sample.total
            maximum = max(maximum, sample.maximum)
            oldest = min(oldest, sample.start)
        return _Recent(count, total, maximum, self._elapsed(now - oldest))

    def _elapsed(self, since_oldest: float) -> float:
        """Count all windows but the last as full, so that a rate does not start far too high."""
        missing = self._num_samples - 1 - int(since_oldest / self._window)
        return max(since_oldest + max(missing, 0) * self._window, _MIN_ELAPSED)


class _Stat(Protocol):
    """A number computed from the events of a sensor."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Return the number at `now`."""
        ...


class Avg:
    """The mean of the recent values; NaN if there are none."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Return the mean, in which every event has the same weight."""
        recent = windows.recent(now)
        return recent.total / recent.events if recent.events else math.nan


class Max:
    """The largest of the recent values; NaN if there are none."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Return the largest value."""
        recent = windows.recent(now)
        return recent.maximum if recent.events else math.nan


@dataclass(frozen=True, slots=True)
class Negated:
    """A statistic of values recorded with the opposite sign, so that `Max` is their minimum.

    Sensors keep no minimum, which the metrics of a producer would pay for and never use.
    """

    stat: _Stat

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Measure what was recorded, and turn its sign back."""
        return -self.stat.measure(windows, now)


@dataclass(frozen=True, slots=True)
class Rate:
    """The sum of the recent values per unit of time."""

    #: The number of units in a second: with 1e9, a rate of nanoseconds is a fraction of the time.
    units_per_second: float = 1.0

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Divide the sum by the time that the windows cover."""
        recent = windows.recent(now)
        return recent.total / (recent.elapsed * self.units_per_second)


@dataclass(frozen=True, slots=True)
class CountRate:
    """Recent events per unit of time, whatever their values (Kafka's Rate of a WindowedCount)."""

    #: The unit of time in seconds: with 3600, it is a rate per hour.
    unit: float = 1.0

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Divide the number of events by the time that the windows cover."""
        recent = windows.recent(now)
        return recent.events * self.unit / recent.elapsed


class CumulativeSum:
    """The sum of all values ever recorded."""

    def measure(self, windows: SampledWindows, now: float) -> float:  # noqa: ARG002
        """Return the sum since creation, independent of the windows."""
        return windows.total


class CumulativeCount:
    """The number of all values ever recorded."""

    def measure(self, windows: SampledWindows, now: float) -> float:  # noqa: ARG002
        """Return the number since creation, independent of the windows."""
        return float(windows.count)


class Sensor:
    """A sequence of values and its metrics; created by `Metrics.sensor`, thread-safe."""

    __slots__ = ("_enabled", "_lock", "_register", "_windows", "metric_names", "name")

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

    def add(self, metric_name: MetricName, stat: _Stat) -> None:
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
