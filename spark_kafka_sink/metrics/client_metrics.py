"""A client's metrics: the registry from its settings, groups of metrics, and those of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.kafka_metric import MIN_WINDOW, MetricConfig, RecordingLevel
from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter
from spark_kafka_sink.metrics.metrics import Metrics
from spark_kafka_sink.metrics.stats import Avg, Max

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.metrics.kafka_metric import MetricName
    from spark_kafka_sink.metrics.reporter import MetricsReporter
    from spark_kafka_sink.metrics.sensor import Sensor

#: The most topics of one client that have metrics at a time.
MAX_TOPICS: Final = 5000
#: The reporters that `metric.reporters` may name without a module.
BUILT_IN_REPORTERS: Final[Mapping[str, Callable[[], MetricsReporter]]] = {
    "logging": LoggingMetricsReporter
}
_REPORTER_METHODS: Final = ("init", "metric_change", "metric_removal", "close")

SensorsT = TypeVar("SensorsT", bound="tuple[Sensor, ...]")


class MetricGroup:
    """A factory for the metrics of one group, such as `producer-metrics`, that share their tags.

    It creates several per sensor where Kafka pairs them.
    """

    def __init__(self, metrics: Metrics, group: str, **tags: str) -> None:
        """Create the group; `tags` are added to every metric, besides the client's own."""
        self._metrics = metrics
        self._group = group
        self._tags = tags

    def name(self, name: str, description: str) -> MetricName:
        """Return the name of a metric of the group."""
        return self._metrics.metric_name(name, self._group, description, **self._tags)

    def average(self, sensor: Sensor, name: str, description: str) -> None:
        """Add the average of a sensor's values."""
        sensor.add(self.name(name, description), Avg())

    def average_and_maximum(self, sensor: Sensor, name: str, what: str) -> None:
        """Add NAME-avg and NAME-max; `what` follows "The average" in a description."""
        self.average(sensor, f"{name}-avg", f"The average {what}.")
        sensor.add(self.name(f"{name}-max", f"The maximum {what}."), Max())

    def rate_and_total(self, name: str, what: str) -> tuple[MetricName, MetricName]:
        """Return the names NAME-rate and NAME-total; `what` follows "number of"."""
        return (
            self.name(f"{name}-rate", f"The average number of {what} per second."),
            self.name(f"{name}-total", f"The total number of {what}."),
        )

    def meter(self, sensor: Sensor, name: str, what: str) -> None:
        """Add NAME-rate and NAME-total of the sum of a sensor's values."""
        sensor.add_meter(*self.rate_and_total(name, what))

    def count_meter(self, sensor: Sensor, name: str, what: str) -> None:
        """Add NAME-rate and NAME-total of the number of a sensor's values."""
        sensor.add_count_meter(*self.rate_and_total(name, what))


class TopicSeries(Generic[SensorsT]):
    """The sensors of single topics, which end when a client no longer uses their topic.

    A client may meet any number of topics in its life: a column of rows names them, or others
    create and delete them for years. So the sensors of a topic are removed, together with their
    metrics, when it was not used for a given time and another topic appears. There are at most
    `MAX_TOPICS`; the least recently used one gives way. A topic that is used again afterwards
    begins with new totals.

    Does no I/O and reads no clock. It needs no lock: the callers use it on one thread, or under
    theirs.
    """

    def __init__(
        self, metrics: Metrics, create: Callable[[str], SensorsT], *, expiration: float
    ) -> None:
        """Begin without topics.

        `create` registers the sensors of a topic in `metrics`; they replace what is left of older
        ones. They stay for `expiration` seconds after their last use; infinity keeps them, up to
        `MAX_TOPICS`.
        """
        self._metrics = metrics
        self._create = create
        self._expiration = expiration
        #: With the time of the last use, in the order of these times.
        self._topics: dict[str, tuple[SensorsT, float]] = {}

    def get(self, topic: str) -> SensorsT | None:
        """Return the sensors of a topic, None if it has none; this is not a use."""
        known = self._topics.get(topic)
        return None if known is None else known[0]

    def use(self, topic: str, now: float) -> SensorsT:
        """Return the sensors of a topic that is used at `now`; create them if it has none."""
        sensors = self.get(topic)
        if sensors is None:
            self._make_room(now)
            sensors = self._create(topic)
        # Ctrl-C in between makes the next use create them again.
        self._topics.pop(topic, None)
        self._topics[topic] = sensors, now
        return sensors

    def _make_room(self, now: float) -> None:
        while self._topics:
            topic = next(iter(self._topics))
            sensors, used_at = self._topics[topic]
            if now - used_at <= self._expiration and len(self._topics) < MAX_TOPICS:
                return
            del self._topics[topic]
            for sensor in sensors:
                self._metrics.remove_sensor(sensor.name)


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
