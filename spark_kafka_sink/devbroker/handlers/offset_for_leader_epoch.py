"""OffsetForLeaderEpoch 2-4: where the records of a leader epoch end (KIP-320).

The client's own leader epoch is checked first: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH. An
epoch that is newer than the log's is answered by -1, -1, one in which nothing was written by the
one before it. A topic that does not exist is UNKNOWN_TOPIC_OR_PARTITION.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class OffsetForLeaderEpochHandler(
    Handler[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse]
):
    """Finds the ends of leader epochs."""

    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    versions = OffsetForLeaderEpochRequest.versions

    def handle(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Look each epoch up."""

        def find(topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
            try:
                partition = context.cluster.partition(TopicPartition(topic, asked.partition))
                partition.check_reader(context.node_id, asked.current_leader_epoch)
            except RefusedError as refused:
                return EpochEndOffset(error_code=refused.error_code, partition=asked.partition)
            end = partition.log.end_offset_for_epoch(asked.leader_epoch)
            if end is None:
                return EpochEndOffset(error_code=ErrorCode.NONE, partition=asked.partition)
            return EpochEndOffset(
                error_code=ErrorCode.NONE,
                partition=asked.partition,
                leader_epoch=end.epoch,
                end_offset=end.end_offset,
            )

        return _response(request, find)

    def error_response(
        self,
        context: RequestContext,
        request: OffsetForLeaderEpochRequest,
        error_code: ErrorCode,
        message: str,
    ) -> OffsetForLeaderEpochResponse:
        """Answer that nothing was found."""
        return _response(
            request,
            lambda _, asked: EpochEndOffset(error_code=error_code, partition=asked.partition),
        )


def _response(
    request: OffsetForLeaderEpochRequest,
    answer: Callable[[str, OffsetForLeaderPartition], EpochEndOffset],
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(answer(topic.topic, asked) for asked in topic.partitions),
            )
            for topic in request.topics
        )
    )
