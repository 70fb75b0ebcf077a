"""A listener to the network layer that records events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.api_keys import ApiKey


class RecordingListener:
    """Events as tuples of the name, the node id, and the other arguments, in their order."""

    def __init__(self) -> None:
        """Start without events."""
        self.events: list[tuple] = []

    def connected(self, node_id: int) -> None:
        """Record the event."""
        self.events.append(("connected", node_id))

    def disconnected(self, node_id: int) -> None:
        """Record the event."""
        self.events.append(("disconnected", node_id))

    def connection_failed(self, node_id: int) -> None:
        """Record the event."""
        self.events.append(("connection failed", node_id))

    def authenticated(self, node_id: int) -> None:
        """Record the event."""
        self.events.append(("authenticated", node_id))

    def authentication_failed(self, node_id: int) -> None:
        """Record the event."""
        self.events.append(("authentication failed", node_id))

    def reauthenticated(self, node_id: int, latency: float) -> None:
        """Record the event."""
        self.events.append(("authenticated again", node_id, latency))

    def reauthentication_failed(self, node_id: int) -> None:
        """Record the event."""
        self.events.append(("renewal refused", node_id))

    def request_sent(self, node_id: int, api_key: ApiKey, size: int) -> None:
        """Record the event."""
        self.events.append(("sent", node_id, api_key, size))

    def response_received(self, node_id: int, api_key: ApiKey, size: int, latency: float) -> None:
        """Record the event."""
        self.events.append(("received", node_id, api_key, size, latency))

    def throttled(self, node_id: int, api_key: ApiKey, seconds: float) -> None:
        """Record the event."""
        self.events.append(("throttled", node_id, api_key, seconds))
