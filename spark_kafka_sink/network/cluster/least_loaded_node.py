"""The node for a request that any node can answer (NetworkClient.leastLoadedNode). Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.network.cluster.cluster_connection_states import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.cluster.cluster_connection_states import ClusterConnectionStates


class Availability(Enum):
    """The availability of a node, best first."""

    #: Connected, with room for a request.
    READY = auto()
    #: A connection attempt is under way: wait for it before trying any other node.
    CONNECTING = auto()
    #: Not connected, and an attempt may begin now.
    CAN_CONNECT = auto()
    #: Connected, but with max.in.flight requests already; they would be answered first.
    SATURATED = auto()
    #: Connected, but throttled by the broker for a while (KIP-219).
    THROTTLED = auto()


@dataclass(frozen=True, slots=True)
class LeastLoadedNode:
    """The chosen node, and its availability."""

    node: Node
    availability: Availability


def least_loaded_node(
    nodes: Iterable[Node],
    states: ClusterConnectionStates,
    in_flight: Callable[[int], int],
    *,
    max_in_flight: int,
    now: float,
) -> LeastLoadedNode | None:
    """Return the node with the best availability, then the lowest load; the first of equals.

    Of the nodes without a connection, the one tried least recently takes precedence. Returns None
    if all are disconnected and none may be tried yet.
    """
    best: tuple[int, float] | None = None
    chosen: LeastLoadedNode | None = None
    for node in nodes:
        count = in_flight(node.node_id)
        availability = _availability(node.node_id, states, count < max_in_flight, now)
        if availability is None:
            continue
        load = (
            states.last_attempt_at(node.node_id)
            if availability is Availability.CAN_CONNECT
            else float(count)
        )
        rank = (availability.value, load)
        if best is None or rank < best:
            best, chosen = rank, LeastLoadedNode(node, availability)
    return chosen


def _availability(
    node_id: int,
    states: ClusterConnectionStates,
    has_room: bool,  # noqa: FBT001 - one of the two things that decide
    now: float,
) -> Availability | None:
    state = states.state(node_id)
    if state is ConnectionState.READY:
        if not states.is_sendable(node_id, now):
            return Availability.THROTTLED
        return Availability.READY if has_room else Availability.SATURATED
    if state is ConnectionState.CONNECTING:
        return Availability.CONNECTING
    return Availability.CAN_CONNECT if states.can_connect(node_id, now) else None
