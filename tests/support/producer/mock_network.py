"""A network in memory for tests of the Sender, in which only the test makes progress happen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.protocol.registry import declared_messages
from tests.support.producer.producer_batches import NODES, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import Node

#: The versions of a current broker: all that the client supports.
ALL_VERSIONS = {
    request.api_key: (request.versions.min, request.versions.max)
    for request, _ in declared_messages()
}

#: Seconds without use after which a topic is removed from the metadata.
MAX_IDLE = 300.0


@dataclass(eq=False)
class SentRequest:
    """A request that has reached a broker, and the means to answer it."""

    node: Node
    request: Any
    version: int
    _future: asyncio.Future[Any] = field(repr=False)

    def answer(self, response: object) -> None:
        """Send a response to the client, as soon as the loop runs."""
        self._future.set_result(response)

    def fail(self, error: Exception) -> None:
        """Fail the request."""
        self._future.set_exception(error)

    def disconnect(self) -> None:
        """Fail the request as if the connection was closed before the response."""
        self.fail(NetworkError(f"{self.node}: the broker closed the connection"))


class MockConnection:
    """A connection that records requests."""

    def __init__(self, network: MockNetwork, node: Node) -> None:
        """Create a connection to a node of the network."""
        self.node = node
        self._network = network

    @property
    def api_versions(self) -> NodeApiVersions:
        """The API versions of the network's brokers."""
        return self._network.api_versions

    def send(
        self,
        request: Any,
        *,
        max_version: int | None = None,
        on_done: Callable[[asyncio.Future[Any]], None] | None = None,
    ) -> asyncio.Future[Any]:
        """Record a request, with the version in which it would be encoded."""
        highest = request.highest_version
        if max_version is not None:
            highest = min(highest, max_version)
        version = self.api_versions.version_for(request.api_key, highest)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if on_done is not None:
            future.add_done_callback(on_done)
        self._network.sent.append(SentRequest(self.node, request, version, future))
        return future

    send_without_response = send

    def is_unsent(self, outcome: asyncio.Future[Any]) -> bool:
        """Return whether the node stopped reading before this request was sent in full."""
        return self.node.node_id in self._network.stalled and not outcome.done()

    def close(self, reason: str) -> None:
        """Fail all requests to the node that have no response."""
        for sent in self._network.sent:
            if sent.node == self.node and not sent._future.done():
                sent.fail(NetworkError(f"{self.node}: the connection was {reason}"))


class MockNetwork:
    """A stand-in for NetworkClient; topic `t` has a partition for each of `leaders`."""

    def __init__(self, leaders: dict[int, int | None]) -> None:
        """Create a network in which all nodes are connected."""
        self.metadata = Metadata(
            refresh_backoff=ExponentialBackoff(0.1, 1.0), max_age=300.0, max_idle=MAX_IDLE
        )
        self.metadata.snapshot = snapshot(leaders)
        self.api_versions = NodeApiVersions(ALL_VERSIONS, {"transaction.version": 2})
        self.down: set[int] = set()
        self.retry_at: dict[int, float] = {}
        self.throttled: dict[int, float] = {}
        self.sent: list[SentRequest] = []
        self.last_error: Exception | None = None
        #: The errors of the last attempts to connect, by node.
        self.connect_errors: dict[int, Exception] = {}
        self.refusal: Exception | None = None
        self.is_updating_metadata = False
        self.metadata_updates = 0
        self.max_in_flight = 5
        #: Nodes that have stopped reading.
        self.stalled: set[int] = set()

    def use_transaction_version(self, level: int) -> None:
        """Set the cluster's finalized transaction.version; 0 means that it has no such feature."""
        features = {"transaction.version": level} if level else {}
        self.api_versions = NodeApiVersions(self.api_versions.versions, features)

    def ready_connection(self, node: Node) -> MockConnection | None:
        """Return a connection, unless the node is down or has too many requests in flight."""
        in_flight = [s for s in self.sent if s.node == node and not s._future.done()]
        limit = 1 if node.node_id in self.stalled else self.max_in_flight
        if node.node_id in self.down or len(in_flight) >= limit:
            return None
        return MockConnection(self, node)

    def cause(self, node: Node | None = None) -> Exception | None:
        """Return the last error."""
        del node
        return self.last_error

    def ready_at(self, node: Node) -> float:
        """Return the time at which to check again."""
        return max(self.retry_at.get(node.node_id, 0.0), self.throttled_until(node))

    def throttled_until(self, node: Node) -> float:
        """Return the end of the node's throttle time."""
        return self.throttled.get(node.node_id, 0.0)

    def connect_error(self, node: Node | None) -> Exception | None:
        """Return the error of the last attempt to connect to a node."""
        return None if node is None else self.connect_errors.get(node.node_id)

    async def least_loaded_connection(self, deadline: float) -> MockConnection:
        """Return a connection to the first node that is up."""
        for node_id, node in NODES.items():
            if node_id not in self.down:
                return MockConnection(self, node)
        raise NetworkError(f"no broker answered by {deadline}")

    async def update_metadata(self, deadline: float) -> None:
        """Count the update, and fail it."""
        del deadline
        self.metadata_updates += 1
        self.metadata.failed(1e9)
