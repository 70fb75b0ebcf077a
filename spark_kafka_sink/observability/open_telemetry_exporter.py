"""The metrics of streams as instruments of OpenTelemetry."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.observability.extras import import_extra
from spark_kafka_sink.observability.stream_metrics import (
    DURATION_BUCKETS,
    STREAM_METRICS,
    MetricKind,
    MomentarySeries,
    StreamMetric,
    samples_of,
)
from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

    from spark_kafka_sink.observability.stream_event import StreamEvent


class OpenTelemetryExporter:
    """An exporter to OpenTelemetry, with a `meter_provider` or the one for the whole process.

    Names and labels (attributes) are those of `PrometheusExporter`, without `_total`, which an
    exporter of OpenTelemetry to Prometheus adds. When a query ends, what was true only while it
    ran, such as its lag, is exported no more.

    `per_partition` adds the lag of each partition to that of each topic.

    >>> event = StreamEvent(kind=EventKind.STARTED, query="orders", query_id="5e", run_id="9a")
    >>> OpenTelemetryExporter().export(event)
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, per_partition: bool = False
    ) -> None:
        """Create the instruments; raise ModuleNotFoundError if opentelemetry is missing."""
        api = import_extra(
            "opentelemetry.metrics", extra="opentelemetry", user="OpenTelemetryExporter"
        )
        meter = api.get_meter("spark_kafka_sink", __version__, meter_provider)
        self._per_partition = per_partition
        self._observation = api.Observation
        #: The values of the gauges, which readers collect in threads of their own.
        self._gauges: dict[StreamMetric, dict[tuple[str, ...], float]] = {
            metric: {} for metric in STREAM_METRICS if metric.kind is MetricKind.GAUGE
        }
        self._momentary = MomentarySeries()
        self._lock = Lock()
        self._instruments = {metric: self._create(meter, metric) for metric in STREAM_METRICS}

    def export(self, event: StreamEvent) -> None:
        """Add the numbers of an `event`."""
        samples = list(samples_of(event, per_partition=self._per_partition))
        with self._lock:
            for metric, labels in self._momentary.replace(event, samples):
                del self._gauges[metric][labels]
            for metric, value, labels in samples:
                if metric.kind is MetricKind.GAUGE:
                    self._gauges[metric][labels] = value
        for metric, value, labels in samples:
            if metric.kind is MetricKind.COUNTER:
                self._instruments[metric].add(value, _attributes(metric, labels))
            elif metric.kind is MetricKind.HISTOGRAM:
                self._instruments[metric].record(value, _attributes(metric, labels))

    def _create(self, meter: Meter, metric: StreamMetric) -> Any:
        name = metric.name.removesuffix("_total")
        if metric.kind is MetricKind.COUNTER:
            return meter.create_counter(name, metric.unit, metric.help)
        if metric.kind is MetricKind.GAUGE:
            # A synchronous gauge would go on exporting the last value of a query that has ended.
            callback = partial(self._observe, metric)
            return meter.create_observable_gauge(name, [callback], metric.unit, metric.help)
        return meter.create_histogram(
            name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=DURATION_BUCKETS
        )

    def _observe(self, metric: StreamMetric, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            values = list(self._gauges[metric].items())
        return [self._observation(value, _attributes(metric, labels)) for labels, value in values]


def _attributes(metric: StreamMetric, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
