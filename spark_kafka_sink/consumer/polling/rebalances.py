"""What a rebalance of a classic group means for the user's thread (ConsumerCoordinator).

Partitions are revoked before the group is joined, and assigned afterwards; in both cases the user's
listener is called without the lock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.consumer.assignors.consumer_protocol import deserialize_assignment
from spark_kafka_sink.consumer.assignors.partition_assignor import RebalanceProtocol
from spark_kafka_sink.consumer.membership.group_values import CompleteJoin, PrepareJoin
from spark_kafka_sink.consumer.membership.member_states import ClassicMemberState
from spark_kafka_sink.errors import KafkaError, WakeupError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from spark_kafka_sink.consumer.polling.classic_coordinator import ClassicCoordinator
    from spark_kafka_sink.consumer.polling.consumer_context import ConsumerContext
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)


class Rebalances:
    """The revocations and assignments of one consumer; its methods are called without the lock."""

    def __init__(
        self,
        context: ConsumerContext,
        coordinator: ClassicCoordinator,
        commit_before: Callable[[], None],
    ) -> None:
        """Call `commit_before` before partitions are revoked: it commits if that is automatic."""
        self._context = context
        self._coordinator = coordinator
        self._commit_before = commit_before

    def run(self, step: PrepareJoin | CompleteJoin) -> None:
        """Do what the group demands; raise KafkaError if a method of the listener has raised."""
        if isinstance(step, PrepareJoin):
            self._prepare(step)
        else:
            self._complete(step)

    def _prepare(self, step: PrepareJoin) -> None:
        """Revoke what another member may get (ConsumerCoordinator.onJoinPrepare)."""
        subscriptions = self._context.subscriptions
        is_done = False
        try:
            self._commit_before()
            # An interrupted commit is repeated; the listener is called only once.
            is_done = True
            with self._context.lock:
                owned = subscriptions.assigned_partitions
                topics = subscriptions.subscription.topics
                is_lost = step.generation.is_reset or not step.generation.member_id
                is_eager = self._coordinator.protocol is RebalanceProtocol.EAGER
                given_up = owned
                if not (is_lost or is_eager):
                    given_up = tuple(each for each in owned if each.topic not in topics)
                subscriptions.mark_pending_revocation(given_up)
            try:
                if is_lost:
                    self._call("on_partitions_lost", given_up)
                else:
                    self._call("on_partitions_revoked", given_up, always=is_eager)
            finally:
                with self._context.lock:
                    self._keep(frozenset(owned).difference(given_up))
        finally:
            with self._context.lock:
                subscriptions.subscription.reset_group_topics()
                self._coordinator.membership.join_prepared(step, is_done=is_done)

    def _complete(self, step: CompleteJoin) -> None:
        """Take what the group has assigned (ConsumerCoordinator.onJoinComplete)."""
        context, subscriptions = self._context, self._context.subscriptions
        try:
            assignment = deserialize_assignment(step.assignment)
            assigned = assignment.partitions
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
            with _FirstError() as first:
                first.of(lambda: self._call("on_partitions_revoked", sorted(revoked)))
                with context.lock:
                    for topic in {each.topic for each in assigned}:
                        context.client.metadata.add_topic(topic, context.clock())
                    added = [each for each in assigned if each not in owned]
                    subscriptions.assign_from_subscribed_awaiting_callback(assigned, added)
                    self._coordinator.on_assignment(assignment)
                try:
                    first.of(lambda: self._call("on_partitions_assigned", added, always=True))
                finally:
                    with context.lock:
                        subscriptions.enable_partitions_awaiting_callback(
                            filter(subscriptions.is_assigned, added)
                        )
        finally:
            with context.lock:
                self._coordinator.membership.join_completed(step)
                context.tell_user()

    def give_up(self) -> None:
        """Revoke everything, before the member leaves (ConsumerCoordinator.onLeavePrepare)."""
        with self._context.lock:
            membership = self._coordinator.membership
            is_lost = (
                membership.generation.is_reset or membership.state is ClassicMemberState.UNJOINED
            )
            subscriptions = self._context.subscriptions
            owned = subscriptions.assigned_partitions
            if not subscriptions.subscription.is_auto_assigned:
                return
            subscriptions.mark_pending_revocation(owned)
        try:
            self._call("on_partitions_lost" if is_lost else "on_partitions_revoked", owned)
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

    def _call(
        self, method: str, partitions: Iterable[TopicPartition], *, always: bool = False
    ) -> None:
        """Call a method of the listener; `always` also if there are no partitions."""
        concerned = tuple(partitions)
        listener = self._context.subscriptions.rebalance_listener
        if concerned:
            logger.info("%s: %s", method, ", ".join(map(str, sorted(concerned))))
        if listener is None or not (concerned or always):
            return
        try:
            getattr(listener, method)(concerned)
        except WakeupError:
            raise
        except Exception as error:
            raise KafkaError(
                f"the rebalance listener's {method} raised {type(error).__name__}: {error}. The "
                "rebalance has gone on without it"
            ) from error


class _FirstError:
    """Calls several functions although one may fail, and then raises the first error."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def of(self, call: Callable[[], None]) -> None:
        try:
            call()
        except KafkaError as error:
            self._error = self._error or error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        if exc is None and self._error is not None:
            raise self._error
