"""Whether a transactional write belongs to an open transaction, asked of the coordinator (KIP-890).

Kafka's ReplicaManager.maybeSendPartitionsToTransactionCoordinator and AddPartitionsToTxnManager,
for Produce and TxnOffsetCommit: only the first write of a transaction to a partition is asked
about, and the coordinator's errors are turned into those that clients expect from a write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.leadership import NO_LEADER
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.handlers.handler import RequestContext
    from spark_kafka_sink.devbroker.partition import Partition
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

#: Errors that a client gets rid of by trying again, said so that older ones do: without looking for
#: new metadata.
_TRY_AGAIN = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionalBatch(NamedTuple):
    """A batch that says it belongs to a transaction."""

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
    """Give the errors of those batches that may not be appended.

    With `adds` the partitions are added to the transaction, otherwise they must be in it. Raises
    RefusedError with INVALID_PRODUCER_ID_MAPPING when the batches are of several producers.
    """
    producers = {batch.producer for batch in batches}
    if not producers:
        return {}
    if len(producers) > 1:
        raise RefusedError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "transactional records of more than one producer id or epoch",
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
        asked = ask_coordinator(context, transactional_id, producer, frozenset(unknown), adds=adds)
        for topic_partition, code in asked.items():
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
    """Let the coordinator, wherever it is, add or verify partitions."""
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
    """Turn a coordinator's error into what the answer to a write says."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if code in _TRY_AGAIN or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
