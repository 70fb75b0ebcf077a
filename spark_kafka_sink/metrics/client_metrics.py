"""A client's metrics: their registry, from its settings, and those of topics and connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar, cast

from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.kafka_metric import (
    MIN_WINDOW,
    MetricConfig,
    MetricName,
    RecordingLevel,
)
from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter
from spark_kafka_sink.metrics.metrics import Metrics
from spark_kafka_sink.metrics.sensor import Avg, CumulativeSum, Max, Sensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.metrics.reporter import MetricsReporter

#: The most topics of one client that have metrics at a time.
MAX_TOPICS: Final = 5000
#: The reporters that `metric.reporters` may name without a module.
BUILT_IN_REPORTERS: Final[Mapping[str, Callable[[], MetricsReporter]]] = {
    "logging": LoggingMetricsReporter
}
_REPORTER_METHODS: Final = ("init", "metric_change", "metric_removal", "close")

SensorsT = TypeVar("SensorsT", bound="tuple[Sensor, ...]")
_MS_PER_SECOND: Final = 1000


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


class _NodeSensors(NamedTuple):
    requests: Sensor
    responses: Sensor
    latency: Sensor


class ConnectionMetrics:
    """The sensors of one client's connections, under Kafka's names (parts of Java's Selector).

    They are recorded once per request, response or connection, on the thread of the network layer,
    whose `NetworkListener` this implements. Durations are in seconds; the metrics have Kafka's
    units.
    """

    def __init__(
        self,
        metrics: Metrics,
        prefix: str,
        *,
        timed_api: object,
        request: str,
        latency: Sensor,
        throttle_time: Sensor,
    ) -> None:
        """Register the metrics in PREFIX-metrics; those of a node follow with its connection.

        `latency` and each node's sensor record the time of the requests whose API is `timed_api`,
        which `request` describes; `throttle_time` records that in every response.
        """
        self._metrics = metrics
        self._clock = metrics.clock
        self._prefix = prefix
        self._timed_api = timed_api
        self._request = request
        self.latency = latency
        self.throttle_time = throttle_time
        self._nodes: dict[int, _NodeSensors] = {}
        self._connected: set[int] = set()
        self._unthrottled_answer = False
        group = MetricGroup(metrics, f"{prefix}-metrics")
        self._created = self._sensor("connections-created")
        group.meter(self._created, "connection-creation", "connections opened")
        self._closed = self._sensor("connections-closed")
        group.meter(self._closed, "connection-close", "connections closed")
        self._transfers = self._sensor("bytes-sent-received")
        group.count_meter(self._transfers, "network-io", "requests and responses")
        self._requests = self._sensor("requests-sent")
        self._responses = self._sensor("responses-received")
        self._add_traffic(group, self._requests, self._responses)
        metrics.add_gauge(
            group.name("connection-count", "The current number of open connections."),
            lambda _: len(self._connected),
        )
        self._add_authentication(group)

    def _add_authentication(self, group: MetricGroup) -> None:
        """Add the metrics of authentication.

        As in Java, a TLS handshake counts as authentication like SASL, and a connection without
        either is not counted. A session that is renewed on its connection (KIP-368) has metrics of
        its own.
        """
        self._successes = self._sensor("successful-authentication")
        group.meter(
            self._successes, "successful-authentication", "connections that were authenticated"
        )
        # In Java this counts clients that cannot reauthenticate. On the client side no
        # authenticator reports that it can, so every connection is counted.
        self._successes.add(
            group.name(
                "successful-authentication-no-reauth-total",
                "The total number of authenticated connections that cannot be reauthenticated.",
            ),
            CumulativeSum(),
        )
        self._failures = self._sensor("failed-authentication")
        group.meter(
            self._failures, "failed-authentication", "connections that failed authentication"
        )
        self._renewals = self._sensor("successful-reauthentication")
        group.meter(self._renewals, "successful-reauthentication", "successful reauthentications")
        self._refused_renewals = self._sensor("failed-reauthentication")
        group.meter(self._refused_renewals, "failed-reauthentication", "failed reauthentications")
        self._renewal_latency = self._sensor("reauthentication-latency")
        group.average_and_maximum(
            self._renewal_latency,
            "reauthentication-latency",
            "time in ms that a reauthentication took",
        )

    def _sensor(self, name: str) -> Sensor:
        return self._metrics.sensor(name)

    @staticmethod
    def _add_traffic(group: MetricGroup, requests: Sensor, responses: Sensor) -> None:
        group.count_meter(requests, "request", "requests sent")
        group.meter(requests, "outgoing-byte", "bytes sent")
        group.average_and_maximum(requests, "request-size", "size in bytes of a request")
        group.count_meter(responses, "response", "responses received")
        group.meter(responses, "incoming-byte", "bytes received")

    # --- NetworkListener

    def _node(self, node_id: int) -> _NodeSensors:
        sensors = self._nodes.get(node_id)
        if sensors is None:
            name = f"node-{node_id}"
            sensors = self._nodes[node_id] = _NodeSensors(
                requests=self._sensor(f"{name}.requests-sent"),
                responses=self._sensor(f"{name}.responses-received"),
                latency=self._sensor(f"{name}.latency"),
            )
            group = MetricGroup(self._metrics, f"{self._prefix}-node-metrics", node_id=name)
            self._add_traffic(group, sensors.requests, sensors.responses)
            group.average_and_maximum(
                sensors.latency,
                "request-latency",
                f"time in ms from {self._request} to its response",
            )
        return sensors

    def connected(self, node_id: int) -> None:
        """Record a connection that is ready."""
        now = self._clock()
        self._connected.add(node_id)
        self._created.record(1, now)
        self._node(node_id)

    def disconnected(self, node_id: int) -> None:
        """Record a connection that has ended."""
        self._connected.discard(node_id)
        self._closed.record(1, self._clock())

    def connection_failed(self, node_id: int) -> None:  # noqa: ARG002  the listener's signature
        """Record a connection that ended before it was ready; Kafka counts these, too."""
        self._closed.record(1, self._clock())

    def authenticated(self, node_id: int) -> None:  # noqa: ARG002
        """Record a connection on which both sides accepted each other."""
        self._successes.record(1, self._clock())

    def authentication_failed(self, node_id: int) -> None:  # noqa: ARG002
        """Record a connection that one side refused."""
        self._failures.record(1, self._clock())

    def reauthenticated(self, node_id: int, latency: float) -> None:  # noqa: ARG002
        """Record a renewed session and the seconds that the renewal took."""
        now = self._clock()
        self._renewals.record(1, now)
        self._renewal_latency.record(round(latency * _MS_PER_SECOND), now)

    def reauthentication_failed(self, node_id: int) -> None:  # noqa: ARG002
        """Record a session whose renewal was refused."""
        self._refused_renewals.record(1, self._clock())

    def request_sent(self, node_id: int, api_key: object, size: int) -> None:  # noqa: ARG002
        """Record a request of `size` bytes."""
        now = self._clock()
        self._requests.record(size, now)
        self._transfers.record(size, now)
        self._node(node_id).requests.record(size, now)

    def response_received(self, node_id: int, api_key: object, size: int, latency: float) -> None:
        """Record an answer; as in Kafka, the latency of only one kind of request is measured."""
        now = self._clock()
        node = self._node(node_id)
        self._responses.record(size, now)
        self._transfers.record(size, now)
        node.responses.record(size, now)
        if api_key is self._timed_api:
            self.latency.record(latency * _MS_PER_SECOND, now)
            node.latency.record(latency * _MS_PER_SECOND, now)
        # An answer without a throttle counts as 0 in the average. Whether this answer throttles is
        # reported right after it, so the 0 of the previous answer is recorded here.
        if self._unthrottled_answer:
            self.throttle_time.record(0, now)
        self._unthrottled_answer = True

    def throttled(self, node_id: int, api_key: object, seconds: float) -> None:  # noqa: ARG002
        """Record that the answer just received throttles us."""
        self.throttle_time.record(seconds * _MS_PER_SECOND, self._clock())
        self._unthrottled_answer = False
