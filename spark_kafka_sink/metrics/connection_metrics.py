"""The metrics of a client's connections, under Kafka's names (parts of Java's Selector).

They are recorded once per request, response or connection. `ConnectionMetrics` is the listener of
the network layer, on its thread. `now` and durations are in seconds (`now` is monotonic); the
metrics have Kafka's units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.metrics.client_metrics import MetricGroup
from spark_kafka_sink.metrics.stats import CumulativeSum

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.metrics.sensor import Sensor

_MS_PER_SECOND: Final = 1000


class AuthenticationMetrics:
    """The authentication sensors of one client. Called on the network thread.

    As in Java, a TLS handshake counts as authentication like SASL, and a connection without either
    is not counted. A session that is renewed on its connection (KIP-368) has metrics of its own.
    """

    def __init__(self, group: MetricGroup, new_sensor: Callable[[str], Sensor]) -> None:
        """Register the sensors in `group`."""
        self._successes = new_sensor("successful-authentication")
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
        self._failures = new_sensor("failed-authentication")
        group.meter(
            self._failures, "failed-authentication", "connections that failed authentication"
        )
        self._renewals = new_sensor("successful-reauthentication")
        group.meter(self._renewals, "successful-reauthentication", "successful reauthentications")
        self._refused_renewals = new_sensor("failed-reauthentication")
        group.meter(self._refused_renewals, "failed-reauthentication", "failed reauthentications")
        self._latency = new_sensor("reauthentication-latency")
        group.average_and_maximum(
            self._latency, "reauthentication-latency", "time in ms that a reauthentication took"
        )

    def authenticated(self, now: float) -> None:
        """Record a connection on which both sides accepted each other."""
        self._successes.record(1, now)

    def authentication_failed(self, now: float) -> None:
        """Record a connection that one side refused."""
        self._failures.record(1, now)

    def reauthenticated(self, latency: float, now: float) -> None:
        """Record a renewed session and the seconds that the renewal took."""
        self._renewals.record(1, now)
        self._latency.record(round(latency * _MS_PER_SECOND), now)

    def reauthentication_failed(self, now: float) -> None:
        """Record a session whose renewal was refused."""
        self._refused_renewals.record(1, now)


class _NodeSensors(NamedTuple):
    requests: Sensor
    responses: Sensor
    latency: Sensor


class ConnectionMetrics:
    """The sensors of one client's connections; it implements `NetworkListener`."""

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
        self._authentication = AuthenticationMetrics(group, self._sensor)

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
                requests=self._metrics.sensor(f"{name}.requests-sent"),
                responses=self._metrics.sensor(f"{name}.responses-received"),
                latency=self._metrics.sensor(f"{name}.latency"),
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
        self._authentication.authenticated(self._clock())

    def authentication_failed(self, node_id: int) -> None:  # noqa: ARG002
        """Record a connection that one side refused."""
        self._authentication.authentication_failed(self._clock())

    def reauthenticated(self, node_id: int, latency: float) -> None:  # noqa: ARG002
        """Record a session that was renewed."""
        self._authentication.reauthenticated(latency, self._clock())

    def reauthentication_failed(self, node_id: int) -> None:  # noqa: ARG002
        """Record a session whose renewal was refused."""
        self._authentication.reauthentication_failed(self._clock())

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
