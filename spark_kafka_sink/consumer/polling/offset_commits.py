"""Committing offsets of a classic group and fetching them (ConsumerCoordinator, its commits).

The coroutines run on the network thread, each until it has a final answer or its time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.membership.group_values import NO_GENERATION
from spark_kafka_sink.consumer.requests.commit_rules import (
    OffsetAction,
    OffsetCall,
    Verdict,
    commit_in_generation,
    judge_group,
    judge_partitions,
    not_in_generation,
    offset_error,
)
from spark_kafka_sink.consumer.requests.committed_offsets import (
    commit_request,
    fetch_request,
    highest_fetch_version,
    read_commit,
    read_fetched,
)
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.membership.group_values import Generation
    from spark_kafka_sink.consumer.polling.classic_coordinator import ClassicCoordinator
    from spark_kafka_sink.consumer.polling.consumer_context import ConsumerContext

_A = OffsetAction


class OffsetCommits:
    """The commits and look-ups of one consumer."""

    def __init__(self, context: ConsumerContext, coordinator: ClassicCoordinator) -> None:
        """Ask the coordinator of the group."""
        self._context = context
        self._coordinator = coordinator
        config = context.config
        self._group_id = config.group_id or ""
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )

    # Commits

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
        *,
        retries: bool = True,
    ) -> None:
        """Commit offsets; without `retries`, an error that would be retried is raised.

        Raises CommitFailedError, RebalanceInProgressError, BrokerError, KafkaTimeoutError.
        """
        attempts = 0
        while offsets:
            await self._find_coordinator(deadline)
            generation = self._generation()
            error = await self._commit_once(offsets, generation)
            if error is None:
                return
            if not retries:
                raise error
            await self._back_off(attempts, deadline, "OffsetCommit", error)
            attempts += 1

    def _generation(self) -> Generation:
        """Return the generation to commit in; that of no member for assigned partitions."""
        with self._context.lock:
            if not self._context.subscriptions.subscription.is_auto_assigned:
                return NO_GENERATION
            membership = self._coordinator.membership
            generation = membership.stable_generation
            if generation is None:
                raise not_in_generation(self._group_id, membership.state)
            return generation

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> KafkaError | None:
        """Send one OffsetCommit; return the error after which to retry, raise any other."""
        is_member = generation != NO_GENERATION
        instance = self._context.config.group_instance_id if is_member else None
        member = ConsumerGroupMetadata(
            self._group_id, generation.generation_id, generation.member_id, instance
        )
        request, max_version = commit_request(member, offsets, self._topic_ids(offsets))
        response = await self._coordinator.ask(
            ApiKey.OFFSET_COMMIT, lambda _: request, max_version=max_version
        )
        if response is None:
            return NetworkError(f"the coordinator of group {self._group_id!r} has not answered")
        names = {topic_id: topic for topic, topic_id in self._topic_ids(offsets).items()}
        verdict = judge_partitions(OffsetCall.CLASSIC_COMMIT, read_commit(response, names))
        if verdict.action is _A.DONE:
            return None
        with self._context.lock:
            membership = self._coordinator.membership
            verdict = commit_in_generation(
                verdict, generation, membership.generation, membership.state
            )
            self._apply(verdict, generation)
        error = offset_error(OffsetCall.CLASSIC_COMMIT, verdict, self._group_id)
        if not verdict.is_retried:
            raise error
        return error

    def _apply(self, verdict: Verdict, sent: Generation) -> None:
        """Let the membership know; called under the lock."""
        membership = self._coordinator.membership
        match verdict.action:
            case _A.FENCED:
                membership.commit_fenced(verdict.code)
            case _A.REJOIN_AS_NEW | _A.REJOIN_AS_MEMBER if sent != NO_GENERATION:
                keeps = verdict.action is _A.REJOIN_AS_MEMBER
                membership.commit_refused(sent, verdict.code, keeps_member_id=keeps)
            case _A.REJOIN:
                membership.request_rejoin("offsets were refused: the group is already rebalancing")
            case _A.FIND_COORDINATOR:
                membership.coordinator_lost(self._context.clock())
            case _:
                return
        self._context.tell_user()

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
            ids = self._topic_ids(partitions)
            response = await self._coordinator.ask(
                ApiKey.OFFSET_FETCH,
                lambda version: fetch_request(
                    self._group_id,
                    partitions,
                    version,
                    topic_ids=ids,  # noqa: B023  used before the next round
                ),
                max_version=highest_fetch_version(partitions, ids),
            )
            if response is None:
                error: KafkaError = NetworkError(
                    f"the coordinator of group {self._group_id!r} has not answered"
                )
            else:
                found = read_fetched(response, {topic_id: name for name, topic_id in ids.items()})
                call = OffsetCall.CLASSIC_FETCH
                verdict = judge_group(call, found.error_code)
                if verdict.action is _A.DONE:
                    call = OffsetCall.CLASSIC_FETCH_PARTITION
                    verdict = judge_partitions(call, found.errors)
                if verdict.action is _A.DONE:
                    return {each: found.offsets.get(each) for each in partitions}
                with self._context.lock:
                    self._apply(verdict, NO_GENERATION)
                error = offset_error(call, verdict, self._group_id)
                if not verdict.is_retried:
                    raise error
            await self._back_off(attempts, deadline, "OffsetFetch", error)
            attempts += 1

    # Helpers

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID]:
        snapshot = self._context.client.metadata.snapshot
        return {each.topic: snapshot.topic_id(each.topic) for each in partitions}

    async def _find_coordinator(self, deadline: float) -> None:
        """Wait until the coordinator is known; raise the group's error or KafkaTimeoutError."""
        context, membership = self._context, self._coordinator.membership
        with context.lock:
            self._coordinator.waiting += 1
            context.wake()
        try:
            while membership.coordinator is None:
                with context.lock:
                    membership.raise_failure()
                if not await context.wait_for_change(deadline):
                    last = context.client.last_error
                    raise KafkaTimeoutError(
                        f"the coordinator of group {self._group_id!r} was not found in time"
                        + (f"; last cause: {last}" if last is not None else "")
                    )
        finally:
            with context.lock:
                self._coordinator.waiting -= 1

    async def _back_off(self, attempts: int, deadline: float, what: str, cause: KafkaError) -> None:
        pause = self._backoff.delay(attempts)
        if self._context.clock() + pause >= deadline:
            raise KafkaTimeoutError(
                f"{what} of group {self._group_id!r}: no final answer in time; last cause: {cause}"
            ) from cause
        await self._context.sleep(pause)
