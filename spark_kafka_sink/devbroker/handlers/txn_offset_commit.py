"""TxnOffsetCommit 0-5: commits the offsets of a consumer group as part of a transaction.

The offsets are pending until the transaction ends; see OffsetFetch for how readers see them. Up to
version 4 the group must be in the transaction (AddOffsetsToTxn); if not, the error is
TRANSACTION_ABORTABLE (4) or INVALID_TXN_STATE. From version 5 on the group is added (KIP-890).
INVALID_PRODUCER_EPOCH is returned instead of PRODUCER_FENCED. Members must have the current
generation; clients without a member id and generation may commit as well (KIP-447). A partition
that does not exist gets UNKNOWN_TOPIC_OR_PARTITION on its own, one with too much metadata
OFFSET_METADATA_TOO_LARGE.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import group_metadata_partition
from spark_kafka_sink.devbroker.groups.consumer_group import (
    ConsumerGroup,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.groups.group_offsets import CommittedOffset
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.devbroker.handlers.transaction_verification import ask_coordinator
from spark_kafka_sink.model import NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 4
_FIRST_VERSION_THAT_ADDS_GROUPS = 5


@handles(TxnOffsetCommitRequest)
def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Add the offset of each partition that passes the checks to the transaction."""
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            metadata = partition.committed_metadata or ""
            if not context.cluster.has(topic_partition):
                codes[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > context.settings.offset_metadata_max_bytes:
                codes[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                codes[topic_partition] = ErrorCode.NONE
                offsets[topic_partition] = CommittedOffset(
                    partition.committed_offset, partition.committed_leader_epoch, metadata
                )
    if set(codes.values()) != {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
        code = _commit(context, request, offsets)
        if code is not ErrorCode.NONE:
            codes |= {
                topic_partition: code
                for topic_partition, known in codes.items()
                if known is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _commit(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    offsets: dict[TopicPartition, CommittedOffset],
) -> ErrorCode:
    """Add the offsets to the transaction; return the error of the request as a whole."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        context.cluster.check_group_coordinator(context.node_id, request.group_id)
        _verify(context, request, producer)
        _check_group(context, request)
    except RefusedError as refused:
        return refused.error_code
    if offsets:
        context.cluster.groups.offsets.commit_in_transaction(
            producer, request.group_id, offsets, now_ms=context.now_ms
        )
    return ErrorCode.NONE


def _verify(
    context: RequestContext, request: TxnOffsetCommitRequest, producer: ProducerIdAndEpoch
) -> None:
    """Check a transaction's first commit with the transaction coordinator. Raises RefusedError."""
    adds = context.version >= _FIRST_VERSION_THAT_ADDS_GROUPS
    state = context.cluster.groups.offsets.producer_state(request.group_id)
    if not state.start_verification(
        producer.producer_id,
        producer.epoch,
        NO_SEQUENCE,
        supports_epoch_bump=adds,
        now_ms=context.now_ms,
    ):
        return
    partition = group_metadata_partition(request.group_id)
    code = ask_coordinator(
        context, request.transactional_id, producer, frozenset({partition}), adds=adds
    )[partition]
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif (
        code is ErrorCode.TRANSACTION_ABORTABLE
        and context.version < _FIRST_VERSION_WITH_TRANSACTION_ABORTABLE
    ):
        code = ErrorCode.INVALID_TXN_STATE
    if code is not ErrorCode.NONE:
        raise RefusedError(code, f"the group is not in a transaction: {code.name}")


def _check_group(context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    groups = context.cluster.groups
    group = groups.find(request.group_id)
    if group is None:
        if request.generation_id >= 0:
            raise RefusedError(
                ErrorCode.ILLEGAL_GENERATION, f"group {request.group_id!r} does not exist"
            )
        group = groups.create(request.group_id)
    if isinstance(group, ConsumerGroup):
        _check_member_epoch(context, request, group)
        return
    group.check_offset_commit(
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        transactional=True,
    )


def _check_member_epoch(
    context: RequestContext, request: TxnOffsetCommitRequest, group: ConsumerGroup
) -> None:
    """Raise RefusedError with UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION."""
    epoch = request.generation_id
    try:
        member = group.check_offset_commit(
            request.member_id, epoch, request.group_instance_id, version=None
        )
    except RefusedError as refused:
        if refused.error_code is not ErrorCode.STALE_MEMBER_EPOCH:
            raise
        raise RefusedError(ErrorCode.ILLEGAL_GENERATION, refused.message) from refused
    if member is None:
        return
    for requested in request.topics:
        topic = context.cluster.topic(requested.name)
        for partition in requested.partitions:
            if topic is not None and member.has_stale_epoch(
                epoch, TopicIdPartition(topic.topic_id, partition.partition_index)
            ):
                raise RefusedError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"epoch {epoch} is older than the assignment of partition "
                    f"{requested.name}-{partition.partition_index}",
                )
