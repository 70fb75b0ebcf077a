"""OffsetForLeaderEpoch 2-4: returns the end offsets of leader epochs (KIP-320).

The client's current leader epoch is checked first (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH). The
result is epoch -1 and offset -1 for an epoch newer than the log's, and the end of the previous
epoch for one without records. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look up the end offset of each leader epoch."""

    def find(topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
        topic_partition = TopicPartition(topic, requested.partition)
        try:
            context.check_fault(topic_partition)
            partition = context.cluster.partition(topic_partition)
            partition.check_reader(context.node_id, requested.current_leader_epoch)
        except RefusedError as refused:
            return EpochEndOffset(error_code=refused.error_code, partition=requested.partition)
        end = partition.log.end_offset_for_epoch(requested.leader_epoch)
        if end is None:
            return EpochEndOffset(error_code=ErrorCode.NONE, partition=requested.partition)
        return EpochEndOffset(
            error_code=ErrorCode.NONE,
            partition=requested.partition,
            leader_epoch=end.epoch,
            end_offset=end.end_offset,
        )

    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    find(topic.topic, requested)
                    for requested in topic.partitions
                    if not context.omits(TopicPartition(topic.topic, requested.partition))
                ),
            )
            for topic in request.topics
        )
    )
