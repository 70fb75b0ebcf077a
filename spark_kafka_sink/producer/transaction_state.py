"""Where a producer is in the life of its id and of its transaction (TransactionManager.State).

The table is the whole truth: nothing else decides which state may follow which. What is not in it
is refused, and changes nothing; in the network thread's hands the refusal ends the producer, since
its picture of the transaction can no longer be trusted (KAFKA-14831).
"""

from __future__ import annotations

from enum import Enum, auto


class TransactionState(Enum):
    """Kafka's states; the end of a prepared transaction is left to another process."""

    #: No producer id has been asked for, or it was given up.
    UNINITIALIZED = auto()
    #: A producer id or a new epoch has been asked for.
    INITIALIZING = auto()
    #: No transaction is open; of a producer without transactions: it may send.
    READY = auto()
    IN_TRANSACTION = auto()
    #: All is written, and somebody else will end the transaction.
    PREPARED_TRANSACTION = auto()
    COMMITTING_TRANSACTION = auto()
    ABORTING_TRANSACTION = auto()
    #: The transaction can only be aborted; after that the producer can go on.
    ABORTABLE_ERROR = auto()
    #: The producer can only be closed.
    FATAL_ERROR = auto()


_S = TransactionState

#: State -> the states that may follow. FATAL_ERROR may follow any, itself included.
TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    _S.INITIALIZING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    # An idempotent producer whose epochs are used up needs a new id.
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.UNINITIALIZED, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset(
        {
            _S.PREPARED_TRANSACTION,
            _S.COMMITTING_TRANSACTION,
            _S.ABORTING_TRANSACTION,
            _S.ABORTABLE_ERROR,
            _S.FATAL_ERROR,
        }
    ),
    # What has become of it is not known here: only another epoch leads on.
    _S.PREPARED_TRANSACTION: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    # To INITIALIZING where the next transaction needs another epoch.
    _S.COMMITTING_TRANSACTION: frozenset(
        {_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
    ),
    _S.ABORTING_TRANSACTION: frozenset({_S.READY, _S.INITIALIZING, _S.FATAL_ERROR}),
    # To UNINITIALIZED where a right was missing: it may be granted, and initializing tried again.
    _S.ABORTABLE_ERROR: frozenset(
        {_S.ABORTING_TRANSACTION, _S.ABORTABLE_ERROR, _S.UNINITIALIZED, _S.FATAL_ERROR}
    ),
    _S.FATAL_ERROR: frozenset({_S.FATAL_ERROR}),
}
