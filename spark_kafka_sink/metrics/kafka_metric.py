"""A metric: a name, settings and a measurement (org.apache.kafka.common.metrics.KafkaMetric)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from spark_kafka_sink import display

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The shortest window, in seconds: one with metrics.sample.window.ms=0 could hold no event.
MIN_WINDOW: Final = 0.001
#: A group has that many metrics at most, unless it has some for each topic or broker.
_MAX_METRICS = 100


class RecordingLevel(IntEnum):
    """The detail level of a metric (`metrics.recording.level`, Kafka's Sensor.RecordingLevel)."""

    INFO = 0
    DEBUG = 1
    TRACE = 2

    def should_record(self, configured: RecordingLevel) -> bool:
        """Return whether a sensor of this level records if `configured` is the configured level."""
        return self <= configured


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricConfig:
    """The settings of a metrics registry: sampling and recording level (Kafka's MetricConfig).

    Raises ValueError if no statistic can be computed with them.
    """

    #: `metrics.num.samples`: the number of windows that a value is computed from.
    samples: int = 2
    #: `metrics.sample.window.ms`, in seconds.
    window: float = 30.0
    recording_level: RecordingLevel = RecordingLevel.INFO
    #: Tags of every metric in the registry, such as the client's id.
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the number and the length of the windows."""
        if self.samples < 1:
            raise ValueError(f"metrics.num.samples must be at least 1, not {self.samples}")
        if self.window < MIN_WINDOW:
            raise ValueError(f"a metrics window must be at least 1 ms long, not {self.window} s")


@dataclass(frozen=True, slots=True)
class MetricName:
    """A name within a group, and the tags that distinguish its instances (Kafka's MetricName).

    Two names are equal if their name, group and tags are equal, whatever their descriptions.

    `description` is a human-readable text.

    >>> str(MetricName("record-send-rate", "producer-metrics", tags={"client-id": "orders"}))
    'producer-metrics:record-send-rate{client-id=orders}'
    """

    #: For example `record-send-rate`.
    name: str
    #: For example `producer-metrics`.
    group: str
    description: str = field(default="", compare=False)
    #: For example `{"client-id": "producer-1", "topic": "orders"}`.
    tags: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash the fields that are compared."""
        return hash((self.name, self.group, frozenset(self.tags.items())))

    def __str__(self) -> str:
        """Format it as `group:name{tag=value}`."""
        tags = ",".join(f"{tag}={value}" for tag, value in self.tags.items())
        return f"{self.group}:{self.name}{{{tags}}}"


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


class MetricsByName(dict[MetricName, KafkaMetric]):
    """Metrics by their names: a dict that shows itself as a table of values.

    `repr` reads no values, which would take locks; `print` does.
    """

    def __repr__(self) -> str:
        """Show the number of metrics in each group."""
        groups = Counter(name.group for name in self)
        counts = ", ".join(f"{count} of {group}" for group, count in sorted(groups.items()))
        return f"<{display.counted(len(self), 'metric')}{': ' if counts else ''}{counts}>"

    def __str__(self) -> str:
        """List the current values, a metric to a line; those that have none are left out."""
        values = self._values()
        width = max((len(str(name)) for name, _ in values), default=0)
        lines = [f"{str(name).ljust(width)}  {value:,.10g}" for name, value in values]
        return "\n".join(lines) if lines else "no metric has a value yet"

    def _repr_html_(self) -> str:
        """Show the current values, with a table for each group."""
        groups: dict[str, list[tuple[MetricName, float]]] = {}
        for name, value in self._values():
            groups.setdefault(name.group, []).append((name, value))
        parts: list[str] = []
        for group, values in groups.items():
            is_open = " open" if group in {"producer-metrics", "consumer-metrics"} else ""
            parts += [
                f"<details{is_open}><summary>{display.text(group)}</summary>",
                display.table(
                    ("metric", "value", "of"),
                    ((name.name, value, _tags(name)) for name, value in values),
                    count=len(values),
                    things=("metric", "metrics"),
                    most=_MAX_METRICS,
                ),
                "</details>",
            ]
        return display.block(
            display.counted(len(self), "metric"),
            *parts,
            notes=("metrics without a value are left out",),
        )

    def _values(self) -> list[tuple[MetricName, float]]:
        """Return the metrics that have a value, in order."""
        order = sorted(self, key=lambda name: (name.group, name.name, sorted(name.tags.items())))
        values = ((name, self[name].value()) for name in order)
        return [(name, value) for name, value in values if not math.isnan(value)]


def _tags(name: MetricName) -> str:
    return ", ".join(text for tag, text in name.tags.items() if tag != "client-id")
