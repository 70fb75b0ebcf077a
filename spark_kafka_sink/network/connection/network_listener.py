"""The events of a client's connections, for its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.api_keys import ApiKey


class NetworkListener(Protocol):
    """A listener for requests, responses and connections, called on the event loop's thread.

    Called once per request and response, never per record. A method must be fast, must not block
    and must not raise. Bootstrap nodes have negative ids.
    """

    def connected(self, node_id: int) -> None:
        """Handle a connection that is ready for requests."""

    def disconnected(self, node_id: int) -> None:
        """Handle the end of a connection that was ready, for whatever reason."""

    def connection_failed(self, node_id: int) -> None:
        """Handle a connection attempt that ended without a connection."""

    def authenticated(self, node_id: int) -> None:
        """Handle a connection that passed TLS or SASL; called before `connected`."""

    def authentication_failed(self, node_id: int) -> None:
        """Handle a connection that TLS or SASL rejected; called before `connection_failed`."""

    def reauthenticated(self, node_id: int, latency: float) -> None:
        """Handle the renewal of a connection's session, which took `latency` seconds (KIP-368)."""

    def reauthentication_failed(self, node_id: int) -> None:
        """Handle a refused renewal of a session; called before `disconnected`."""

    def request_sent(self, node_id: int, api_key: ApiKey, size: int) -> None:
        """Handle a request of `size` bytes, framing included, that was queued to be sent."""

    def response_received(self, node_id: int, api_key: ApiKey, size: int, latency: float) -> None:
        """Handle a response of `size` bytes, with framing, `latency` seconds after its request."""

    def throttled(self, node_id: int, api_key: ApiKey, seconds: float) -> None:
        """Handle an exceeded quota; the broker makes us wait for `seconds` (KIP-219)."""
