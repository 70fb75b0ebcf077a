"""DeleteRecords 0-2: a partition starts later from now on.

Offset -1 is the high watermark; above it is OFFSET_OUT_OF_RANGE; below the log start nothing
happens. Topics that are only compacted are POLICY_VIOLATION. If the disk fails it is
KAFKA_STORAGE_ERROR, and whole segments may have gone even so. The answer has the new log start.
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

        def delete(topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
            try:
                low_watermark = _delete(context, topic, asked)
            except RefusedError as refused:
                return _result(asked, _NO_OFFSET, refused.error_code)
            return _result(asked, low_watermark, ErrorCode.NONE)

        return _response(request, delete)

    def error_response(
        self,
        context: RequestContext,
        request: DeleteRecordsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> DeleteRecordsResponse:
        """Answer that nothing was deleted."""
        return _response(request, lambda _, asked: _result(asked, _NO_OFFSET, error_code))


def _delete(context: RequestContext, topic: str, asked: DeleteRecordsPartition) -> int:
    partition = context.cluster.partition(TopicPartition(topic, asked.partition_index))
    partition.check_leader(context.node_id)
    if not partition.topic.config.deletes:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {topic!r} does not have delete"
        )
    log = partition.log
    offset = asked.offset
    if offset == _UP_TO_THE_HIGH_WATERMARK:
        offset = log.high_watermark
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {asked.offset} is not within 0 to the high watermark, {log.high_watermark}",
        )
    return context.cluster.logs.delete_records(TopicPartition(topic, partition.index), offset)


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
