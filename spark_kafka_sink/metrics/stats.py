"""Statistics over sampled windows (org.apache.kafka.common.metrics.stats).

A value is kept in `samples` windows of `window` seconds, and one more that reaches back over the
edge of the time watched. A window ends when an event comes after its time; it counts as long as its
*last* event is younger than `samples * window`. So an average over two windows of 30 s covers
between 30 and 60 s, and nothing has to run in the background.

Kafka gives each statistic windows of its own. Here those of one sensor share theirs, since they see
the same events at the same times: recording costs the same for one statistic or five. What comes
out is the same too, but for one thing: reading a rate before the first event starts no window here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from spark_kafka_sink.metrics.metric_config import MetricConfig

#: A rate over a shorter time than this would be noise.
MIN_ELAPSED: Final = 0.001


class Recent(NamedTuple):
    """What happened in the windows that still count."""

    events: int
    total: float
    #: The largest value; minus infinity if there was none.
    maximum: float
    #: Seconds that a rate is made over, at least `MIN_ELAPSED`.
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
    """All that a sensor remembers: recent events by window, and sums since it was made.

    Not thread-safe; the sensor has the lock. `now` is monotonic seconds.
    """

    __slots__ = ("_current", "_num_samples", "_samples", "_window", "count", "maximum", "total")

    def __init__(self, config: MetricConfig) -> None:
        """Start empty."""
        self._num_samples = config.samples
        self._window = config.window
        self._samples: list[_Sample] = []
        self._current = -1
        #: Since the beginning: events, their sum, and the largest.
        self.count = 0
        self.total = 0.0
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
        if value > sample.maximum:
            sample.maximum = value
            self.maximum = max(self.maximum, value)
        sample.last_event = now
        self.count += 1
        self.total += value

    def _advance(self, now: float) -> _Sample:
        # One more than asked for: the oldest still reaches into the time watched.
        self._current = (self._current + 1) % (self._num_samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now, now))
        else:
            self._samples[self._current].reset(now)
        return self._samples[self._current]

    def recent(self, now: float) -> Recent:
        """Sum up the windows that still count; those that do not begin anew."""
        expiry = self._num_samples * self._window
        count, total, maximum, oldest = 0, 0.0, -math.inf, now
        for sample in self._samples:
            if now - sample.last_event >= expiry:
                sample.reset(now)
            count += sample.count
            total += sample.total
            maximum = max(maximum, sample.maximum)
            oldest = min(oldest, sample.start)
        return Recent(count, total, maximum, self._elapsed(now - oldest))

    def _elapsed(self, since_oldest: float) -> float:
        """Count all windows but the last as full, so that a rate does not start sky-high."""
        missing = self._num_samples - 1 - int(since_oldest / self._window)
        return max(since_oldest + max(missing, 0) * self._window, MIN_ELAPSED)


class Stat(Protocol):
    """A number made from what a sensor remembers."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Give the number as it is at `now`."""
        ...


class Avg:
    """The mean of the recent values; NaN if there are none."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Weigh every event alike."""
        recent = windows.recent(now)
        return recent.total / recent.events if recent.events else math.nan


class Max:
    """The largest of the recent values; NaN if there are none."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Take the largest."""
        recent = windows.recent(now)
        return recent.maximum if recent.events else math.nan


@dataclass(frozen=True, slots=True)
class Rate:
    """The sum of the recent values per unit of time."""

    #: How many units make a second: with 1e9 the rate of nanoseconds per nanosecond is a fraction.
    units_per_second: float = 1.0

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Divide by the time that the windows stand for."""
        recent = windows.recent(now)
        return recent.total / (recent.elapsed * self.units_per_second)


class CountRate:
    """Recent events per second, whatever their values (Kafka's Rate of a WindowedCount)."""

    def measure(self, windows: SampledWindows, now: float) -> float:
        """Divide by the time that the windows stand for."""
        recent = windows.recent(now)
        return recent.events / recent.elapsed


class CumulativeSum:
    """The sum of all values ever recorded."""

    def measure(self, windows: SampledWindows, now: float) -> float:  # noqa: ARG002
        """Give the sum, which no window bounds."""
        return windows.total


class CumulativeCount:
    """How many values were ever recorded."""

    def measure(self, windows: SampledWindows, now: float) -> float:  # noqa: ARG002
        """Give the number, which no window bounds."""
        return float(windows.count)
