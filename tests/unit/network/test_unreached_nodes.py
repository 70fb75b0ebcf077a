"""Addresses at which nothing listens: which of them are probably wrong."""

from __future__ import annotations

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.model import MORE_CONNECTIONS, Node
from spark_kafka_sink.network.cluster_connection_states import FINAL_SECONDS, UnreachedNodes

NODE = Node(1, "one", 9092)
FIRST, LAST = NetworkError("first"), NetworkError("last")


def absent_twice(nodes: UnreachedNodes, seconds: float) -> list[bool]:
    """Record two attempts in that many seconds that found nobody; return what is new each time."""
    return [nodes.absent(NODE, FIRST, 100.0), nodes.absent(NODE, LAST, 100.0 + seconds)]


def test_an_address_that_was_never_reached_is_wrong_after_some_seconds():
    """It may be that of a broker that restarts, but only for so long; this is new once only."""
    nodes = UnreachedNodes()
    assert not nodes
    assert [False, True] == absent_twice(nodes, FINAL_SECONDS)
    assert LAST is nodes.never_reached(NODE)
    assert LAST is nodes.absence(NODE)
    assert not nodes.absent(NODE, FIRST, 110.0)
    assert FIRST is nodes.never_reached(NODE)
    assert nodes


def test_it_is_too_soon_to_say_so_before():
    """The last error is known all the same."""
    nodes = UnreachedNodes()
    assert [False, False] == absent_twice(nodes, FINAL_SECONDS - 0.1)
    assert (None, LAST) == (nodes.never_reached(NODE), nodes.absence(NODE))


def test_an_address_that_was_reached_is_waited_for():
    """Its broker restarts, however long that takes."""
    nodes = UnreachedNodes()
    nodes.reached(NODE)
    assert [False, False] == absent_twice(nodes, 30)
    assert (None, LAST) == (nodes.never_reached(NODE), nodes.absence(NODE))


def test_a_peer_that_accepts_a_connection_ends_the_absence():
    """It is not wrong later either."""
    nodes = UnreachedNodes()
    absent_twice(nodes, FINAL_SECONDS)
    nodes.reached(NODE)
    assert (None, None, False) == (nodes.never_reached(NODE), nodes.absence(NODE), bool(nodes))


def test_an_attempt_long_ago_proves_nothing():
    """Nobody may have tried in between, and the broker may restart just now."""
    nodes = UnreachedNodes()
    assert [False, False] == absent_twice(nodes, 61)
    assert nodes.absent(NODE, LAST, 161 + FINAL_SECONDS)


def test_another_failure_begins_the_time_anew():
    """A connection that timed out may have been to a peer that is slow."""
    nodes = UnreachedNodes()
    nodes.absent(NODE, FIRST, 90.0)
    nodes.failed(NODE)
    assert not nodes
    assert [False, False] == absent_twice(nodes, FINAL_SECONDS - 0.1)


def test_all_connections_to_an_address_count():
    """A consumer has a second connection to its coordinator."""
    nodes = UnreachedNodes()
    nodes.reached(NODE._replace(node_id=MORE_CONNECTIONS + 1))
    absent_twice(nodes, FINAL_SECONDS)
    assert nodes.never_reached(NODE) is None


def test_another_address_of_the_same_broker_was_not_reached():
    """A broker may advertise a wrong address after a right one."""
    nodes = UnreachedNodes()
    nodes.reached(NODE._replace(port=9093))
    absent_twice(nodes, FINAL_SECONDS)
    assert LAST is nodes.never_reached(NODE)
