"""The leader of a partition while brokers stop and start."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.cluster.partition import NO_LEADER, Leadership

ALL = (1, 2, 3)


def three():
    return Leadership.begin(ALL, ALL)


def state(leadership):
    return leadership.leader_id, leadership.leader_epoch, leadership.isr


def test_the_first_replica_that_runs_leads():
    """The first leader is the preferred replica, or the next one that runs."""
    assert (1, 0, (1, 2, 3)) == state(three())
    assert (2, 0, (2, 3)) == state(Leadership.begin(ALL, {2, 3}))
    assert (NO_LEADER, 0, ()) == state(Leadership.begin(ALL, ()))


def test_a_leader_that_stops_is_followed_by_the_next_replica_in_sync():
    """The leader changes with a new epoch, and the stopped replica leaves the ISR."""
    leadership = three()

    assert leadership.update({2, 3}, 1)
    assert (2, 1, (2, 3)) == state(leadership)


def test_a_follower_that_stops_changes_no_leader():
    """Only the ISR shrinks; the leader epoch is unchanged."""
    leadership = three()

    assert not leadership.update({1, 3}, 1)
    assert (1, 0, (1, 3)) == state(leadership)


def test_a_leader_that_returns_follows():
    """A returning leader does not replace its successor."""
    leadership = three()
    leadership.update({2, 3}, 1)

    assert not leadership.update(ALL, 1)
    assert (2, 1, (1, 2, 3)) == state(leadership)


def test_only_the_last_in_sync_may_lead_again():
    """A replica that stopped before the last one may lack records and does not lead."""
    leadership = three()
    for running in ({2, 3}, {3}, ()):
        leadership.update(running, 1)
    assert (NO_LEADER, 3, ()) == state(leadership)

    assert not leadership.update({1, 2}, 1)
    assert (NO_LEADER, 3, ()) == state(leadership)
    assert leadership.update({1, 2, 3}, 1)
    assert (3, 4, (1, 2, 3)) == state(leadership)


def test_replicas_that_left_below_min_insync_may_lead_again():
    """Records were not acknowledged while fewer than min.insync.replicas had them (KIP-966)."""
    leadership = three()
    for running in ({1, 2}, {1}, ()):
        leadership.update(running, 2)
    assert frozenset({1, 2}) == leadership.eligible

    assert leadership.update({2, 3}, 2)
    assert (2, 2, (2, 3)) == state(leadership)
    assert frozenset() == leadership.eligible


def test_min_insync_replicas_is_limited_by_the_replicas():
    """A single replica that stops is the only eligible one, whatever min.insync.replicas says."""
    leadership = Leadership.begin((2,), ALL)
    leadership.update({1, 3}, 3)

    assert frozenset({2}) == leadership.eligible
    assert leadership.update(ALL, 3)
    assert (2, 2, (2,)) == state(leadership)


def test_leadership_moves_to_a_replica_in_sync():
    """A move raises the epoch, unless it is to the current leader."""
    leadership = three()

    assert leadership.move_to(3)
    assert not leadership.move_to(3)
    assert (3, 1, (1, 2, 3)) == state(leadership)


@pytest.mark.parametrize("node_id", [1, 4])
def test_leadership_does_not_move_to_others(node_id):
    """A broker that has stopped or has no replica cannot lead."""
    leadership = three()
    leadership.update({2, 3}, 1)

    with pytest.raises(ValueError, match="is not in the ISR"):
        leadership.move_to(node_id)
    assert (2, 1, (2, 3)) == state(leadership)
