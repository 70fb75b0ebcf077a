"""Who leads a partition while brokers come and go."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.leadership import NO_LEADER, Leadership

ALL = (1, 2, 3)


def three():
    return Leadership.begin(ALL, ALL)


def state(leadership):
    return leadership.leader_id, leadership.leader_epoch, leadership.isr


def test_the_first_replica_that_runs_leads():
    """A partition begins with its preferred leader, or with the next one that runs."""
    assert (1, 0, (1, 2, 3)) == state(three())
    assert (2, 0, (2, 3)) == state(Leadership.begin(ALL, {2, 3}))
    assert (NO_LEADER, 0, ()) == state(Leadership.begin(ALL, ()))


def test_a_leader_that_stops_is_followed_by_the_next_replica_in_sync():
    """Leadership changes with a new epoch, and the replica that stopped is out of sync."""
    leadership = three()

    assert leadership.update({2, 3}, 1)
    assert (2, 1, (2, 3)) == state(leadership)


def test_a_follower_that_stops_changes_no_leader():
    """Only the replicas in sync become fewer; the epoch stays."""
    leadership = three()

    assert not leadership.update({1, 3}, 1)
    assert (1, 0, (1, 3)) == state(leadership)


def test_a_leader_that_returns_follows():
    """A leader is not taken back from the one that took its place."""
    leadership = three()
    leadership.update({2, 3}, 1)

    assert not leadership.update(ALL, 1)
    assert (2, 1, (1, 2, 3)) == state(leadership)


def test_only_the_last_in_sync_may_lead_again():
    """When all have stopped, one that stopped earlier may lack records and does not lead."""
    leadership = three()
    for running in ({2, 3}, {3}, ()):
        leadership.update(running, 1)
    assert (NO_LEADER, 3, ()) == state(leadership)

    assert not leadership.update({1, 2}, 1)
    assert (NO_LEADER, 3, ()) == state(leadership)
    assert leadership.update({1, 2, 3}, 1)
    assert (3, 4, (1, 2, 3)) == state(leadership)


def test_replicas_that_left_below_min_insync_may_lead_again():
    """While too few were in sync nothing was acknowledged that they do not have (KIP-966)."""
    leadership = three()
    for running in ({1, 2}, {1}, ()):
        leadership.update(running, 2)
    assert frozenset({1, 2}) == leadership.eligible

    assert leadership.update({2, 3}, 2)
    assert (2, 2, (2, 3)) == state(leadership)
    assert frozenset() == leadership.eligible


def test_no_more_replicas_are_asked_for_than_there_are():
    """A single replica that stops is the only one that may lead, whatever min.insync says."""
    leadership = Leadership.begin((2,), ALL)
    leadership.update({1, 3}, 3)

    assert frozenset({2}) == leadership.eligible
    assert leadership.update(ALL, 3)
    assert (2, 2, (2,)) == state(leadership)


def test_leadership_moves_to_a_replica_in_sync():
    """A move raises the epoch; a move to the leader itself is none."""
    leadership = three()

    assert leadership.move_to(3)
    assert not leadership.move_to(3)
    assert (3, 1, (1, 2, 3)) == state(leadership)


@pytest.mark.parametrize("node_id", [1, 4])
def test_leadership_does_not_move_to_others(node_id):
    """A broker that has stopped, or keeps no replica, cannot lead."""
    leadership = three()
    leadership.update({2, 3}, 1)

    with pytest.raises(ValueError, match="not one of the replicas in sync"):
        leadership.move_to(node_id)
    assert (2, 1, (2, 3)) == state(leadership)
