"""The states of a producer's id and transaction (TransactionManager.State).

The table alone decides which state may follow which. A transition that is not in it is refused and
changes nothing. On the network thread the refusal ends the producer, because its view of the
transaction can no longer be trusted (KAFKA-14831).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from spark_kafka_sink.errors import (
    FatalProducerError,
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortableError,
)


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


class TransactionStateMachine:
    """The current state, and the error that led to it if it is one of the two error states."""

    def __init__(self, transactional_id: str | None) -> None:
        """Start without a producer id; without `transactional_id` there are no transactions."""
        #: The current transactional id; None for a producer without transactions.
        self.transactional_id = transactional_id
        #: Whether records are written in transactions.
        self.is_transactional: Final = transactional_id is not None
        self._current = _S.UNINITIALIZED
        self._error: Exception | None = None

    @property
    def current(self) -> TransactionState:
        """The current state."""
        return self._current

    @property
    def error(self) -> Exception | None:
        """The cause of ABORTABLE_ERROR or FATAL_ERROR; None in any other state."""
        return self._error

    @property
    def has_fatal_error(self) -> bool:
        """Whether the producer can only be closed."""
        return self._current is _S.FATAL_ERROR

    @property
    def has_abortable_error(self) -> bool:
        """Whether the transaction can only be aborted."""
        return self._current is _S.ABORTABLE_ERROR

    @property
    def is_aborting(self) -> bool:
        """Whether an abort has been requested and is not complete."""
        return self._current is _S.ABORTING_TRANSACTION

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort has been requested and is not complete."""
        return self._current in {_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION}

    @property
    def has_ongoing_transaction(self) -> bool:
        """Whether a transaction has begun, and has neither ended nor been lost to a fatal error."""
        return self.is_transactional and (
            self.is_completing or self._current in {_S.IN_TRANSACTION, _S.ABORTABLE_ERROR}
        )

    def transition_to(
        self, target: TransactionState, error: Exception | None = None, *, poison: bool = False
    ) -> None:
        """Change the state if the table allows it, or raise; with `poison` the refusal is fatal."""
        if target not in TRANSITIONS[self._current]:
            illegal = IllegalStateError(
                f"invalid transition from state {self._current.name} to {target.name}"
                + (
                    f" (transactional.id {self.transactional_id!r})"
                    if self.is_transactional
                    else ""
                )
            )
            if poison:
                self._current, self._error = _S.FATAL_ERROR, illegal
            raise illegal
        self._current, self._error = target, error

    def raise_if_failed(self) -> None:
        """Raise a new error if the transaction or producer has failed, caused by that failure."""
        error = self._error
        if error is None:
            return
        if self.has_abortable_error:
            raise TransactionAbortableError(
                f"the transaction has failed and can only be aborted. The error was: {error}"
            ) from error
        if isinstance(error, ProducerFencedError):
            raise ProducerFencedError(str(error), code=error.code, name=error.name) from error
        raise FatalProducerError(
            "the producer has failed and can no longer be used: close it and create another. "
            f"The error was: {error}"
        ) from error
