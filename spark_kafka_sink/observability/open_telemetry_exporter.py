"""The metrics of streams as instruments of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.observability.extras import import_extra
from spark_kafka_sink.observability.stream_metrics import (
    DURATION_BUCKETS,
    STREAM_METRICS,
    MetricKind,
    StreamMetric,
    samples_of,
)
from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

    from spark_kafka_sink.observability.stream_event import StreamEvent


class OpenTelemetryExporter:
    """An exporter to OpenTelemetry, with a `meter_provider` or the one for the whole process.

    Names and labels (attributes) are those of `PrometheusExporter`, without `_total`, which an
    exporter of OpenTelemetry to Prometheus adds. OpenTelemetry goes on exporting the last lag and
    latency of a query that has ended: see whether `spark_kafka_stream_active` is 1.

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
        self._instruments = {metric: _instrument(meter, metric) for metric in STREAM_METRICS}

    def export(self, event: StreamEvent) -> None:
        """Add the numbers of an `event`."""
        for metric, value, labels in samples_of(event, per_partition=self._per_partition):
            attributes = dict(zip(metric.labels, labels, strict=True))
            instrument = self._instruments[metric]
            if metric.kind is MetricKind.COUNTER:
                instrument.add(value, attributes)
            elif metric.kind is MetricKind.GAUGE:
                instrument.set(value, attributes)
            else:
                instrument.record(value, attributes)


def _instrument(meter: Meter, metric: StreamMetric) -> Any:
    name = metric.name.removesuffix("_total")
    if metric.kind is MetricKind.COUNTER:
        return meter.create_counter(name, metric.unit, metric.help)
    if metric.kind is MetricKind.GAUGE:
        return meter.create_gauge(name, metric.unit, metric.help)
    return meter.create_histogram(
        name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=DURATION_BUCKETS
    )
