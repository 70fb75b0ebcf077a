"""How many connections a broker accepts, and the timeouts of each.

Settings are named as Kafka's broker settings where it has them. Kafka waits forever for the end of
a request or of an authentication; this broker disconnects a client that does not finish in time,
unless it is the broker that keeps the client waiting. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from spark_kafka_sink.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one broker; times are in milliseconds.

    Raises ConfigError for a limit below 1.

    >>> limits = ConnectionLimits(max_connections=10, connections_max_idle_ms=60_000)
    >>> with DevBroker(connection_limits=limits) as broker:
    ...     broker.topic_names
    []
    """

    #: Maximum number of connections (max.connections; unlimited by default in Kafka). Any more are
    #: closed at once.
    max_connections: int = 1000
    #: Maximum number of connections from one address (max.connections.per.ip).
    max_connections_per_ip: int = 2**31 - 1
    #: How long a connection may be idle (connections.max.idle.ms).
    connections_max_idle_ms: int = 600_000
    #: How long a request may take to arrive, from its first byte to its last.
    request_receive_timeout_ms: int = 60_000
    #: How long a TLS handshake may take, and separately a whole SASL authentication.
    authentication_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit below 1."""
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise ConfigError(f"{limit.name} must be at least 1")


class Patience:
    """When and why to close a connection; times are in seconds, of any monotonic clock."""

    def __init__(self, limits: ConnectionLimits, now: float, *, authenticates: bool) -> None:
        self._limits = limits
        self._active_at = now
        self._request_began_at: float | None = None
        self._authentication_began_at = now if authenticates else None

    def active(self, now: float) -> None:
        """Record that bytes were received or sent, or that a request is still being handled."""
        self._active_at = now

    def request_began(self, now: float) -> None:
        """Record that part of a request has arrived; only the first part starts its timeout."""
        if self._request_began_at is None:
            self._request_began_at = now

    def request_ended(self) -> None:
        """Record that no request is incomplete, or that reading is paused."""
        self._request_began_at = None

    def authenticated(self) -> None:
        """Record that the client has authenticated."""
        self._authentication_began_at = None

    def ends(self) -> tuple[float, str]:
        """Return when to close the connection if nothing happens until then, and why."""
        limits = self._limits
        ends = [
            (began_at + milliseconds / 1000, reason)
            for began_at, milliseconds, reason in (
                (
                    self._active_at,
                    limits.connections_max_idle_ms,
                    "it was idle for longer than connections_max_idle_ms",
                ),
                (
                    self._request_began_at,
                    limits.request_receive_timeout_ms,
                    "a request was not complete within request_receive_timeout_ms",
                ),
                (
                    self._authentication_began_at,
                    limits.authentication_timeout_ms,
                    "the client did not authenticate within authentication_timeout_ms",
                ),
            )
            if began_at is not None
        ]
        return min(ends)
