import random

import pytest

from spark_kafka_sink.network.cluster_connection_states import (
    TRANSITIONS,
    ClusterConnectionStates,
    ConnectionState,
    IllegalConnectionStateError,
)
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff


class _NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def states() -> ClusterConnectionStates:
    return ClusterConnectionStates(
        reconnect_backoff=ExponentialBackoff(0.05, 1.0, _NoJitter()),
        setup_timeout=ExponentialBackoff(10.0, 30.0, _NoJitter()),
    )


def test_a_new_node_can_be_connected_to_at_once(states):
    """An unknown node is disconnected and may be tried at once."""
    assert ConnectionState.DISCONNECTED is states.state(1)
    assert states.can_connect(1, now=0.0)
    assert not states.is_sendable(1, now=0.0)
    assert (0.0, 0.0, 0.0) == (
        states.ready_at(1),
        states.last_attempt_at(1),
        states.throttled_until(1),
    )


def test_only_one_attempt_is_under_way_at_a_time(states):
    """No second attempt may begin while one is under way."""
    states.connecting(1, now=0.0)
    assert not states.can_connect(1, now=100.0)


def test_the_backoff_doubles_with_each_failure_until_a_success(states):
    """Each failure lengthens the delay before the next attempt, and a success resets it."""
    waits = []
    for _ in range(3):
        states.connecting(1, now=0.0)
        states.disconnected(1, now=5.0)
        waits.append(round(states.ready_at(1) - 5.0, 3))
        assert not states.can_connect(1, now=5.0)
    assert [0.05, 0.1, 0.2] == waits
    states.connecting(1, now=0.0)
    states.ready(1)
    states.disconnected(1, now=6.0)
    assert 0.05 == round(states.ready_at(1) - 6.0, 3)


def test_an_attempt_may_take_longer_after_each_failure(states):
    """The setup timeout grows with each failed attempt (KIP-601)."""
    assert 10.0 == states.connecting(1, now=0.0)
    states.disconnected(1, now=0.0)
    assert 20.0 == states.connecting(1, now=0.0)


def test_a_lost_connection_does_not_lengthen_the_setup_timeout(states):
    """Only failed attempts lengthen the timeout: a broker that was there may be there again."""
    states.connecting(1, now=0.0)
    states.disconnected(1, now=0.0)
    states.connecting(1, now=0.0)
    states.ready(1)
    states.disconnected(1, now=0.0)
    assert 10.0 == states.connecting(1, now=0.0)


def test_the_time_of_the_last_attempt_is_stored(states):
    """The last attempt is remembered, whatever its outcome."""
    assert 0.0 == states.last_attempt_at(1)
    states.connecting(1, now=3.0)
    states.disconnected(1, now=4.0)
    assert 3.0 == states.last_attempt_at(1)


def test_a_throttled_node_is_not_ready_until_its_pause_is_over(states):
    """A throttled node gets no request before its pause is over (KIP-219)."""
    states.connecting(1, now=0.0)
    states.ready(1)
    states.throttle(1, until=3.0)
    assert not states.is_sendable(1, now=2.9)
    assert 3.0 == states.ready_at(1)
    assert 3.0 == states.throttled_until(1)
    assert states.is_sendable(1, now=3.0)


def test_a_shorter_pause_does_not_end_a_longer_one(states):
    """Of several pauses, the one that ends last counts."""
    states.throttle(1, until=3.0)
    states.throttle(1, until=2.0)
    assert 3.0 == states.throttled_until(1)
    assert 0.0 == states.throttled_until(2)


@pytest.mark.parametrize("source", ConnectionState)
@pytest.mark.parametrize("target", ConnectionState)
def test_only_transitions_in_the_table_are_possible(states, source, target):
    """A transition that is not in the table raises an error and changes nothing."""
    moves = {
        ConnectionState.CONNECTING: lambda: states.connecting(1, now=0.0),
        ConnectionState.READY: lambda: states.ready(1),
        ConnectionState.DISCONNECTED: lambda: states.disconnected(1, now=0.0),
    }
    path = {
        ConnectionState.DISCONNECTED: [],
        ConnectionState.CONNECTING: [ConnectionState.CONNECTING],
        ConnectionState.READY: [ConnectionState.CONNECTING, ConnectionState.READY],
    }
    for step in path[source]:
        moves[step]()
    if target in TRANSITIONS[source]:
        moves[target]()
        assert target is states.state(1)
    else:
        with pytest.raises(IllegalConnectionStateError, match="does not lead to"):
            moves[target]()
        assert source is states.state(1)
