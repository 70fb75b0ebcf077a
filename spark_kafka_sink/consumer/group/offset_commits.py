"""Committing the offsets of a group and fetching them (Kafka's CommitRequestManager).

The coroutines run on the network thread, each until it has a final answer or its time is over.

Topics go by their ids if all of them are known, and by their names otherwise, as in Java's
CommitRequestManager: the version that names topics is then the highest that can be used.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.consumer.group.commit_rules import (
    OffsetAction,
    judge_group,
    judge_partitions,
    offset_error,
)
from spark_kafka_sink.consumer.offsets.offset_requests import missing_answer, only_requested
from spark_kafka_sink.errors import CommitFailedError, KafkaError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.group_offsets import (
    LAST_COMMIT_WITH_NAMES,
    LAST_FETCH_WITH_NAMES,
    commit_codes,
    commit_topics,
    fetched_group,
    offset_fetch_request,
)
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext
    from spark_kafka_sink.consumer.group.coordinator import Coordinator
    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchResponse

logger = logging.getLogger(__name__)

#: The errors of topics that were deleted, for which no automatic commit waits.
DELETED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class FetchedOffsets(NamedTuple):
    """The offsets of one group in an OffsetFetch response."""

    #: The error of the whole group, or 0.
    error_code: int
    #: None where the group has no offset.
    offsets: dict[TopicPartition, OffsetAndMetadata | None]
    #: The error codes of the other partitions.
    errors: dict[TopicPartition, int]


def commit_request(
    member: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: Mapping[str, UUID] | None = None,
) -> tuple[OffsetCommitRequest, int | None]:
    """Build OffsetCommit; return it with the highest version to send it in, None for any.

    `member` has the generation of a classic group, or the member epoch of a consumer group
    (KIP-848), as `generation_id`. The defaults of ConsumerGroupMetadata commit from outside the
    group, as a consumer with assigned partitions does. Raises ValueError for a negative offset.
    Encoding raises UnsupportedVersionError for a group.instance.id that the version lacks.
    """
    for partition, committed in offsets.items():
        if committed.offset < 0:
            raise ValueError(f"{partition}: an offset of {committed.offset} cannot be committed")
    topic_ids = topic_ids or {}
    request = OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=commit_topics(offsets, topic_ids),
    )
    return request, None if _have_ids(offsets, topic_ids) else LAST_COMMIT_WITH_NAMES


def highest_fetch_version(
    partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
) -> int | None:
    """Return the highest OffsetFetch version that can request the partitions; None for any."""
    return None if _have_ids(partitions, topic_ids or {}) else LAST_FETCH_WITH_NAMES


def read_fetched(
    response: OffsetFetchResponse, topic_names: Mapping[UUID, str] | None = None
) -> FetchedOffsets:
    """Return the offsets of the group; a negative one means that there is none.

    `topic_names` are the names of the topics that were sent by their ids; other ids are left out.
    Raises DecodeError for a response about several groups.
    """
    error_code, fetched = fetched_group(response, topic_names or {})
    return FetchedOffsets(
        error_code,
        {
            partition: committed if committed.offset >= 0 else None
            for partition, (code, committed) in fetched.items()
            if not code
        },
        {partition: code for partition, (code, _) in fetched.items() if code},
    )


def _have_ids(partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]) -> bool:
    return all(topic_ids.get(partition.topic, ZERO_UUID) != ZERO_UUID for partition in partitions)


class PreparedCommit(NamedTuple):
    """Offsets, and the membership for which they were taken."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    #: None if there are no offsets.
    member: ConsumerGroupMetadata | None
    #: The partitions which the consumer must not lose before the commit.
    owned: frozenset[TopicPartition]
    is_of_user: bool


class OffsetCommits:
    """The commits and look-ups of one consumer."""

    def __init__(self, context: ConsumerContext, coordinator: Coordinator) -> None:
        self._context = context
        self._coordinator = coordinator
        config = context.config
        self._group_id = config.group_id or ""
        #: Held by the commit that is to be sent next. It is fair: they are sent in their order.
        self._turns = asyncio.Lock()
        #: The last commit that was sent, by partition.
        self._last_sent: dict[TopicPartition, PreparedCommit] = {}
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )

    # Commits

    def prepare(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, is_of_user: bool = True
    ) -> PreparedCommit:
        """Return a commit of `offsets` by the membership that this consumer has now.

        It is to be called when the offsets are taken. `is_of_user` is False for an automatic
        commit. Raises CommitFailedError and RebalanceInProgressError outside of a generation.
        """
        if not offsets:
            return PreparedCommit({}, None, frozenset(), is_of_user)
        is_assigned = self._context.subscriptions.is_assigned
        with self._context.lock:
            member = self._coordinator.committing_member()
            owned = frozenset(offsets)
            if is_of_user:
                # The user may commit partitions of others, and of an assignment by hand any.
                owned = frozenset(filter(is_assigned, offsets if member.member_id else ()))
        return PreparedCommit(offsets, member, owned, is_of_user)

    async def commit(
        self, prepared: PreparedCommit, deadline: float, *, retries: bool = True
    ) -> None:
        """Commit offsets; without `retries`, an error that would be retried is raised.

        An automatic commit, such as that before partitions are revoked, does not wait for topics
        that were deleted. No commit is retried after a later one of its partitions, which it would
        take back: then its error is raised.

        Raises CommitFailedError, RebalanceInProgressError, BrokerError, KafkaTimeoutError.
        """
        attempts = 0
        error: KafkaError | None = None
        while prepared.offsets:
            async with self._turn(deadline) as end_turn:
                if error is not None and self._is_overtaken(prepared):
                    raise error
                await self._find_coordinator(deadline)
                with self._context.lock:
                    member = self._coordinator.committing_member()
                    self._check_still_current(prepared, member)
                self._last_sent.update(dict.fromkeys(prepared.offsets, prepared))
                async with self._ending_by(deadline, "OffsetCommit"):
                    error = await self._commit_once(
                        prepared.offsets,
                        member,
                        is_of_user=prepared.is_of_user,
                        on_connected=end_turn,
                    )
            if error is None:
                return
            if not retries:
                raise error
            await self._back_off(attempts, deadline, "OffsetCommit", error)
            attempts += 1

    def _is_overtaken(self, sent: PreparedCommit) -> bool:
        """Return whether another commit of one of the partitions was sent after this one."""
        return any(self._last_sent[partition] is not sent for partition in sent.offsets)

    @asynccontextmanager
    async def _turn(self, deadline: float) -> AsyncIterator[Callable[[], None]]:
        """Wait until all earlier commits are sent; yield what lets the next one be sent.

        Otherwise one that waits for the coordinator, or for a connection, might be overtaken by the
        next one, and then take it back. Raises KafkaTimeoutError.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError:
            raise KafkaTimeoutError(
                f"OffsetCommit of group {self._group_id!r}: an earlier commit still waits for the "
                "coordinator"
            ) from None
        with ExitStack() as turn:
            turn.callback(self._turns.release)
            yield turn.close

    @asynccontextmanager
    async def _ending_by(self, deadline: float, what: str) -> AsyncIterator[None]:
        """End a request by the deadline, which may be earlier than its own timeout.

        Raises KafkaTimeoutError. The coordinator is not lost then: it may only be slow.
        """
        try:
            async with asyncio.timeout_at(deadline) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            node = self._coordinator.member.coordinator
            where = "" if node is None else f" {node.host}:{node.port}"
            raise KafkaTimeoutError(
                f"{what} of group {self._group_id!r}: the coordinator{where} has not answered in "
                "time. Check that this broker runs, or give the call a longer timeout"
            ) from None

    async def commit_last(self, prepared: PreparedCommit) -> None:
        """Commit once as a member that is about to leave; a failure is only logged."""
        error: KafkaError | None = None
        try:
            if prepared.member is not None:
                error = await self._commit_once(prepared.offsets, prepared.member, is_of_user=False)
        except KafkaError as raised:
            error = raised
        if error is not None:
            logger.warning("automatic commit while the consumer is closed: %s", error)

    def _check_still_current(self, prepared: PreparedCommit, member: ConsumerGroupMetadata) -> None:
        """Raise CommitFailedError if the commit might take back what others have committed since.

        That is so if the member has left, which commits from outside as soon as the group is empty,
        if it is in another generation of a classic group, and if it has lost the partitions.
        """
        first = prepared.member
        is_current = first is not None and (
            member.member_id == first.member_id
            and (self._coordinator.uses_topic_ids or member == first)
        )
        if not is_current or not all(map(self._context.subscriptions.is_assigned, prepared.owned)):
            raise CommitFailedError(
                f"OffsetCommit of group {self._group_id!r}: this consumer has left the group, or "
                "has joined it again, before the offsets were committed"
            )

    async def _commit_once(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: ConsumerGroupMetadata,
        *,
        is_of_user: bool,
        on_connected: Callable[[], None] = lambda: None,
    ) -> KafkaError | None:
        """Send one OffsetCommit; return the error after which to retry, raise any other."""
        ids = self._topic_ids(offsets)
        request, max_version = commit_request(member, offsets, ids)
        response = await self._coordinator.ask(
            ApiKey.OFFSET_COMMIT,
            lambda _: request,
            max_version=max_version,
            on_connected=on_connected,
        )
        if response is None:
            return self._unanswered()
        names = {topic_id: topic for topic, topic_id in ids.items()}
        call = self._coordinator.offset_calls[0]
        codes = dict(only_requested(commit_codes(response, names), offsets))
        verdict = judge_partitions(call, codes)
        if verdict.action is OffsetAction.DONE:
            return missing_answer(self._group_id, codes, offsets)
        with self._context.lock:
            verdict = self._coordinator.apply_commit(verdict, member, is_of_user=is_of_user)
            self._context.tell_user()
        error = offset_error(call, verdict, self._group_id)
        if not verdict.is_retried or (verdict.code in DELETED and not is_of_user):
            raise error
        return error

    # Look-ups

    async def fetch(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets; None where there is none.

        An offset that an open transaction may change is waited for. Raises BrokerError and
        KafkaTimeoutError.
        """
        attempts = 0
        while True:
            await self._find_coordinator(deadline)
            async with self._ending_by(deadline, "OffsetFetch"):
                answer = await self._fetch_once(partitions)
            if not isinstance(answer, KafkaError):
                return answer
            error = answer
            await self._back_off(attempts, deadline, "OffsetFetch", error)
            attempts += 1

    async def _fetch_once(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None] | KafkaError:
        """Send one OffsetFetch; return an error after which to retry, raise any other."""
        ids = self._topic_ids(partitions)
        with self._context.lock:
            member_id, epoch = self._coordinator.fetching_member()
        response = await self._coordinator.ask(
            ApiKey.OFFSET_FETCH,
            # An offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT (KIP-447);
            # brokers before 2.5 return such offsets anyway.
            lambda version: offset_fetch_request(
                self._group_id,
                partitions,
                version,
                require_stable=True,
                member_id=member_id,
                member_epoch=epoch,
                topic_ids=ids,
            ),
            max_version=highest_fetch_version(partitions, ids),
            is_apart=self._coordinator.awaits_others,
        )
        if response is None:
            return self._unanswered()
        fetched = read_fetched(response, {topic_id: name for name, topic_id in ids.items()})
        _, call, of_partition = self._coordinator.offset_calls
        verdict = judge_group(call, fetched.error_code)
        if verdict.action is OffsetAction.DONE:
            call = of_partition
            errors = dict(only_requested(fetched.errors.items(), frozenset(partitions)))
            verdict = judge_partitions(call, errors)
        if verdict.action is OffsetAction.DONE:
            return {partition: fetched.offsets.get(partition) for partition in partitions}
        if verdict.action is OffsetAction.FIND_COORDINATOR:
            with self._context.lock:
                self._coordinator.member.coordinator_lost(self._context.clock())
                self._context.tell_user()
        error = offset_error(call, verdict, self._group_id)
        if not verdict.is_retried:
            raise error
        return error

    # Helpers

    def is_assigned(self, topic_id: UUID) -> bool:
        """Return whether the coordinator has assigned the topic, unless it assigns names only."""
        subscription = self._context.subscriptions.subscription
        return (
            not (self._coordinator.uses_topic_ids and subscription.is_auto_assigned)
            or topic_id in subscription.assigned_topic_ids
        )

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID]:
        """Return the ids of topics; a classic group names them, as Java's does."""
        if not self._coordinator.uses_topic_ids:
            return {}
        snapshot = self._context.client.metadata.snapshot
        return {partition.topic: snapshot.topic_id(partition.topic) for partition in partitions}

    async def _find_coordinator(self, deadline: float) -> None:
        """Wait until the coordinator is known; raise the group's error or KafkaTimeoutError."""
        context, membership = self._context, self._coordinator.member
        with context.lock:
            self._coordinator.waiting += 1
            context.wake()
        try:
            while membership.coordinator is None:
                with context.lock:
                    membership.raise_failure()
                if not await context.wait_for_change(deadline):
                    last = context.client.cause()
                    raise KafkaTimeoutError(
                        f"the coordinator of group {self._group_id!r} was not found in time"
                        + (f"; last cause: {last}" if last is not None else "")
                    )
        finally:
            with context.lock:
                self._coordinator.waiting -= 1

    def _unanswered(self) -> NetworkError:
        last = self._context.client.cause()
        reason = "" if last is None else f" ({last})"
        return NetworkError(f"the coordinator of group {self._group_id!r} has not answered{reason}")

    async def _back_off(self, attempts: int, deadline: float, what: str, cause: KafkaError) -> None:
        if getattr(cause, "code", None) in DELETED:
            # The topic may have been created again.
            with self._context.lock:
                self._context.client.metadata.request_update()
                self._context.wake()
        pause = self._backoff.delay(attempts)
        if self._context.clock() + pause >= deadline:
            raise KafkaTimeoutError(
                f"{what} of group {self._group_id!r}: no final answer in time; last cause: {cause}"
            ) from cause
        await self._context.sleep(pause)
