import random
from collections.abc import Callable

import pytest

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.cluster_connection_states import ClusterConnectionStates
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.network_client import (
    Availability,
    LeastLoadedNode,
    least_loaded_node,
)

NODES = [Node(node_id, "h", 9092) for node_id in range(3)]


@pytest.fixture
def states() -> ClusterConnectionStates:
    return ClusterConnectionStates(
        reconnect_backoff=ExponentialBackoff(1.0, 1.0, random.Random(0)),
        setup_timeout=ExponentialBackoff(10.0, 30.0, random.Random(0)),
    )


def _connect(states: ClusterConnectionStates, *node_ids: int) -> None:
    for node_id in node_ids:
        states.connecting(node_id, now=0.0)
        states.ready(node_id)


def _choose(
    states: ClusterConnectionStates,
    in_flight: Callable[[int], int] = lambda _: 0,
    now: float = 0.0,
) -> LeastLoadedNode | None:
    return least_loaded_node(NODES, states, in_flight, max_in_flight=5, now=now)


def test_the_node_with_the_fewest_requests_is_chosen(states):
    """Of the connected nodes, the one with the fewest requests is chosen."""
    _connect(states, 0, 1, 2)
    chosen = _choose(states, {0: 3, 1: 1, 2: 2}.__getitem__)
    assert LeastLoadedNode(NODES[1], Availability.READY) == chosen


def test_connected_nodes_take_precedence(states):
    """No connection is opened while a connected node has room."""
    states.connecting(0, now=0.0)
    _connect(states, 2)
    assert LeastLoadedNode(NODES[2], Availability.READY) == _choose(states, lambda _: 4)


def test_an_attempt_that_is_under_way_is_waited_for(states):
    """No second node is tried while an attempt may still succeed."""
    states.connecting(1, now=0.0)
    assert LeastLoadedNode(NODES[1], Availability.CONNECTING) == _choose(states)


def test_the_node_tried_longest_ago_is_tried_next(states):
    """Nodes take turns."""
    for node_id, now in ((0, 3.0), (1, 1.0), (2, 2.0)):
        states.connecting(node_id, now=now)
        states.disconnected(node_id, now=now)
    assert LeastLoadedNode(NODES[1], Availability.CAN_CONNECT) == _choose(states, now=10.0)


def test_another_node_is_connected_to_when_all_connections_are_full(states):
    """Full connections are no reason to wait while another node can be connected to."""
    _connect(states, 0)
    assert LeastLoadedNode(NODES[1], Availability.CAN_CONNECT) == _choose(states, lambda _: 5)


def test_a_full_connection_is_better_than_none(states):
    """If there is no alternative, the request waits behind the others."""
    _connect(states, 0, 1, 2)
    chosen = _choose(states, {0: 7, 1: 5, 2: 6}.__getitem__)
    assert LeastLoadedNode(NODES[1], Availability.SATURATED) == chosen


def test_a_throttled_node_is_the_last_choice(states):
    """A throttled node is avoided as long as there is another, and otherwise waited for."""
    _connect(states, 0, 1)
    states.throttle(0, until=5.0)
    assert LeastLoadedNode(NODES[1], Availability.READY) == _choose(states)
    for node_id in (1, 2):
        states.throttle(node_id, until=9.0)
    states.connecting(2, now=0.0)
    states.disconnected(2, now=0.0)
    assert Availability.THROTTLED is _choose(states).availability


def test_no_node_is_available_during_the_reconnect_backoff_of_all(states):
    """While all nodes are within their reconnect back-off, none is available."""
    for node in NODES:
        states.connecting(node.node_id, now=0.0)
        states.disconnected(node.node_id, now=0.0)
    assert _choose(states, now=0.5) is None
    assert Availability.CAN_CONNECT is _choose(states, now=1.3).availability
