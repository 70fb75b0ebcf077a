"""The states of a producer's id and transaction (TransactionManager.State).

The table alone decides which state may follow which. A transition that is not in it is refused and
changes nothing. On the network thread the refusal ends the producer, because its view of the
transaction can no longer be trusted (KAFKA-14831).
"""

from __future__ import annotations

from enum import Enum, auto


class TransactionState(Enum):
    """Kafka's states; a prepared transaction is ended by another process."""

    #: No producer id was requested, or the last one was given up.
    UNINITIALIZED = auto()
    #: A producer id or a new epoch was requested.
    INITIALIZING = auto()
    #: No transaction is open; without transactions: the producer may send.
    READY = auto()
    IN_TRANSACTION = auto()
    #: All records are written, and another process will end the transaction.
    PREPARED_TRANSACTION = auto()
    COMMITTING_TRANSACTION = auto()
    ABORTING_TRANSACTION = auto()
    #: The transaction can only be aborted; after that the producer can continue.
    ABORTABLE_ERROR = auto()
    #: The producer can only be closed.
    FATAL_ERROR = auto()


_S = TransactionState

#: The states that may follow each state. FATAL_ERROR may follow any, including itself.
TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    _S.INITIALIZING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    # An idempotent producer that has used all epochs needs a new id.
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
    # Its outcome is not known here: the only way forward is another epoch.
    _S.PREPARED_TRANSACTION: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    # INITIALIZING follows if the next transaction needs another epoch.
    _S.COMMITTING_TRANSACTION: frozenset(
        {_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
    ),
    _S.ABORTING_TRANSACTION: frozenset({_S.READY, _S.INITIALIZING, _S.FATAL_ERROR}),
    # UNINITIALIZED follows an authorization error: access may be granted, and the call repeated.
    _S.ABORTABLE_ERROR: frozenset(
        {_S.ABORTING_TRANSACTION, _S.ABORTABLE_ERROR, _S.UNINITIALIZED, _S.FATAL_ERROR}
    ),
    _S.FATAL_ERROR: frozenset({_S.FATAL_ERROR}),
}
