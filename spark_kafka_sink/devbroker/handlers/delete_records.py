"""DeleteRecords 0-2: a partition starts later from now on.

Offset -1 is the high watermark; above it is OFFSET_OUT_OF_RANGE; below the log start nothing
happens. Topics that are only compacted are POLICY_VIOLATION. If the disk fails it is
KAFKA_STORAGE_ERROR, and whole segments may have gone even so. The answer has the new log start. All
starts of a request are written to disk at once; of a partition that is named again the last counts.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.refusal import RefusedError
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

    from spark_kafka_sink.devbroker.partition_log import PartitionLog

_UP_TO_THE_HIGH_WATERMARK = -1
_NO_OFFSET = -1


class DeleteRecordsHandler(Handler[DeleteRecordsRequest, DeleteRecordsResponse]):
    """Deletes records."""

    api_key = ApiKey.DELETE_RECORDS
    versions = DeleteRecordsRequest.versions

    def handle(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
        """Let each partition start where it is told to."""
        logs = context.cluster.logs
        found: dict[TopicPartition, PartitionLog] = {}
        offsets: dict[TopicPartition, int] = {}
        refusals: dict[TopicPartition, RefusedError] = {}
        wanted = {
            TopicPartition(topic.name, asked.partition_index): asked.offset
            for topic in request.topics
            for asked in topic.partitions
        }
        for topic_partition, offset in wanted.items():
            try:
                found[topic_partition] = _find(context, topic_partition)
                offsets[topic_partition] = _offset(found[topic_partition], offset)
            except RefusedError as refused:
                refusals[topic_partition] = refused
        refusals |= logs.delete_records(offsets)

        def answer(topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
            topic_partition = TopicPartition(topic, asked.partition_index)
            refused = refusals.get(topic_partition)
            if refused is not None:
                return _result(asked, _NO_OFFSET, refused.error_code)
            return _result(asked, found[topic_partition].log_start_offset, ErrorCode.NONE)

        return _response(request, answer)

    def error_response(
        self,
        context: RequestContext,
        request: DeleteRecordsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DeleteRecordsResponse:
        """Answer that nothing was deleted."""
        return _response(request, lambda _, asked: _result(asked, _NO_OFFSET, error_code))


def _find(context: RequestContext, topic_partition: TopicPartition) -> PartitionLog:
    partition = context.cluster.partition(topic_partition)
    partition.check_leader(context.node_id)
    if not partition.topic.config.deletes:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"cleanup.policy of {partition.topic.name!r} does not have delete",
        )
    return partition.log


def _offset(log: PartitionLog, asked: int) -> int:
    offset = log.high_watermark if asked == _UP_TO_THE_HIGH_WATERMARK else asked
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {asked} is not within 0 to the high watermark, {log.high_watermark}",
        )
    return offset


def _result(
    asked: DeleteRecordsPartition, low_watermark: int, error_code: ErrorCode
) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=low_watermark, error_code=error_code
    )


def _response(
    request: DeleteRecordsRequest,
    answer: Callable[[str, DeleteRecordsPartition], DeleteRecordsPartitionResult],
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(answer(topic.name, asked) for asked in topic.partitions),
            )
            for topic in request.topics
        )
    )
