"""The metrics of a stream: one table, and the samples that an event adds to them.

Names follow Prometheus: the unit in the name, `_total` for what only grows. Labels are bounded by
what a user has configured: queries, topics, Spark's phases, and partitions only if asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.observability.stream_event import EventKind, StreamEvent, sink_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class MetricKind(Enum):
    """How a sample changes its metric."""

    #: It is added.
    COUNTER = "counter"
    #: It takes the place of the last one.
    GAUGE = "gauge"
    #: It is counted in a bucket.
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class StreamMetric:
    """A metric, with the labels of its samples."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ("query",)
    #: Whether it is about the present, so that it means nothing when the query has ended.
    is_momentary: bool = False

    @property
    def unit(self) -> str:
        """The unit by OpenTelemetry's rules (UCUM)."""
        name = self.name.removesuffix("_total")
        for word, unit in {"seconds": "s", "bytes": "By"}.items():
            if name.endswith(f"_{word}"):
                return unit
        # Not "1", to which exporters to Prometheus add a word of their own.
        return ""


#: A metric, with the values of its labels in the order of the metric.
Series: TypeAlias = tuple[StreamMetric, tuple[str, ...]]


class Sample(NamedTuple):
    """A value for a metric, with the values of its labels in the order of the metric."""

    metric: StreamMetric
    value: float
    labels: tuple[str, ...]


_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE

ACTIVE: Final = StreamMetric(
    "spark_kafka_stream_active", _GAUGE, "1 while the query runs, 0 after it has ended."
)
FAILURES: Final = StreamMetric(
    "spark_kafka_stream_failures_total", _COUNTER, "How often the query has ended with an error."
)
LAST_EVENT: Final = StreamMetric(
    "spark_kafka_stream_last_event_timestamp_seconds",
    _GAUGE,
    "When the last trigger of the query ended, with or without new rows, as a Unix time.",
    is_momentary=True,
)
BATCHES: Final = StreamMetric(
    "spark_kafka_stream_batches_total", _COUNTER, "Micro-batches that were finished."
)
INPUT_ROWS: Final = StreamMetric(
    "spark_kafka_stream_input_rows_total", _COUNTER, "Rows that micro-batches have read."
)
OUTPUT_ROWS: Final = StreamMetric(
    "spark_kafka_stream_output_rows_total", _COUNTER, "Rows that micro-batches have written."
)
BATCH_SECONDS: Final = StreamMetric(
    "spark_kafka_stream_batch_duration_seconds",
    MetricKind.HISTOGRAM,
    "How long a micro-batch took, from its trigger to its end.",
)
PHASE_SECONDS: Final = StreamMetric(
    "spark_kafka_stream_phase_seconds_total",
    _COUNTER,
    "Time that micro-batches spent in each of Spark's phases, such as addBatch.",
    ("query", "phase"),
)
LAG: Final = StreamMetric(
    "spark_kafka_source_lag_records",
    _GAUGE,
    "Records of a topic that the last trigger had not read yet.",
    ("query", "topic"),
    is_momentary=True,
)
PARTITION_LAG: Final = StreamMetric(
    "spark_kafka_source_partition_lag_records",
    _GAUGE,
    "Records of a partition that the last trigger had not read yet.",
    ("query", "topic", "partition"),
    is_momentary=True,
)
SINK_RECORDS: Final = StreamMetric(
    "spark_kafka_sink_records_total",
    _COUNTER,
    "Records that brokers have acknowledged.",
    ("query", "topic"),
)
SINK_BYTES: Final = StreamMetric(
    "spark_kafka_sink_bytes_total",
    _COUNTER,
    "Size of the record batches that brokers have acknowledged, as sent.",
    ("query", "topic"),
)
REQUESTS: Final = StreamMetric(
    "spark_kafka_sink_requests_total", _COUNTER, "Produce requests that were sent."
)
RETRIES: Final = StreamMetric(
    "spark_kafka_sink_record_retries_total", _COUNTER, "Records that were sent again."
)
ERRORS: Final = StreamMetric(
    "spark_kafka_sink_record_errors_total",
    _COUNTER,
    "Records that failed in tasks whose micro-batch succeeded later.",
)
BAD_ROWS: Final = StreamMetric(
    "spark_kafka_sink_bad_rows_total",
    _COUNTER,
    "Rows that could not be sent, and were left out or became dead letters (onError).",
    ("query", "kind"),
)
SAMPLED_KEYS: Final = StreamMetric(
    "spark_kafka_sink_sampled_keys_total",
    _COUNTER,
    "Keys that tasks have sampled to find those that several of them have written (keyOrder).",
)
SPREAD_KEYS: Final = StreamMetric(
    "spark_kafka_sink_spread_keys_total",
    _COUNTER,
    "Sampled keys that several tasks of a micro-batch have written, in no defined order.",
)
LATENCY_AVERAGE: Final = StreamMetric(
    "spark_kafka_sink_request_latency_avg_seconds",
    _GAUGE,
    "Average time from a produce request to its response, in the last micro-batch.",
    is_momentary=True,
)
LATENCY_MAXIMUM: Final = StreamMetric(
    "spark_kafka_sink_request_latency_max_seconds",
    _GAUGE,
    "Longest time from a produce request to its response, in the last micro-batch.",
    is_momentary=True,
)
THROTTLE_SECONDS: Final = StreamMetric(
    "spark_kafka_sink_throttle_seconds_total",
    _COUNTER,
    "Time for which brokers have throttled producers.",
)
PACED_SECONDS: Final = StreamMetric(
    "spark_kafka_sink_paced_seconds_total",
    _COUNTER,
    "Time that tasks have paused for maxBytesPerSecond and maxRecordsPerSecond.",
)
BUFFER_WAIT_SECONDS: Final = StreamMetric(
    "spark_kafka_sink_buffer_wait_seconds_total",
    _COUNTER,
    "Time that tasks have waited for buffer memory.",
)

#: Each event with lag has all series of its query.
LAGS: Final = frozenset({LAG, PARTITION_LAG})
STREAM_METRICS: Final = (
    *(ACTIVE, FAILURES, LAST_EVENT, BATCHES, INPUT_ROWS, OUTPUT_ROWS),
    *(BATCH_SECONDS, PHASE_SECONDS),
    *(LAG, PARTITION_LAG),
    *(SINK_RECORDS, SINK_BYTES, REQUESTS, RETRIES, ERRORS, BAD_ROWS),
    *(SAMPLED_KEYS, SPREAD_KEYS),
    *(LATENCY_AVERAGE, LATENCY_MAXIMUM),
    *(THROTTLE_SECONDS, PACED_SECONDS, BUFFER_WAIT_SECONDS),
)
#: The upper ends of the histogram's buckets, in seconds.
DURATION_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

#: The numbers of a report that are samples of metrics without further labels.
_OF_REPORT: Final = {
    "requests": REQUESTS,
    "retries": RETRIES,
    "errors": ERRORS,
    "sampled_keys": SAMPLED_KEYS,
    "spread_keys": SPREAD_KEYS,
    "request_latency_avg_seconds": LATENCY_AVERAGE,
    "request_latency_max_seconds": LATENCY_MAXIMUM,
    "throttle_seconds": THROTTLE_SECONDS,
    "paced_seconds": PACED_SECONDS,
    "buffer_wait_seconds": BUFFER_WAIT_SECONDS,
}


class MomentarySeries:
    """The series of momentary gauges that exist now, by their query.

    They end with their query, and the lag of a topic ends with the first progress without it.
    """

    def __init__(self) -> None:
        self._of_query: dict[str, set[Series]] = {}

    def replace(self, event: StreamEvent, samples: list[Sample]) -> list[Series]:
        """Add the series of an event's `samples`, and return those that have ended with it."""
        known = self._of_query.get(event.query, set())
        current = {
            (sample.metric, sample.labels) for sample in samples if sample.metric.is_momentary
        }
        ended = [series for series in known - current if _has_ended(series[0], event)]
        remaining = (known | current).difference(ended)
        if remaining:
            self._of_query[event.query] = remaining
        else:
            self._of_query.pop(event.query, None)
        return ended


def _has_ended(metric: StreamMetric, event: StreamEvent) -> bool:
    """Return whether a series of a momentary metric, of which `event` has no sample, has ended."""
    if event.kind is EventKind.TERMINATED:
        return not event.is_replaced
    return metric in LAGS and bool(event.lag)


def samples_of(event: StreamEvent, *, per_partition: bool = False) -> Iterator[Sample]:
    """Yield the samples of an event; `per_partition` adds the lag of each partition."""
    query = event.query
    if event.kind is EventKind.TERMINATED:
        if not event.is_replaced:
            yield Sample(ACTIVE, 0, (query,))
        yield Sample(FAILURES, int(event.is_failed), (query,))
        return
    yield Sample(ACTIVE, 1, (query,))
    if event.kind is EventKind.STARTED:
        # A counter that starts at 0 shows its first increase. Not all sinks count their rows.
        for metric in (FAILURES, BATCHES, INPUT_ROWS):
            yield Sample(metric, 0, (query,))
    if event.timestamp is not None:
        # The time in a progress is that of the trigger's beginning.
        began = datetime.fromisoformat(event.timestamp).timestamp()
        yield Sample(LAST_EVENT, began + event.trigger_seconds, (query,))
    if event.wrote_batch:
        yield from _batch_samples(event)
    yield from _lag_samples(event, per_partition=per_partition)
    if event.report is not None:
        yield from _report_samples(query, event.report)


def _batch_samples(event: StreamEvent) -> Iterator[Sample]:
    query = event.query
    yield Sample(BATCHES, 1, (query,))
    yield Sample(INPUT_ROWS, event.input_rows or 0, (query,))
    if event.output_rows is not None:
        yield Sample(OUTPUT_ROWS, event.output_rows, (query,))
    if event.batch_seconds is not None:
        yield Sample(BATCH_SECONDS, event.batch_seconds, (query,))
    for phase, seconds in event.phase_seconds.items():
        yield Sample(PHASE_SECONDS, seconds, (query, phase))


def _lag_samples(event: StreamEvent, *, per_partition: bool) -> Iterator[Sample]:
    for topic, partitions in event.lag.items():
        yield Sample(LAG, sum(partitions.values()), (event.query, topic))
        if per_partition:
            for partition, behind in partitions.items():
                yield Sample(PARTITION_LAG, behind, (event.query, topic, str(partition)))


def _report_samples(query: str, report: Mapping[str, object]) -> Iterator[Sample]:
    topics = report.get("topics")
    if isinstance(topics, dict):
        for topic, partitions in topics.items():
            yield Sample(
                SINK_RECORDS, sum(partition["records"] for partition in partitions), (query, topic)
            )
            yield Sample(
                SINK_BYTES, sum(partition["bytes"] for partition in partitions), (query, topic)
            )
    numbers = sink_numbers(report)
    for kind, count in numbers.get("bad_rows", {}).items():
        yield Sample(BAD_ROWS, count, (query, kind))
    for name, metric in _OF_REPORT.items():
        if name in numbers:
            yield Sample(metric, numbers[name], (query,))
