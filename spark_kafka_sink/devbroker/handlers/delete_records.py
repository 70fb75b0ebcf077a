"""DeleteRecords 0-2: deletes the records of partitions before given offsets.

Offset -1 stands for the high watermark. An offset above it gets OFFSET_OUT_OF_RANGE, and so does
any other negative one; an offset below the log start offset has no effect. A topic whose
cleanup.policy lacks "delete" gets POLICY_VIOLATION. If the disk fails, the error is
KAFKA_STORAGE_ERROR, although whole segments may already have been deleted. The response has the new
log start offsets. All of a request's log start offsets are written to disk at once; if a partition
occurs more than once, the last offset counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog

_UP_TO_THE_HIGH_WATERMARK = -1
_NO_OFFSET = -1


@handles(DeleteRecordsRequest, when_failed={"low_watermark": _NO_OFFSET})
def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Advance the log start offset of each partition."""
    logs = context.cluster.logs
    partition_logs: dict[TopicPartition, PartitionLog] = {}
    offsets: dict[TopicPartition, int] = {}
    refusals: dict[TopicPartition, RefusedError] = {}
    requested_offsets = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic_partition, offset in requested_offsets.items():
        try:
            partition_logs[topic_partition] = _find(context, topic_partition)
            offsets[topic_partition] = _offset(partition_logs[topic_partition], offset)
        except RefusedError as refused:
            refusals[topic_partition] = refused
    refusals |= logs.delete_records(offsets)

    def result(topic_partition: TopicPartition) -> DeleteRecordsPartitionResult:
        refused = refusals.get(topic_partition)
        return DeleteRecordsPartitionResult(
            partition_index=topic_partition.partition,
            low_watermark=partition_logs[topic_partition].log_start_offset
            if refused is None
            else _NO_OFFSET,
            error_code=ErrorCode.NONE if refused is None else refused.error_code,
        )

    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    result(TopicPartition(topic.name, partition.partition_index))
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _find(context: RequestContext, topic_partition: TopicPartition) -> PartitionLog:
    partition = context.cluster.partition(topic_partition)
    partition.check_leader(context.node_id)
    if not partition.topic.config.deletes:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"cleanup.policy of {partition.topic.name!r} does not include delete",
        )
    return partition.log


def _offset(log: PartitionLog, requested: int) -> int:
    offset = log.high_watermark if requested == _UP_TO_THE_HIGH_WATERMARK else requested
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {requested} is not between 0 and the high watermark, {log.high_watermark}",
        )
    return offset
