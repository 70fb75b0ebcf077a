"""The producer's reaction to each error code, one table per kind of request, and its own errors.

The tables define what a code means for the producer; `protocol.error_codes` defines what it means
for any client. A code that is not in a table is retried if Kafka calls it retriable. Otherwise it
is an error: of the batch alone for Produce, of the whole producer for transactional requests, as in
Java's Sender.canRetry, TransactionManager.maybeTransitionToErrorState and its handlers.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    DeliveryError,
    DeliveryTimeoutError,
    InvalidPartitionError,
)
from spark_kafka_sink.producer.batch.produce_result import RefusedRecord, RefusedRecords
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_invalid_metadata, is_retriable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.record.columns import RecordColumns


class ProduceAction(Enum):
    """The reaction to the answer for a batch."""

    #: The broker has the batch.
    COMPLETE = auto()
    #: Resend the same bytes; by the sequence numbers the broker recognizes a duplicate.
    RETRY = auto()
    #: Do the same, and refresh the metadata to find the partition's leader.
    REFRESH_METADATA = auto()
    #: Resend it in parts; a batch of one record fails.
    SPLIT = auto()
    #: Continue with a new epoch and sequence 0 if nothing else preserves the order (KIP-360).
    BUMP_EPOCH = auto()
    #: The batch fails; its transaction, if any, can only be aborted.
    FAIL_BATCH = auto()
    #: The producer ends.
    FATAL = auto()


_E = ErrorCode
_P = ProduceAction

#: Errors after which the batch may still be in the broker's log, and may remain there.
MAY_BE_APPENDED = frozenset(
    {
        _E.REQUEST_TIMED_OUT,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        # Leadership was lost after the append, during the wait for replication.
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.NETWORK_EXCEPTION,
        _E.KAFKA_STORAGE_ERROR,
    }
)

PRODUCE_RULES: Mapping[int, ProduceAction] = {
    _E.NONE: _P.COMPLETE,
    _E.DUPLICATE_SEQUENCE_NUMBER: _P.COMPLETE,
    _E.CORRUPT_MESSAGE: _P.RETRY,
    _E.REQUEST_TIMED_OUT: _P.RETRY,
    _E.NOT_ENOUGH_REPLICAS: _P.RETRY,
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _P.RETRY,
    _E.THROTTLING_QUOTA_EXCEEDED: _P.RETRY,
    _E.UNKNOWN_LEADER_EPOCH: _P.RETRY,
    # A broker that adds the partition to the transaction forwards the coordinator's error
    # (KIP-890).
    _E.COORDINATOR_LOAD_IN_PROGRESS: _P.RETRY,
    _E.COORDINATOR_NOT_AVAILABLE: _P.RETRY,
    _E.NOT_COORDINATOR: _P.RETRY,
    _E.CONCURRENT_TRANSACTIONS: _P.RETRY,
    _E.UNKNOWN_TOPIC_OR_PARTITION: _P.REFRESH_METADATA,
    _E.LEADER_NOT_AVAILABLE: _P.REFRESH_METADATA,
    _E.NOT_LEADER_OR_FOLLOWER: _P.REFRESH_METADATA,
    _E.REPLICA_NOT_AVAILABLE: _P.REFRESH_METADATA,
    _E.NETWORK_EXCEPTION: _P.REFRESH_METADATA,
    _E.KAFKA_STORAGE_ERROR: _P.REFRESH_METADATA,
    _E.LISTENER_NOT_FOUND: _P.REFRESH_METADATA,
    _E.FENCED_LEADER_EPOCH: _P.REFRESH_METADATA,
    _E.UNKNOWN_TOPIC_ID: _P.REFRESH_METADATA,
    _E.INCONSISTENT_TOPIC_ID: _P.REFRESH_METADATA,
    _E.MESSAGE_TOO_LARGE: _P.SPLIT,
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _P.BUMP_EPOCH,
    _E.UNKNOWN_PRODUCER_ID: _P.BUMP_EPOCH,
    _E.UNKNOWN_SERVER_ERROR: _P.FAIL_BATCH,
    _E.INVALID_TOPIC_EXCEPTION: _P.FAIL_BATCH,
    _E.RECORD_LIST_TOO_LARGE: _P.FAIL_BATCH,
    _E.INVALID_REQUIRED_ACKS: _P.FAIL_BATCH,
    _E.TOPIC_AUTHORIZATION_FAILED: _P.FAIL_BATCH,
    _E.INVALID_TIMESTAMP: _P.FAIL_BATCH,
    _E.INVALID_REQUEST: _P.FAIL_BATCH,
    _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: _P.FAIL_BATCH,
    _E.POLICY_VIOLATION: _P.FAIL_BATCH,
    _E.UNSUPPORTED_COMPRESSION_TYPE: _P.FAIL_BATCH,
    _E.INVALID_RECORD: _P.FAIL_BATCH,
    # The coordinator ended the transaction after its timeout: abort and continue (KIP-588).
    _E.INVALID_PRODUCER_EPOCH: _P.FAIL_BATCH,
    _E.INVALID_TXN_STATE: _P.FAIL_BATCH,
    _E.TRANSACTION_ABORTABLE: _P.FAIL_BATCH,
    _E.CLUSTER_AUTHORIZATION_FAILED: _P.FATAL,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _P.FATAL,
    _E.UNSUPPORTED_VERSION: _P.FATAL,
    _E.INVALID_PRODUCER_ID_MAPPING: _P.FATAL,
    _E.PRODUCER_FENCED: _P.FATAL,
}


def produce_action(code: int) -> ProduceAction:
    """Return the action for the error code of a batch in a Produce response."""
    action = PRODUCE_RULES.get(code)
    if action is not None:
        return action
    if is_invalid_metadata(code):
        return ProduceAction.REFRESH_METADATA
    return ProduceAction.RETRY if is_retriable(code) else ProduceAction.FAIL_BATCH


class TxnAction(IntEnum):
    """The reaction to the answer to a transactional request.

    If an answer has several codes, the highest action decides.
    """

    DONE = 0
    #: Not attempted because another partition was refused; on its own, an abortable error.
    NOT_ATTEMPTED = 1
    #: Resend after the back-off.
    RETRY = 2
    #: Resend soon: the coordinator is still writing the markers of the previous transaction.
    RETRY_SOON = 3
    #: Find the coordinator, then resend.
    FIND_COORDINATOR = 4
    #: The transaction can only be aborted.
    ABORTABLE = 5
    #: The same, and the next transaction needs a new epoch; fatal if brokers cannot bump it.
    ABORTABLE_WITH_BUMP = 6
    #: The user is not authorized: all pending requests fail, but access may be granted later.
    UNAUTHORIZED = 7
    #: Nothing is left to abort: the coordinator decides whether this producer may continue.
    REINITIALIZE = 8
    #: Another producer uses the transactional id.
    FENCED = 9
    FATAL = 10


_T = TxnAction
_COORDINATOR_GONE: Mapping[int, TxnAction] = {
    _E.COORDINATOR_NOT_AVAILABLE: _T.FIND_COORDINATOR,
    _E.NOT_COORDINATOR: _T.FIND_COORDINATOR,
}
#: Coordinators before 2.7 return INVALID_PRODUCER_EPOCH where later ones return PRODUCER_FENCED.
_FENCING: Mapping[int, TxnAction] = {
    _E.INVALID_PRODUCER_EPOCH: _T.FENCED,
    _E.PRODUCER_FENCED: _T.FENCED,
}
_WRONG_STATE: Mapping[int, TxnAction] = {
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _T.FATAL,
    _E.INVALID_TXN_STATE: _T.FATAL,
    _E.INVALID_PRODUCER_ID_MAPPING: _T.FATAL,
}
_COMMON: Mapping[int, TxnAction] = {_E.NONE: _T.DONE, _E.TRANSACTION_ABORTABLE: _T.ABORTABLE}

TXN_RULES: Mapping[ApiKey, Mapping[int, TxnAction]] = {
    ApiKey.FIND_COORDINATOR: {
        **_COMMON,
        _E.COORDINATOR_NOT_AVAILABLE: _T.RETRY,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _T.FATAL,
        _E.GROUP_AUTHORIZATION_FAILED: _T.ABORTABLE,
    },
    ApiKey.INIT_PRODUCER_ID: {
        **_COMMON,
        **_COORDINATOR_GONE,
        **_FENCING,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.CONCURRENT_TRANSACTIONS: _T.RETRY,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _T.UNAUTHORIZED,
        _E.CLUSTER_AUTHORIZATION_FAILED: _T.UNAUTHORIZED,
        _E.INVALID_TRANSACTION_TIMEOUT: _T.FATAL,
        # Without a producer id there is no transaction that could be aborted.
        _E.TRANSACTION_ABORTABLE: _T.FATAL,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        **_COMMON,
        **_COORDINATOR_GONE,
        **_FENCING,
        **_WRONG_STATE,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.UNKNOWN_TOPIC_OR_PARTITION: _T.RETRY,
        _E.CONCURRENT_TRANSACTIONS: _T.RETRY_SOON,
        _E.TOPIC_AUTHORIZATION_FAILED: _T.ABORTABLE,
        _E.OPERATION_NOT_ATTEMPTED: _T.NOT_ATTEMPTED,
        _E.UNKNOWN_PRODUCER_ID: _T.ABORTABLE_WITH_BUMP,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {
        **_COMMON,
        **_COORDINATOR_GONE,
        **_FENCING,
        **_WRONG_STATE,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.CONCURRENT_TRANSACTIONS: _T.RETRY_SOON,
        _E.GROUP_AUTHORIZATION_FAILED: _T.ABORTABLE,
        _E.UNKNOWN_PRODUCER_ID: _T.ABORTABLE_WITH_BUMP,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        **_COMMON,
        **_COORDINATOR_GONE,
        **_FENCING,
        _E.REQUEST_TIMED_OUT: _T.FIND_COORDINATOR,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.UNKNOWN_TOPIC_OR_PARTITION: _T.RETRY,
        _E.CONCURRENT_TRANSACTIONS: _T.RETRY_SOON,
        _E.GROUP_AUTHORIZATION_FAILED: _T.ABORTABLE,
        _E.FENCED_INSTANCE_ID: _T.ABORTABLE,
        _E.UNKNOWN_MEMBER_ID: _T.ABORTABLE,
        _E.ILLEGAL_GENERATION: _T.ABORTABLE,
        _E.GROUP_ID_NOT_FOUND: _T.ABORTABLE,
        _E.STALE_MEMBER_EPOCH: _T.ABORTABLE,
        _E.UNKNOWN_TOPIC_ID: _T.RETRY,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _T.FATAL,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: _T.FATAL,
    },
    ApiKey.END_TXN: {
        **_COMMON,
        **_COORDINATOR_GONE,
        **_FENCING,
        **_WRONG_STATE,
        # The coordinator aborted it after its timeout: nothing was committed. In Java this is
        # fatal; here the caller can abort and continue, as KIP-588 and KIP-654 intended.
        _E.INVALID_TXN_STATE: _T.ABORTABLE_WITH_BUMP,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.CONCURRENT_TRANSACTIONS: _T.RETRY_SOON,
        _E.UNKNOWN_PRODUCER_ID: _T.ABORTABLE_WITH_BUMP,
    },
}

#: EndTxn as an abort. After the coordinator has aborted a transaction itself and bumped the epoch
#: (KIP-588), the answer looks like fencing: InitProducerId with our id and epoch tells the two
#: apart.
ABORT_RULES: Mapping[int, TxnAction] = {
    **TXN_RULES[ApiKey.END_TXN],
    _E.INVALID_PRODUCER_EPOCH: _T.REINITIALIZE,
    _E.PRODUCER_FENCED: _T.REINITIALIZE,
    _E.INVALID_TXN_STATE: _T.REINITIALIZE,
    _E.UNKNOWN_PRODUCER_ID: _T.REINITIALIZE,
    # Another abort would loop without end.
    _E.TRANSACTION_ABORTABLE: _T.FATAL,
}


def txn_action(api_key: ApiKey, code: int, *, is_abort: bool = False) -> TxnAction:
    """Return the action for an error code in the response to a transactional request."""
    rules = ABORT_RULES if is_abort else TXN_RULES[api_key]
    action = rules.get(code)
    if action is not None:
        return action
    if is_retriable(code):
        return TxnAction.RETRY
    if api_key is ApiKey.ADD_PARTITIONS_TO_TXN:
        # Nothing was written to these partitions, so an abort leaves nothing behind.
        return TxnAction.ABORTABLE
    return TxnAction.FATAL


# --- the errors that users get: place, cause and advice

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


def no_memory(buffer_memory: int, max_block_ms: int) -> BufferExhaustedError:
    """Return the error of a record for which no memory became free within max.block.ms."""
    return BufferExhaustedError(
        f"no buffer memory became free within {max_block_ms / 1000:g} s (max.block.ms): "
        f"buffer.memory ({buffer_memory} bytes) is full of unacknowledged records. Check that the "
        "brokers keep up, or raise max.block.ms or buffer.memory"
    )


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
