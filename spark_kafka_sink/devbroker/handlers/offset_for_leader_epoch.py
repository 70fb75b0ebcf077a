"""OffsetForLeaderEpoch 2-4: returns the end offsets of leader epochs (KIP-320).

The client's current leader epoch is checked first (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH). The
result is epoch -1 and offset -1 for an epoch newer than the log's, and the end of the previous
epoch for one without records. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
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
    """The handler that looks up the end offsets of leader epochs."""

    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    versions = OffsetForLeaderEpochRequest.versions

    def handle(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Look up the end offset of each leader epoch."""

        def find(topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
            try:
                context.check_fault(TopicPartition(topic, requested.partition))
                partition = context.cluster.partition(TopicPartition(topic, requested.partition))
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

        return _response(
            request,
            find,
            lambda topic, requested: context.omits(TopicPartition(topic, requested.partition)),
        )

    def error_response(
        self,
        context: RequestContext,
        request: OffsetForLeaderEpochRequest,
        error_code: ErrorCode,
        message: str,
    ) -> OffsetForLeaderEpochResponse:
        """Return a response with the error for each partition."""
        return _response(
            request,
            lambda _, requested: EpochEndOffset(
                error_code=error_code, partition=requested.partition
            ),
            lambda *_: False,
        )


def _response(
    request: OffsetForLeaderEpochRequest,
    answer: Callable[[str, OffsetForLeaderPartition], EpochEndOffset],
    omits: Callable[[str, OffsetForLeaderPartition], bool],
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    answer(topic.topic, requested)
                    for requested in topic.partitions
                    if not omits(topic.topic, requested)
                ),
            )
            for topic in request.topics
        )
    )
