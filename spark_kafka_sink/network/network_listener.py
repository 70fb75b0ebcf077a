"""What the network layer tells whoever counts: metrics are made elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.api_keys import ApiKey


class NetworkListener(Protocol):
    """Hears of requests, answers and connections, on the event loop's thread.

    Called once per request and answer, never per record. A method must be quick, must not block and
    must not raise. Bootstrap nodes have negative ids.
    """

    def connected(self, node_id: int) -> None:
        """Hear that a connection is ready for requests."""

    def disconnected(self, node_id: int) -> None:
        """Hear that a connection that was ready has ended, for whatever reason."""

    def connection_failed(self, node_id: int) -> None:
        """Hear that an attempt to connect has ended without a connection."""

    def authenticated(self, node_id: int) -> None:
        """Hear, before `connected`, that TLS or SASL let a connection through."""

    def authentication_failed(self, node_id: int) -> None:
        """Hear, before `connection_failed`, that TLS or SASL did not."""

    def reauthenticated(self, node_id: int, latency: float) -> None:
        """Hear that a connection's session was renewed, which took `latency` seconds (KIP-368)."""

    def reauthentication_failed(self, node_id: int) -> None:
        """Hear, before `disconnected`, that the renewal of its session was refused."""

    def request_sent(self, node_id: int, api_key: ApiKey, size: int) -> None:
        """Hear that a request of `size` bytes, framing included, was queued to be sent."""

    def response_received(self, node_id: int, api_key: ApiKey, size: int, latency: float) -> None:
        """Hear of an answer: `size` bytes with framing, `latency` seconds after its request."""

    def throttled(self, node_id: int, api_key: ApiKey, seconds: float) -> None:
        """Hear that a quota was exceeded, and for how long the broker makes us wait (KIP-219)."""
