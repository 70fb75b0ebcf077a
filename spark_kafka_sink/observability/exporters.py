"""The exporters of streams' events: to Prometheus, to OpenTelemetry, and to a log.

The library that an exporter needs is imported when it is created.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

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
    from prometheus_client import CollectorRegistry

    from spark_kafka_sink.observability.stream_event import StreamEvent


#: The logger whose messages are nothing but JSON.
LOGGER_NAME: Final = "spark_kafka_sink.stream_events"


def import_extra(module: str, *, extra: str, user: str) -> Any:
    """Import a library for its `user`; ModuleNotFoundError says which extra installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        root = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        raise ModuleNotFoundError(
            f"{user} requires the library {root}: pip install 'spark-kafka-sink[{extra}]', in the "
            "process that creates it",
            name=error.name,
        ) from None


class JsonLogExporter:
    """An exporter to a `logger`, by default `spark_kafka_sink.stream_events`, at a `level`.

    Each message is one JSON object without line breaks, with the keys of `StreamEvent.as_dict`;
    what is not known is left out.

    >>> exporter = JsonLogExporter(level=10)
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger(LOGGER_NAME)
        self._level = level

    def export(self, event: StreamEvent) -> None:
        """Log an `event`."""
        if self._logger.isEnabledFor(self._level):
            self._logger.log(self._level, "%s", json.dumps(event.as_dict()))


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
