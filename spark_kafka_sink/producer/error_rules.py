"""What the producer does about each error code: one table per kind of request.

The tables say what a code means for the producer; `protocol.error_codes` says what it means for
anyone. A code that a table does not name is tried again where Kafka calls it retriable, and else is
an error: of the batch alone for Produce, of the whole producer for requests on transactions, as in
Java's Sender.canRetry, TransactionManager.maybeTransitionToErrorState and the handlers there.
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
    """What is done with a batch that was answered so."""

    #: The broker has the batch.
    COMPLETE = auto()
    #: Send the same bytes again: the sequence numbers let the broker know a batch it has.
    RETRY = auto()
    #: The same, and ask who leads the partition now.
    REFRESH_METADATA = auto()
    #: Send it again in parts; a batch of one record fails.
    SPLIT = auto()
    #: Go on with a new epoch and numbers from 0, if the order allows no other way (KIP-360).
    BUMP_EPOCH = auto()
    #: The batch fails; if it belongs to a transaction, that can only be aborted.
    FAIL_BATCH = auto()
    #: The producer ends.
    FATAL = auto()


_E = ErrorCode
_P = ProduceAction

#: Answers that a broker may give for a batch that is in its log, and may stay there.
MAY_BE_APPENDED = frozenset(
    {
        _E.REQUEST_TIMED_OUT,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        # Leadership was lost after the append, while its replication was waited for.
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
    # A broker that adds the partition to the transaction hands on what the coordinator answers
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
    # The coordinator ended the transaction after its time-out: abort, and go on (KIP-588).
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
    """Look up what an answer to Produce means for its batch."""
    action = PRODUCE_RULES.get(code)
    if action is not None:
        return action
    if is_invalid_metadata(code):
        return ProduceAction.REFRESH_METADATA
    return ProduceAction.RETRY if is_retriable(code) else ProduceAction.FAIL_BATCH


class TxnAction(IntEnum):
    """What is done with a request on a transaction that was answered so.

    Where one answer has several codes, the highest action decides.
    """

    DONE = 0
    #: Not tried, because another partition of the request was refused; alone, an abortable error.
    NOT_ATTEMPTED = 1
    #: Ask again after the back-off.
    RETRY = 2
    #: Ask again soon: the coordinator still writes the markers of the transaction before.
    RETRY_SOON = 3
    #: Find the coordinator, then ask again.
    FIND_COORDINATOR = 4
    #: The transaction can only be aborted.
    ABORTABLE = 5
    #: The same, and the next transaction needs a new epoch; fatal where the broker gives none.
    ABORTABLE_WITH_BUMP = 6
    #: The user has no right: all that waits fails, but the right may be granted later.
    UNAUTHORIZED = 7
    #: There is nothing left to abort: let the coordinator say whether this producer may go on.
    REINITIALIZE = 8
    #: Another producer has the transactional id.
    FENCED = 9
    FATAL = 10


_T = TxnAction
_COORDINATOR_GONE: Mapping[int, TxnAction] = {
    _E.COORDINATOR_NOT_AVAILABLE: _T.FIND_COORDINATOR,
    _E.NOT_COORDINATOR: _T.FIND_COORDINATOR,
}
#: Coordinators before 2.7 say INVALID_PRODUCER_EPOCH where later ones say PRODUCER_FENCED.
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
        # The coordinator aborted it after its time-out: nothing was committed. Java ends here; we
        # let the caller abort and go on, as KIP-588 and KIP-654 meant it.
        _E.INVALID_TXN_STATE: _T.ABORTABLE_WITH_BUMP,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _T.RETRY,
        _E.CONCURRENT_TRANSACTIONS: _T.RETRY_SOON,
        _E.UNKNOWN_PRODUCER_ID: _T.ABORTABLE_WITH_BUMP,
    },
}

#: EndTxn as an abort. A transaction that the coordinator has aborted already, with another epoch
#: since (KIP-588), looks like fencing: InitProducerId with our id and epoch tells them apart.
ABORT_RULES: Mapping[int, TxnAction] = {
    **TXN_RULES[ApiKey.END_TXN],
    _E.INVALID_PRODUCER_EPOCH: _T.REINITIALIZE,
    _E.PRODUCER_FENCED: _T.REINITIALIZE,
    _E.INVALID_TXN_STATE: _T.REINITIALIZE,
    _E.UNKNOWN_PRODUCER_ID: _T.REINITIALIZE,
    # To abort once more would go round in a circle.
    _E.TRANSACTION_ABORTABLE: _T.FATAL,
}


def txn_action(api_key: ApiKey, code: int, *, is_abort: bool = False) -> TxnAction:
    """Look up what an answer to a request on a transaction means for the producer."""
    rules = ABORT_RULES if is_abort else TXN_RULES[api_key]
    action = rules.get(code)
    if action is not None:
        return action
    if is_retriable(code):
        return TxnAction.RETRY
    if api_key is ApiKey.ADD_PARTITIONS_TO_TXN:
        # Nothing has been written to these partitions: aborting leaves nothing behind.
        return TxnAction.ABORTABLE
    return TxnAction.FATAL
