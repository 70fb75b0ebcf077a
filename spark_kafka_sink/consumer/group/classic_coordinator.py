"""The requests and rebalances of a member of a classic group (the IO of AbstractCoordinator).

`ClassicMembership` decides what to do; here it is done: the requests on the network side, the
revocations and assignments on the user's.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.consumer.assignors.assignment_strategies import (
    check_cooperative_assignment,
    rebalance_protocol,
)
from spark_kafka_sink.consumer.assignors.cooperative_sticky_assignor import (
    CooperativeStickyAssignor,
)
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    Cluster,
    GroupAssignment,
    GroupSubscription,
    RebalanceProtocol,
    Subscription,
    deserialize_assignment,
    deserialize_subscription,
    serialize_assignment,
    serialize_subscription,
)
from spark_kafka_sink.consumer.group.classic_membership import ClassicMembership, ClassicMemberState
from spark_kafka_sink.consumer.group.commit_rules import OffsetCall, apply_commit, not_in_generation
from spark_kafka_sink.consumer.group.coordinator import Coordinator
from spark_kafka_sink.consumer.group.group_requests import (
    NO_GENERATION,
    CompleteJoin,
    FindCoordinator,
    Generation,
    GroupSettings,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveOperation,
    PerformAssignment,
    PrepareJoin,
    SyncGroup,
    Wait,
    heartbeat_request,
    join_request,
    leave_request,
    read_leave,
    sync_request,
)
from spark_kafka_sink.consumer.group.rebalance_listener import FirstError
from spark_kafka_sink.errors import DecodeError, KafkaError
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, error_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from spark_kafka_sink.consumer.assignors.partition_assignor import ConsumerPartitionAssignor
    from spark_kafka_sink.consumer.consumer_context import ConsumerContext, Waiting
    from spark_kafka_sink.consumer.group.commit_rules import Verdict
    from spark_kafka_sink.network.metadata import MetadataSnapshot

logger = logging.getLogger(__name__)


class CommitBeforeJoin:
    """The automatic commits before a member of a classic group joins again, each for one step.

    A commit goes on while the user returns from `poll` and calls it again, so that `poll`
    keeps to its timeout (Kafka's ConsumerCoordinator.onJoinPrepare). `is_done` is called under the
    lock.
    """

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._step: PrepareJoin | None = None
        self._is_done = False

    def is_done(self, step: PrepareJoin, now: float, *, is_eager: bool) -> bool:
        """Begin the commit of all positions, unless it has begun; return whether it has ended.

        With an eager assignor no further records are returned, which the commit would not cover.
        """
        context = self._context
        if step != self._step:
            self._step = step
            offsets = context.subscriptions.all_consumed()
            self._is_done = not (context.config.enable_auto_commit and offsets)
            if not self._is_done:
                if is_eager:
                    subscriptions = context.subscriptions
                    subscriptions.mark_pending_revocation(subscriptions.assigned_partitions)
                limit = now + context.config.max_poll_interval_ms / 1000
                context.start(partial(self._commit, step, offsets, limit))
        return self._is_done

    async def _commit(
        self,
        step: PrepareJoin,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
    ) -> None:
        try:
            await self._context.commit_positions(offsets, deadline)
        finally:
            with self._context.lock:
                if step == self._step:
                    self._is_done = True
                self._context.tell_user()


class ClassicCoordinator(Coordinator):
    """A member of a classic group (ConsumerCoordinator).

    Partitions are revoked before the group is joined, and assigned afterwards; in both cases the
    user's listener is called, without the lock.
    """

    offset_calls = (
        OffsetCall.CLASSIC_COMMIT,
        OffsetCall.CLASSIC_FETCH,
        OffsetCall.CLASSIC_FETCH_PARTITION,
    )

    uses_topic_ids = False
    member: ClassicMembership

    def __init__(
        self,
        context: ConsumerContext,
        settings: GroupSettings,
        assignors: Sequence[ConsumerPartitionAssignor],
    ) -> None:
        """Start outside of the group.

        Raises ConfigError if the assignors have no rebalance protocol in common.
        """
        super().__init__(context, settings.group_id)
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self.protocol: RebalanceProtocol = rebalance_protocol(assignors)
        self.member = ClassicMembership(settings, context.clock())
        #: Whether a step of `for_user` is running, and whether a method of the listener is.
        self._is_running = self._is_telling = False
        #: How many times the user has left the group without an answer so far.
        self._unanswered_leaves = 0
        self._commit = CommitBeforeJoin(context)
        #: Of the last join that was completed.
        self._group_metadata = self._metadata(NO_GENERATION)
        self._joined_topics: frozenset[str] | None = None
        #: The topics and their numbers of partitions that were assigned, if this member leads.
        self._assigned_counts: dict[str, int] | None = None
        #: The racks likewise, if client.rack is set, and the metadata since the last comparison.
        self._assigned_racks: Mapping[str, Sequence[frozenset[str]]] | None = None
        self._compared: MetadataSnapshot | None = None

    @property
    def is_joining(self) -> bool:
        """Whether the member is about to join, and sends its topics."""
        return self.member.is_rejoin_needed

    @property
    def awaits_others(self) -> bool:
        """Whether a request is in flight that waits for other members."""
        return self.member.awaits_others

    @property
    def is_leaving(self) -> bool:
        """Whether LeaveGroup has no answer so far, or will be sent soon."""
        return self._unanswered_leaves > 0 or self.member.awaits_id_to_leave

    # What is due

    def advance(self, now: float, *, may_join: bool) -> float:
        """Start what is due at `now`, and return when to call again."""
        self.disconnect_lost()
        if may_join:
            self._check_subscription()
        while True:
            step = self.member.next_step(now, may_join=may_join, needs_coordinator=self.waiting > 0)
            match step:
                case Wait(until):
                    return until
                case PrepareJoin() | CompleteJoin():
                    self.for_poll(step)
                case _:
                    self.context.start(self._work(step))

    def _work(
        self,
        step: FindCoordinator | JoinGroup | PerformAssignment | SyncGroup | Heartbeat | LeaveGroup,
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        match step:
            case FindCoordinator():
                return partial(self._find_coordinator, step)
            case JoinGroup():
                return partial(self._join, step)
            case PerformAssignment():
                return partial(self._perform_assignment, step)
            case SyncGroup():
                return partial(self._sync, step)
            case Heartbeat():
                return partial(self._send_heartbeat, step)
            case LeaveGroup():
                return partial(self._leave, step)

    def _check_subscription(self) -> None:
        """Join again if the topics have changed (ConsumerCoordinator.rejoinNeededOrPending)."""
        if self.member.is_rejoin_needed:
            return
        topics = self.context.subscriptions.subscription.topics
        if self._joined_topics is not None and self._joined_topics != topics:
            self.member.request_rejoin(
                f"subscription has changed from {sorted(self._joined_topics)} at the beginning of "
                f"the rebalance to {sorted(topics)}"
            )
        elif self._assigned_counts is not None and self._has_other_counts(self._assigned_counts):
            self.member.request_rejoin("the partitions of the subscribed topics have changed")
        elif self._assigned_racks is not None:
            snapshot = self.context.client.metadata.snapshot
            if self._compared is not snapshot:
                self._compared = snapshot
                self.context.start(partial(self._compare_racks, self._assigned_racks))

    def _has_other_counts(self, assigned: dict[str, int]) -> bool:
        """Return whether the metadata name other numbers of partitions than were assigned."""
        snapshot = self.context.client.metadata.snapshot
        topics = self.context.subscriptions.subscription.metadata_topics
        # Topics that were added a moment ago are not yet known there.
        return any(
            _existing_partitions(snapshot, topic) != assigned.get(topic, 0)
            for topic in topics.intersection(snapshot.topics)
        )

    async def _compare_racks(self, assigned: Mapping[str, Sequence[frozenset[str]]]) -> None:
        """Join again if replicas of the assigned partitions are in other racks (KIP-881).

        Source: ConsumerCoordinator.MetadataSnapshot.
        """
        try:
            cluster = await self._cluster(set(assigned))
        except KafkaError as error:
            logger.info("the racks are compared with the next metadata: %s", error)
            return
        current_racks = cluster.racks_per_topic
        with self.context.lock:
            if assigned is self._assigned_racks and any(
                current_racks.get(topic, racks) != racks for topic, racks in assigned.items()
            ):
                self._assigned_racks = None
                self.member.request_rejoin("the racks of the subscribed topics have changed")
                self.context.tell_user()

    def subscription_changed(self) -> None:
        """Do nothing: the next `poll` compares the topics."""

    # The user's side

    def may_run(self, step: PrepareJoin | CompleteJoin, now: float) -> bool:
        """Return whether the step can be done now: positions are committed before a revocation."""
        if self._is_running:
            # The first step, whose listener polls.
            return False
        is_eager = self.protocol is RebalanceProtocol.EAGER
        return isinstance(step, CompleteJoin) or self._commit.is_done(step, now, is_eager=is_eager)

    def run(self, step: PrepareJoin | CompleteJoin) -> Waiting[None]:
        """Do a step of `for_user`, and remove it."""
        try:
            self._is_running = True
            if isinstance(step, PrepareJoin):
                yield from self._prepare_join(step)
            else:
                yield from self._complete_join(step)
        finally:
            self._is_running = False

    def _prepare_join(self, step: PrepareJoin) -> Waiting[None]:
        """Remove what another member may get (onJoinPrepare); call it without the lock."""
        subscriptions = self.context.subscriptions
        try:
            with self.context.lock:
                owned = subscriptions.assigned_partitions
                topics = subscriptions.subscription.topics
                is_lost = step.generation.is_reset
                is_eager = self.protocol is RebalanceProtocol.EAGER
                given_up = owned
                if not (is_lost or is_eager):
                    given_up = tuple(
                        partition for partition in owned if partition.topic not in topics
                    )
                subscriptions.mark_pending_revocation(given_up)
            try:
                if is_lost:
                    yield from self._tell("on_partitions_lost", given_up)
                else:
                    yield from self._tell("on_partitions_revoked", given_up, always=is_eager)
            finally:
                with self.context.lock:
                    self._keep(frozenset(owned).difference(given_up))
        finally:
            with self.context.lock:
                subscriptions.subscription.reset_group_topics()
                self.member.join_prepared(step)
                self.step_done(step)

    def _complete_join(self, step: CompleteJoin) -> Waiting[None]:
        """Take what the group has assigned (onJoinComplete); call it without the lock."""
        context, subscriptions = self.context, self.context.subscriptions
        is_applied = False
        try:
            with context.lock:
                self._group_metadata = self._metadata(step.generation)
            assignment = deserialize_assignment(step.assignment)
            assigned = assignment.partitions
            _check_assigned(assigned)
            with context.lock:
                is_covered = subscriptions.subscription.covers(assigned)
                owned = frozenset(subscriptions.assigned_partitions)
                is_cooperative = self.protocol is RebalanceProtocol.COOPERATIVE
                revoked = owned.difference(assigned) if is_cooperative else frozenset()
                if not is_covered:
                    self.member.request_rejoin(
                        "received assignment does not match the current subscription"
                    )
                elif revoked:
                    subscriptions.mark_pending_revocation(revoked)
                    self.member.request_rejoin("need to revoke partitions")
            if not is_covered:
                return
            with FirstError() as first:
                yield from first.of(partial(self._tell, "on_partitions_revoked", sorted(revoked)))
                yield from first.of(partial(self._tell_assignor, assignment, step.generation))
                with context.lock:
                    topics = {partition.topic for partition in assigned}
                    self._add_assigned_topics(topics)
                    for topic in topics:
                        context.client.metadata.add_topic(topic, context.clock())
                    added = [partition for partition in assigned if partition not in owned]
                    subscriptions.assign_from_subscribed_awaiting_callback(assigned, added)
                    is_applied = True
                try:
                    yield from first.of(
                        partial(self._tell, "on_partitions_assigned", added, always=True)
                    )
                finally:
                    with context.lock:
                        subscriptions.enable_partitions_awaiting_callback(
                            filter(subscriptions.is_assigned, added)
                        )
        finally:
            with context.lock:
                self.member.join_completed(step)
                if not is_applied:
                    # After Ctrl-C the group believes that this member reads them.
                    self.member.request_rejoin("an assignment was not applied")
                self.step_done(step)
                context.tell_user()

    def _tell_assignor(self, assignment: Assignment, generation: Generation) -> Waiting[None]:
        """Call the assignor's `on_assignment`, without the lock."""
        yield from ()
        assignor = self._assignors.get(generation.protocol or "")
        if assignor is None:
            return
        try:
            assignor.on_assignment(assignment, self._metadata(generation))
        except Exception as error:
            raise KafkaError(
                f"the assignor's on_assignment raised {type(error).__name__}: {error}. The "
                "rebalance has gone on without it"
            ) from error

    def leave(self, reason: str, operation: LeaveOperation, seconds: float) -> Waiting[None]:
        """Release all partitions, and send LeaveGroup, without waiting for its answer.

        A member without an id is given one first, if JoinGroup is under way.
        """
        del seconds
        context = self.context
        try:
            yield from self._give_up()
        finally:
            with context.lock:
                step = self.member.leave(reason, operation)
                self.for_user.clear()
                if step is not None:
                    self._start_to_leave(step)

    def _start_to_leave(self, step: LeaveGroup) -> None:
        self._unanswered_leaves += 1
        self.context.start(partial(self._leave_at_will, step))

    def _give_up(self) -> Waiting[None]:
        """Remove everything, before leaving (onLeavePrepare); call it without the lock."""
        with self.context.lock:
            # During a rebalance, another member may have them already.
            is_lost = self.member.stable_generation is None
            subscriptions = self.context.subscriptions
            owned = subscriptions.assigned_partitions
            if not subscriptions.subscription.is_auto_assigned:
                return
            subscriptions.mark_pending_revocation(owned)
            if self._is_telling:
                # The listener itself has unsubscribed.
                self._keep(())
                return
        try:
            yield from self._tell(
                "on_partitions_lost" if is_lost else "on_partitions_revoked", owned
            )
        finally:
            with self.context.lock:
                self._keep(())

    def _keep(self, partitions: Collection[TopicPartition]) -> None:
        """Assign only these partitions; this needs the lock."""
        subscriptions = self.context.subscriptions
        # The listener may have unsubscribed.
        if subscriptions.subscription.is_auto_assigned:
            subscriptions.assign_from_subscribed(
                [
                    partition
                    for partition in subscriptions.assigned_partitions
                    if partition in partitions
                ]
            )

    def _tell(
        self, method: str, partitions: Iterable[TopicPartition], *, always: bool = False
    ) -> Waiting[None]:
        """Call a method of the listener, without the lock."""
        self._is_telling = True
        try:
            yield from self.tell_listener(method, partitions, always=always)
        finally:
            self._is_telling = False

    def enforce_rebalance(self, reason: str) -> None:
        """Rejoin the group within the next `poll`."""
        self.member.request_rejoin(reason)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what fences this member's commits in a transaction (KIP-447).

        A member that is out keeps those of its last generation, which the coordinator refuses. It
        would accept a transaction's offsets that name no member.
        """
        return self._group_metadata

    def _metadata(self, generation: Generation) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(
            self.group_id,
            generation.generation_id,
            generation.member_id,
            self._settings.group_instance_id,
        )

    def _add_assigned_topics(self, topics: set[str]) -> None:
        """Subscribe to topics that match the pattern, and that only the leader has found so far.

        Source: ConsumerCoordinator.maybeUpdateJoinedSubscription.
        """
        subscription = self.context.subscriptions.subscription
        joined = self._joined_topics or frozenset()
        if subscription.pattern is not None and not topics <= joined:
            subscription.set_matching_topics(subscription.topics | topics)
            self._joined_topics = joined | topics

    # Commits

    def _current_member(self) -> ConsumerGroupMetadata:
        generation = self.member.stable_generation
        if generation is None:
            raise not_in_generation(self.group_id, self.member.state)
        return self._metadata(generation)

    def apply_commit(
        self, verdict: Verdict, sent: ConsumerGroupMetadata, *, is_of_user: bool
    ) -> Verdict:
        """Apply the answer to a commit to the membership; return what remains for the caller."""
        del is_of_user
        current = self.member.generation
        generation = NO_GENERATION if sent != self._metadata(current) else current
        return apply_commit(self.member, verdict, generation, self.context.clock())

    # Requests

    async def _join(self, step: JoinGroup) -> None:
        context = self.context
        try:
            with context.lock:
                protocols = self._protocols()
        except Exception as error:  # noqa: BLE001  an assignor may be the user's own
            with context.lock:
                self.member.join_abandoned(step, context.clock())
                context.fail(error)
            return
        started = context.clock()
        self.measures.rebalance_started(started)
        response = await self.ask(
            ApiKey.JOIN_GROUP,
            lambda version: join_request(step, self._settings, protocols, version),
            seconds=step.timeout,
        )
        now = context.clock()
        if response is not None:
            with context.lock:
                leaving = self.member.join_answered(step, response, now)
                if leaving is not None:
                    self._start_to_leave(leaving)
                context.tell_user()
            if not response.error_code:
                self.measures.joined(now - started, now)
                return
        self.measures.rebalance_failed(now)

    def _protocols(self) -> list[tuple[str, bytes]]:
        subscriptions = self.context.subscriptions
        topics = subscriptions.subscription.topics
        self._joined_topics = topics
        self._assigned_counts = self._assigned_racks = None
        return [
            (
                name,
                serialize_subscription(
                    Subscription(
                        topics=tuple(sorted(topics)),
                        user_data=assignor.subscription_user_data(topics),
                        owned_partitions=subscriptions.assigned_partitions,
                        generation_id=self.member.generation.generation_id,
                        rack_id=self.context.config.client_rack or None,
                    )
                ),
            )
            for name, assignor in self._assignors.items()
        ]

    async def _perform_assignment(self, step: PerformAssignment) -> None:
        context = self.context
        try:
            assignments = await self._assign(step)
        except Exception as error:  # noqa: BLE001  an assignor may be the user's own
            with context.lock:
                if self.member.assignment_failed(step):
                    context.fail(error)
        else:
            with context.lock:
                self.member.assignment_performed(step, assignments)
                context.tell_user()

    async def _assign(self, step: PerformAssignment) -> dict[str, bytes]:
        members = {
            member.member_id: _subscription(member.metadata, member.group_instance_id)
            for member in step.members
        }
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        cluster = await self._watched_cluster(topics)
        if step.skip_assignment:
            return {}
        assignor = self._assignors.get(step.generation.protocol or "")
        if assignor is None:
            raise DecodeError(
                f"the coordinator has chosen the assignor {step.generation.protocol!r}, which this "
                f"member has not offered: {', '.join(self._assignors)}"
            )
        subscribed = GroupSubscription(members)
        # Heartbeats go on meanwhile.
        assigned = await self.context.run_aside(partial(assignor.assign, cluster, subscribed))
        if not isinstance(assigned, GroupAssignment):
            raise TypeError(
                f"assign of the assignor {assignor.name!r} returned no GroupAssignment: "
                f"{assigned!r}"
            )
        if self.protocol is RebalanceProtocol.COOPERATIVE and not isinstance(
            assignor, CooperativeStickyAssignor
        ):
            check_cooperative_assignment(subscribed, assigned)
        added = {
            partition.topic
            for assignment in assigned.assignments.values()
            for partition in assignment.partitions
        } - topics
        if added:
            # Their metadata are no news then, and lead to no further rebalance.
            await self._watched_cluster(topics | added)
        return {
            member: serialize_assignment(assignment)
            for member, assignment in assigned.assignments.items()
        }

    async def _watched_cluster(self, topics: set[str]) -> Cluster:
        """Return the partitions of topics that exist, and join again when they change.

        Source: ConsumerCoordinator.updateGroupSubscription.
        """
        context = self.context
        with context.lock:
            context.subscriptions.subscription.set_group_topics(topics)
        cluster = await self._cluster(topics)
        with context.lock:
            known = context.client.metadata.snapshot
            # A change is one of the metadata, which may be older than the answer just now.
            self._assigned_counts = {
                topic: _existing_partitions(known, topic)
                if topic in known.topics
                else len(cluster.racks_per_topic.get(topic, ()))
                for topic in topics
            }
            if context.config.client_rack:
                self._assigned_racks, self._compared = cluster.racks_per_topic, known
        return cluster

    async def _cluster(self, topics: set[str]) -> Cluster:
        """Return the partitions of topics that exist, with the racks of their replicas."""
        context = self.context
        deadline = context.clock() + context.config.request_timeout_ms / 1000
        response = await context.calls.describe(topics, deadline, skips_missing=True)
        racks = {broker.node_id: broker.rack for broker in response.brokers}
        return Cluster(
            {
                topic.name or "": tuple(
                    frozenset(
                        rack for node_id in partition.replica_nodes if (rack := racks.get(node_id))
                    )
                    for partition in sorted(topic.partitions, key=lambda item: item.partition_index)
                )
                for topic in response.topics
            }
        )

    async def _sync(self, step: SyncGroup) -> None:
        context = self.context
        started = context.clock()
        response = await self.ask(
            ApiKey.SYNC_GROUP, lambda version: sync_request(step, self._settings, version)
        )
        now = context.clock()
        is_stable = False
        if response is not None:
            if not response.error_code:
                self.measures.synced(now - started, now)
            with context.lock:
                self.member.sync_answered(step, response, now)
                is_stable = self.member.state is ClassicMemberState.STABLE
                context.tell_user()
        if is_stable:
            self.measures.rebalance_ended(now)
        else:
            self.measures.rebalance_failed(now)

    async def _send_heartbeat(self, step: Heartbeat) -> None:
        context = self.context
        response = await self.ask(
            ApiKey.HEARTBEAT, lambda version: heartbeat_request(step, self._settings, version)
        )
        if response is not None:
            with context.lock:
                self.member.heartbeat_answered(step, response.error_code, context.clock())
                context.tell_user()

    async def _leave_at_will(self, step: LeaveGroup) -> None:
        """Leave because the user wants to, who is not interested in errors of it."""
        try:
            await self._leave(step)
        except KafkaError as error:
            logger.info("the group is left without its answer: %s", error)
        finally:
            with self.context.lock:
                self._unanswered_leaves -= 1
                self.context.tell_user()

    async def _leave(self, step: LeaveGroup) -> None:
        response = await self.ask(
            ApiKey.LEAVE_GROUP,
            lambda version: leave_request(step, self._settings, version),
            # The broker would not read it before it has answered JoinGroup.
            is_apart=self.member.awaits_others,
        )
        code = 0 if response is None else read_leave(response)
        if code:
            logger.info(
                "the coordinator of group %r answered LeaveGroup with %s",
                self._settings.group_id,
                error_name(code),
            )


def _check_assigned(partitions: Iterable[TopicPartition]) -> None:
    """Raise DecodeError if there is a partition that cannot exist."""
    for topic, number in partitions:
        if number < 0:
            raise DecodeError(
                f"the group's leader has assigned partition {number} of topic {topic!r}, which "
                "cannot exist: check the assignor of the group's members"
            )


def _existing_partitions(snapshot: MetadataSnapshot, topic: str) -> int:
    """Return the number of a topic's partitions; 0 if the topic does not exist (any longer)."""
    known = snapshot.topics[topic]
    is_missing = known.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # The snapshot keeps the partitions of a topic that was deleted.
    return 0 if is_missing else len(known.partitions)


def _subscription(metadata: bytes, group_instance_id: str | None) -> Subscription:
    return replace(deserialize_subscription(metadata), group_instance_id=group_instance_id)
