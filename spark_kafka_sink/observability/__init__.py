"""Metrics of streams, for Prometheus, OpenTelemetry and logs, and trace context of records.

    from prometheus_client import start_http_server
    from spark_kafka_sink.observability import KafkaStreamListener, PrometheusExporter

    spark.streams.addListener(KafkaStreamListener(PrometheusExporter()))
    start_http_server(9108)

A listener turns each event of Spark into a `StreamEvent` and passes it to its exporters, which are
independent of each other. Each name is imported when it is first used, and so is the library that
it needs: `spark-kafka-sink[prometheus]` and `spark-kafka-sink[opentelemetry]` install them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_kafka_sink.observability.exporters import (
        JsonLogExporter,
        OpenTelemetryExporter,
        PrometheusExporter,
    )
    from spark_kafka_sink.observability.listener import KafkaStreamListener
    from spark_kafka_sink.observability.report_file import ReportFile
    from spark_kafka_sink.observability.session_reports import SessionReports
    from spark_kafka_sink.observability.stream_event import EventKind, StreamEvent, StreamExporter
    from spark_kafka_sink.observability.trace_context import (
        TracingConsumerInterceptor,
        TracingProducerInterceptor,
    )

__all__ = [
    "EventKind",
    "JsonLogExporter",
    "KafkaStreamListener",
    "OpenTelemetryExporter",
    "PrometheusExporter",
    "ReportFile",
    "SessionReports",
    "StreamEvent",
    "StreamExporter",
    "TracingConsumerInterceptor",
    "TracingProducerInterceptor",
]

#: The module that defines each public name.
_MODULES = {
    "EventKind": "stream_event",
    "JsonLogExporter": "exporters",
    "KafkaStreamListener": "listener",
    "OpenTelemetryExporter": "exporters",
    "PrometheusExporter": "exporters",
    "ReportFile": "report_file",
    "SessionReports": "session_reports",
    "StreamEvent": "stream_event",
    "StreamExporter": "stream_event",
    "TracingConsumerInterceptor": "trace_context",
    "TracingProducerInterceptor": "trace_context",
}


# Type checkers see the imports above, and report any other name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{module}"), name)
        # Later look-ups do not call this function.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, including those that have not been imported yet."""
    return list(__all__)
