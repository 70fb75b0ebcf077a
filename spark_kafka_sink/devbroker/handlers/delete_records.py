"""DeleteRecords 0-2: deletes the records of partitions before given offsets.

Offset -1 stands for the high watermark. An offset above it gets OFFSET_OUT_OF_RANGE, and so does
any other negative one; an offset below the log start offset has no effect. A topic whose
cleanup.policy lacks "delete" gets POLICY_VIOLATION. If the disk fails, the error is
KAFKA_STORAGE_ERROR, although whole segments may already have been deleted. The response has the new
log start offsets. All of a request's log start offsets are written to disk at once; if a partition
occurs more than once, the last offset counts.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog

_UP_TO_THE_HIGH_WATERMARK = -1
_NO_OFFSET = -1


class DeleteRecordsHandler(Handler[DeleteRecordsRequest, DeleteRecordsResponse]):
    """The handler that deletes records."""

    api_key = ApiKey.DELETE_RECORDS
    versions = DeleteRecordsRequest.versions

    def handle(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
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

        def answer(topic: str, partition: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
            topic_partition = TopicPartition(topic, partition.partition_index)
            refused = refusals.get(topic_partition)
            if refused is not None:
                return _result(partition, _NO_OFFSET, refused.error_code)
            return _result(
                partition, partition_logs[topic_partition].log_start_offset, ErrorCode.NONE
            )

        return _response(request, answer)

    def error_response(
        self,
        context: RequestContext,
        request: DeleteRecordsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DeleteRecordsResponse:
        """Return a response with the error for each partition: nothing was deleted."""
        return _response(request, lambda _, partition: _result(partition, _NO_OFFSET, error_code))


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


def _result(
    partition: DeleteRecordsPartition, low_watermark: int, error_code: ErrorCode
) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=partition.partition_index,
        low_watermark=low_watermark,
        error_code=error_code,
    )


def _response(
    request: DeleteRecordsRequest,
    answer: Callable[[str, DeleteRecordsPartition], DeleteRecordsPartitionResult],
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(answer(topic.name, partition) for partition in topic.partitions),
            )
            for topic in request.topics
        )
    )
