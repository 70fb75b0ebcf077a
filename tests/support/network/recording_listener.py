"""A listener to the network layer that writes down what it hears."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.api_keys import ApiKey


class RecordingListener:
    """Keeps events as (name, node id, and the rest), in their order."""

    def __init__(self) -> None:
        """Start with none."""
        self.events: list[tuple] = []

    def connected(self, node_id: int) -> None:
        """See NetworkListener."""
        self.events.append(("connected", node_id))

    def disconnected(self, node_id: int) -> None:
        """See NetworkListener."""
        self.events.append(("disconnected", node_id))

    def connection_failed(self, node_id: int) -> None:
        """See NetworkListener."""
        self.events.append(("connection failed", node_id))

    def authenticated(self, node_id: int) -> None:
        """See NetworkListener."""
        self.events.append(("authenticated", node_id))

    def authentication_failed(self, node_id: int) -> None:
        """See NetworkListener."""
        self.events.append(("authentication failed", node_id))

    def reauthenticated(self, node_id: int, latency: float) -> None:
        """See NetworkListener."""
        self.events.append(("authenticated again", node_id, latency))

    def reauthentication_failed(self, node_id: int) -> None:
        """See NetworkListener."""
        self.events.append(("renewal refused", node_id))

    def request_sent(self, node_id: int, api_key: ApiKey, size: int) -> None:
        """See NetworkListener."""
        self.events.append(("sent", node_id, api_key, size))

    def response_received(self, node_id: int, api_key: ApiKey, size: int, latency: float) -> None:
        """See NetworkListener."""
        self.events.append(("received", node_id, api_key, size, latency))

    def throttled(self, node_id: int, api_key: ApiKey, seconds: float) -> None:
        """See NetworkListener."""
        self.events.append(("throttled", node_id, api_key, seconds))
