"""The fields of the next heartbeat (ConsumerHeartbeatRequestManager.HeartbeatState).

A member sends all fields when it joins. Later it sends only those that changed since the last
heartbeat, and after a failed heartbeat all again, because the coordinator may not have got them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.membership.subscription import Subscription
    from spark_kafka_sink.consumer.reconciliation.member_values import (
        LocalAssignment,
        MemberSettings,
    )


class HeartbeatFields:
    """What the last heartbeat of one member has sent."""

    def __init__(self, settings: MemberSettings, subscription: Subscription) -> None:
        """Start as if nothing had been sent."""
        self._settings = settings
        self._subscription = subscription
        self._rebalance_timeout_ms: int | None = None
        self._topics: tuple[str, ...] | None = None
        self._pattern: str | None = None
        self._assignor: str | None = None
        self._assignment: LocalAssignment | None = None

    def reset(self) -> None:
        """Forget what was sent."""
        self._rebalance_timeout_ms = None
        self._topics = self._pattern = self._assignor = self._assignment = None

    def build_request(
        self, epoch: int, owned: LocalAssignment, *, is_joining: bool
    ) -> ConsumerGroupHeartbeatRequest:
        """Return the next request, and assume from then on that it was received.

        `owned` is what the member has reconciled. `is_joining` sends all fields.

        Source: HeartbeatState.buildRequestData.
        """
        settings, subscription = self._settings, self._subscription
        timeout = round(settings.rebalance_timeout * 1000)
        topics = tuple(sorted(subscription.topics))
        pattern, assignor = subscription.broker_pattern, settings.server_assignor
        sends_timeout = is_joining or timeout != self._rebalance_timeout_ms
        sends_topics = is_joining or topics != self._topics
        # An empty regular expression removes the one that was sent before.
        sends_pattern = (is_joining and pattern is not None) or pattern != self._pattern
        sends_assignor = is_joining or assignor != self._assignor
        sends_owned = is_joining or owned != self._assignment
        self._rebalance_timeout_ms, self._topics, self._pattern = timeout, topics, pattern
        self._assignor, self._assignment = assignor, owned
        return ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=settings.member_id,
            member_epoch=epoch,
            instance_id=settings.group_instance_id,
            rack_id=settings.rack_id if is_joining else None,
            rebalance_timeout_ms=timeout if sends_timeout else -1,
            subscribed_topic_names=topics if sends_topics else None,
            subscribed_topic_regex=(pattern or "") if sends_pattern else None,
            server_assignor=assignor if sends_assignor else None,
            topic_partitions=_topic_partitions(owned) if sends_owned else None,
        )


def _topic_partitions(assignment: LocalAssignment) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in sorted(assignment.partitions.items())
    )
