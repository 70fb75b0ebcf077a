"""What the client knows of its connection to each node (Kafka's ClusterConnectionStates).

Owns the connection's state, when the next attempt is allowed, how long an attempt may take, and
until when a throttled node must be left alone. Touches no socket and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff


class ConnectionState(Enum):
    """Where one node's connection is in its life."""

    DISCONNECTED = auto()
    CONNECTING = auto()
    READY = auto()


TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.DISCONNECTED: frozenset({ConnectionState.CONNECTING}),
    ConnectionState.CONNECTING: frozenset({ConnectionState.READY, ConnectionState.DISCONNECTED}),
    ConnectionState.READY: frozenset({ConnectionState.DISCONNECTED}),
}


class IllegalConnectionStateError(RuntimeError):
    """A connection was moved to a state that does not follow from the one it is in."""


@dataclass(slots=True)
class _NodeConnectionState:
    state: ConnectionState = ConnectionState.DISCONNECTED
    #: Connections lost and attempts failed since the last one that reached READY.
    failures: int = 0
    #: Attempts failed since the last one that reached READY.
    failed_attempts: int = 0
    #: When the last attempt began.
    last_attempt_at: float = 0.0
    #: No attempt before this time.
    retry_at: float = 0.0
    throttled_until: float = 0.0


@dataclass(slots=True)
class ClusterConnectionStates:
    """The states of all nodes; times are seconds of one monotonic clock, given by the caller."""

    reconnect_backoff: ExponentialBackoff
    setup_timeout: ExponentialBackoff
    _nodes: dict[int, _NodeConnectionState] = field(default_factory=dict)

    def _node(self, node_id: int) -> _NodeConnectionState:
        return self._nodes.setdefault(node_id, _NodeConnectionState())

    def _move(self, node_id: int, target: ConnectionState) -> _NodeConnectionState:
        node = self._node(node_id)
        if target not in TRANSITIONS[node.state]:
            raise IllegalConnectionStateError(
                f"node {node_id}: {node.state.name} does not lead to {target.name}"
            )
        node.state = target
        return node

    def state(self, node_id: int) -> ConnectionState:
        """Tell the state of a node; a node never heard of is disconnected."""
        return self._node(node_id).state

    def can_connect(self, node_id: int, now: float) -> bool:
        """Whether a new attempt may begin: disconnected, and the back-off has passed."""
        node = self._node(node_id)
        return node.state is ConnectionState.DISCONNECTED and now >= node.retry_at

    def is_sendable(self, node_id: int, now: float) -> bool:
        """Whether requests may be sent: connected, and not throttled (KIP-219)."""
        node = self._node(node_id)
        return node.state is ConnectionState.READY and now >= node.throttled_until

    def ready_at(self, node_id: int) -> float:
        """Time from which the node may be tried, or written to again; in the past if at once."""
        node = self._node(node_id)
        return (
            node.throttled_until
            if node.state is not ConnectionState.DISCONNECTED
            else node.retry_at
        )

    def last_attempt_at(self, node_id: int) -> float:
        """When the last attempt to connect began; 0 if there was none."""
        return self._node(node_id).last_attempt_at

    def throttled_until(self, node_id: int) -> float:
        """Time until which the node has asked to be left alone; in the past if it has not."""
        return self._node(node_id).throttled_until

    def connecting(self, node_id: int, now: float) -> float:
        """Note that an attempt begins; return how many seconds it may take (KIP-601)."""
        node = self._move(node_id, ConnectionState.CONNECTING)
        node.last_attempt_at = now
        return self.setup_timeout.delay(node.failed_attempts)

    def ready(self, node_id: int) -> None:
        """Note that the connection is up and its API versions are known."""
        node = self._move(node_id, ConnectionState.READY)
        node.failures = node.failed_attempts = 0

    def disconnected(self, node_id: int, now: float) -> None:
        """Note that the connection failed or was lost, and put off the next attempt."""
        was_connecting = self.state(node_id) is ConnectionState.CONNECTING
        node = self._move(node_id, ConnectionState.DISCONNECTED)
        node.failed_attempts += was_connecting
        node.retry_at = now + self.reconnect_backoff.delay(node.failures)
        node.failures += 1

    def throttle(self, node_id: int, until: float) -> None:
        """Leave a node alone until a time, as its answer asked (KIP-219)."""
        node = self._node(node_id)
        node.throttled_until = max(node.throttled_until, until)
