"""Random events against the invariants of the subscription state."""

from __future__ import annotations

import re

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    LATEST,
    NONE,
    WITH_POSITION,
    FetchPosition,
    FetchState,
    LeaderAndEpoch,
)
from spark_kafka_sink.consumer.subscription.subscription import SubscriptionType
from spark_kafka_sink.consumer.subscription.subscription_state import (
    SubscriptionState,
    UseOfFetched,
)
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(2)]
EPOCHS = st.integers(NO_LEADER_EPOCH, 3)
OFFSETS = st.integers(0, 5)
LEADERS = st.builds(
    LeaderAndEpoch, st.sampled_from([None, Node(1, "one", 1), Node(2, "two", 2)]), EPOCHS
)
POSITIONS = st.builds(FetchPosition, OFFSETS, EPOCHS, LEADERS)
PARTITION = st.sampled_from(PARTITIONS)
SUBSETS = st.lists(PARTITION, unique=True)
RESETS = st.sampled_from([EARLIEST, LATEST])


def everything(state: SubscriptionState) -> tuple:
    """Return all that a state holds, as text."""
    return repr(state), repr(state._assignment), state.rebalance_listener


class SubscriptionEvents(RuleBasedStateMachine):
    """Any order of calls, also of those that the state refuses."""

    def __init__(self):
        super().__init__()
        self.state = SubscriptionState(EARLIEST)
        self.paused = set()
        self.last_id = 0

    def attempt(self, call, *arguments, **named):
        """Make a call; if it is refused, nothing may have changed."""
        before = everything(self.state)
        try:
            return call(*arguments, **named)
        except IllegalStateError:
            assert before == everything(self.state)
            return None

    @rule(default=st.sampled_from([EARLIEST, NONE]))
    def start_anew(self, default):
        """Continue with a new state."""
        self.state = SubscriptionState(default)
        self.paused, self.last_id = set(), 0

    @rule(topics=st.sets(st.sampled_from("ab")), listener=st.none() | st.just("listener"))
    def subscribe(self, topics, listener):
        """Subscribe to topics."""
        self.attempt(self.state.subscribe, topics, listener)

    @rule(broker=st.booleans())
    def subscribe_pattern(self, broker):
        """Subscribe by a pattern."""
        if broker:
            self.attempt(self.state.subscribe_broker_pattern, ".*")
        else:
            self.attempt(self.state.subscribe_pattern, re.compile(".*"))

    @rule(partitions=SUBSETS)
    def assign_from_user(self, partitions):
        """Assign by hand."""
        self.attempt(self.state.assign_from_user, partitions)

    @rule(partitions=SUBSETS, added=SUBSETS)
    def assign_from_group(self, partitions, added):
        """Assign for the group, with partitions that may not belong to the assignment."""
        self.attempt(self.state.assign_from_subscribed_awaiting_callback, partitions, added)

    @rule(partitions=SUBSETS)
    def finish_callback(self, partitions):
        """Start fetching partitions."""
        self.attempt(self.state.enable_partitions_awaiting_callback, partitions)

    @rule(partitions=SUBSETS)
    def revoke(self, partitions):
        """Announce a revocation."""
        self.attempt(self.state.mark_pending_revocation, partitions)

    @rule()
    def unsubscribe(self):
        """End everything."""
        self.state.unsubscribe()

    @rule(partition=PARTITION, position=POSITIONS, validated=st.booleans())
    def seek(self, partition, position, validated):
        """Seek."""
        seek = self.state.seek_validated if validated else self.state.seek_unvalidated
        self.attempt(seek, partition, position)

    @rule(partition=PARTITION, position=POSITIONS)
    def move(self, partition, position):
        """Return records."""
        self.attempt(self.state.set_position, partition, position)
        self.state.end_taking(are_returned=True)

    @rule(partition=PARTITION, reset=RESETS)
    def reset(self, partition, reset):
        """Request a reset."""
        self.attempt(self.state.request_offset_reset, partition, reset)

    @rule(partition=PARTITION, position=POSITIONS, reset=RESETS)
    def finish_reset(self, partition, position, reset):
        """Complete a reset, which may no longer be wanted."""
        waited = self.state.position_or_none(partition) is None
        if self.state.maybe_seek_unvalidated(partition, position, reset):
            assert waited

    @rule()
    def reset_all(self):
        """Reset what has no offset."""
        for partition in self.state.reset_initializing_positions():
            assert not self.state.has_default_reset
            assert partition in self.state.initializing_partitions

    @rule(partition=PARTITION, leader=LEADERS, supported=st.booleans())
    def change_leader(self, partition, leader, supported):
        """Apply metadata."""
        awaits = self.state.maybe_validate_position(partition, leader, is_supported=supported)
        if awaits:
            assert self.state.awaits_validation(partition)

    @rule(partition=PARTITION, end=st.integers(-1, 6), epoch=EPOCHS, position=st.none() | POSITIONS)
    def finish_validation(self, partition, end, epoch, position):
        """Complete a validation, which may be about another position."""
        position = position or self.state.position_or_none(partition) or FetchPosition(0)
        answer = {"end_offset": end, "epoch": epoch}
        found = self.state.maybe_complete_validation(partition, position, **answer)
        if found is not None:
            assert not self.state.has_default_reset
            assert self.state.awaits_validation(partition)

    @rule(partition=PARTITION, paused=st.booleans())
    def pause(self, partition, paused):
        """Suspend or resume a partition."""
        if self.state.is_assigned(partition):
            (self.state.pause if paused else self.state.resume)(partition)
            (self.paused.add if paused else self.paused.discard)(partition)

    @rule(partition=PARTITION)
    def move_to_end(self, partition):
        """Fetch it last."""
        self.state.move_to_end(partition)
        if self.state.is_assigned(partition):
            assert partition == self.state.assigned_partitions[-1]

    @invariant()
    def positions_go_with_states(self):
        """Check that positions go with the states of the table, and resets with AWAIT_RESET."""
        for state in self.state._assignment.values():
            assert (state.position is not None) == (state.fetch_state in WITH_POSITION)
            assert (state.reset is not None) == (state.fetch_state is FetchState.AWAIT_RESET)

    @invariant()
    def fetchable_partitions_have_valid_positions(self):
        """Check that fetchable partitions are assigned and wanted, and have a valid position."""
        fetchable = dict(self.state.fetchable_partitions())
        assert fetchable.keys() <= set(self.state.assigned_partitions)
        for partition in PARTITIONS:
            assert self.state.is_fetchable(partition) == (partition in fetchable)
        for partition, position in fetchable.items():
            assert position == self.state.valid_position(partition)
            assert UseOfFetched.RETURN is self.state.use_of_fetched(partition, position.offset)
            assert UseOfFetched.DROP is self.state.use_of_fetched(partition, position.offset + 1)
            if self.state.subscription.type is SubscriptionType.AUTO_TOPICS:
                assert partition.topic in self.state.subscription.topics

    @invariant()
    def paused_partitions_are_not_fetchable(self):
        """Check that a pause lasts as long as the partition is assigned, and stops fetching."""
        self.paused &= set(self.state.assigned_partitions)
        assert self.paused == set(self.state.paused_partitions)
        assert not any(self.state.is_fetchable(partition) for partition in self.paused)

    @invariant()
    def only_valid_positions_are_committed(self):
        """Check that exactly the valid positions would be committed."""
        consumed = self.state.all_consumed()
        valid = {each for each in PARTITIONS if self.state.has_valid_position(each)}
        assert valid == consumed.keys()
        for partition, offset in consumed.items():
            assert offset.offset == self.state.valid_offset(partition)

    @invariant()
    def ids_of_assignments_grow(self):
        """Check that the id never goes back, and that only a subscription has an assignment."""
        assert self.last_id <= self.state.assignment_id
        self.last_id = self.state.assignment_id
        if self.state.subscription.type is SubscriptionType.NONE:
            assert () == self.state.assigned_partitions


TestSubscriptionEvents = SubscriptionEvents.TestCase
