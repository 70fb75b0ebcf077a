"""The coordinator's check that a transactional write belongs to an open transaction (KIP-890).

Kafka's ReplicaManager.maybeSendPartitionsToTransactionCoordinator and AddPartitionsToTxnManager,
for Produce and TxnOffsetCommit. Only a transaction's first write to a partition is checked, and the
coordinator's errors are converted to those that clients expect from a write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.partition import NO_LEADER
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.cluster.partition import Partition
    from spark_kafka_sink.devbroker.handlers.handler import RequestContext
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

#: Retriable errors that a write reports as NOT_ENOUGH_REPLICAS, which makes even older clients
#: retry without a metadata refresh.
_RETRIABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionalBatch(NamedTuple):
    """A batch that is marked as transactional."""

    topic_partition: TopicPartition
    partition: Partition
    producer: ProducerIdAndEpoch
    base_sequence: int


def verify_or_add(
    context: RequestContext,
    transactional_id: str,
    batches: Sequence[TransactionalBatch],
    *,
    adds: bool,
    knows_abortable: bool,
) -> dict[TopicPartition, ErrorCode]:
    """Return the errors of the batches that must not be appended.

    With `adds` the partitions are added to the transaction; without it they must be in it already.
    Raises RefusedError with INVALID_PRODUCER_ID_MAPPING if the batches have several producers.
    """
    producers = {batch.producer for batch in batches}
    if not producers:
        return {}
    if len(producers) > 1:
        raise RefusedError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "the request has transactional records of more than one producer id or epoch",
        )
    (producer,) = producers
    errors: dict[TopicPartition, ErrorCode] = {}
    unknown: set[TopicPartition] = set()
    for batch in batches:
        try:
            batch.partition.check_leader(context.node_id)
            if batch.partition.log.producer_state.start_verification(
                producer.producer_id,
                producer.epoch,
                batch.base_sequence,
                supports_epoch_bump=adds,
                now_ms=context.now_ms,
            ):
                unknown.add(batch.topic_partition)
        except RefusedError as refused:
            errors[batch.topic_partition] = refused.error_code
    if unknown:
        codes = ask_coordinator(context, transactional_id, producer, frozenset(unknown), adds=adds)
        for topic_partition, code in codes.items():
            if code is not ErrorCode.NONE:
                errors[topic_partition] = as_write_error(
                    code, adds=adds, knows_abortable=knows_abortable
                )
    return errors


def ask_coordinator(
    context: RequestContext,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    *,
    adds: bool,
) -> dict[TopicPartition, ErrorCode]:
    """Add or verify partitions at the coordinator, whichever broker it is."""
    transactions = context.cluster.transactions
    if context.cluster.transaction_coordinator(transactional_id) == NO_LEADER:
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    try:
        if not adds:
            return transactions.verify_partitions(
                transactional_id, producer, partitions, now_ms=context.now_ms
            )
        transactions.add_partitions(
            transactional_id, producer, partitions, client_version=2, now_ms=context.now_ms
        )
    except RefusedError as refused:
        return dict.fromkeys(partitions, refused.error_code)
    return dict.fromkeys(partitions, ErrorCode.NONE)


def as_write_error(code: ErrorCode, *, adds: bool, knows_abortable: bool) -> ErrorCode:
    """Convert an error of the coordinator to the error of a write."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if code in _RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
