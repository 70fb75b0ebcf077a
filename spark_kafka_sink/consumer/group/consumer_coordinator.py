"""The requests of a member of a group of the consumer protocol (KIP-848).

`ConsumerMembership` decides what to do; here it is done.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.consumer.group.commit_rules import OffsetAction, OffsetCall, commit_of_user
from spark_kafka_sink.consumer.group.consumer_membership import ConsumerMembership
from spark_kafka_sink.consumer.group.coordinator import Coordinator
from spark_kafka_sink.consumer.group.group_member import (
    Assign,
    CommitBeforeRevocation,
    Lose,
    MemberState,
    RefreshMetadata,
    Revoke,
    SendHeartbeat,
)
from spark_kafka_sink.consumer.group.group_requests import FindCoordinator, LeaveOperation, Wait
from spark_kafka_sink.consumer.group.rebalance_listener import FirstError
from spark_kafka_sink.errors import (
    CommitFailedError,
    DecodeError,
    KafkaError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext, Waiting
    from spark_kafka_sink.consumer.group.commit_rules import Verdict
    from spark_kafka_sink.consumer.group.group_member import Callback, MemberSettings
    from spark_kafka_sink.network.metadata import MetadataSnapshot

logger = logging.getLogger(__name__)

#: The first version of ConsumerGroupHeartbeat with regular expressions.
_PATTERN_VERSION = 1
#: The states after RECONCILING in which a rebalance has succeeded, or has failed.
_RECONCILED = frozenset({MemberState.ACKNOWLEDGING, MemberState.STABLE})
_FAILED = frozenset({MemberState.FENCED, MemberState.FATAL})


class ConsumerCoordinator(Coordinator):
    """A member of a group of the consumer protocol."""

    offset_calls = (
        OffsetCall.CONSUMER_COMMIT,
        OffsetCall.CONSUMER_FETCH,
        OffsetCall.CONSUMER_FETCH_PARTITION,
    )

    uses_topic_ids = True
    member: ConsumerMembership

    def __init__(self, context: ConsumerContext, settings: MemberSettings) -> None:
        super().__init__(context, settings.group_id)
        self._settings = settings
        self.member = ConsumerMembership(settings, context.subscriptions, context.clock())
        self._names: dict[UUID, str] = {}
        self._named: MetadataSnapshot | None = None
        self._is_calling_back = False
        self._noted_state = self.member.state
        #: The last one; -1 before the first, and after leaving.
        self._last_epoch = -1

    # What is due

    def advance(self, now: float, *, may_join: bool) -> float:
        """Start what is due at `now`, and return when to call again."""
        self.disconnect_lost()
        self._note_topic_names(now)
        self._note_rebalance(now)
        self._note_epoch()
        may_call_back = may_join and not self._is_calling_back
        while True:
            step = self.member.next_step(
                now, may_call_back=may_call_back, needs_coordinator=self.waiting > 0
            )
            match step:
                case Wait(until):
                    return until
                case Revoke() | Assign() | Lose():
                    self.for_poll(step)
                    # The next callback waits for this one.
                    may_call_back = False
                case _:
                    self.context.start(self._work(step))

    def _work(
        self, step: FindCoordinator | SendHeartbeat | CommitBeforeRevocation | RefreshMetadata
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        match step:
            case FindCoordinator():
                return partial(self._find_coordinator, step)
            case SendHeartbeat():
                return partial(self._send_heartbeat, step)
            case CommitBeforeRevocation():
                # Not those that the current `poll` is about to return.
                offsets = self.context.subscriptions.all_consumed()
                return partial(self._commit_before_revocation, step, offsets)
            case RefreshMetadata():
                return partial(self._find_names, step)

    def _note_topic_names(self, now: float) -> None:
        snapshot = self.context.client.metadata.snapshot
        if snapshot is not self._named:
            self._named = snapshot
            self._names |= {topic.topic_id: name for name, topic in snapshot.topics.items()}
            self.member.topic_names_changed(self._names, now)

    def _note_rebalance(self, now: float) -> None:
        """Measure a rebalance: the time in RECONCILING (AbstractMembershipManager.transitionTo)."""
        before, state = self._noted_state, self.member.state
        self._noted_state = state
        if state is before:
            return
        if state is MemberState.RECONCILING:
            self.measures.rebalance_started(now)
        elif before is MemberState.RECONCILING:
            if state in _RECONCILED:
                self.measures.rebalance_ended(now)
            elif state in _FAILED:
                self.measures.rebalance_failed(now)
            self.measures.rebalance_given_up()

    def _note_epoch(self) -> None:
        epoch = self.member.member_epoch
        if epoch is not None:
            self._last_epoch = epoch

    def subscription_changed(self) -> None:
        """Record that the user has subscribed to something else."""
        self.member.subscription_changed()

    # The user's side

    def may_run(self, step: Callback, now: float) -> bool:
        """Return False while the first step is running, whose listener may poll."""
        del step, now
        return not self._is_calling_back

    def run(self, step: Callback) -> Waiting[None]:
        """Call the listener for a step of `for_user`, and remove it."""
        error: BaseException | None = None
        try:
            self._is_calling_back = True
            match step:
                case Revoke():
                    yield from self.tell_listener("on_partitions_revoked", step.partitions)
                case Assign():
                    yield from self.tell_listener("on_partitions_assigned", step.added, always=True)
                case Lose():
                    yield from self.tell_listener("on_partitions_lost", step.partitions)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._is_calling_back = False
            with self.context.lock:
                self.member.callback_done(step, error)
                self.step_done(step)
                self.context.tell_user()

    def leave(self, reason: str, operation: LeaveOperation, seconds: float) -> Waiting[None]:
        """Release all partitions and leave the group; the protocol has no place for a reason."""
        del reason
        context = self.context
        deadline = context.clock() + seconds
        with context.lock:
            self.member.leave(operation, runs_callbacks=not self._is_calling_back)
            context.wake()
        try:
            with FirstError() as first:
                while (step := (yield from self._next_of_leaving(deadline))) is not None:
                    yield from first.of(partial(self.run, step))
        finally:
            self._last_epoch = -1

    def _next_of_leaving(self, deadline: float) -> Waiting[Callback | None]:
        """Return the next callback before the member has left; None when it has, or in the end."""
        context = self.context
        while True:
            with context.lock:
                if not self.member.is_leaving:
                    return None
                now = context.clock()
                until = self.advance(now, may_join=True)
                if self.for_user and not self._is_calling_back:
                    step: Callback = self.for_user[0]
                    return step
                if now >= deadline or not self.member.is_leaving:
                    return None
            yield from context.wait(min(until, deadline) - now)

    def enforce_rebalance(self, reason: str) -> None:
        """Log that, as in Java, members of this protocol cannot."""
        logger.warning(
            "enforce_rebalance has no effect with group.protocol=consumer, whose coordinator "
            "decides when to rebalance; the reason was: %s",
            reason,
        )

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what fences this member's commits in a transaction (KIP-447).

        A member that was fenced keeps its last epoch, which the coordinator refuses. It would
        accept a transaction's offsets without an epoch if the group is empty.
        """
        self._note_epoch()
        return ConsumerGroupMetadata(
            self.group_id,
            self._last_epoch,
            self._settings.member_id,
            self._settings.group_instance_id,
        )

    # Commits

    def _current_member(self) -> ConsumerGroupMetadata:
        epoch = self.member.member_epoch
        if epoch is None:
            raise CommitFailedError(
                f"OffsetCommit of group {self.group_id!r}: this consumer is not a member at the "
                "moment. Call poll within max.poll.interval.ms, which joins the group again"
            )
        return self.group_metadata()._replace(generation_id=epoch)

    def fetching_member(self) -> tuple[str | None, int]:
        """Return the member id and the epoch for OffsetFetch; None and -1 without one."""
        epoch = self.member.member_epoch
        return (None, -1) if epoch is None else (self._settings.member_id, epoch)

    def apply_commit(
        self, verdict: Verdict, sent: ConsumerGroupMetadata, *, is_of_user: bool
    ) -> Verdict:
        """Rediscover the coordinator if need be; return what remains for the caller."""
        del sent
        if verdict.action is OffsetAction.FIND_COORDINATOR:
            self.member.coordinator_lost(self.context.clock())
        return commit_of_user(verdict) if is_of_user else verdict

    async def _commit_before_revocation(
        self,
        step: CommitBeforeRevocation,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        await self.context.commit_positions(offsets, step.until)
        with self.context.lock:
            self.member.commit_done(step)
            self.context.tell_user()

    # Requests

    async def _send_heartbeat(self, step: SendHeartbeat) -> None:
        context = self.context
        request = step.request
        response: ConsumerGroupHeartbeatResponse | None
        try:
            response = await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, self._checked(step))
            _check_assigned(response)
        except UnsupportedVersionError as error:
            response = ConsumerGroupHeartbeatResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message=str(error),
                member_epoch=request.member_epoch,
                heartbeat_interval_ms=0,
            )
        except KafkaError as error:
            response = None
            with context.lock:
                context.fail(error)
        with context.lock:
            if response is None:
                self.member.heartbeat_failed(step, context.clock())
            else:
                self.member.heartbeat_answered(step, response, context.clock())
                self._note_epoch()
            context.tell_user()

    @staticmethod
    def _checked(step: SendHeartbeat) -> Callable[[int], Any]:
        def build(version: int) -> Any:
            if step.request.subscribed_topic_regex and version < _PATTERN_VERSION:
                raise UnsupportedVersionError(
                    "a pattern that the broker evaluates requires Apache Kafka 4.0 or later"
                )
            return step.request

        return build

    async def _find_names(self, step: RefreshMetadata) -> None:
        """Request the names of assigned topics, which a pattern may have found."""
        context = self.context
        deadline = context.clock() + context.config.request_timeout_ms / 1000
        names: dict[UUID, str] = {}
        try:
            names = await context.calls.topic_names_by_id(step.topic_ids, deadline)
        except KafkaError as error:
            if not error.retriable:
                with context.lock:
                    context.fail(error)
        with context.lock:
            for name in names.values():
                context.client.metadata.add_topic(name, context.clock())
            self._names |= names
            self.member.topic_names_changed(self._names, context.clock())
            context.tell_user()


def _check_assigned(response: ConsumerGroupHeartbeatResponse | None) -> None:
    """Raise DecodeError if the coordinator has assigned a partition that cannot exist."""
    if response is None or response.assignment is None:
        return
    for topic in response.assignment.topic_partitions:
        for number in topic.partitions:
            if number < 0:
                raise DecodeError(
                    f"the coordinator has assigned partition {number} of the topic with the id "
                    f"{topic.topic_id}, which cannot exist: check its assignor"
                )
