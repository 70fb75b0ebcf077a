"""The requests of a member of a classic group (the IO of AbstractCoordinator).

`ClassicMembership` decides what to do; here it is done. The coordinator has a connection of its
own, because a broker answers the requests of one connection one after the other: a heartbeat must
not wait until a Fetch has found records.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.consumer.assignors.assignment_strategies import (
    check_cooperative_assignment,
    rebalance_protocol,
)
from spark_kafka_sink.consumer.assignors.consumer_protocol import (
    deserialize_subscription,
    serialize_assignment,
    serialize_subscription,
)
from spark_kafka_sink.consumer.assignors.cooperative_sticky_assignor import (
    CooperativeStickyAssignor,
)
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    Cluster,
    GroupSubscription,
    RebalanceProtocol,
    Subscription,
)
from spark_kafka_sink.consumer.membership.classic_membership import ClassicMembership
from spark_kafka_sink.consumer.membership.group_values import (
    CompleteJoin,
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    PerformAssignment,
    PrepareJoin,
    SyncGroup,
    Wait,
)
from spark_kafka_sink.consumer.offsets.offset_requests import (
    find_coordinator_request,
    found_coordinator,
)
from spark_kafka_sink.consumer.requests.group_requests import (
    heartbeat_request,
    join_request,
    leave_request,
    read_join,
    read_leave,
    read_sync,
    sync_request,
)
from spark_kafka_sink.errors import DecodeError, KafkaError, NetworkError
from spark_kafka_sink.model import ConsumerGroupMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import error_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from spark_kafka_sink.consumer.assignors.partition_assignor import ConsumerPartitionAssignor
    from spark_kafka_sink.consumer.membership.group_values import GroupSettings
    from spark_kafka_sink.consumer.polling.consumer_context import ConsumerContext
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT

logger = logging.getLogger(__name__)

#: Added to a broker's id for the second connection to it; ids count up from 0.
COORDINATOR_IDS: Final = 2**30


class ClassicCoordinator:
    """The member's requests to its group's coordinator.

    Its methods are called under the lock of the context, except for the coroutines, which take it.
    """

    def __init__(
        self,
        context: ConsumerContext,
        settings: GroupSettings,
        assignors: Sequence[ConsumerPartitionAssignor],
    ) -> None:
        """Start outside of the group.

        Raises ConfigError if the assignors have no rebalance protocol in common.
        """
        self._context = context
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self.protocol: RebalanceProtocol = rebalance_protocol(assignors)
        self.membership = ClassicMembership(settings, context.clock())
        #: What the user's thread has to do next, within `poll`.
        self.for_user: deque[PrepareJoin | CompleteJoin] = deque()
        #: How many commits and look-ups wait for the coordinator.
        self.waiting = 0
        self._joined_topics: frozenset[str] | None = None
        #: The topics and their numbers of partitions that were assigned, if this member leads.
        self._assigned_counts: dict[str, int] | None = None

    # What is due

    def advance(self, now: float, *, may_join: bool) -> float:
        """Start what is due at `now`, and return when to call again.

        `may_join` says that the user is in `poll` and has subscribed.
        """
        if may_join:
            self._check_subscription()
        while True:
            step = self.membership.next_step(
                now, may_join=may_join, needs_coordinator=self.waiting > 0
            )
            match step:
                case Wait(until):
                    return until
                case PrepareJoin() | CompleteJoin():
                    self.for_user.append(step)
                    self._context.changes += 1
                    self._context.lock.notify_all()
                case _:
                    self._context.start(self._work(step))

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
                return partial(self.leave, step)

    def _check_subscription(self) -> None:
        """Join again if the topics have changed (ConsumerCoordinator.rejoinNeededOrPending)."""
        if self.membership.is_rejoin_needed:
            return
        topics = self._context.subscriptions.subscription.topics
        if self._joined_topics is not None and self._joined_topics != topics:
            self.membership.request_rejoin(
                f"subscription has changed from {sorted(self._joined_topics)} at the beginning of "
                f"the rebalance to {sorted(topics)}"
            )
        elif self._assigned_counts is not None and self._has_other_counts(self._assigned_counts):
            self.membership.request_rejoin("the partitions of the subscribed topics have changed")

    def _has_other_counts(self, assigned: dict[str, int]) -> bool:
        """Return whether the metadata name other numbers of partitions than were assigned."""
        snapshot = self._context.client.metadata.snapshot
        topics = self._context.subscriptions.subscription.metadata_topics
        # Topics that were added a moment ago are not yet known there.
        return any(
            snapshot.partition_count(topic) != assigned.get(topic, 0)
            for topic in topics.intersection(snapshot.topics)
        )

    # What the user's thread reports

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what fences this member's commits in a transaction (KIP-447)."""
        generation = self.membership.generation
        return ConsumerGroupMetadata(
            self._settings.group_id,
            generation.generation_id,
            generation.member_id,
            self._settings.group_instance_id,
        )

    def on_assignment(self, assignment: Assignment) -> None:
        """Let the assignor of this generation remember its assignment."""
        assignor = self._assignors.get(self.membership.generation.protocol or "")
        if assignor is not None:
            assignor.on_assignment(assignment, self.group_metadata())

    # Requests

    async def ask(
        self,
        api_key: ApiKey,
        build: Callable[[int], ApiRequest[ResponseT]],
        *,
        seconds: float | None = None,
        max_version: int | None = None,
        is_apart: bool = False,
    ) -> ResponseT | None:
        """Ask the coordinator what `build` returns for a version; None if there is no answer.

        A coordinator that does not answer is lost. `seconds` is the timeout of the request, without
        it request.timeout.ms. With `is_apart` it has a connection of its own. Call it without the
        lock. Raises UnsupportedVersionError, AuthenticationError or ConfigError if no further
        attempt would help.
        """
        context = self._context
        node = self.membership.coordinator
        if node is None:
            return None
        if is_apart:
            node = node._replace(node_id=COORDINATOR_IDS + node.node_id)
        reached = False
        limit = context.config.request_timeout_ms / 1000
        try:
            connection = await context.requests.connection_to(node, context.clock() + limit)
            reached = True
            version = connection.api_versions.version_for(api_key, max_version)
            return await connection.send(build(version), timeout=seconds, max_version=version)
        except (NetworkError, DecodeError):
            with context.lock:
                if node == self.membership.coordinator:
                    self.membership.coordinator_lost(context.clock(), was_reached=reached)
                    context.tell_user()
            return None
        except KafkaError:
            with context.lock:
                self.membership.coordinator_lost(context.clock(), was_reached=False)
            raise

    async def _find_coordinator(self, step: FindCoordinator) -> None:
        context = self._context
        deadline = context.clock() + context.config.request_timeout_ms / 1000
        code: int | None = None
        node: Node | None = None
        try:
            connection = await context.client.least_loaded_connection(deadline)
            version = connection.api_versions.version_for(ApiKey.FIND_COORDINATOR)
            request = find_coordinator_request(self._settings.group_id, version)
            code, node = found_coordinator(await connection.send(request))
        except (NetworkError, DecodeError):
            pass
        except KafkaError as error:
            with context.lock:
                context.fail(error)
        with context.lock:
            if code == 0 and node is not None:
                own = node._replace(node_id=COORDINATOR_IDS + node.node_id)
                self.membership.coordinator_found(step, own, context.clock())
            else:
                self.membership.coordinator_not_found(step, code, context.clock())
            context.tell_user()

    async def _join(self, step: JoinGroup) -> None:
        context = self._context
        with context.lock:
            protocols = self._protocols()
        response = await self.ask(
            ApiKey.JOIN_GROUP,
            lambda version: join_request(step, self._settings, protocols, version),
            seconds=step.timeout,
        )
        if response is not None:
            with context.lock:
                self.membership.join_answered(step, read_join(response), context.clock())
                context.tell_user()

    def _protocols(self) -> list[tuple[str, bytes]]:
        subscriptions = self._context.subscriptions
        topics = subscriptions.subscription.topics
        self._joined_topics = topics
        self._assigned_counts = None
        return [
            (
                name,
                serialize_subscription(
                    Subscription(
                        topics=tuple(sorted(topics)),
                        user_data=assignor.subscription_user_data(topics),
                        owned_partitions=subscriptions.assigned_partitions,
                        generation_id=self.membership.generation.generation_id,
                        rack_id=self._context.config.client_rack or None,
                    )
                ),
            )
            for name, assignor in self._assignors.items()
        ]

    async def _perform_assignment(self, step: PerformAssignment) -> None:
        context = self._context
        try:
            assignments = await self._assign(step)
        except Exception as error:  # noqa: BLE001  an assignor may be the user's own
            with context.lock:
                self.membership.assignment_failed(step)
                context.fail(error)
        else:
            with context.lock:
                self.membership.assignment_performed(step, assignments)
                context.tell_user()

    async def _assign(self, step: PerformAssignment) -> dict[str, bytes]:
        context = self._context
        members = {
            member.member_id: _subscription(member.metadata, member.group_instance_id)
            for member in step.members
        }
        topics = {topic for it in members.values() for topic in it.topics}
        with context.lock:
            context.subscriptions.subscription.set_group_topics(topics)
        cluster = await self._cluster(topics)
        with context.lock:
            known = context.client.metadata.snapshot
            # A change is one of the metadata, which may be older than the answer just now.
            self._assigned_counts = {
                topic: known.partition_count(topic) if topic in known.topics else len(racks)
                for topic, racks in cluster.racks_per_topic.items()
            }
        if step.skip_assignment:
            return {}
        assignor = self._assignors[step.generation.protocol or ""]
        subscribed = GroupSubscription(members)
        assigned = assignor.assign(cluster, subscribed)
        if self.protocol is RebalanceProtocol.COOPERATIVE and not isinstance(
            assignor, CooperativeStickyAssignor
        ):
            check_cooperative_assignment(subscribed, assigned)
        return {
            member: serialize_assignment(assignment)
            for member, assignment in assigned.assignments.items()
        }

    async def _cluster(self, topics: set[str]) -> Cluster:
        """Return the partitions of topics that exist, with the racks of their replicas."""
        context = self._context
        deadline = context.clock() + context.config.request_timeout_ms / 1000
        response = await context.calls.describe(topics, deadline, skips_missing=True)
        racks = {broker.node_id: broker.rack for broker in response.brokers}
        return Cluster(
            {
                topic.name or "": tuple(
                    frozenset(
                        rack for node_id in partition.replica_nodes if (rack := racks.get(node_id))
                    )
                    for partition in sorted(topic.partitions, key=lambda it: it.partition_index)
                )
                for topic in response.topics
            }
        )

    async def _sync(self, step: SyncGroup) -> None:
        context = self._context
        response = await self.ask(
            ApiKey.SYNC_GROUP, lambda version: sync_request(step, self._settings, version)
        )
        if response is not None:
            answer = read_sync(response)
            with context.lock:
                self.membership.sync_answered(
                    step,
                    answer.error_code,
                    context.clock(),
                    assignment=answer.assignment,
                    protocol_type=answer.protocol_type,
                    protocol=answer.protocol,
                )
                context.tell_user()

    async def _send_heartbeat(self, step: Heartbeat) -> None:
        context = self._context
        response = await self.ask(
            ApiKey.HEARTBEAT, lambda version: heartbeat_request(step, self._settings, version)
        )
        if response is not None:
            with context.lock:
                self.membership.heartbeat_answered(step, response.error_code, context.clock())
                context.tell_user()

    async def leave(self, step: LeaveGroup) -> None:
        """Send LeaveGroup; the member has left, whatever the answer is."""
        response = await self.ask(
            ApiKey.LEAVE_GROUP,
            lambda version: leave_request(step, self._settings, version),
            # The broker would not read it before it has answered JoinGroup.
            is_apart=self.membership.awaits_others,
        )
        code = 0 if response is None else read_leave(response)
        if code:
            logger.info(
                "the coordinator of group %r answered LeaveGroup with %s",
                self._settings.group_id,
                error_name(code),
            )


def _subscription(metadata: bytes, group_instance_id: str | None) -> Subscription:
    return replace(deserialize_subscription(metadata), group_instance_id=group_instance_id)
