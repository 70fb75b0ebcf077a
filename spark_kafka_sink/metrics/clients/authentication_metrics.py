"""Metrics of authentication, under Kafka's names (parts of Java's Selector).

As in Java, a TLS handshake counts as authentication like SASL, and a connection without either is
not counted. A session that is renewed on its connection (KIP-368) has metrics of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.metrics.stats import CumulativeSum

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.clients.metric_group import MetricGroup
    from spark_kafka_sink.metrics.sensor import Sensor

_MS_PER_SECOND = 1000


class AuthenticationMetrics:
    """The sensors of one client. Called on the network thread; times are in seconds."""

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
