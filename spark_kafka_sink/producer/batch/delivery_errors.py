"""The errors for records that could not be delivered: place, cause and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    DeliveryError,
    DeliveryTimeoutError,
    InvalidPartitionError,
    KafkaError,
)
from spark_kafka_sink.producer.batch.produce_result import RefusedRecord
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.producer.batch.produce_result import RefusedRecords
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.record.columns import RecordColumns

_TAKEN_OVER = (
    "Another producer with this transactional.id has taken over, as when an application restarts: "
    "close this one. If both should write, give each its own transactional.id"
)
DEFAULT_ADVICE = "Check the broker's log for the reason"
ADVICE: dict[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: (
        "A single record is larger than the topic's max.message.bytes: raise it, or write smaller "
        "records"
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: (
        "The batch is larger than the topic's segment.bytes: lower batch.size"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Grant this user WRITE on the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "Grant this user WRITE on the topic, or IDEMPOTENT_WRITE on the cluster"
    ),
    ErrorCode.INVALID_TIMESTAMP: (
        "Timestamps must lie within the topic's message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms: correct the timestamp column, or drop it to use the time "
        "of the write"
    ),
    ErrorCode.INVALID_RECORD: (
        "The topic does not accept such records; a compacted topic (cleanup.policy=compact) "
        "requires a key"
    ),
    ErrorCode.CORRUPT_MESSAGE: "A compacted topic does not accept records without a key",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "The broker has lost records that it had acknowledged: check for an unclean leader "
        "election, and write the data again"
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: "Set acks to 0, 1 or all",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
        "The broker is too old for this compression.type: choose another"
    ),
    ErrorCode.POLICY_VIOLATION: (
        "A policy of the cluster forbids it: ask the cluster's administrator"
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Check the topic's name",
    ErrorCode.PRODUCER_FENCED: _TAKEN_OVER,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        "After that time without a transaction, 7 days by default, the brokers forget an id. "
        "Nothing of this transaction is committed: close this producer, and write it again with "
        "another, which may have the same transactional.id. If producers may be idle for longer, "
        "raise transactional.id.expiration.ms of the brokers"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "The transaction exceeded transaction.timeout.ms, or another producer with this "
        "transactional.id has taken over: abort the transaction. If that succeeds, write it again, "
        "faster or with a longer timeout; if it raises ProducerFencedError, close this producer"
    ),
    ErrorCode.INVALID_TXN_STATE: (
        "The coordinator has ended the transaction, probably after transaction.timeout.ms, and "
        "committed none of it. Abort it, and write it again, faster or with a longer timeout"
    ),
    ErrorCode.TRANSACTION_ABORTABLE: "Abort the transaction, and write it again",
}


def advice_of(code: int) -> str | None:
    """Return the advice for a broker's error code; None if there is none."""
    return ADVICE.get(code)


#: Error codes of a broker that does not know the producer's last batches.
FORGOTTEN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


#: Error codes that refuse a whole topic.
REFUSED_TOPICS = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}
)
#: Error codes of a broker that does not have the partition.
_MISSING_PARTITION_CODES = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
)

#: The most refused records that one error names.
MAX_REFUSED_RECORDS = 5


def refused_records(batch: ProducerBatch, messages: Mapping[int, str]) -> RefusedRecords:
    """Return the records that a broker refused, the first few with their input rows.

    `messages` are its error messages by index in the batch (KIP-467). Only the first rows are
    looked up, because each look-up takes time.
    """
    indexes = sorted(messages)
    known = batch.rows
    rows = {} if known is None else {i: known.row_of(i) for i in indexes[:MAX_REFUSED_RECORDS]}
    return {index: RefusedRecord(messages[index], rows.get(index)) for index in indexes}


def delivery_error(
    batch: ProducerBatch, cause: Exception, refused: RefusedRecords | None = None
) -> DeliveryError:
    """Return the error that states which records were not delivered, why, and what to do.

    It names the first of the records in `refused`.
    """
    advice = DEFAULT_ADVICE
    if isinstance(cause, BrokerError) and batch.may_be_appended and cause.code in FORGOTTEN:
        advice = (
            "An earlier attempt received no response, and the broker no longer knows whether it "
            "was appended: check the end of the partition before you write these records again"
        )
    elif isinstance(cause, BrokerError):
        advice = advice_of(cause.code) or DEFAULT_ADVICE
    elif isinstance(cause, DeliveryTimeoutError) and _is_missing_partition(cause.__cause__):
        advice = (
            "The topic was deleted, or recreated with fewer partitions: check that it has this "
            "partition, and send the records again"
        )
    elif isinstance(cause, DeliveryTimeoutError):
        advice = (
            "Check that the brokers are running and not overloaded, or raise delivery.timeout.ms"
        )
    verb = "was" if batch.record_count == 1 else "were"
    detail = _rejected_records(refused or {}) or _first_row(batch, cause)
    error = DeliveryError(f"{batch} {verb} not delivered: {cause}.{detail} {advice}")
    error.topic, error.partition = batch.topic_partition
    error.__cause__ = cause
    return error


def _first_row(batch: ProducerBatch, cause: Exception) -> str:
    """Return which row named a topic that is refused as a whole, unless `batch` says it already."""
    is_refused = isinstance(cause, BrokerError) and cause.code in REFUSED_TOPICS
    row = batch.first_record_row if is_refused and batch.record_count > 1 else None
    return "" if row is None else f" The first of them is row {row}."


def about_row(error: BrokerError, columns: RecordColumns, first_row: int) -> BrokerError:
    """Return the error of a topic that a broker refused, which names the first row for it."""
    if error.topic is None:
        return error
    row = first_row + int((columns.topic_index == columns.topics.index(error.topic)).argmax())
    advice = advice_of(error.code) or DEFAULT_ADVICE
    named = BrokerError(
        f"row {row}: {error}. {advice}",
        code=error.code,
        name=error.name,
        retriable=error.retriable,
        invalid_metadata=error.invalid_metadata,
    )
    named.topic = error.topic
    return named


def _is_missing_partition(error: BaseException | None) -> bool:
    return isinstance(error, BrokerError) and error.code in _MISSING_PARTITION_CODES


def _rejected_records(refused: RefusedRecords) -> str:
    sentences = []
    for index, record in list(refused.items())[:MAX_REFUSED_RECORDS]:
        row = record.row
        label = f"record {index} of the batch" if row is None else f"row {row}"
        sentences.append(f" Rejected: {label} ({record.message or 'no reason given'}).")
    more = len(refused) - len(sentences)
    return "".join(sentences) + (f" And {more} more." if more > 0 else "")


def missing_partition_error(topic: str, partition: int, count: int) -> InvalidPartitionError:
    """Return the error of a record whose partition was removed after the record was sent."""
    return InvalidPartitionError(
        "the topic no longer has this partition: it now has "
        f"{counted(count, 'partition')}, numbered from 0",
        row=None,
        topic=topic,
        partition=partition,
        advice=(
            "The topic was deleted and recreated with fewer partitions: send the record again, to "
            "an existing partition, or without one to let the producer choose"
        ),
    )


def no_memory_for_callback() -> BufferExhaustedError:
    """Return the error of a callback's record that finds no memory: callbacks must not wait."""
    return BufferExhaustedError(
        "buffer.memory is full of unacknowledged records, and a callback must not wait for memory. "
        "Send fewer records from callbacks, send them from another thread, or raise buffer.memory"
    )


def interruption_error(error: BaseException) -> KafkaError:
    """Return the error for an exception or interrupt that left a batch without an owner."""
    if isinstance(error, KafkaError):
        return error
    interrupted = KafkaError(
        f"the producer was interrupted in the middle of a batch, whose rows may be lost: {error!r}"
    )
    interrupted.__cause__ = error
    return interrupted


def delivery_timeout(
    batch: ProducerBatch, cause: Exception | str, timeout_ms: int
) -> DeliveryTimeoutError:
    """Return the error of a batch that was not acknowledged within delivery.timeout.ms."""
    attempts = "1 failed attempt" if batch.attempts == 1 else f"{batch.attempts} failed attempts"
    expiry = DeliveryTimeoutError(
        f"not acknowledged within {timeout_ms} ms (delivery.timeout.ms) after {attempts}; "
        f"last cause: {cause}"
    )
    expiry.__cause__ = cause if isinstance(cause, Exception) else None
    return expiry
