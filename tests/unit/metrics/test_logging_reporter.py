from __future__ import annotations

import logging
import threading

import pytest

from spark_kafka_sink.metrics.kafka_metric import MetricConfig
from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter
from spark_kafka_sink.metrics.metrics import Metrics
from spark_kafka_sink.metrics.sensor import Avg

LOGGER = logging.getLogger("test.metrics")


@pytest.fixture
def metrics(caplog):
    caplog.set_level(logging.INFO, LOGGER.name)
    return Metrics(MetricConfig(tags={"client-id": "p"}), clock=lambda: 0.0)


def test_the_final_values_are_logged_on_close(metrics, caplog):
    """Closing logs one line per group and set of tags, without metrics that have no value."""
    metrics.add_reporter(LoggingMetricsReporter(logger=LOGGER))
    sensor = metrics.sensor("sensor")
    sensor.add(metrics.metric_name("b-avg", "group"), Avg())
    metrics.add_gauge(metrics.metric_name("a-now", "group"), lambda _: 12_345_678)
    metrics.sensor("idle").add(metrics.metric_name("idle-avg", "group"), Avg())
    metrics.add_gauge(metrics.metric_name("rate", "group", topic="orders"), lambda _: 0.25)
    sensor.record(1.5, 0.0)
    assert [] == caplog.messages
    metrics.close()
    assert [
        "group{client-id=p,topic=orders}: rate=0.25",
        "group{client-id=p}: a-now=12345678 b-avg=1.5",
        "kafka-metrics-count{client-id=p}: count=5",
    ] == caplog.messages


def test_removed_metrics_are_not_logged(metrics, caplog):
    """A removed metric is no longer logged."""
    metrics.add_reporter(LoggingMetricsReporter(logger=LOGGER))
    name = metrics.metric_name("gauge", "group")
    metrics.add_gauge(name, lambda _: 1.0)
    metrics.remove_metric(name)
    metrics.close()
    assert ["kafka-metrics-count{client-id=p}: count=1"] == caplog.messages


def test_values_are_logged_at_the_interval(metrics, caplog):
    """Until it is closed, the reporter logs at its interval."""
    read_twice = threading.Event()
    reads = []

    def gauge(_):
        reads.append(1)
        if len(reads) == 2:
            read_twice.set()
        return 1.0

    reporter = LoggingMetricsReporter(interval=0.001, logger=LOGGER)
    metrics.add_gauge(metrics.metric_name("gauge", "group"), gauge)
    metrics.add_reporter(reporter)
    assert read_twice.wait(60)
    threads = [
        thread for thread in threading.enumerate() if thread.name == "kafka-metrics-reporter"
    ]
    metrics.close()
    written = len(caplog.messages)
    assert 4 <= written
    for thread in threads:
        # Closing waits for only a second.
        thread.join(60)
    assert [False] == [thread.is_alive() for thread in threads]


def test_closing_waits_a_second_for_a_line_that_is_being_written(metrics, caplog, monkeypatch):
    """The last values come last, unless the logger hangs."""
    waits = []

    def join(_thread, timeout):
        waits.append((timeout, list(caplog.messages)))

    metrics.add_reporter(LoggingMetricsReporter(logger=LOGGER))
    monkeypatch.setattr(threading.Thread, "join", join)
    metrics.close()
    assert [(1.0, [])] == waits
    assert ["kafka-metrics-count{client-id=p}: count=1"] == caplog.messages


def test_a_reporter_serves_only_one_producer(metrics, caplog):
    """A reporter that serves a producer is left out of a second one, and the log says why."""
    reporter = LoggingMetricsReporter(logger=LOGGER)
    metrics.add_reporter(reporter)
    other = Metrics(MetricConfig(tags={"client-id": "q"}), clock=lambda: 0.0, reporters=[reporter])
    assert [
        "metrics reporter LoggingMetricsReporter raised an exception in init() and will not be used"
    ] == [message for message in caplog.messages if "raised" in message]
    caplog.clear()
    other.close()
    metrics.close()
    assert ["kafka-metrics-count{client-id=p}: count=1"] == caplog.messages


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan")])
def test_the_interval_must_be_positive(interval):
    """An interval that is not above 0 is an error."""
    with pytest.raises(ValueError, match="must be greater than 0"):
        LoggingMetricsReporter(interval=interval)
