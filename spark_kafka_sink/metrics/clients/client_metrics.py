"""The creation of a client's metrics registry from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from spark_kafka_sink.config.plugins.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter
from spark_kafka_sink.metrics.metric_config import MIN_WINDOW, MetricConfig, RecordingLevel
from spark_kafka_sink.metrics.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.config.consumer.kafka_consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.metrics.reporter import MetricsReporter

#: The reporters that `metric.reporters` may name without a module.
BUILT_IN_REPORTERS: Final[Mapping[str, Callable[[], MetricsReporter]]] = {
    "logging": LoggingMetricsReporter
}
_REPORTER_METHODS: Final = ("init", "metric_change", "metric_removal", "close")


def create_metrics(
    config: ProducerConfig | KafkaConsumerConfig, clock: Callable[[], float]
) -> Metrics:
    """Create the registry and start the reporters, which it closes.

    Raises ConfigError when one of `metric.reporters` cannot be imported, created or configured, or
    is not a reporter; those created before it are closed then.
    """
    plug_ins = PlugIns(plug_in_settings(config))
    try:
        reporters = [_reporter(reference, plug_ins) for reference in config.metric_reporters]
    except BaseException:
        plug_ins.close()
        raise
    return Metrics(
        MetricConfig(
            samples=config.metrics_num_samples,
            window=max(config.metrics_sample_window_ms / 1000, MIN_WINDOW),
            recording_level=RecordingLevel[config.metrics_recording_level],
            tags={"client-id": config.client_id},
        ),
        clock=clock,
        reporters=reporters,
    )


def _reporter(reference: PluginReference, plug_ins: PlugIns) -> MetricsReporter:
    if reference.built_in is not None:
        return BUILT_IN_REPORTERS[reference.built_in]()
    loaded = plug_ins.load(reference, "metric.reporters")
    missing = [name for name in _REPORTER_METHODS if not callable(getattr(loaded, name, None))]
    if missing:
        raise ConfigError(
            f"metric.reporters: {reference} is not a metrics reporter: it does not implement "
            f"{', '.join(missing)}() (see metrics.reporter.MetricsReporter)"
        )
    return cast("MetricsReporter", loaded)
