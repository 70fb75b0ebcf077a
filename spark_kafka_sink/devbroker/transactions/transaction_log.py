"""Transactional ids as records of `__transaction_state` (Kafka's TransactionLog)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.log.storage.coordinator_records import (
    TRANSACTION_LOG_KEY,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_versioned,
    encode_versioned,
)
from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionMetadata
from spark_kafka_sink.devbroker.transactions.transaction_state import TransactionState
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorBatch, CoordinatorLog

#: Kafka's TransactionState.id.
_STATUS = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
    TransactionState.DEAD: 6,
    TransactionState.PREPARE_EPOCH_FENCE: 7,
}
_STATES = {status: state for state, status in _STATUS.items()}


def encode_transaction(
    metadata: TransactionMetadata, *, transaction_version: int
) -> tuple[bytes, bytes | None]:
    """Encode the metadata of an id; for a dead one, a tombstone.

    From transaction.version 1 the value's version is one that can hold other producer ids.
    """
    key = encode_versioned(
        TransactionLogKey(transactional_id=metadata.transactional_id), TRANSACTION_LOG_KEY
    )
    if metadata.state is TransactionState.DEAD:
        return key, None
    partitions = tuple(
        PartitionsSchema(topic=topic, partition_ids=tuple(each.partition for each in group))
        for topic, group in groupby(sorted(metadata.partitions), key=lambda each: each.topic)
    )
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=_STATUS[metadata.state],
        # As in Kafka, an id without a transaction has null partitions, not an empty list.
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )
    return key, encode_versioned(value, min(transaction_version, 1))


def read_transactions(log: CoordinatorLog) -> dict[str, TransactionMetadata]:
    """Return the latest metadata of each id in the log. Raises CorruptRecordError."""
    found: dict[str, TransactionMetadata] = {}

    def apply(batch: CoordinatorBatch) -> None:
        for record in batch.records:
            key = decode_versioned(TransactionLogKey, record.key or b"")
            if record.value is None:
                found.pop(key.transactional_id, None)
            else:
                value = decode_versioned(TransactionLogValue, record.value)
                found[key.transactional_id] = _metadata(key.transactional_id, value)

    log.replay(apply)
    return found


def _metadata(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        timeout_ms=value.transaction_timeout_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        state=_STATES[value.transaction_status],
        partitions={
            TopicPartition(each.topic, index)
            for each in value.transaction_partitions or ()
            for index in each.partition_ids
        },
        start_ms=value.transaction_start_timestamp_ms,
        client_version=value.client_transaction_version,
    )
