"""The exporters: a scrape over HTTP, OpenTelemetry's reader, lines of JSON, and missing extras."""

from __future__ import annotations

import json
import logging
import sys
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from spark_kafka_sink.observability import (
    EventKind,
    JsonLogExporter,
    OpenTelemetryExporter,
    PrometheusExporter,
    StreamEvent,
)
from spark_kafka_sink.observability.exporters import import_extra

REPORT = {
    "topics": {"out": [{"partition": 0, "records": 90, "bytes": 3000}]},
    "metrics": {"record-retry-total": 3, "request-latency-max": 40.0},
}
OF_QUERY = {"query": "copy", "query_id": "b3cf", "run_id": "329d"}
STARTED = StreamEvent(kind=EventKind.STARTED, timestamp="2026-11-25T12:39:25.693Z", **OF_QUERY)
PROGRESS = StreamEvent(
    kind=EventKind.PROGRESS,
    batch_id=0,
    input_rows=100,
    output_rows=90,
    batch_seconds=2.0,
    phase_seconds={"addBatch": 1.5},
    lag={"in": {0: 7, 1: 1}},
    report=REPORT,
    **OF_QUERY,
)
FAILED = StreamEvent(
    kind=EventKind.TERMINATED, is_failed=True, error_class="STREAM_FAILED", **OF_QUERY
)


def scrape(registry):
    """Read all series of a registry over HTTP, as Prometheus does."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as response:
            text = response.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_has_the_sums_of_all_batches():
    """Counters add up, gauges have the last value, and a histogram counts each micro-batch."""
    registry = CollectorRegistry()
    exporter = PrometheusExporter(registry)
    for event in (STARTED, PROGRESS, PROGRESS):
        exporter.export(event)

    series = scrape(registry)

    assert 200 == series["spark_kafka_stream_input_rows_total", "copy"]
    assert 6000 == series["spark_kafka_sink_bytes_total", "copy", "out"]
    assert 6 == series["spark_kafka_sink_record_retries_total", "copy"]
    assert 8 == series["spark_kafka_source_lag_records", "copy", "in"]
    assert 0.04 == series["spark_kafka_sink_request_latency_max_seconds", "copy"]
    assert 2 == series["spark_kafka_stream_batch_duration_seconds_count", "copy"]
    assert 0 == series["spark_kafka_stream_failures_total", "copy"]


def test_an_ended_query_has_no_lag_but_keeps_its_sums():
    """A scrape after the end has no lag, latency or time, and says that the query is not active."""
    registry = CollectorRegistry()
    exporter = PrometheusExporter(registry, per_partition=True)
    for event in (STARTED, PROGRESS):
        exporter.export(event)
    assert ("spark_kafka_source_partition_lag_records", "0", "copy", "in") in scrape(registry)

    exporter.export(FAILED)
    series = scrape(registry)

    assert 0 == series["spark_kafka_stream_active", "copy"]
    assert 1 == series["spark_kafka_stream_failures_total", "copy"]
    assert 100 == series["spark_kafka_stream_input_rows_total", "copy"]
    assert set() == {
        key[0] for key in series if "lag" in key[0] or "latency" in key[0] or "last" in key[0]
    }


def test_a_topic_that_is_no_longer_read_has_no_lag():
    """Each progress replaces the lag of all topics of its query, and of no other query."""
    registry = CollectorRegistry()
    exporter = PrometheusExporter(registry)
    other = {"query": "other", "query_id": "77", "run_id": "78"}
    exporter.export(StreamEvent(kind=EventKind.PROGRESS, lag={"in": {0: 5}}, **other))
    exporter.export(StreamEvent(kind=EventKind.PROGRESS, lag={"in": {0: 7}}, **OF_QUERY))
    exporter.export(StreamEvent(kind=EventKind.PROGRESS, lag={"in2": {0: 6}}, **OF_QUERY))

    lag = {key[1:]: value for key, value in scrape(registry).items() if "_lag_" in key[0]}

    assert {("other", "in"): 5, ("copy", "in2"): 6} == {
        tuple(sorted(key, key=lambda word: word.startswith("in"))): value
        for key, value in lag.items()
    }


def test_a_second_exporter_to_one_registry_is_an_error():
    """Two exporters would count everything twice, so the second one is refused."""
    registry = CollectorRegistry()
    PrometheusExporter(registry)

    with pytest.raises(ValueError, match="already: pass that one to all listeners"):
        PrometheusExporter(registry)


def test_open_telemetry_gets_the_same_numbers():
    """The instruments have the names without _total, a unit, and the labels as attributes."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    exporter = OpenTelemetryExporter(provider)
    for event in (STARTED, PROGRESS, PROGRESS):
        exporter.export(event)

    [resource] = reader.get_metrics_data().resource_metrics
    [scope] = resource.scope_metrics
    found = {
        (metric.name, metric.unit): [
            (dict(point.attributes), getattr(point, "value", None))
            for point in metric.data.data_points
        ]
        for metric in scope.metrics
    }
    provider.shutdown()

    assert "spark_kafka_sink" == scope.scope.name
    assert [({"query": "copy", "topic": "out"}, 6000)] == found["spark_kafka_sink_bytes", "By"]
    assert [({"query": "copy", "topic": "in"}, 8)] == found["spark_kafka_source_lag_records", ""]
    assert [({"query": "copy"}, None)] == found["spark_kafka_stream_batch_duration_seconds", "s"]


def test_open_telemetry_exports_no_lag_of_a_query_that_has_ended():
    """A collection after the end has only what is still true, and a topic's lag ends likewise."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    exporter = OpenTelemetryExporter(provider)

    def gauges():
        return {
            (metric.name, *point.attributes.values()): point.value
            for resource in reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if isinstance(metric.data, Gauge)
            for point in metric.data.data_points
        }

    exporter.export(STARTED)
    exporter.export(PROGRESS)
    before = gauges()
    exporter.export(StreamEvent(kind=EventKind.PROGRESS, lag={"in2": {0: 6}}, **OF_QUERY))
    between = gauges()
    exporter.export(FAILED)
    after = gauges()
    provider.shutdown()

    assert 8 == before["spark_kafka_source_lag_records", "copy", "in"]
    assert 0.04 == before["spark_kafka_sink_request_latency_max_seconds", "copy"]
    assert [("spark_kafka_source_lag_records", "copy", "in2")] == [
        key for key in between if "lag" in key[0]
    ]
    assert {("spark_kafka_stream_active", "copy"): 0} == after


def test_each_log_line_is_one_json_object(caplog):
    """Each event is a message without line breaks that a JSON parser reads."""
    exporter = JsonLogExporter()
    with caplog.at_level(logging.INFO, "spark_kafka_sink.stream_events"):
        for event in (STARTED, PROGRESS, FAILED):
            exporter.export(event)

    lines = [json.loads(message) for message in caplog.messages]

    assert ["started", "progress", "terminated"] == [line["event"] for line in lines]
    assert {"in": 8} == lines[1]["lag_records"]
    assert {"failed": True, "error_class": "STREAM_FAILED"} == {
        key: lines[2][key] for key in ("failed", "error_class")
    }
    assert not any("\n" in message for message in caplog.messages)


def test_a_logger_of_ones_own_has_its_level(caplog):
    """Nothing is logged if the logger ignores the level."""
    exporter = JsonLogExporter(logging.getLogger("mine"), logging.DEBUG)
    with caplog.at_level(logging.INFO, "mine"):
        exporter.export(STARTED)
        assert [] == caplog.messages
    with caplog.at_level(logging.DEBUG, "mine"):
        exporter.export(STARTED)
        assert [("mine", logging.DEBUG)] == [each[:2] for each in caplog.record_tuples]


@pytest.mark.parametrize(
    ("make", "library", "extra"),
    [
        (PrometheusExporter, "prometheus_client", "prometheus"),
        (OpenTelemetryExporter, "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_extra_is_named(make, library, extra, monkeypatch):
    """Without the library, the error says which extra installs it."""
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(ModuleNotFoundError, match=rf"spark-kafka-sink\[{extra}\]"):
        make()


def test_a_broken_library_is_not_called_missing(tmp_path, monkeypatch):
    """A library that lacks a library of its own raises its own error."""
    (tmp_path / "half_installed.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_library'$"):
        import_extra("half_installed", extra="prometheus", user="A test")
