"""AddPartitionsToTxn 0-5: adds partitions to a transaction before they are written to.

Either all partitions of a transaction are added or none: one that does not exist gets
UNKNOWN_TOPIC_OR_PARTITION and the others OPERATION_NOT_ATTEMPTED. Versions 0 and 1 return
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.

Brokers use versions 4 and 5 among themselves, for several transactions whose epochs are bumped with
each transaction (KIP-890). With `verify_only`, a transaction is only checked: partitions that are
not in it already get TRANSACTION_ABORTABLE. A transactional id that occurs twice gets
INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    LAST_CLIENT_VERSION,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_VERSION_WITH_PRODUCER_FENCED = 2


def _error_response(
    context: RequestContext,
    request: AddPartitionsToTxnRequest,
    error_code: ErrorCode,
    _message: str,
) -> AddPartitionsToTxnResponse:
    """Return a response with the error: nothing was added."""
    response = _response(
        context, request, lambda transaction: _result(transaction, lambda _: error_code)
    )
    if context.version <= LAST_CLIENT_VERSION:
        return response
    return AddPartitionsToTxnResponse(
        error_code=error_code, results_by_transaction=response.results_by_transaction
    )


@handles(AddPartitionsToTxnRequest, error_response=_error_response)
def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add or verify the partitions of each transaction."""
    # Ids must not be repeated: each change rewrites all the partitions of the transaction.
    times = Counter(transaction.transactional_id for transaction in request.transactions)

    def answer(transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        if times[transaction.transactional_id] > 1:
            return _result(transaction, lambda _: ErrorCode.INVALID_REQUEST)
        codes = _add_or_verify(context, transaction)
        return _result(transaction, codes.__getitem__)

    return _response(context, request, answer)


def _response(
    context: RequestContext,
    request: AddPartitionsToTxnRequest,
    answer: Callable[[AddPartitionsToTxnTransaction], AddPartitionsToTxnResult],
) -> AddPartitionsToTxnResponse:
    """Build the response from each transaction's result, in the layout of the request's version."""
    if context.version > LAST_CLIENT_VERSION:
        return AddPartitionsToTxnResponse(
            results_by_transaction=tuple(map(answer, request.transactions))
        )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=answer(transaction).topic_results
    )


def _add_or_verify(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> dict[TopicPartition, ErrorCode]:
    partitions = frozenset(_partitions(transaction))
    missing = {partition for partition in partitions if not context.cluster.has(partition)}
    if missing:
        return {
            partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition in missing
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for partition in partitions
        }
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    transactions = context.cluster.transactions
    try:
        if transaction.transactional_id:
            context.cluster.check_transaction_coordinator(
                context.node_id, transaction.transactional_id
            )
        if transaction.verify_only:
            return transactions.verify_partitions(
                transaction.transactional_id, producer, partitions, now_ms=context.now_ms
            )
        transactions.add_partitions(
            transaction.transactional_id,
            producer,
            partitions,
            client_version=0 if context.version <= LAST_CLIENT_VERSION else 2,
            now_ms=context.now_ms,
        )
    except RefusedError as refused:
        code = context.fenced_as_of(_FIRST_VERSION_WITH_PRODUCER_FENCED, refused.error_code)
    else:
        code = ErrorCode.NONE
    return dict.fromkeys(partitions, code)


def _partitions(transaction: AddPartitionsToTxnTransaction) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, partition)
        for topic in transaction.topics
        for partition in topic.partitions
    ]


def _result(
    transaction: AddPartitionsToTxnTransaction, code_of: Callable[[TopicPartition], ErrorCode]
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=partition,
                        partition_error_code=code_of(TopicPartition(topic.name, partition)),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in transaction.topics
        ),
    )
