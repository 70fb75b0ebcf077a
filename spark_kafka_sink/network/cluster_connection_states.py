"""The states of the connections to a cluster's nodes (Kafka's ClusterConnectionStates).

`ClusterConnectionStates` has each connection's state, when the next attempt is allowed, how long an
attempt may take, and until when a node is throttled. `UnreachedNodes` has the addresses at which
nothing listens. Neither does I/O or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
#: Seconds in which a broker can restart, and a new topic become known.
FINAL_SECONDS: Final = 3.0
#: Seconds without an attempt, after which what older ones have shown is void.
_STALE_SECONDS: Final = 60.0

_Address: TypeAlias = tuple[str, int]


class ConnectionState(Enum):
    """The state of one node's connection."""

    DISCONNECTED = auto()
    CONNECTING = auto()
    READY = auto()


TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.DISCONNECTED: frozenset({ConnectionState.CONNECTING}),
    ConnectionState.CONNECTING: frozenset({ConnectionState.READY, ConnectionState.DISCONNECTED}),
    ConnectionState.READY: frozenset({ConnectionState.DISCONNECTED}),
}


class IllegalConnectionStateError(RuntimeError):
    """A transition of a connection to a state that cannot follow its current one."""


@dataclass(slots=True)
class _NodeConnectionState:
    state: ConnectionState = ConnectionState.DISCONNECTED
    #: Connections lost and attempts failed since a connection last became READY.
    failures: int = 0
    #: Attempts failed since a connection last became READY.
    failed_attempts: int = 0
    #: When the last attempt began.
    last_attempt_at: float = 0.0
    #: No attempt begins before this time.
    retry_at: float = 0.0
    throttled_until: float = 0.0


@dataclass(slots=True)
class ClusterConnectionStates:
    """The states of all nodes; callers pass times in seconds of one monotonic clock."""

    reconnect_backoff: ExponentialBackoff
    setup_timeout: ExponentialBackoff
    _nodes: dict[int, _NodeConnectionState] = field(default_factory=dict)

    def _node(self, node_id: int) -> _NodeConnectionState:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _NodeConnectionState()
        return node

    def _move(self, node_id: int, target: ConnectionState) -> _NodeConnectionState:
        node = self._node(node_id)
        if target not in TRANSITIONS[node.state]:
            raise IllegalConnectionStateError(
                f"node {node_id}: {node.state.name} does not lead to {target.name}"
            )
        node.state = target
        return node

    def state(self, node_id: int) -> ConnectionState:
        """Return the state of a node; an unknown node is disconnected."""
        return self._node(node_id).state

    def can_connect(self, node_id: int, now: float) -> bool:
        """Return whether a new attempt may begin: disconnected, and the back-off has passed."""
        node = self._node(node_id)
        return node.state is ConnectionState.DISCONNECTED and now >= node.retry_at

    def is_sendable(self, node_id: int, now: float) -> bool:
        """Return whether requests may be sent: connected, and not throttled (KIP-219)."""
        node = self._node(node_id)
        return node.state is ConnectionState.READY and now >= node.throttled_until

    def ready_at(self, node_id: int) -> float:
        """Return the earliest time to connect to the node or send to it; in the past if now."""
        node = self._node(node_id)
        return (
            node.throttled_until
            if node.state is not ConnectionState.DISCONNECTED
            else node.retry_at
        )

    def last_attempt_at(self, node_id: int) -> float:
        """Return when the last connection attempt began; 0 if there was none."""
        return self._node(node_id).last_attempt_at

    def throttled_until(self, node_id: int) -> float:
        """Return until when the node is throttled; in the past if it is not."""
        return self._node(node_id).throttled_until

    def connecting(self, node_id: int, now: float) -> float:
        """Record that an attempt begins; return how many seconds it may take (KIP-601)."""
        node = self._move(node_id, ConnectionState.CONNECTING)
        node.last_attempt_at = now
        return self.setup_timeout.delay(node.failed_attempts)

    def ready(self, node_id: int) -> None:
        """Record that the connection is open and its API versions are known."""
        node = self._move(node_id, ConnectionState.READY)
        node.failures = node.failed_attempts = 0

    def disconnected(self, node_id: int, now: float) -> None:
        """Record that the connection failed or was lost, and delay the next attempt."""
        was_connecting = self.state(node_id) is ConnectionState.CONNECTING
        node = self._move(node_id, ConnectionState.DISCONNECTED)
        node.failed_attempts += was_connecting
        node.retry_at = now + self.reconnect_backoff.delay(node.failures)
        node.failures += 1

    def throttle(self, node_id: int, until: float) -> None:
        """Mark a node as throttled until a time, as its response requested (KIP-219)."""
        node = self._node(node_id)
        node.throttled_until = max(node.throttled_until, until)


@dataclass(slots=True)
class _Absence:
    """What is known about an address at which nothing listened at the last attempt."""

    #: When the first and the last of the attempts failed.
    since: float
    last: float
    #: The error of the last one.
    error: KafkaError
    is_final: bool = False


class UnreachedNodes:
    """Addresses at which nothing listens: has the broker crashed, or is the address wrong?

    A broker chooses the address that clients connect to (`advertised.listeners`), which is easily
    one that only its own network knows. All clients judge it by the same rule:

    - An address that was reached before is right: its broker is waited for, since it may restart.
    - An address that was never reached, and where nothing has listened for `FINAL_SECONDS`, is
      probably wrong: the client logs a warning, and keeps trying, since the broker may have crashed
      a moment before. What times out meanwhile has this as its cause.
    - If this holds for every broker although one answers, through bootstrap.servers, the addresses
      are wrong. A first contact (`connection_waits`) and reads, with a user waiting for them, fail,
      as they do if bootstrap.servers is wrong. A producer and a KafkaConsumer keep trying within
      their time-outs.

    The rule compares addresses, not brokers' ids: a broker may advertise another address, and a
    client may have two connections to one. Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._reached: set[_Address] = set()
        self._absences: dict[_Address, _Absence] = {}

    def __bool__(self) -> bool:
        """Return whether nothing listens at the address of any node."""
        return bool(self._absences)

    def reached(self, node: Node) -> None:
        """Record that a peer has accepted a connection, even if it may not be a broker."""
        self._reached.add(_address(node))
        self._absences.pop(_address(node), None)

    def failed(self, node: Node) -> None:
        """Record an attempt that failed in another way: a peer may be there."""
        self._absences.pop(_address(node), None)

    def absent(self, node: Node, error: KafkaError, now: float) -> bool:
        """Record an attempt without a listener; return whether `never_reached` is new for it."""
        address = _address(node)
        absence = self._absences.get(address)
        if absence is None or now - absence.last > _STALE_SECONDS:
            absence = self._absences[address] = _Absence(now, now, error)
        absence.error, absence.last = error, now
        was_final = absence.is_final
        absence.is_final = address not in self._reached and now - absence.since >= FINAL_SECONDS
        return absence.is_final and not was_final

    def absence(self, node: Node) -> KafkaError | None:
        """Return the error of the last attempt, if it found no listener."""
        absence = self._absences.get(_address(node))
        return None if absence is None else absence.error

    def never_reached(self, node: Node) -> KafkaError | None:
        """Return the error of a node whose address is probably wrong; None for any other."""
        absence = self._absences.get(_address(node))
        return absence.error if absence is not None and absence.is_final else None


def _address(node: Node) -> _Address:
    return node.host, node.port
