"""OffsetFetch 1-10: returns the committed offsets of consumer groups.

A partition without a committed offset gets -1 and no error, even if the group does not exist. Null
instead of a list of topics (2+) requests all offsets of the group. With `require_stable` (7+), an
offset that an open transaction may change gets UNSTABLE_OFFSET_COMMIT (KIP-447). From version 8 on
a request can have several groups, each with its own error; from version 10 on topics are given by
id, and an unknown one gets UNKNOWN_TOPIC_ID. A member of the new consumer protocol can send its id
and epoch (9+), and gets UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH if they are not current.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.group_offsets import NO_OFFSET, CommittedOffset
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection

_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_FIRST_VERSION_WITH_GROUP_ERROR = 2
_NOTHING = CommittedOffset(NO_OFFSET)


@handles(OffsetFetchRequest, when_failed={"committed_offset": NO_OFFSET})
def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return the committed offsets of each group."""
    # Drop duplicates, even with other member ids: a small request would get a huge response.
    groups = {(group.group_id, group.topics): group for group in _groups(context, request)}
    return _response(context, [_group(context, group, request) for group in groups.values()])


def _groups(
    context: RequestContext, request: OffsetFetchRequest
) -> tuple[OffsetFetchRequestGroup, ...]:
    """Return the requested groups in the layout of version 8 and later."""
    if context.version >= _FIRST_VERSION_WITH_GROUPS:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        )
    return (OffsetFetchRequestGroup(group_id=request.group_id, topics=topics),)


def _group(
    context: RequestContext, requested: OffsetFetchRequestGroup, request: OffsetFetchRequest
) -> OffsetFetchResponseGroup:
    try:
        context.cluster.check_group_coordinator(context.node_id, requested.group_id)
        group = context.cluster.groups.find_consumer_group(requested.group_id)
        if group is not None:
            group.check_offset_fetch(requested.member_id, requested.member_epoch)
    except RefusedError as refused:
        return _failed(context, requested, refused.error_code)
    topics = _all_topics(context, requested) if requested.topics is None else requested.topics
    offsets = context.cluster.groups.offsets
    unstable = offsets.unstable(requested.group_id) if request.require_stable else frozenset()
    return OffsetFetchResponseGroup(
        group_id=requested.group_id,
        topics=tuple(_topic(context, requested.group_id, topic, unstable) for topic in topics),
    )


def _all_topics(
    context: RequestContext, group: OffsetFetchRequestGroup
) -> list[OffsetFetchRequestTopics]:
    partitions: dict[str, list[int]] = {}
    for topic_partition in sorted(context.cluster.groups.offsets.committed(group.group_id)):
        partitions.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    topics = []
    for name, indexes in partitions.items():
        known = context.cluster.topic(name)
        if known is not None or context.version < _FIRST_VERSION_WITH_TOPIC_IDS:
            topics.append(
                OffsetFetchRequestTopics(
                    name=name,
                    topic_id=ZERO_UUID if known is None else known.topic_id,
                    partition_indexes=tuple(indexes),
                )
            )
    return topics


def _topic(
    context: RequestContext,
    group_id: str,
    topic: OffsetFetchRequestTopics,
    unstable: Collection[TopicPartition],
) -> OffsetFetchResponseTopics:
    name: str | None = topic.name
    if context.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        name = _topic_name(context, topic.topic_id)
    committed = context.cluster.groups.offsets.committed(group_id)

    def partition(index: int) -> OffsetFetchResponsePartitions:
        if name is None:
            return _partition(index, _NOTHING, ErrorCode.UNKNOWN_TOPIC_ID)
        topic_partition = TopicPartition(name, index)
        if topic_partition in unstable:
            return _partition(index, _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return _partition(index, committed.get(topic_partition, _NOTHING), ErrorCode.NONE)

    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(partition(index) for index in topic.partition_indexes),
    )


def _topic_name(context: RequestContext, topic_id: uuid.UUID) -> str | None:
    known = context.cluster.topic_by_id(topic_id)
    return None if known is None else known.name


def _partition(
    index: int, committed: CommittedOffset, error_code: ErrorCode
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error_code,
    )


def _failed(
    context: RequestContext, group: OffsetFetchRequestGroup, error_code: ErrorCode
) -> OffsetFetchResponseGroup:
    """Return the response for a failed group; version 1 has error codes in partitions only."""
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    if context.version < _FIRST_VERSION_WITH_GROUP_ERROR:
        topics = tuple(
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=tuple(
                    _partition(index, _NOTHING, error_code) for index in topic.partition_indexes
                ),
            )
            for topic in group.topics or ()
        )
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error_code)


def _response(
    context: RequestContext, groups: list[OffsetFetchResponseGroup]
) -> OffsetFetchResponse:
    if context.version >= _FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=tuple(groups))
    (group,) = groups
    return OffsetFetchResponse(
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in group.topics
        ),
        error_code=group.error_code,
    )
