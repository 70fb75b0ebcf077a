"""ConsumerGroupHeartbeat: joins a consumer group, receives its partitions, and leaves (KIP-848).

One request for everything that JoinGroup, SyncGroup, Heartbeat and LeaveGroup do for a group of the
classic protocol. A member sends all its fields when it joins, and later only those that changed.
Version 1 adds subscriptions by regular expression; members then create their own ids (KIP-1082).
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.protocol.schema import *

#: The member epoch of a member that joins, or that rejoins after it was fenced.
JOIN_GROUP_MEMBER_EPOCH: Final = 0
#: The member epoch of a member that leaves.
LEAVE_GROUP_MEMBER_EPOCH: Final = -1
#: The member epoch of a static member that leaves but will return within its session timeout.
LEAVE_GROUP_STATIC_MEMBER_EPOCH: Final = -2


@message
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: Uuid = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class ConsumerGroupHeartbeatRequest(ApiRequest["ConsumerGroupHeartbeatResponse"]):
    """A request to the group's coordinator; None means that a field did not change."""

    api_key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    versions = VersionRange(0, 1)

    group_id: str = field(STRING)
    #: May be empty in version 0, if the member joins: the coordinator then creates one.
    member_id: str = field(STRING)
    #: 0 to join, -1 to leave, -2 for a static member that leaves and will return.
    member_epoch: int = field(INT32)
    #: group.instance.id of a static member (KIP-345).
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    #: How long the member may take to revoke partitions; -1 if it did not change.
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = field(
        array(STRING), nullable="0+", default=None
    )
    #: In the syntax of RE2.
    subscribed_topic_regex: str | None = field(STRING, versions="1+", nullable="1+", default=None)
    #: `uniform` or `range`; None to leave the choice to the coordinator.
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    #: The partitions that the member owns.
    topic_partitions: tuple[TopicPartitions, ...] | None = field(
        array(TopicPartitions), nullable="0+", default=None
    )


@message
class Assignment:
    """The partitions that a member may use now."""

    topic_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@message
class ConsumerGroupHeartbeatResponse(ApiResponse, request=ConsumerGroupHeartbeatRequest):
    """A response with the member's epoch, and its assignment if that has changed."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32, default=0)
    heartbeat_interval_ms: int = field(INT32, default=0)
    #: Partitions that it lacks must be revoked.
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
