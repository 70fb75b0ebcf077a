"""The assigned partitions in the order of fetching, with what Fetch responses say of them.

This is the half of Kafka's SubscriptionState that does not depend on how the partitions came to be
assigned; `subscription_state` is the other half, and states the rules for both.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.subscription.partition_state import PartitionState
from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition
    from spark_kafka_sink.model import TopicPartition


class AssignedPartitions:
    """The states of the assigned partitions."""

    def __init__(self) -> None:
        self._assignment: OrderedDict[TopicPartition, PartitionState] = OrderedDict()
        self._assignment_id = 0
        #: The partitions whose records were taken since the user's last call.
        self._taken: set[TopicPartition] = set()

    @property
    def assignment_id(self) -> int:
        """A number that grows with every change of the assignment."""
        return self._assignment_id

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

    # Pauses

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching; records that were fetched are kept until `resume`."""
        self._state(partition).is_paused = True

    def resume(self, partition: TopicPartition) -> None:
        """Fetch again, and return what was fetched before the pause."""
        self._state(partition).is_paused = False

    def is_paused(self, partition: TopicPartition) -> bool:
        """Return whether the partition is assigned and paused."""
        state = self._assignment.get(partition)
        return state is not None and state.is_paused

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

    # For SubscriptionState

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
        self._assignment_id += 1
