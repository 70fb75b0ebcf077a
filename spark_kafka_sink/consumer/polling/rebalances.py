"""What a rebalance of a classic group means for the user's thread (ConsumerCoordinator).

Partitions are revoked before the group is joined, and assigned afterwards; in both cases the user's
listener is called without the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.consumer_protocol import deserialize_assignment
from spark_kafka_sink.consumer.assignors.partition_assignor import RebalanceProtocol
from spark_kafka_sink.consumer.membership.group_values import CompleteJoin, PrepareJoin
from spark_kafka_sink.consumer.polling.rebalance_listener import FirstError
from spark_kafka_sink.errors import DecodeError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from spark_kafka_sink.consumer.assignors.partition_assignor import Assignment
    from spark_kafka_sink.consumer.membership.group_values import Generation
    from spark_kafka_sink.consumer.polling.classic_coordinator import ClassicCoordinator
    from spark_kafka_sink.consumer.polling.consumer_context import ConsumerContext
    from spark_kafka_sink.model import TopicPartition


class Rebalances:
    """The revocations and assignments of one consumer; its methods are called without the lock."""

    def __init__(
        self,
        context: ConsumerContext,
        coordinator: ClassicCoordinator,
    ) -> None:
        """Apply what `coordinator` has to say."""
        self._context = context
        self._coordinator = coordinator
        #: Whether a step is running.
        self.is_running = False
        #: Whether a method of the listener is running.
        self._is_telling = False

    def run(self, step: PrepareJoin | CompleteJoin) -> None:
        """Do what the group demands; raise KafkaError if a method of the listener has raised."""
        try:
            self.is_running = True
            if isinstance(step, PrepareJoin):
                self._prepare(step)
            else:
                self._complete(step)
        finally:
            self.is_running = False

    def _prepare(self, step: PrepareJoin) -> None:
        """Remove what another member may get (ConsumerCoordinator.onJoinPrepare)."""
        subscriptions = self._context.subscriptions
        try:
            with self._context.lock:
                owned = subscriptions.assigned_partitions
                topics = subscriptions.subscription.topics
                is_lost = step.generation.is_reset
                is_eager = self._coordinator.protocol is RebalanceProtocol.EAGER
                given_up = owned
                if not (is_lost or is_eager):
                    given_up = tuple(each for each in owned if each.topic not in topics)
                subscriptions.mark_pending_revocation(given_up)
            try:
                if is_lost:
                    self._tell("on_partitions_lost", given_up)
                else:
                    self._tell("on_partitions_revoked", given_up, always=is_eager)
            finally:
                with self._context.lock:
                    self._keep(frozenset(owned).difference(given_up))
        finally:
            with self._context.lock:
                subscriptions.subscription.reset_group_topics()
                self._coordinator.membership.join_prepared(step)
                self._coordinator.step_done(step)

    def _complete(self, step: CompleteJoin) -> None:
        """Take what the group has assigned (ConsumerCoordinator.onJoinComplete)."""
        context, subscriptions = self._context, self._context.subscriptions
        is_applied = False
        try:
            with context.lock:
                self._coordinator.joined(step.generation)
            assignment = deserialize_assignment(step.assignment)
            assigned = assignment.partitions
            _check_assigned(assigned)
            with context.lock:
                is_covered = subscriptions.subscription.covers(assigned)
                owned = frozenset(subscriptions.assigned_partitions)
                is_cooperative = self._coordinator.protocol is RebalanceProtocol.COOPERATIVE
                revoked = owned.difference(assigned) if is_cooperative else frozenset()
                if not is_covered:
                    self._coordinator.membership.request_rejoin(
                        "received assignment does not match the current subscription"
                    )
                elif revoked:
                    subscriptions.mark_pending_revocation(revoked)
                    self._coordinator.membership.request_rejoin("need to revoke partitions")
            if not is_covered:
                return
            with FirstError() as first:
                first.of(lambda: self._tell("on_partitions_revoked", sorted(revoked)))
                first.of(lambda: self._tell_assignor(assignment, step.generation))
                with context.lock:
                    topics = {each.topic for each in assigned}
                    self._coordinator.add_assigned_topics(topics)
                    for topic in topics:
                        context.client.metadata.add_topic(topic, context.clock())
                    added = [each for each in assigned if each not in owned]
                    subscriptions.assign_from_subscribed_awaiting_callback(assigned, added)
                    is_applied = True
                try:
                    first.of(lambda: self._tell("on_partitions_assigned", added, always=True))
                finally:
                    with context.lock:
                        subscriptions.enable_partitions_awaiting_callback(
                            filter(subscriptions.is_assigned, added)
                        )
        finally:
            with context.lock:
                self._coordinator.membership.join_completed(step)
                if not is_applied:
                    # After Ctrl-C the group believes that this member reads them.
                    self._coordinator.membership.request_rejoin("an assignment was not applied")
                self._coordinator.step_done(step)
                context.tell_user()

    def _tell_assignor(self, assignment: Assignment, generation: Generation) -> None:
        try:
            self._coordinator.on_assignment(assignment, generation)
        except Exception as error:
            raise KafkaError(
                f"the assignor's on_assignment raised {type(error).__name__}: {error}. The "
                "rebalance has gone on without it"
            ) from error

    def give_up(self) -> None:
        """Remove everything, before the member leaves (ConsumerCoordinator.onLeavePrepare)."""
        with self._context.lock:
            # During a rebalance, another member may have them already.
            is_lost = self._coordinator.membership.stable_generation is None
            subscriptions = self._context.subscriptions
            owned = subscriptions.assigned_partitions
            if not subscriptions.subscription.is_auto_assigned:
                return
            subscriptions.mark_pending_revocation(owned)
            if self._is_telling:
                # The listener itself has unsubscribed.
                self._keep(())
                return
        try:
            self._tell("on_partitions_lost" if is_lost else "on_partitions_revoked", owned)
        finally:
            with self._context.lock:
                self._keep(())

    def _keep(self, partitions: Collection[TopicPartition]) -> None:
        subscriptions = self._context.subscriptions
        # The listener may have unsubscribed.
        if subscriptions.subscription.is_auto_assigned:
            subscriptions.assign_from_subscribed(
                [each for each in subscriptions.assigned_partitions if each in partitions]
            )

    def _tell(
        self, method: str, partitions: Iterable[TopicPartition], *, always: bool = False
    ) -> None:
        self._is_telling = True
        try:
            self._coordinator.tell_listener(method, partitions, always=always)
        finally:
            self._is_telling = False


def _check_assigned(partitions: Iterable[TopicPartition]) -> None:
    """Raise DecodeError if there is a partition that cannot exist."""
    for topic, number in partitions:
        if number < 0:
            raise DecodeError(
                f"the group's leader has assigned partition {number} of topic {topic!r}, which "
                "cannot exist: check the assignor of the group's members"
            )
