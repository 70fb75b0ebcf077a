"""Finding the positions of assigned partitions: committed offsets, resets, validation.

This is the IO around `SubscriptionState`, as in Java's OffsetFetcher and ConsumerCoordinator
(refreshCommittedOffsetsIfNeeded). Answers are applied only to partitions that still wait for them.
Look-ups of a partition begin only after the user has called `poll` or `position`: until then a
`seek` may make them unnecessary.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.offsets.offset_requests import (
    EpochAnswers,
    by_leader,
    complete_validation,
    epoch_request,
    list_offsets_request,
    positions_by_leader,
    read_epochs,
    read_offsets,
    truncation_error,
    unauthorized_error,
)
from spark_kafka_sink.consumer.subscription.partition_state import (
    NONE,
    FetchPosition,
    LeaderAndEpoch,
)
from spark_kafka_sink.errors import (
    DecodeError,
    KafkaTimeoutError,
    NetworkError,
    NoOffsetForPartitionError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import UNKNOWN_OFFSET, Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.protocol.messages.list_offsets import LATEST_TIMESTAMP
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext
    from spark_kafka_sink.consumer.group.offset_commits import OffsetCommits
    from spark_kafka_sink.consumer.offsets.offset_requests import Questions
    from spark_kafka_sink.consumer.subscription.partition_state import OffsetReset
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT

logger = logging.getLogger(__name__)


class PositionLookups:
    """The look-ups of one consumer.

    Its methods are called under the lock of the context, except for the coroutines, which take it.
    """

    def __init__(
        self,
        context: ConsumerContext,
        commits: OffsetCommits | None,
        *,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        """Look up committed offsets by `commits`; None without a group."""
        self._context = context
        self._commits = commits
        self._wall_clock_ms = wall_clock_ms
        #: The assignment for which committed offsets are being looked up; None while none are.
        self._fetching_for: int | None = None
        self._validated: MetadataSnapshot | None = None
        #: The metadata and the assignment whose topic ids were noted.
        self._noted_in: MetadataSnapshot | None = None
        self._noted: tuple[int, frozenset[UUID]] = 0, frozenset()

    def advance(self, now: float) -> float:
        """Start what is due at `now`, and return when to call again."""
        subscriptions = self._context.subscriptions
        if self._context.may_look_up:
            self._find_initial_positions()
        self._note_topic_ids()
        resets = subscriptions.partitions_needing_reset(now)
        lost = [
            partition for partition in resets if subscriptions.requested_reset(partition) == NONE
        ]
        if lost and self._context.may_look_up:
            self._fail(NoOffsetForPartitionError(lost))
        elif resets and self._context.may_look_up:
            self._delay(resets, now)
            for leader, partitions in self._by_leader(resets).items():
                self._context.start(
                    partial(self._reset, leader, self._requested_resets(partitions))
                )
        self._validate_positions(now)
        if subscriptions.has_all_fetch_positions:
            return NEVER
        return now + self._context.config.retry_backoff_ms / 1000

    def _delay(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Delay further questions about partitions: again only after a failure or a timeout."""
        limit = self._context.config.request_timeout_ms / 1000
        self._context.subscriptions.set_next_allowed_retry(partitions, now + limit)

    def _note_topic_ids(self) -> None:
        """Reset the positions in topics that were deleted and created again.

        Java goes on at the old position, and skips what the new topic has before it.
        """
        snapshot = self._context.client.metadata.snapshot
        subscriptions = self._context.subscriptions
        noted = subscriptions.assignment_id, subscriptions.subscription.assigned_topic_ids
        if snapshot is self._noted_in and noted == self._noted:
            return
        self._noted_in, self._noted = snapshot, noted
        for topic_partition in subscriptions.assigned_partitions:
            topic_id = snapshot.topic_id(topic_partition.topic)
            if topic_id == ZERO_UUID:
                continue
            is_assigned = self._commits is None or self._commits.is_assigned(topic_id)
            if not is_assigned:
                # They may be older than the assignment.
                self._context.client.metadata.request_update()
            before = subscriptions.note_topic_id(topic_partition, topic_id, is_assigned=is_assigned)
            if before is not None:
                logger.warning(
                    "topic %r was deleted and created again: its id was %s, and is %s now. "
                    "Partition %d is read from where auto.offset.reset says",
                    topic_partition.topic,
                    before,
                    topic_id,
                    topic_partition.partition,
                )
                self._context.note_change()

    # Committed offsets

    def _find_initial_positions(self) -> None:
        subscriptions = self._context.subscriptions
        partitions = subscriptions.initializing_partitions
        if not partitions:
            return
        if self._commits is None:
            self._reset_rest(partitions)
        elif self._fetching_for != subscriptions.assignment_id:
            self._fetching_for = subscriptions.assignment_id
            self._context.start(
                partial(
                    self._fetch_committed, self._commits, partitions, subscriptions.assignment_id
                )
            )

    async def _fetch_committed(
        self, commits: OffsetCommits, partitions: tuple[TopicPartition, ...], assignment_id: int
    ) -> None:
        context = self._context
        limit = context.config.default_api_timeout_ms / 1000
        try:
            offsets = await commits.fetch(partitions, context.clock() + limit)
        except Exception as error:  # noqa: BLE001  the user's next call raises it
            with context.lock:
                if self._fetching_for == assignment_id:
                    self._fetching_for = None
                    # In time there may be an answer; anything else is final.
                    if not isinstance(error, KafkaTimeoutError):
                        self._fail(error)
                    context.tell_user()
            return
        with context.lock:
            subscriptions = context.subscriptions
            if self._fetching_for != assignment_id:
                return
            self._fetching_for = None
            if subscriptions.assignment_id != assignment_id:
                # Others were assigned meanwhile, for which there is another look-up.
                context.wake()
                return
            waiting = frozenset(subscriptions.initializing_partitions)
            for partition, committed in offsets.items():
                if partition in waiting and committed is not None:
                    subscriptions.seek_unvalidated(
                        partition,
                        FetchPosition(
                            committed.offset, committed.leader_epoch, self._leader(partition)
                        ),
                    )
            self._reset_rest(tuple(offsets))
            context.tell_user()

    def _reset_rest(self, partitions: tuple[TopicPartition, ...]) -> None:
        lost = self._context.subscriptions.reset_initializing_positions(partitions.__contains__)
        if lost:
            self._fail(NoOffsetForPartitionError(lost))

    # Resets

    def _requested_resets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetReset]:
        subscriptions = self._context.subscriptions
        resets = {partition: subscriptions.requested_reset(partition) for partition in partitions}
        return {partition: reset for partition, reset in resets.items() if reset is not None}

    def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[Node | None, list[TopicPartition]]:
        """Group partitions, so that a leader that does not answer delays no others."""
        groups: dict[Node | None, list[TopicPartition]] = {}
        for partition in partitions:
            groups.setdefault(self._leader(partition).leader, []).append(partition)
        return groups

    async def _reset(
        self, leader: Node | None, resets: Mapping[TopicPartition, OffsetReset]
    ) -> None:
        now_ms = self._wall_clock_ms()
        times = {partition: reset.timestamp(now_ms) for partition, reset in resets.items()}
        offsets = await self._list_offsets(leader, times)
        late = [partition for partition, offset in offsets.items() if offset == UNKNOWN_OFFSET]
        if late:
            # No record is so late. What is written between both questions must not be missed.
            ends = await self._list_offsets(leader, dict.fromkeys(late, LATEST_TIMESTAMP))
            later_offsets = await self._list_offsets(
                leader, {partition: times[partition] for partition in ends}
            )
            for partition in late:
                offset = later_offsets.get(partition, UNKNOWN_OFFSET)
                offsets[partition] = (
                    ends.get(partition, UNKNOWN_OFFSET) if offset == UNKNOWN_OFFSET else offset
                )
        context = self._context
        with context.lock:
            for partition, offset in offsets.items():
                if offset != UNKNOWN_OFFSET:
                    position = FetchPosition(offset, current_leader=self._leader(partition))
                    context.subscriptions.maybe_seek_unvalidated(
                        partition, position, resets[partition]
                    )
            context.tell_user()

    async def _list_offsets(
        self, leader: Node | None, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the offsets of the partitions for which a leader has an answer.

        The others, such as those that have another leader by now, are asked for again later, or
        their error is raised by the user's next call.
        """
        groups, _ = by_leader(times, self._context.client.metadata.snapshot)
        offsets: dict[TopicPartition, int] = {}
        if leader is not None and leader in groups:
            offsets = await self._offsets_of(leader, groups[leader], times)
        self._retry([partition for partition in times if partition not in offsets])
        return offsets

    async def _offsets_of(
        self, leader: Node, questions: Questions, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        context = self._context
        request = list_offsets_request(
            questions,
            is_committed=context.config.is_read_committed,
            timeout_ms=context.config.request_timeout_ms,
        )
        response = await self._ask(leader, request)
        if response is None:
            return {}
        answers = read_offsets(response, leader, times)
        for error in answers.failed.values():
            if not error.retriable:
                with context.lock:
                    self._fail(error)
        offsets = answers.found
        return {
            partition: UNKNOWN_OFFSET if offset is None else offset
            for partition, offset in offsets.items()
        }

    def _retry(self, partitions: list[TopicPartition]) -> None:
        """Schedule the question again after a back-off, with new metadata."""
        context = self._context
        if partitions:
            with context.lock:
                context.client.metadata.request_update()
                context.subscriptions.set_next_allowed_retry(
                    partitions, context.clock() + context.config.retry_backoff_ms / 1000
                )

    # Validation by leader epochs, as in KIP-320

    def _validate_positions(self, now: float) -> None:
        context = self._context
        subscriptions = context.subscriptions
        snapshot = context.client.metadata.snapshot
        if snapshot is not self._validated:
            self._validated = snapshot
            for partition in subscriptions.assigned_partitions:
                subscriptions.maybe_validate_position(partition, self._leader(partition))
        due = subscriptions.partitions_needing_validation(now)
        if due:
            self._delay(due, now)
            for node, positions in positions_by_leader(due).items():
                context.start(partial(self._validate, node, positions))

    async def _validate(self, node: Node, positions: dict[TopicPartition, FetchPosition]) -> None:
        context = self._context
        try:
            response = await self._ask(node, epoch_request(positions))
        except UnsupportedVersionError:
            # An old broker cannot tell: the position is taken as it is, as in Java.
            with context.lock:
                for partition in filter(context.subscriptions.is_assigned, positions):
                    context.subscriptions.complete_validation(partition)
                context.tell_user()
            return
        answers = (
            EpochAnswers({}, tuple(positions), ())
            if response is None
            else read_epochs(response, positions)
        )
        with context.lock:
            retry_at = context.clock() + context.config.retry_backoff_ms / 1000
            truncated = complete_validation(context.subscriptions, positions, answers, retry_at)
            if answers.retried:
                context.client.metadata.request_update()
            if truncated:
                context.fail(truncation_error(truncated))
            if answers.unauthorized:
                context.fail(unauthorized_error(answers.unauthorized))
            context.tell_user()

    # Helpers

    def _fail(self, error: Exception) -> None:
        """Raise an error from the next `poll`, and look nothing up until then."""
        self._context.may_look_up = False
        self._context.fail(error)

    def _leader(self, partition: TopicPartition) -> LeaderAndEpoch:
        return LeaderAndEpoch.in_metadata(self._context.client.metadata.snapshot, partition)

    async def _ask(self, node: Node, request: ApiRequest[ResponseT]) -> ResponseT | None:
        """Return the answer; None if there is none."""
        context = self._context
        limit = context.config.request_timeout_ms / 1000
        try:
            return await context.requests.ask(node, request, context.clock() + limit)
        except (NetworkError, DecodeError):
            return None
