"""ConsumerGroupDescribe 0-1: describes groups of the new consumer protocol (KIP-848).

A group that does not exist, or uses the classic protocol, gets GROUP_ID_NOT_FOUND. There is no
authorizer, so all operations are authorized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.group_records import partitions_by_topic
from spark_kafka_sink.devbroker.handlers.describe_groups import ALL_GROUP_OPERATIONS
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.groups.consumer_group import (
        ConsumerGroup,
        ConsumerMember,
        TopicIdPartition,
    )

_CONSUMER_MEMBER = 1


@handles(ConsumerGroupDescribeRequest)
def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group."""
    allowed = ALL_GROUP_OPERATIONS if request.include_authorized_operations else UNKNOWN_OPERATIONS
    # Drop duplicates: a small request that repeats a group would get a huge response.
    group_ids = dict.fromkeys(request.group_ids)
    return ConsumerGroupDescribeResponse(
        groups=tuple(_describe(context, group_id, allowed) for group_id in group_ids)
    )


def _describe(context: RequestContext, group_id: str, allowed: int) -> DescribedGroup:
    if not group_id:
        return _failed(group_id, ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")
    try:
        context.cluster.check_group_coordinator(context.node_id, group_id)
    except RefusedError as refused:
        return _failed(group_id, refused.error_code, refused.message)
    groups = context.cluster.groups
    group = groups.find_consumer_group(group_id)
    if group is None:
        exists = groups.find(group_id) is not None
        return _failed(
            group_id,
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group_id} is not a consumer group."
            if exists
            else f"Group {group_id} not found.",
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=str(group.state),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(context, group, member) for member in group.members.values()),
        authorized_operations=allowed,
    )


def _member(context: RequestContext, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        # With the partitions to revoke, for which it is still responsible.
        assignment=_assignment(context, member.owned),
        target_assignment=_assignment(context, group.target.get(member.member_id, ())),
        member_type=_CONSUMER_MEMBER,
    )


def _assignment(context: RequestContext, partitions: Iterable[TopicIdPartition]) -> Assignment:
    topics = []
    for topic_id, indexes in partitions_by_topic(partitions).items():
        topic = context.cluster.topic_by_id(topic_id)
        if topic is not None:
            topics.append(
                TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=tuple(indexes))
            )
    return Assignment(topic_partitions=tuple(topics))


def _failed(group_id: str, error_code: ErrorCode, message: str) -> DescribedGroup:
    return DescribedGroup(
        error_code=error_code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )
