"""The partitions of topics, page by page: DescribeTopicPartitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import INTERNAL_TOPICS, validate_topic_name
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Partition

#: The most partitions of a page (max.request.partition.size.limit).
_MOST_PARTITIONS = 2000


def _error_response(
    _context: RequestContext,
    request: DescribeTopicPartitionsRequest,
    error_code: ErrorCode,
    _message: str,
) -> DescribeTopicPartitionsResponse:
    """Return a response with the error for each requested topic."""
    return DescribeTopicPartitionsResponse(
        topics=tuple(
            DescribeTopicPartitionsResponseTopic(
                error_code=error_code, name=topic.name, partitions=()
            )
            for topic in request.topics
        )
    )


@handles(DescribeTopicPartitionsRequest, error_response=_error_response)
def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe the partitions of topics, or of all topics, by name (DescribeTopicPartitions 0).

    A page has at most as many partitions as requested, and at most 2,000; the cursor says where the
    next page begins. A missing topic gets UNKNOWN_TOPIC_OR_PARTITION, or INVALID_TOPIC_EXCEPTION if
    its name is invalid; it counts as no partition. INVALID_REQUEST is for a cursor that is not on
    one of the topics, or before the first partition. A topic that the client may not
    describe gets TOPIC_AUTHORIZATION_FAILED, or is left out of all topics, and counts as no
    partition, either.
    """
    cursor = request.cursor
    names = {topic.name for topic in request.topics}
    requests_all = not names
    if requests_all:
        names = {topic.name for topic in context.cluster.topics}
    elif cursor is not None and cursor.topic_name not in names:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            "DescribeTopicPartitionsRequest topic list should contain the cursor topic: "
            f"{cursor.topic_name}",
        )
    if cursor is not None and cursor.partition_index < 0:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"DescribeTopicPartitionsRequest cursor partition must be valid: {cursor}",
        )
    left = max(1, min(_MOST_PARTITIONS, request.response_partition_limit))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    hidden = {
        name
        for name in names
        if not context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    }
    refused = [] if requests_all else [_hidden(name) for name in sorted(hidden)]
    for name in sorted(names - hidden):
        start = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            start = cursor.partition_index if name == cursor.topic_name else 0
        if not left:
            return _page([*topics, *refused], Cursor(topic_name=name, partition_index=0))
        described = _topic(context, name, start, left)
        topics.append(described)
        left -= len(described.partitions)
        end = start + len(described.partitions)
        topic = context.cluster.topic(name)
        if topic is not None and end < len(topic.partitions):
            return _page([*topics, *refused], Cursor(topic_name=name, partition_index=end))
    return _page([*topics, *refused], None)


def _hidden(name: str) -> DescribeTopicPartitionsResponseTopic:
    """Return the result of a topic that the client may not describe, whether or not it exists."""
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, partitions=()
    )


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=next_cursor)


def _topic(
    context: RequestContext, name: str, start: int, most: int
) -> DescribeTopicPartitionsResponseTopic:
    """Describe a topic, or why there is none, from one of its partitions on."""
    topic = context.cluster.topic(name)
    if topic is None:
        try:
            validate_topic_name(name)
        except RefusedError as refused:
            error_code = refused.error_code
        else:
            error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DescribeTopicPartitionsResponseTopic(
            error_code=error_code,
            name=name,
            is_internal=name in INTERNAL_TOPICS,
            partitions=(),
            topic_authorized_operations=context.authorized_operations(ResourceType.TOPIC, name),
        )
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            _partition(context, partition) for partition in topic.partitions[start : start + most]
        ),
        topic_authorized_operations=context.authorized_operations(ResourceType.TOPIC, name),
    )


def _partition(
    context: RequestContext, partition: Partition
) -> DescribeTopicPartitionsResponsePartition:
    leadership = partition.leadership
    return DescribeTopicPartitionsResponsePartition(
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=leadership.isr,
        eligible_leader_replicas=tuple(sorted(leadership.eligible)),
        last_known_elr=(),
        offline_replicas=tuple(
            replica for replica in partition.replicas if replica not in context.cluster.nodes
        ),
    )
