"""The assigned partitions: which are fetched, in which order, and what is known of their logs."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.subscription.partition_state import EARLIEST, FetchPosition
from spark_kafka_sink.consumer.subscription.subscription_state import (
    SubscriptionState,
    UseOfFetched,
)
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import TopicPartition

TP0, TP1 = TopicPartition("test", 0), TopicPartition("test", 1)
OTHER = TopicPartition("test1", 0)


@pytest.fixture
def state() -> SubscriptionState:
    state = SubscriptionState(EARLIEST)
    state.assign_from_user([TP0])
    state.seek(TP0, 100)
    return state


@pytest.fixture
def group_state() -> SubscriptionState:
    state = SubscriptionState(EARLIEST)
    state.subscribe({"test"})
    return state


def order(state: SubscriptionState) -> list[TopicPartition]:
    """Return the partitions in the order in which they are fetched."""
    return [partition for partition, _ in state.fetchable_partitions()]


def test_partitions_of_the_group_are_fetchable_with_a_position(group_state):
    """Each assigned partition is fetchable from its own first position on."""
    group_state.assign_from_subscribed([TP0, TP1])
    assert [] == order(group_state)
    group_state.seek(TP0, 1)
    assert [(TP0, FetchPosition(1))] == group_state.fetchable_partitions()
    group_state.seek(TP1, 2)
    assert [TP0, TP1] == order(group_state)


def test_partitions_of_other_topics_are_not_fetchable(group_state):
    """Until the group reacts to new topics, partitions of former ones are not fetched."""
    group_state.assign_from_subscribed([TP0])
    group_state.seek(TP0, 1)
    assert group_state.is_fetchable(TP0)
    group_state.subscribe({"test1"})
    assert (TP0,) == group_state.assigned_partitions
    assert not group_state.is_fetchable(TP0)
    assert [] == order(group_state)
    assert UseOfFetched.DROP is group_state.use_of_fetched(TP0, 1)
    group_state.unsubscribe()
    assert not group_state.is_fetchable(TP0)


def test_a_removed_partition_loses_its_state(state):
    """A partition that stays keeps position and pause; one that returns starts anew."""
    state.pause(TP0)
    state.assign_from_user([TP1, TP0])
    assert FetchPosition(100) == state.position(TP0)
    assert TP0 in state.paused_partitions
    state.assign_from_user([TP1])
    assert not state.is_assigned(TP0)
    assert TP0 not in state.paused_partitions
    state.assign_from_user([TP0, TP1])
    assert state.position(TP0) is None
    assert TP0 not in state.paused_partitions


def test_an_assignment_of_the_group_replaces_the_one_before(group_state):
    """A partition that is not in the new assignment is no longer assigned."""
    group_state.assign_from_subscribed([TP0])
    group_state.seek(TP0, 1)
    group_state.assign_from_subscribed([TP1])
    assert (TP1,) == group_state.assigned_partitions
    assert not group_state.is_assigned(TP0)
    assert not group_state.is_fetchable(TP1)


def test_a_paused_partition_is_not_fetched(state):
    """A pause stops fetching until the partition is resumed, and keeps its position."""
    state.pause(TP0)
    assert not state.is_fetchable(TP0)
    assert (TP0,) == state.paused_partitions
    assert state.has_valid_position(TP0)
    state.resume(TP0)
    assert state.is_fetchable(TP0)
    assert () == state.paused_partitions


def test_records_of_a_paused_partition_are_kept(state):
    """What was fetched before a pause is returned after it, if the position is still there."""
    assert UseOfFetched.RETURN is state.use_of_fetched(TP0, 100)
    state.pause(TP0)
    assert UseOfFetched.KEEP is state.use_of_fetched(TP0, 100)
    state.resume(TP0)
    assert UseOfFetched.RETURN is state.use_of_fetched(TP0, 100)
    state.pause(TP0)
    state.seek(TP0, 7)
    state.resume(TP0)
    assert UseOfFetched.DROP is state.use_of_fetched(TP0, 100)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.seek(TP0, 101),
        lambda state: state.request_offset_reset(TP0),
        lambda state: state.mark_pending_revocation([TP0]),
        lambda state: state.assign_from_user([TP1]),
        lambda state: state.unsubscribe(),
    ],
)
def test_records_that_are_not_next_are_dropped(state, change):
    """After a seek, a reset or the loss of the partition its fetched records are dropped."""
    change(state)
    assert UseOfFetched.DROP is state.use_of_fetched(TP0, 100)


def test_a_partition_to_be_revoked_is_neither_fetched_nor_initialized(state):
    """A pending revocation stops fetching and look-ups, and is not a pause."""
    state.mark_pending_revocation([TP0])
    assert not state.is_fetchable(TP0)
    assert TP0 not in state.paused_partitions
    state.assign_from_user([TP1])
    assert (TP1,) == state.initializing_partitions
    state.mark_pending_revocation([TP1])
    assert () == state.initializing_partitions


def test_a_position_that_the_callback_sets_is_kept(group_state):
    """A partition is fetched after on_partitions_assigned, from where that has sought."""
    group_state.assign_from_subscribed_awaiting_callback([TP0], [TP0])
    assert (TP0,) == group_state.assigned_partitions
    assert (TP0,) == group_state.initializing_partitions
    assert TP0 not in group_state.paused_partitions
    group_state.seek(TP0, 100)
    assert not group_state.is_fetchable(TP0)
    group_state.enable_partitions_awaiting_callback([TP0])
    assert () == group_state.initializing_partitions
    assert group_state.is_fetchable(TP0)
    assert group_state.has_all_fetch_positions


def test_a_position_is_looked_up_if_the_callback_sets_none(group_state):
    """A partition without a position after on_partitions_assigned needs one."""
    group_state.assign_from_subscribed_awaiting_callback([TP0], [TP0])
    group_state.enable_partitions_awaiting_callback([TP0])
    assert (TP0,) == group_state.initializing_partitions
    group_state.seek(TP0, 100)
    assert group_state.is_fetchable(TP0)


def test_a_callback_does_not_stop_the_other_partitions(group_state):
    """Partitions that the consumer already had are fetched during on_partitions_assigned."""
    group_state.assign_from_subscribed([TP0])
    group_state.seek(TP0, 100)
    group_state.assign_from_subscribed_awaiting_callback([TP0, TP1], [TP1])
    assert group_state.is_fetchable(TP0)
    group_state.seek(TP1, 200)
    assert [TP0] == order(group_state)
    group_state.enable_partitions_awaiting_callback([TP0, TP1])
    assert [TP0, TP1] == order(group_state)


def test_added_partitions_belong_to_the_assignment(group_state):
    """Adding a partition that the assignment lacks raises and changes nothing."""
    group_state.assign_from_subscribed([TP0])
    with pytest.raises(IllegalStateError, match="test-1"):
        group_state.assign_from_subscribed_awaiting_callback([TP0], [TP0, TP1])
    assert (TP0,) == group_state.assigned_partitions
    assert 1 == group_state.assignment_id


def test_partitions_are_fetched_in_turn(state):
    """Partitions are grouped by topic at first; one whose records were returned goes last."""
    state.assign_from_user([TP1, OTHER, TP0])
    assert (TP1, TP0, OTHER) == state.assigned_partitions
    for partition in state.assigned_partitions:
        state.seek(partition, 0)
    state.move_to_end(TP1)
    assert [TP0, OTHER, TP1] == order(state)
    state.move_to_end(TopicPartition("unknown", 0))
    state.pause(OTHER)
    assert [TP0, TP1] == order(state)


def test_only_fetchable_partitions_are_asked_about(state):
    """The question whether records are buffered is asked of fetchable partitions only."""
    asked = []
    state.pause(TP0)
    assert [] == state.fetchable_partitions(asked.append)
    assert [] == asked
    state.resume(TP0)
    assert [] == state.fetchable_partitions(asked.append)
    assert [TP0] == asked


# What responses say of the log


def test_there_is_no_lag_without_a_position():
    """Lag and lead need a position, whatever is known of the log."""
    state = SubscriptionState(EARLIEST)
    state.assign_from_user([TP0])
    for _ in range(2):
        assert state.partition_lag(TP0, is_committed=False) is None
        assert state.partition_lag(TP0, is_committed=True) is None
        assert state.partition_lead(TP0) is None
        state.update_offsets(TP0, high_watermark=1, last_stable_offset=1, log_start_offset=0)


def test_the_lag_is_the_distance_to_the_end(state):
    """The end is the high watermark, or for committed reads the last stable offset."""
    assert state.partition_lag(TP0, is_committed=False) is None
    assert state.update_offsets(TP0, high_watermark=130)
    assert 30 == state.partition_lag(TP0, is_committed=False)
    assert 130 == state.partition_end_offset(TP0, is_committed=False)
    assert state.partition_lag(TP0, is_committed=True) is None
    assert state.update_offsets(TP0, last_stable_offset=120)
    assert 20 == state.partition_lag(TP0, is_committed=True)
    assert 120 == state.partition_end_offset(TP0, is_committed=True)
    assert 30 == state.partition_lag(TP0, is_committed=False)
    state.set_position(TP0, FetchPosition(125))
    assert 5 == state.partition_lag(TP0, is_committed=False)


def test_the_lead_is_the_distance_to_the_start(state):
    """The lead is counted from the log's start, once that is known."""
    assert state.partition_lead(TP0) is None
    assert state.update_offsets(TP0, log_start_offset=10)
    assert 90 == state.partition_lead(TP0)


def test_offsets_of_a_removed_partition_are_ignored(state):
    """A late response for a partition that is not assigned changes nothing."""
    assert not state.update_offsets(TP1, high_watermark=1, last_stable_offset=1, log_start_offset=1)
    assert (TP0,) == state.assigned_partitions


@pytest.mark.parametrize("offset", ["high_watermark", "last_stable_offset"])
def test_an_end_offset_answers_the_request_for_it(state, offset):
    """A request for the end of the log lasts until either end is known."""
    state.request_end_offset(TP0)
    assert state.update_offsets(TP0, log_start_offset=0)
    assert state.is_end_offset_requested(TP0)
    assert state.update_offsets(TP0, **{offset: 5})
    assert not state.is_end_offset_requested(TP0)


def test_a_failed_request_for_the_end_can_be_repeated(state):
    """Clearing a request returns whether there was one."""
    assert not state.clear_end_offset_request(TP0)
    state.request_end_offset(TP0)
    assert state.clear_end_offset_request(TP0)
    assert not state.is_end_offset_requested(TP0)
    assert not state.clear_end_offset_request(TP1)


# The follower to fetch from


def test_a_preferred_follower_has_a_lease(state):
    """A follower is preferred up to and including the end of its lease, or until cleared."""
    assert state.preferred_read_replica(TP0, 0) is None
    assert state.update_preferred_read_replica(TP0, 42, 10)
    assert [42, 42, None] == [state.preferred_read_replica(TP0, now) for now in (9, 10, 11)]
    assert state.clear_preferred_read_replica(TP0) is None
    assert state.update_preferred_read_replica(TP0, 43, 20)
    assert [43, 43] == [state.preferred_read_replica(TP0, now) for now in (11, 20)]
    assert 43 == state.clear_preferred_read_replica(TP0)
    assert state.preferred_read_replica(TP0, 9) is None
    assert state.update_preferred_read_replica(TP0, 43, 20)
    assert state.update_preferred_read_replica(TP0, 44, 30)
    assert [44, None] == [state.preferred_read_replica(TP0, now) for now in (30, 31)]


def test_naming_a_follower_again_does_not_extend_its_lease(state):
    """The lease of a follower ends as first set, so that the leader is asked now and then."""
    state.update_preferred_read_replica(TP0, 42, 10)
    state.update_preferred_read_replica(TP0, 42, 99)
    assert state.preferred_read_replica(TP0, 11) is None
    state.update_preferred_read_replica(TP0, 42, 20)
    assert 42 == state.preferred_read_replica(TP0, 11)


def test_a_removed_partition_prefers_no_follower(state):
    """A late response for a partition that is not assigned changes nothing."""
    assert not state.update_preferred_read_replica(TP1, 10, 60)
    assert state.preferred_read_replica(TP1, 0) is None
    assert state.clear_preferred_read_replica(TP1) is None
