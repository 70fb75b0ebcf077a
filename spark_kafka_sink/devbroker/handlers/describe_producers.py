"""DescribeProducers 0: describes the idempotent and transactional producers of partitions.

A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, one that another broker leads
NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.log.producer_state import ProducerStateEntry

_NO_OFFSET = -1


def _error_response(
    _context: RequestContext,
    request: DescribeProducersRequest,
    error_code: ErrorCode,
    message: str,
) -> DescribeProducersResponse:
    """Return a response with the error for each partition, which is in it once."""
    return _response(request, lambda partition: _failed(partition, error_code, message))


@handles(DescribeProducersRequest, error_response=_error_response)
def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe the producers of each partition."""

    def describe(topic_partition: TopicPartition) -> PartitionResponse:
        try:
            partition = context.cluster.partition(topic_partition)
            partition.check_leader(context.node_id)
        except RefusedError as refused:
            return _failed(topic_partition, refused.error_code, refused.message)
        return PartitionResponse(
            partition_index=topic_partition.partition,
            error_code=ErrorCode.NONE,
            active_producers=tuple(map(_producer, partition.log.producer_state.entries())),
        )

    return _response(request, describe)


def _producer(entry: ProducerStateEntry) -> ProducerState:
    first_offset = entry.current_txn_first_offset
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=_NO_OFFSET if first_offset is None else first_offset,
    )


def _failed(
    topic_partition: TopicPartition, error_code: ErrorCode, message: str
) -> PartitionResponse:
    return PartitionResponse(
        partition_index=topic_partition.partition,
        error_code=error_code,
        error_message=message,
        active_producers=(),
    )


def _response(
    request: DescribeProducersRequest, answer: Callable[[TopicPartition], PartitionResponse]
) -> DescribeProducersResponse:
    # Drop duplicates: a small request that repeats a partition would get a huge response.
    partitions_by_topic: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        partitions_by_topic.setdefault(topic.name, {}).update(
            dict.fromkeys(topic.partition_indexes)
        )
    return DescribeProducersResponse(
        topics=tuple(
            TopicResponse(
                name=name,
                partitions=tuple(answer(TopicPartition(name, index)) for index in indexes),
            )
            for name, indexes in partitions_by_topic.items()
        )
    )
