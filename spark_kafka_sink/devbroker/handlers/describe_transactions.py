"""DescribeTransactions 0: describes the state, producer and partitions of transactional ids.

An unknown id gets TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.model import TopicPartition


@handles(DescribeTransactionsRequest)
def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each id."""
    return DescribeTransactionsResponse(
        transaction_states=tuple(
            _describe(context, transactional_id)
            for transactional_id in dict.fromkeys(request.transactional_ids)
        )
    )


def _describe(context: RequestContext, transactional_id: str) -> TransactionState:
    if not transactional_id:
        return _failed(transactional_id, ErrorCode.INVALID_REQUEST)
    try:
        context.cluster.check_transaction_coordinator(context.node_id, transactional_id)
    except RefusedError as refused:
        return _failed(transactional_id, refused.error_code)
    metadata = context.cluster.transactions.find(transactional_id, context.now_ms)
    if metadata is None:
        return _failed(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=str(metadata.state),
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=_topics(metadata.partitions),
    )


def _topics(topic_partitions: Iterable[TopicPartition]) -> tuple[TopicData, ...]:
    partitions: dict[str, list[int]] = {}
    for topic_partition in sorted(topic_partitions):
        partitions.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    return tuple(
        TopicData(topic=topic, partitions=tuple(indexes)) for topic, indexes in partitions.items()
    )


def _failed(transactional_id: str, error_code: ErrorCode) -> TransactionState:
    return TransactionState(
        error_code=error_code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )
