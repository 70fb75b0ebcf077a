"""ConsumerGroupDescribe: the members of groups with the new consumer protocol (KIP-848).

Version 1 adds the type of members (KIP-1099). A classic group is GROUP_ID_NOT_FOUND here.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ConsumerGroupDescribeRequest(ApiRequest["ConsumerGroupDescribeResponse"]):
    """A request to the groups' coordinator."""

    api_key = ApiKey.CONSUMER_GROUP_DESCRIBE
    versions = VersionRange(0, 1)

    group_ids: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)


@message
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: Uuid = field(UUID)
    topic_name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class Assignment:
    """The partitions that are assigned to a member."""

    topic_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@message
class Member:
    """A member of a group."""

    member_id: str = field(STRING)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+", default=None)
    assignment: Assignment = field(Assignment)
    #: What the member is to have when the rebalance has ended.
    target_assignment: Assignment = field(Assignment)
    #: -1 unknown, 0 classic, 1 consumer.
    member_type: int = field(INT8, versions="1+", ignorable=True, default=-1)


@message
class DescribedGroup:
    """A group."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: tuple[Member, ...] = field(array(Member))
    #: One bit per AclOperation; the minimum int32 if they were not requested.
    authorized_operations: int = field(INT32, default=-2147483648)


@message
class ConsumerGroupDescribeResponse(ApiResponse, request=ConsumerGroupDescribeRequest):
    """A response with one description per group."""

    throttle_time_ms: int = field(INT32, default=0)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))
