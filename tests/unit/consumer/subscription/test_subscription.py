"""The kinds of subscription, and which assignments fit them."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from spark_kafka_sink.consumer.subscription.partition_state import EARLIEST
from spark_kafka_sink.consumer.subscription.subscription import SubscriptionType
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import TopicPartition

TP0, TP1 = TopicPartition("test", 0), TopicPartition("test", 1)
OTHER = TopicPartition("test1", 0)
TOPIC_IDS = frozenset({UUID(int=7), UUID(int=8)})
LISTENER = object()

#: Each kind of subscription, and how to make one.
KINDS = {
    SubscriptionType.AUTO_TOPICS: lambda state: state.subscribe({"test"}, LISTENER),
    SubscriptionType.AUTO_PATTERN: lambda state: state.subscribe_pattern(
        re.compile(".*"), LISTENER
    ),
    SubscriptionType.AUTO_PATTERN_RE2J: lambda state: state.subscribe_broker_pattern(
        "t.*", LISTENER
    ),
    SubscriptionType.USER_ASSIGNED: lambda state: state.assign_from_user({TP0}),
}


@pytest.fixture
def state() -> SubscriptionState:
    return SubscriptionState(EARLIEST)


@pytest.mark.parametrize("first", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("second", KINDS, ids=lambda kind: kind.name)
def test_a_consumer_has_one_kind_of_subscription(state, first, second):
    """A subscription of another kind raises and changes nothing; the same kind replaces it."""
    KINDS[first](state)
    before = (
        repr(state),
        state.rebalance_listener,
        state.assignment_id,
        state.subscription.metadata_topics,
    )
    if first is second:
        KINDS[second](state)
    else:
        state.rebalance_listener = None if first is SubscriptionType.USER_ASSIGNED else LISTENER
        with pytest.raises(IllegalStateError, match="unsubscribe first"):
            KINDS[second](state)
    assert first is state.subscription.type
    assert before == (
        repr(state),
        state.rebalance_listener,
        state.assignment_id,
        state.subscription.metadata_topics,
    )


@pytest.mark.parametrize("first", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("second", KINDS, ids=lambda kind: kind.name)
def test_any_kind_may_follow_the_end_of_a_subscription(state, first, second):
    """After `unsubscribe` nothing is left of the subscription, and another kind is accepted."""
    KINDS[first](state)
    state.subscription.assigned_topic_ids = TOPIC_IDS
    state.unsubscribe()

    assert SubscriptionType.NONE is state.subscription.type
    assert () == state.assigned_partitions
    assert frozenset() == state.subscription.topics == state.subscription.metadata_topics
    assert frozenset() == state.subscription.assigned_topic_ids
    assert (None, None) == (state.subscription.pattern, state.subscription.broker_pattern)
    KINDS[second](state)
    assert second is state.subscription.type


def test_a_group_cannot_assign_partitions_without_a_subscription(state):
    """Partitions from a group are refused without a subscription and beside manual ones."""
    with pytest.raises(IllegalStateError, match="no group"):
        state.assign_from_subscribed([TP0])
    state.assign_from_user([TP1])
    with pytest.raises(IllegalStateError, match="no group"):
        state.assign_from_subscribed_awaiting_callback([TP0], [TP0])
    with pytest.raises(IllegalStateError, match="no group"):
        state.subscription.set_group_topics({"test"})
    assert (TP1,) == state.assigned_partitions


def test_subscribing_reports_a_change_of_the_topics(state):
    """Subscribing returns whether the topics are others, and replaces the listener."""
    assert state.subscribe({"test"})
    assert state.rebalance_listener is None
    assert not state.subscribe(["test", "test"], LISTENER)
    assert LISTENER is state.rebalance_listener
    assert state.subscribe({"test", "test1"})
    assert {"test", "test1"} == state.subscription.topics
    assert state.subscription.is_auto_assigned


def test_manual_partitions_change_at_once(state):
    """A manual assignment replaces the one before, and reports a change of the topics."""
    assert state.assign_from_user([TP0])
    assert not state.assign_from_user([TP0, TP1])
    assert (TP0, TP1) == state.assigned_partitions
    assert state.assign_from_user([OTHER])
    assert (OTHER,) == state.assigned_partitions
    assert frozenset() == state.subscription.topics
    assert {"test1"} == state.subscription.metadata_topics
    assert not state.subscription.is_auto_assigned
    assert state.assign_from_user([])
    assert () == state.assigned_partitions


def test_a_subscription_keeps_the_assignment_until_the_group_changes_it(state):
    """Neither new topics nor a new pattern change the assignment by themselves."""
    state.subscribe({"test1"})
    assert () == state.assigned_partitions
    state.assign_from_subscribed([OTHER])
    assert (OTHER,) == state.assigned_partitions
    state.subscribe({"test"})
    assert (OTHER,) == state.assigned_partitions
    state.unsubscribe()
    assert () == state.assigned_partitions


def test_a_pattern_is_followed_by_the_topics_that_match_it(state):
    """The topics of a pattern are set apart, and the assignment is that of the group."""
    state.subscribe_pattern(re.compile(".*"), LISTENER)
    assert frozenset() == state.subscription.topics
    assert state.subscription.set_matching_topics({"test", "test1"})
    assert not state.subscription.set_matching_topics({"test1", "test"})
    assert {"test", "test1"} == state.subscription.topics
    state.assign_from_subscribed([TP1])
    assert (TP1,) == state.assigned_partitions
    state.assign_from_subscribed([OTHER])
    assert (OTHER,) == state.assigned_partitions
    state.subscribe_pattern(re.compile(".*t"))
    assert (OTHER,) == state.assigned_partitions
    assert re.compile(".*t") == state.subscription.pattern
    state.unsubscribe()
    assert not state.subscription.matches_pattern("test")


def test_matching_topics_need_a_pattern(state):
    """Topics that match a pattern are refused without a pattern of this client's."""
    for kind in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN_RE2J):
        KINDS[kind](state)
        with pytest.raises(IllegalStateError, match="no pattern"):
            state.subscription.set_matching_topics({"test1"})
        assert "test1" not in state.subscription.metadata_topics
        state.unsubscribe()


def test_a_pattern_has_to_match_the_whole_name(state):
    """A pattern that matches a part of a topic's name does not match the topic."""
    state.subscribe_pattern(re.compile("es|test"))
    assert state.subscription.matches_pattern("test")
    assert not state.subscription.matches_pattern("test1")
    assert not state.subscription.matches_pattern("latest")


def test_an_assignment_has_to_fit_the_topics(state):
    """An assignment fits if each of its topics is subscribed to."""
    state.subscribe({"test"})
    assert state.subscription.covers([TP0, TP1])
    assert state.subscription.covers([])
    assert not state.subscription.covers([TP0, OTHER])


def test_an_assignment_has_to_fit_the_pattern(state):
    """With a pattern the topics have to match it, whichever matched at the last look."""
    state.subscribe_pattern(re.compile(".*t"))
    state.subscription.set_matching_topics({"test"})
    assert state.subscription.covers([TP0, TopicPartition("latest", 0)])
    assert not state.subscription.covers([OTHER])


def test_a_pattern_of_the_broker_is_kept_as_text(state):
    """The regex for the broker is kept until the end of the subscription."""
    state.subscribe_broker_pattern("t.*", LISTENER)
    assert "t.*" == state.subscription.broker_pattern
    assert state.subscription.is_auto_assigned
    assert "AUTO_PATTERN_RE2J" in repr(state)
    assert "t.*" in repr(state)
    assert "subscribed to the broker's pattern 't.*'" == str(state.subscription)
    assert frozenset() == state.subscription.assigned_topic_ids
    state.unsubscribe()
    assert state.subscription.broker_pattern is None


def test_topic_ids_are_assigned_by_a_pattern_of_the_broker_only(state):
    """A topic id belongs to the broker's regex if it was assigned under one."""
    known = UUID(int=7)
    assert not state.subscription.is_assigned_by_broker_pattern(known)
    state.subscribe_broker_pattern("foo.*")
    assert not state.subscription.is_assigned_by_broker_pattern(known)
    state.subscription.assigned_topic_ids = TOPIC_IDS
    assert state.subscription.is_assigned_by_broker_pattern(known)
    assert not state.subscription.is_assigned_by_broker_pattern(UUID(int=9))
    state.unsubscribe()
    state.subscribe({"test"})
    state.subscription.assigned_topic_ids = TOPIC_IDS
    assert not state.subscription.is_assigned_by_broker_pattern(known)


def test_an_assignment_keeps_the_ids_of_topics_without_a_name(state):
    """Applying a part of the target assignment does not forget its other topic ids."""
    state.subscribe_broker_pattern("t.*")
    state.subscription.assigned_topic_ids = TOPIC_IDS
    state.assign_from_subscribed_awaiting_callback([TP0], [TP0])
    assert TOPIC_IDS == state.subscription.assigned_topic_ids


def test_the_leader_of_a_group_needs_the_topics_of_all_members(state):
    """Metadata are needed for the topics of the group, and for those newly subscribed to."""
    state.subscribe({"test1"})
    assert {"test1"} == state.subscription.metadata_topics
    assert not state.subscription.set_group_topics({"test1"})
    assert {"test1"} == state.subscription.metadata_topics
    assert state.subscription.set_group_topics({"test", "test1"})
    assert {"test", "test1"} == state.subscription.metadata_topics
    assert not state.subscription.set_group_topics({"test1"})
    assert {"test1"} == state.subscription.metadata_topics
    state.subscribe({"another"})
    assert {"test1", "another"} == state.subscription.metadata_topics
    assert "test1" in state.subscription.metadata_topics
    assert "another" in state.subscription.metadata_topics
    assert "test" not in state.subscription.metadata_topics
    state.subscription.reset_group_topics()
    assert {"another"} == state.subscription.metadata_topics


def test_each_change_of_the_assignment_has_a_new_id(state):
    """The id grows with every assignment that differs, and with the end of the subscription."""
    assert 0 == state.assignment_id
    state.assign_from_user([TP0, TP1])
    state.assign_from_user([TP1, TP0])
    assert 1 == state.assignment_id
    state.unsubscribe()
    assert 2 == state.assignment_id
    state.subscribe({"test1"})
    assert 2 == state.assignment_id
    state.assign_from_subscribed([OTHER])
    assert 3 == state.assignment_id
