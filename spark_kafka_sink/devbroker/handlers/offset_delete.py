"""OffsetDelete 0: deletes committed offsets of a group for single partitions (KIP-496).

A topic to which the group subscribes gets GROUP_SUBSCRIBED_TO_TOPIC; for the classic protocol, the
broker looks into the members' subscriptions. A group that does not exist gets GROUP_ID_NOT_FOUND,
one with members of another protocol type than "consumer" NON_EMPTY_GROUP. To delete an offset that
does not exist is not an error, but for a partition that does not exist it is
UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup
    from spark_kafka_sink.devbroker.groups.consumer_group import ConsumerGroup


@handles(OffsetDeleteRequest)
def offset_delete(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete the offset of each partition that passes the checks."""
    subscribed = _find_group(context, request.group_id).compute_subscribed_topics()
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        is_subscribed = subscribed is None or topic.name in subscribed
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if not context.cluster.has(topic_partition):
                codes[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed:
                codes[topic_partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                codes[topic_partition] = ErrorCode.NONE
    deleted = [partition for partition, code in codes.items() if code is ErrorCode.NONE]
    context.cluster.groups.offsets.delete(request.group_id, deleted)
    topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
    for (name, index), code in codes.items():
        result = OffsetDeleteResponsePartition(partition_index=index, error_code=code)
        topics.setdefault(name, []).append(result)
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(name=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        )
    )


def _find_group(context: RequestContext, group_id: str) -> ClassicGroup | ConsumerGroup:
    """Return the group. Raises RefusedError."""
    if not group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")
    context.cluster.check_group_coordinator(context.node_id, group_id)
    group = context.cluster.groups.find(group_id)
    if group is None:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")
    if group.members and group.protocol_type != "consumer":
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
    return group
