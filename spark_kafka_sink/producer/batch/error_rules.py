"""The producer's reaction to each error code: one table per kind of request.

The tables define what a code means for the producer; `protocol.error_codes` defines what it means
for any client. A code that is not in a table is retried if Kafka calls it retriable. Otherwise it
is an error: of the batch alone for Produce, of the whole producer for transactional requests, as in
Java's Sender.canRetry, TransactionManager.maybeTransitionToErrorState and its handlers.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import (
    ErrorCode,
    is_invalid_metadata,
    is_retriable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


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
