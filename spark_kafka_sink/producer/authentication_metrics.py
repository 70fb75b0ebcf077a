"""How connections were authenticated, under Kafka's names (parts of Java's Selector).

As there, a TLS handshake authenticates like SASL does, and a connection without either counts for
nothing. A session that is renewed on its connection (KIP-368) counts by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.metrics.stats import CumulativeSum

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.sensor import Sensor
    from spark_kafka_sink.producer.metric_group import MetricGroup

_MS_PER_SECOND = 1000


class AuthenticationMetrics:
    """The sensors of one producer. Called on the network thread; times in seconds."""

    def __init__(self, group: MetricGroup, new_sensor: Callable[[str], Sensor]) -> None:
        """Register them in `group`."""
        self._successes = new_sensor("successful-authentication")
        group.meter(self._successes, "successful-authentication", "Connections authenticated")
        # Java counts here what a client does that cannot authenticate again, on the side of the
        # client too, where no authenticator says that it can: each connection.
        self._successes.add(
            group.name(
                "successful-authentication-no-reauth-total",
                "Connections authenticated by what knows no second time, in all.",
            ),
            CumulativeSum(),
        )
        self._failures = new_sensor("failed-authentication")
        group.meter(self._failures, "failed-authentication", "Connections refused")
        self._renewals = new_sensor("successful-reauthentication")
        group.meter(self._renewals, "successful-reauthentication", "Sessions renewed")
        self._refused_renewals = new_sensor("failed-reauthentication")
        group.meter(self._refused_renewals, "failed-reauthentication", "Renewals refused")
        self._latency = new_sensor("reauthentication-latency")
        group.average_and_maximum(
            self._latency, "reauthentication-latency", "Time in ms that a renewal took"
        )

    def authenticated(self, now: float) -> None:
        """Take note of a connection whose both sides accept each other."""
        self._successes.record(1, now)

    def authentication_failed(self, now: float) -> None:
        """Take note of a connection that one side refused."""
        self._failures.record(1, now)

    def reauthenticated(self, latency: float, now: float) -> None:
        """Take note of a session that was renewed, and of the seconds that it took."""
        self._renewals.record(1, now)
        self._latency.record(round(latency * _MS_PER_SECOND), now)

    def reauthentication_failed(self, now: float) -> None:
        """Take note of a session whose renewal was refused."""
        self._refused_renewals.record(1, now)
