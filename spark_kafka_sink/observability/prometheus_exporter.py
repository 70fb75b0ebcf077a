"""The metrics of streams in a registry of prometheus_client."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from spark_kafka_sink.observability.stream_event import StreamEvent


class PrometheusExporter:
    """An exporter to a `registry` of prometheus_client, by default the one for the whole process.

    `start_http_server` of prometheus_client serves it. When a query ends, what was true only while
    it ran, such as its lag, is removed; so is the lag of a topic that it no longer reads.
    `per_partition` adds the lag of each partition to that of each topic.

    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> event = StreamEvent(kind=EventKind.STARTED, query="orders", query_id="5e", run_id="9a")
    >>> PrometheusExporter(registry).export(event)
    >>> registry.get_sample_value("spark_kafka_stream_active", {"query": "orders"})
    1.0
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, per_partition: bool = False
    ) -> None:
        """Register the metrics.

        Raises ModuleNotFoundError if prometheus_client is missing, and ValueError if the registry
        has an exporter already.
        """
        client = import_extra("prometheus_client", extra="prometheus", user="PrometheusExporter")
        self._per_partition = per_partition
        self._collectors: dict[StreamMetric, Any] = {}
        self._momentary = MomentarySeries()
        # Several listeners may have the same exporter.
        self._lock = Lock()
        registry = client.REGISTRY if registry is None else registry
        makers = {
            MetricKind.COUNTER: client.Counter,
            MetricKind.GAUGE: client.Gauge,
            MetricKind.HISTOGRAM: client.Histogram,
        }
        for metric in STREAM_METRICS:
            buckets = {"buckets": DURATION_BUCKETS} if metric.kind is MetricKind.HISTOGRAM else {}
            try:
                self._collectors[metric] = makers[metric.kind](
                    metric.name, metric.help, metric.labels, registry=registry, **buckets
                )
            except ValueError as error:
                raise ValueError(
                    "the registry has the metrics of a PrometheusExporter already: pass that one "
                    "to all listeners, or use a registry of its own"
                ) from error

    def export(self, event: StreamEvent) -> None:
        """Add the numbers of an `event`."""
        samples = list(samples_of(event, per_partition=self._per_partition))
        with self._lock:
            for metric, labels in self._momentary.replace(event, samples):
                self._collectors[metric].remove(*labels)
            for metric, value, labels in samples:
                child = self._collectors[metric].labels(*labels)
                if metric.kind is MetricKind.COUNTER:
                    child.inc(value)
                elif metric.kind is MetricKind.GAUGE:
                    child.set(value)
                else:
                    child.observe(value)
