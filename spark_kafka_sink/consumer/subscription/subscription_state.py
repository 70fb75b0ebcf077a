"""The subscription of a consumer, its assigned partitions and their positions.

This is Kafka's SubscriptionState. Its rules:

- It belongs to the thread that holds the consumer's lock, and has no lock of its own: the user's
  thread moves positions under that lock while the network thread fetches. No method waits, and
  only `fetchable_partitions` calls a function that it was given.
- It reads no clock: times are arguments, in seconds on one monotonic clock. Offsets are those of
  the log; an unknown leader epoch is `NO_LEADER_EPOCH`.
- A partition that stays assigned keeps its position, its pause and its offsets. One that is removed
  loses all of them.
- The order of the partitions is that of fetching: grouped by topic when assigned, and then each
  partition whose records were returned goes to the end (`move_to_end`), so that none starves.
- A call for a partition that is not assigned raises IllegalStateError, except where the docstring
  names another outcome: answers of brokers may arrive after the assignment has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.subscription.partition_state import (
    NONE,
    FetchPosition,
    FetchState,
    LeaderAndEpoch,
    LogTruncation,
    OffsetReset,
    PartitionState,
)
from spark_kafka_sink.consumer.subscription.subscription import Subscription, SubscriptionType
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Iterable
    from uuid import UUID

#: The end offset of an OffsetForLeaderEpoch response that knows no such epoch.
UNDEFINED_END_OFFSET = -1


class UseOfFetched(Enum):
    """The use of records that were fetched but not yet returned."""

    #: Return them to the user.
    RETURN = auto()
    #: Keep them until the partition is resumed.
    KEEP = auto()
    #: They are no longer wanted.
    DROP = auto()


class SubscriptionState:
    """The partitions that a consumer reads, and its positions in them."""

    def __init__(self, default_reset: OffsetReset) -> None:
        """Start without a subscription; `default_reset` is auto.offset.reset."""
        self._default_reset = default_reset
        #: The states of the assigned partitions, in the order of fetching.
        self._assignment: OrderedDict[TopicPartition, PartitionState] = OrderedDict()
        #: A number that grows with every change of the assignment.
        self.assignment_id = 0
        #: The partitions whose records were taken since the user's last call.
        self._taken: set[TopicPartition] = set()
        #: The topics, patterns or partitions that the user has asked for.
        self.subscription = Subscription()
        #: The listener of the last subscription; not called here.
        self.rebalance_listener: object | None = None

    def __repr__(self) -> str:
        """Show the subscription and the states of the partitions."""
        states = ", ".join(
            f"{partition} {state.fetch_state.name}" for partition, state in self._assignment.items()
        )
        return f"<SubscriptionState {self.subscription!r} #{self.assignment_id}: {states}>"

    # The subscription and the assignment

    @property
    def assigned_partitions(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions, in the order of fetching."""
        return tuple(self._assignment)

    def is_assigned(self, partition: TopicPartition) -> bool:
        """Return whether the partition is assigned."""
        return partition in self._assignment

    def move_to_end(self, partition: TopicPartition) -> None:
        """Fetch the partition after all others, unless it is not assigned.

        Source: SubscriptionState.movePartitionToEnd.
        """
        if partition in self._assignment:
            # A single step, which Ctrl-C cannot interrupt.
            self._assignment.move_to_end(partition)

    @property
    def has_default_reset(self) -> bool:
        """Whether auto.offset.reset names a start."""
        return self._default_reset != NONE

    def subscribe(self, topics: Collection[str], listener: object | None = None) -> bool:
        """Subscribe to topics; return whether they are others than before.

        The assignment stays until the group changes it, but partitions of other topics are no
        longer fetchable. Raise IllegalStateError for a subscription of another type.
        """
        changed = self.subscription.set_topics(topics)
        self.rebalance_listener = listener
        return changed

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: object | None = None) -> None:
        """Subscribe to the topics whose whole name matches a pattern.

        Raise IllegalStateError for a subscription of another type.
        """
        self.subscription.set_pattern(pattern)
        self.rebalance_listener = listener

    def subscribe_broker_pattern(self, pattern: str, listener: object | None = None) -> None:
        """Subscribe to the topics that match a regex in RE2 syntax, which the broker evaluates.

        Raise IllegalStateError for a subscription of another type.
        """
        self.subscription.set_broker_pattern(pattern)
        self.rebalance_listener = listener

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> bool:
        """Assign the partitions that the user names; return whether their topics are others.

        Raise IllegalStateError if a group assigns the partitions.
        """
        assignment = dict.fromkeys(partitions)
        changed = self.subscription.set_assigned({partition.topic for partition in assignment})
        if assignment.keys() != self._assignment.keys():
            self._set_assignment(assignment)
        return changed

    def assign_from_subscribed(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign the partitions that the group has given to this consumer.

        Raise IllegalStateError if no group assigns the partitions.
        """
        self._check_auto_assigned()
        self._set_assignment(partitions)

    def assign_from_subscribed_awaiting_callback(
        self, partitions: Iterable[TopicPartition], added: Iterable[TopicPartition]
    ) -> None:
        """Assign the group's partitions; those `added` wait for on_partitions_assigned (KIP-848).

        Raise IllegalStateError, before anything changes, if no group assigns the partitions, or if
        an added partition is not among them.
        """
        self._check_auto_assigned()
        assignment, added = dict.fromkeys(partitions), tuple(added)
        for partition in added:
            if partition not in assignment:
                raise IllegalStateError(f"{partition} was added to an assignment without it")
        self._set_assignment(assignment)
        for partition in added:
            self._assignment[partition].pending_on_assigned = True

    def enable_partitions_awaiting_callback(self, partitions: Iterable[TopicPartition]) -> None:
        """Start fetching: on_partitions_assigned has returned."""
        for state in [self._state(partition) for partition in partitions]:
            state.pending_on_assigned = False

    def mark_pending_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching, and returning records, of partitions that are about to be revoked."""
        for state in [self._state(partition) for partition in partitions]:
            state.pending_revocation = True

    def unsubscribe(self) -> None:
        """End the subscription and the assignment."""
        self.subscription.clear()
        self._assignment.clear()
        self.assignment_id += 1

    def _check_auto_assigned(self) -> None:
        if not self.subscription.is_auto_assigned:
            raise IllegalStateError(
                f"no group assigns partitions to this consumer: it is {self.subscription}"
            )

    # Fetching

    def is_fetchable(self, partition: TopicPartition) -> bool:
        """Return whether a Fetch for the partition may be sent, and its records returned.

        That needs a valid position; the partition may be neither paused, nor about to be revoked,
        nor waiting for on_partitions_assigned, nor of a topic that is no longer subscribed to.
        """
        state = self._assignment.get(partition)
        return state is not None and state.is_fetchable and self._is_wanted(partition)

    def fetchable_partitions(
        self, is_available: Callable[[TopicPartition], bool] = lambda _: True
    ) -> list[tuple[TopicPartition, FetchPosition]]:
        """Return the partitions to fetch with their positions, in the order of fetching.

        `is_available` is asked only about fetchable partitions; it excludes those with fetched
        records or with a Fetch in flight.
        """
        return [
            (partition, state.position)
            for partition, state in self._assignment.items()
            if state.is_fetchable
            and state.position is not None
            and self._is_wanted(partition)
            and is_available(partition)
        ]

    def use_of_fetched(self, partition: TopicPartition, offset: int) -> UseOfFetched:
        """Return the use of fetched records; `offset` is that of the next one to return.

        Records of a paused partition are kept. Others are returned only if the partition is
        fetchable at exactly that offset, so that a seek drops what was fetched before.

        Source: FetchCollector.collectFetch and fetchRecords.
        """
        state = self._assignment.get(partition)
        if state is not None and state.is_paused:
            return UseOfFetched.KEEP
        if not self.is_fetchable(partition) or self.valid_offset(partition) != offset:
            return UseOfFetched.DROP
        return UseOfFetched.RETURN

    def _is_wanted(self, partition: TopicPartition) -> bool:
        """Return whether an explicit list of topics, if there is one, has the partition's topic."""
        return (
            self.subscription.type is not SubscriptionType.AUTO_TOPICS
            or partition.topic in self.subscription.topics
        )

    # Positions

    def position(self, partition: TopicPartition) -> FetchPosition | None:
        """Return the position, validated or not; None if there is none."""
        return self._state(partition).position

    def position_or_none(self, partition: TopicPartition) -> FetchPosition | None:
        """Return the position; None if there is none or the partition is not assigned."""
        state = self._assignment.get(partition)
        return None if state is None else state.position

    def valid_position(self, partition: TopicPartition) -> FetchPosition | None:
        """Return the position if it is valid, otherwise None."""
        state = self._state(partition)
        return state.position if state.has_valid_position else None

    def has_valid_position(self, partition: TopicPartition) -> bool:
        """Return whether the partition is assigned and has a valid position."""
        state = self._assignment.get(partition)
        return state is not None and state.has_valid_position

    @property
    def has_all_fetch_positions(self) -> bool:
        """Whether every assigned partition has a valid position."""
        return all(state.has_valid_position for state in self._assignment.values())

    def valid_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the valid position; None without one."""
        position = self.valid_position(partition)
        return None if position is None else position.offset

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read from `offset` on, whatever the partition waits for."""
        self.seek_validated(partition, FetchPosition(offset))

    def seek_validated(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Read from a position that needs no validation."""
        self._state(partition).seek(position)

    def seek_unvalidated(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Read from a position once its leader has confirmed it, if its epochs are known."""
        self._state(partition).seek_unvalidated(position)

    def maybe_seek_unvalidated(
        self, partition: TopicPartition, position: FetchPosition, requested: OffsetReset
    ) -> bool:
        """Read from the position that a reset has found; return whether it still applies.

        It does not if the partition is no longer assigned, no longer waits for a reset, or waits
        for one of another kind than `requested`.

        Source: SubscriptionState.maybeSeekUnvalidated.
        """
        state = self._assignment.get(partition)
        if state is None or state.reset != requested:
            return False
        state.seek_unvalidated(position)
        return True

    def set_position(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Set the position after records that were taken, and are to be returned.

        Raise IllegalStateError if the partition has no valid position.
        """
        self._state(partition).move(position)
        self._taken.add(partition)

    def move_back(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Set the position back to a record that was taken and cannot be returned."""
        self._state(partition).move_back(position)

    @property
    def has_taken(self) -> bool:
        """Whether records were taken since the last call of `end_taking`."""
        return bool(self._taken)

    def end_taking(self, *, are_returned: bool) -> None:
        """Record that the records taken were returned, or are to be read again."""
        for partition in self._taken:
            state = self._assignment.get(partition)
            if state is None:
                continue
            if are_returned:
                state.taken_from = None
            else:
                state.give_back_taken()
        self._taken.clear()

    def all_consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit: the valid positions after the returned records."""
        return {
            partition: OffsetAndMetadata(consumed.offset, consumed.offset_epoch)
            for partition, state in self._assignment.items()
            if (consumed := state.consumed) is not None
        }

    # Resets

    @property
    def initializing_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions whose committed offsets have to be looked up."""
        return self._where(lambda state: state.needs_initial_position)

    def reset_initializing_positions(
        self, included: Callable[[TopicPartition], bool] = lambda _: True
    ) -> tuple[TopicPartition, ...]:
        """Request the default reset of partitions without a committed offset.

        Only those that `included` accepts are reset. Return the partitions that could not be reset
        because auto.offset.reset is `none`: for these the consumer raises an error, as Java does
        with NoOffsetForPartitionException.

        Source: SubscriptionState.resetInitializingPositions.
        """
        partitions = tuple(filter(included, self.initializing_partitions))
        if not self.has_default_reset:
            return partitions
        for partition in partitions:
            self.request_offset_reset(partition)
        return ()

    def request_offset_reset(
        self, partition: TopicPartition, reset: OffsetReset | None = None
    ) -> None:
        """Drop the position, so that `reset`, by default auto.offset.reset, finds another."""
        self._state(partition).request_reset(reset or self._default_reset)

    def count_out_of_range(self, partition: TopicPartition) -> int:
        """Count a position that is not in the log; return how many there were in a row."""
        state = self._state(partition)
        state.out_of_range += 1
        return state.out_of_range

    def note_in_range(self, partition: TopicPartition) -> None:
        """End that row: the log has the position."""
        self._state(partition).out_of_range = 0

    def request_offset_reset_if_assigned(self, partition: TopicPartition) -> None:
        """Request the default reset, unless the partition is not assigned."""
        if partition in self._assignment:
            self.request_offset_reset(partition)

    def note_topic_id(
        self, partition: TopicPartition, topic_id: UUID, *, is_assigned: bool = True
    ) -> UUID | None:
        """Drop the position in an assigned partition if its topic was deleted and created again.

        That is so if the topic had another id. Return that one, otherwise None. The reset is the
        default one, also if that is `none`: then there is no position until the next `seek`.
        Unless `is_assigned`, nothing is read until the coordinator assigns this topic: when it
        revokes the partition of the old one, records of the new one would come twice.
        """
        state = self._state(partition)
        before = state.topic_id
        if topic_id == state.former_topic_id:
            return None
        state.is_withheld = not is_assigned
        if before is None:
            state.topic_id = topic_id if is_assigned else None
            return None
        if before == topic_id:
            return None
        state.topic_id, state.former_topic_id = topic_id, before
        if state.fetch_state is not FetchState.INITIALIZING:
            state.request_reset(self._default_reset)
        state.high_watermark = state.last_stable_offset = state.log_start_offset = None
        return before

    def is_offset_reset_needed(self, partition: TopicPartition) -> bool:
        """Return whether the partition waits for a reset."""
        return self._state(partition).fetch_state is FetchState.AWAIT_RESET

    def requested_reset(self, partition: TopicPartition) -> OffsetReset | None:
        """Return the kind of reset that the partition waits for; None if it waits for none."""
        return self._state(partition).reset

    def partitions_needing_reset(self, now: float) -> tuple[TopicPartition, ...]:
        """Return the partitions that wait for a reset and are in no back-off at `now`."""
        return self._where(lambda state: state.awaits(FetchState.AWAIT_RESET, now))

    # Validation by leader epochs, as in KIP-320

    def maybe_validate_position(
        self, partition: TopicPartition, leader: LeaderAndEpoch, *, is_supported: bool = True
    ) -> bool:
        """Return whether the position awaits validation by the leader that the metadata name.

        `is_supported` is False if the leader is known to support no usable version of
        OffsetForLeaderEpoch; then the position is taken as valid. A partition that is not assigned
        needs no validation.

        Source: SubscriptionState.maybeValidatePositionForCurrentLeader.
        """
        state = self._assignment.get(partition)
        if state is None:
            return False
        if leader.leader is not None and not is_supported:
            state.skip_validation(leader)
            return False
        return state.maybe_validate(leader)

    def partitions_needing_validation(self, now: float) -> dict[TopicPartition, FetchPosition]:
        """Return the positions that await validation and are in no back-off at `now`."""
        return {
            partition: state.position
            for partition, state in self._assignment.items()
            if state.awaits(FetchState.AWAIT_VALIDATION, now) and state.position is not None
        }

    def awaits_validation(self, partition: TopicPartition) -> bool:
        """Return whether the position awaits validation."""
        return self._state(partition).fetch_state is FetchState.AWAIT_VALIDATION

    def complete_validation(self, partition: TopicPartition) -> None:
        """Take the position, if there is one, as valid."""
        self._state(partition).complete_validation()

    def maybe_complete_validation(
        self, partition: TopicPartition, requested: FetchPosition, *, end_offset: int, epoch: int
    ) -> LogTruncation | None:
        """Apply a leader's answer: where the log of the position's epoch ends.

        `requested` is the position that was asked about; the answer is ignored if the partition now
        has another, or awaits no validation. `end_offset` and `epoch` are -1 if the leader knows no
        such epoch. A log that ends before the position was truncated: with a default reset, reading
        goes on at the first offset that differs, or at the reset's if that is unknown. Otherwise
        return the truncation, and keep the position as it is.

        Source: SubscriptionState.maybeCompleteValidation.
        """
        state = self._assignment.get(partition)
        if (
            state is None
            or state.fetch_state is not FetchState.AWAIT_VALIDATION
            or state.position != requested
        ):
            return None
        is_known = end_offset != UNDEFINED_END_OFFSET and epoch != NO_LEADER_EPOCH
        if is_known and end_offset >= requested.offset:
            state.complete_validation()
        elif not self.has_default_reset:
            divergent = OffsetAndMetadata(end_offset, epoch) if is_known else None
            return LogTruncation(partition, requested, divergent)
        elif is_known:
            state.seek(FetchPosition(end_offset, epoch, requested.current_leader))
        else:
            self.request_offset_reset(partition)
        return None

    # Back-off of look-ups

    def set_next_allowed_retry(self, partitions: Iterable[TopicPartition], at: float) -> None:
        """Delay look-ups until `at`; partitions that are not assigned are skipped.

        Source: SubscriptionState.setNextAllowedRetry and requestFailed.
        """
        for partition in partitions:
            if (state := self._assignment.get(partition)) is not None:
                state.retry_at = at

    # Pauses

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching; records that were fetched are kept until `resume`."""
        self._state(partition).is_paused = True

    def resume(self, partition: TopicPartition) -> None:
        """Fetch again, and return what was fetched before the pause."""
        self._state(partition).is_paused = False

    @property
    def paused_partitions(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions that are paused."""
        return self._where(lambda state: state.is_paused)

    # Offsets that Fetch and ListOffsets responses name

    def update_offsets(
        self,
        partition: TopicPartition,
        *,
        high_watermark: int | None = None,
        last_stable_offset: int | None = None,
        log_start_offset: int | None = None,
    ) -> bool:
        """Store the offsets that a response names; those that are None stay as they are.

        Return False, and store nothing, if the partition is not assigned. Either end of the log
        answers a request for the end offset.

        Source: SubscriptionState.tryUpdatingHighWatermark, tryUpdatingLastStableOffset and
        tryUpdatingLogStartOffset.
        """
        state = self._assignment.get(partition)
        if state is None:
            return False
        if high_watermark is not None:
            state.high_watermark = high_watermark
            state.end_offset_requested = False
        if last_stable_offset is not None:
            state.last_stable_offset = last_stable_offset
            state.end_offset_requested = False
        if log_start_offset is not None:
            state.log_start_offset = log_start_offset
        return True

    def partition_lag(self, partition: TopicPartition, *, is_committed: bool) -> int | None:
        """Return how many offsets the position is behind the end of the log.

        With `is_committed` (isolation.level=read_committed) the end is the last stable offset,
        otherwise the high watermark. None without a position or a known end.
        """
        state = self._state(partition)
        end = state.end_offset(is_committed=is_committed)
        return None if end is None or state.position is None else end - state.position.offset

    def partition_lead(self, partition: TopicPartition) -> int | None:
        """Return how many offsets the position is ahead of the log's start.

        None without a position, where Java fails, or without a known start.
        """
        state = self._state(partition)
        if state.log_start_offset is None or state.position is None:
            return None
        return state.position.offset - state.log_start_offset

    def partition_end_offset(self, partition: TopicPartition, *, is_committed: bool) -> int | None:
        """Return the end of the log, as in `partition_lag`; None if it is not known."""
        return self._state(partition).end_offset(is_committed=is_committed)

    def request_end_offset(self, partition: TopicPartition) -> None:
        """Record that the end of the log is being looked up, for `current_lag`."""
        self._state(partition).end_offset_requested = True

    def is_end_offset_requested(self, partition: TopicPartition) -> bool:
        """Return whether the end of the log is being looked up."""
        return self._state(partition).end_offset_requested

    def clear_end_offset_request(self, partition: TopicPartition) -> bool:
        """End a look-up that failed; return whether there was one.

        Source: SubscriptionState.maybeClearPartitionEndOffsetRequested.
        """
        state = self._assignment.get(partition)
        was_requested = state is not None and state.end_offset_requested
        if state is not None:
            state.end_offset_requested = False
        return was_requested

    # The follower to fetch from (KIP-392)

    def update_preferred_read_replica(
        self, partition: TopicPartition, node_id: int, until: float
    ) -> bool:
        """Fetch from a follower until `until`; return False if the partition is not assigned.

        Naming the same follower again does not extend its lease.
        """
        state = self._assignment.get(partition)
        if state is None:
            return False
        state.set_preferred_replica(node_id, until)
        return True

    def preferred_read_replica(self, partition: TopicPartition, now: float) -> int | None:
        """Return the broker id of the follower to fetch from; None for the leader."""
        state = self._assignment.get(partition)
        return None if state is None else state.preferred_replica(now)

    def last_preferred_read_replica(self, partition: TopicPartition) -> int | None:
        """Return the follower's broker id, even if its lease has ended; None for the leader.

        Any thread may call it, without the lock.
        """
        state = self._assignment.get(partition)
        return None if state is None else state.last_preferred_replica

    def clear_preferred_read_replica(self, partition: TopicPartition) -> int | None:
        """Fetch from the leader again; return the id of the follower that was preferred."""
        state = self._assignment.get(partition)
        return None if state is None else state.clear_preferred_replica()

    # Helpers

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._assignment.get(partition)
        if state is None:
            raise IllegalStateError(f"{partition} is not assigned to this consumer")
        return state

    def _where(self, is_included: Callable[[PartitionState], bool]) -> tuple[TopicPartition, ...]:
        return tuple(
            partition for partition, state in self._assignment.items() if is_included(state)
        )

    def _set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment, grouped by topic; what stays assigned keeps its state."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for partition in dict.fromkeys(partitions):
            by_topic.setdefault(partition.topic, []).append(partition)
        self._assignment = OrderedDict(
            (partition, self._assignment.get(partition) or PartitionState())
            for partitions_of_topic in by_topic.values()
            for partition in partitions_of_topic
        )
        self.assignment_id += 1
