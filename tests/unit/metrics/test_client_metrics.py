from __future__ import annotations

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.client_metrics import BUILT_IN_REPORTERS, create_metrics
from spark_kafka_sink.metrics.kafka_metric import RecordingLevel
from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter


class QuietReporter:
    """A reporter that does nothing."""

    def init(self, metrics):
        """Do nothing."""

    def metric_change(self, metric):
        """Do nothing."""

    def metric_removal(self, metric):
        """Do nothing."""

    def close(self):
        """Do nothing."""


class DemandingReporter(QuietReporter):
    """A reporter that cannot be created without an argument."""

    def __init__(self, path) -> None:
        self.path = path


def config(**settings):
    """Parse settings whose names have `_` in place of `.`."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092", **named})


def test_the_registry_follows_the_settings():
    """The registry has the configured samples, window, level and client id."""
    metrics = create_metrics(
        config(
            metrics_num_samples="5",
            metrics_sample_window_ms="1500",
            metrics_recording_level="DEBUG",
            client_id="mine",
        ),
        lambda: 7.0,
    )
    assert 5 == metrics.config.samples
    assert 1.5 == metrics.config.window
    assert RecordingLevel.DEBUG is metrics.config.recording_level
    assert {"client-id": "mine"} == metrics.config.tags
    assert 7.0 == metrics.clock()


def test_a_window_of_0_means_the_shortest():
    """metrics.sample.window.ms=0, which Kafka allows, means the shortest window."""
    metrics = create_metrics(config(metrics_sample_window_ms="0"), lambda: 0.0)
    assert 0.001 == metrics.config.window


@pytest.mark.parametrize("given", [QuietReporter, QuietReporter()])
def test_a_reporter_can_be_a_class_or_an_object(given, monkeypatch):
    """A reporter given as a class or an object is started."""
    started = []
    monkeypatch.setattr(QuietReporter, "init", lambda self, _: started.append(type(self)))
    create_metrics(config(metric_reporters=[given]), lambda: 0.0)
    assert [QuietReporter] == started


def test_a_reporter_can_be_given_as_an_import_path(monkeypatch):
    """A reporter given as `package.module:attribute` is imported."""
    started = []
    monkeypatch.setattr(LoggingMetricsReporter, "init", lambda self, _: started.append(type(self)))
    path = "spark_kafka_sink.metrics.logging_reporter:LoggingMetricsReporter"
    create_metrics(config(metric_reporters=path), lambda: 0.0)
    assert [LoggingMetricsReporter] == started


def test_the_built_in_reporter_logs():
    """`logging` is the reporter that writes to the log."""
    assert isinstance(BUILT_IN_REPORTERS["logging"](), LoggingMetricsReporter)


def test_an_object_that_is_not_a_reporter_is_rejected():
    """The error for an object that is not a reporter names the missing methods."""
    with pytest.raises(
        ConfigError, match=r"not a metrics reporter: it does not implement init, .*, close\(\)"
    ):
        create_metrics(config(metric_reporters=[object()]), lambda: 0.0)


def test_a_reporter_class_that_needs_arguments_is_rejected():
    """The error for a class that needs arguments says to pass an object."""
    with pytest.raises(
        ConfigError, match=r"could not be created without arguments.*Pass an object"
    ):
        create_metrics(config(metric_reporters=[DemandingReporter]), lambda: 0.0)
