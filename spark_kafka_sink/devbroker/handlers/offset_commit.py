"""OffsetCommit 2-10: commits the offsets of a consumer group.

Members of the current generation may commit, and any client with generation -1 while the group has
no members. A commit with generation -1 creates a group that does not exist; with another generation
it gets ILLEGAL_GENERATION, from version 9 on GROUP_ID_NOT_FOUND. A commit counts as a heartbeat.

A member of the new consumer protocol (KIP-848) sends its epoch, from version 9 on; before, it gets
UNSUPPORTED_VERSION. STALE_MEMBER_EPOCH means that the epoch is from the future, or older than the
assignment of one of the partitions (KIP-1251). Such a commit does not count as a heartbeat.

Each partition has its own result: UNKNOWN_TOPIC_OR_PARTITION if it does not exist, UNKNOWN_TOPIC_ID
for an unknown topic id (10+), OFFSET_METADATA_TOO_LARGE for too much metadata. Offsets do not
expire; the retention time of a request is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import GroupState
from spark_kafka_sink.devbroker.groups.consumer_group import (
    ConsumerGroup,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.groups.group_offsets import CommittedOffset
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.groups.consumer_group import ConsumerMember
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequestTopic

_FIRST_VERSION_WITH_TOPIC_IDS = 10
_FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9
_HEARTBEAT_STATES = frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE})


@handles(OffsetCommitRequest)
def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit the offset of each partition that passes the checks."""
    context.cluster.check_group_coordinator(context.node_id, request.group_id)
    topics: list[OffsetCommitResponseTopic] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    exists = False
    for topic in request.topics:
        name = _topic_name(context, topic)
        results: list[OffsetCommitResponsePartition] = []
        for partition in topic.partitions:
            code = ErrorCode.NONE
            if name is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif not context.cluster.has(TopicPartition(name, partition.partition_index)):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                exists = True
                metadata = partition.committed_metadata or ""
                if len(metadata) > context.settings.offset_metadata_max_bytes:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    offsets[TopicPartition(name, partition.partition_index)] = CommittedOffset(
                        partition.committed_offset, partition.committed_leader_epoch, metadata
                    )
            results.append(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
            )
        topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=tuple(results)
            )
        )
    if exists:
        member = _check_group(context, request)
        if member is not None:
            _check_epochs(context, member, request.generation_id_or_member_epoch, offsets)
        context.cluster.groups.offsets.commit(request.group_id, offsets, now_ms=context.now_ms)
    return OffsetCommitResponse(topics=tuple(topics))


def _topic_name(context: RequestContext, topic: OffsetCommitRequestTopic) -> str | None:
    if context.version < _FIRST_VERSION_WITH_TOPIC_IDS:
        return topic.name
    known = context.cluster.topic_by_id(topic.topic_id)
    return None if known is None else known.name


def _check_epochs(
    context: RequestContext,
    member: ConsumerMember,
    epoch: int,
    partitions: Iterable[TopicPartition],
) -> None:
    """Raise RefusedError with STALE_MEMBER_EPOCH if a partition was assigned after the epoch."""
    for topic_partition in partitions:
        topic = context.cluster.existing_topic(topic_partition.topic)
        if member.has_stale_epoch(
            epoch, TopicIdPartition(topic.topic_id, topic_partition.partition)
        ):
            raise RefusedError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"member epoch {epoch} is older than the assignment of {topic_partition}",
            )


def _check_group(context: RequestContext, request: OffsetCommitRequest) -> ConsumerMember | None:
    """Check that the sender may commit; return it if its epoch is still to be compared."""
    groups = context.cluster.groups
    generation_id = request.generation_id_or_member_epoch
    group = groups.find(request.group_id)
    if group is None:
        if generation_id >= 0:
            raise RefusedError(
                ErrorCode.ILLEGAL_GENERATION
                if context.version < _FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND
                else ErrorCode.GROUP_ID_NOT_FOUND,
                f"group {request.group_id!r} does not exist",
            )
        group = groups.create(request.group_id)
    if isinstance(group, ConsumerGroup):
        return group.check_offset_commit(
            request.member_id, generation_id, request.group_instance_id, version=context.version
        )
    group.check_offset_commit(
        request.member_id, request.group_instance_id, generation_id, transactional=False
    )
    member = group.members.get(request.member_id)
    if group.state in _HEARTBEAT_STATES and member is not None:
        groups.classic_groups.restart_session(group, member, context.now)
    return None
