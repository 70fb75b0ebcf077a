"""How many connections a broker has, and how long it is patient with each.

Names are Kafka's broker settings where it has them. It waits for ever for the end of a request or
of an authentication; here a client that never comes to the end is sent away, as long as it is the
client that keeps the broker waiting, and not the reverse. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from spark_kafka_sink.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one broker; times in milliseconds."""

    #: Most connections; more are closed at once (max.connections; Kafka's default is no limit).
    max_connections: int = 1000
    #: Most connections of one address (max.connections.per.ip).
    max_connections_per_ip: int = 2**31 - 1
    #: How long a connection may do nothing (connections.max.idle.ms).
    connections_max_idle_ms: int = 600_000
    #: How long a request may take to arrive, from its first byte to its last.
    request_receive_timeout_ms: int = 60_000
    #: How long a TLS handshake may take, and again a whole authentication by SASL.
    authentication_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit that lets nobody in."""
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise ConfigError(f"{limit.name} must be 1 at least")


class Patience:
    """When a connection is given up, and why; times in seconds, of any clock that only grows."""

    def __init__(self, limits: ConnectionLimits, now: float, *, authenticates: bool) -> None:
        """Begin with a new connection."""
        self._limits = limits
        self._active_at = now
        self._request_began_at: float | None = None
        self._authentication_began_at = now if authenticates else None

    def active(self, now: float) -> None:
        """Take note that something was heard, or taken, or is still being done."""
        self._active_at = now

    def request_began(self, now: float) -> None:
        """Take note that a part of a request is there; its first part counts."""
        if self._request_began_at is None:
            self._request_began_at = now

    def request_ended(self) -> None:
        """Take note that nothing of a request is missing, or that it is not read for now."""
        self._request_began_at = None

    def authenticated(self) -> None:
        """Take note that the client has shown who it is."""
        self._authentication_began_at = None

    def ends(self) -> tuple[float, str]:
        """Tell when the connection is given up if nothing happens, and why."""
        limits = self._limits
        ends = [
            (began_at + milliseconds / 1000, reason)
            for began_at, milliseconds, reason in (
                (self._active_at, limits.connections_max_idle_ms, "nothing was heard"),
                (
                    self._request_began_at,
                    limits.request_receive_timeout_ms,
                    "a request did not come to its end",
                ),
                (
                    self._authentication_began_at,
                    limits.authentication_timeout_ms,
                    "the client did not authenticate",
                ),
            )
            if began_at is not None
        ]
        return min(ends)
