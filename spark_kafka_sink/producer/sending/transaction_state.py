"""The state of a producer's id and transaction, and the table of states (TransactionManager.State).

The table alone decides which state may follow which. A transition that is not in it is refused and
changes nothing. On the network thread the refusal ends the producer, because its view of the
transaction can no longer be trusted (KAFKA-14831).

The other classes are the rest of what TransactionManager knows of a transaction. Nothing here has
a lock: the manager guards it.
"""

from __future__ import annotations

import threading
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import (
    FatalProducerError,
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from spark_kafka_sink.model import TRANSACTION_V2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class TransactionalRequestResult:
    """The outcome of an operation, for the thread that waits for it (Kafka's class of this name).

    The network thread completes it once. The caller may wait any number of times: after a timeout
    it can wait again for the same operation instead of starting it twice.
    """

    def __init__(self, operation: str) -> None:
        #: The name of the caller's method.
        self.operation = operation
        #: The error that it failed with; None if it has not failed.
        self.error: Exception | None = None
        #: Whether the caller has received the outcome: only then may another operation begin.
        self.is_acked = False
        self._ended = threading.Event()
        #: What is called at the end.
        self._on_end: list[Callable[[], object]] = []

    def done(self) -> None:
        """Mark the operation as successful, unless it has ended already."""
        self._ended.set()
        self._notify()

    def fail(self, error: Exception) -> None:
        """Mark the operation as failed, unless it has ended already."""
        if not self._ended.is_set():
            self.error = error
            self._ended.set()
            self._notify()

    def call_when_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the network thread when the operation ends, or here if it has."""
        self._on_end.append(callback)
        if self._ended.is_set():
            self._notify()

    def _notify(self) -> None:
        while self._on_end:
            self._on_end.pop()()

    @property
    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._ended.is_set()

    def wait(
        self,
        timeout: float | None,
        last_error: Callable[[], Exception | None] = lambda: None,
        *,
        limit: float | None = None,
    ) -> None:
        """Wait at most `timeout` seconds for the end; raise the error if the operation failed.

        `last_error` returns the latest network error, for the message after a timeout; `limit` is
        max.block.ms. The caller may have used part of it already.

        Raises KafkaTimeoutError when the timeout expires: the operation continues, and a repeated
        call waits for the same operation.
        """
        if not self._ended.wait(timeout):
            cause = last_error()
            raise KafkaTimeoutError(
                f"{self.operation} did not complete within {limit or timeout:g} s (max.block.ms) "
                f"and is still in progress: call {self.operation} again to wait for it, or close "
                "the producer" + ("" if cause is None else f". The last network error was: {cause}")
            ) from cause
        self.is_acked = True
        if self.error is not None:
            raise self.error


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

#: The first InitProducerId version that can bump the epoch of its producer (KIP-360).
FIRST_VERSION_WITH_EPOCH_BUMP = 3

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


class EpochRules:
    """What the coordinator supports, and what the open transaction requires of the next one.

    From this follow the transaction protocol that applies, and whether the next transaction needs a
    new epoch.

    Up to transaction.version 1 (TV1) a separate request adds partitions to a transaction; from 2 on
    (TV2, KIP-890) Produce does so itself, and each EndTxn returns a new epoch. The version is
    checked between transactions, so that a transaction ends by the rules under which it began.

    Unlike Java, whether the next transaction needs a new epoch is decided when the old one has
    ended, not when its end is requested: batches may fail in between.
    """

    def __init__(self) -> None:
        """Start with the oldest protocol, until the coordinator's features are known."""
        #: Whether the open transaction, or the next, follows the rules of KIP-890.
        self.is_transaction_v2 = False
        #: Whether a new epoch can be requested.
        self.coordinator_bumps_epochs = False
        #: Whether the next transaction needs a new epoch that was not requested yet.
        self.bump_required = False
        self._next_is_transaction_v2 = False

    @property
    def transaction_version(self) -> int:
        """The transaction.version of the open transaction; 1 includes older clusters."""
        return TRANSACTION_V2 if self.is_transaction_v2 else TRANSACTION_V2 - 1

    @property
    def can_renew_epoch(self) -> bool:
        """Whether the numbers can restart: EndTxn returns a new epoch, or one can be requested."""
        return self.coordinator_bumps_epochs or self.is_transaction_v2

    @property
    def next_needs_epoch(self) -> bool:
        """Whether a new epoch must be requested before the next transaction."""
        # Partitions of the last transaction must not count as added to the next one (KIP-890).
        is_upgraded = self._next_is_transaction_v2 and not self.is_transaction_v2
        return self.bump_required or is_upgraded

    def update_features(self, *, init_producer_id_version: int, transaction_version: int) -> None:
        """Update what the coordinator supports; the open transaction keeps its rules."""
        self.coordinator_bumps_epochs = init_producer_id_version >= FIRST_VERSION_WITH_EPOCH_BUMP
        self._next_is_transaction_v2 = transaction_version >= TRANSACTION_V2

    def require_bump_after_failure(self) -> None:
        """Require a new epoch for the next transaction; under TV2 every transaction has one."""
        self.bump_required = self.bump_required or not self.is_transaction_v2

    def adopt_version(self) -> None:
        """Make the next transaction follow the rules that the coordinator supports now."""
        self.is_transaction_v2 = self._next_is_transaction_v2


class TransactionPartitions:
    """The partitions of the open transaction, and whether it has begun on the brokers.

    Under TV1 a partition is new from its first batch on, pending until the coordinator answers, and
    then added: no batch is sent before the coordinator has added its partition. Under TV2 it is
    added at once, because Produce does so itself.
    """

    def __init__(self) -> None:
        self._new: set[TopicPartition] = set()
        self._pending: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()
        #: Whether the coordinator may know of the transaction, so that it must be ended there.
        self.is_started = False

    @property
    def has_added(self) -> bool:
        """Whether at least one partition has been added."""
        return bool(self._added)

    @property
    def new(self) -> frozenset[TopicPartition]:
        """The partitions that were not requested yet."""
        return frozenset(self._new)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition has been added, so that its batches may be sent."""
        return topic_partition in self._added

    def request(self, topic_partition: TopicPartition) -> None:
        """Add a partition with the next request, unless it is known already (TV1)."""
        if not (topic_partition in self._added or topic_partition in self._pending):
            self._new.add(topic_partition)

    def add(self, topic_partition: TopicPartition) -> None:
        """Add a partition at once, because its Produce request will (TV2)."""
        self._added.add(topic_partition)
        self.is_started = True

    def requested(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the request for new partitions is queued."""
        self._pending |= partitions
        self._new -= partitions

    def drop_new(self) -> None:
        """Drop the partitions that were not requested yet."""
        self._new.clear()

    def accepted(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the coordinator has added pending partitions."""
        self._pending -= partitions
        self._added |= partitions
        self.is_started = True

    def refused(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the coordinator has not added pending partitions."""
        self._pending -= partitions

    def clear(self) -> None:
        """Start with an empty transaction again."""
        self.is_started = False
        self._new.clear()
        self._pending.clear()
        self._added.clear()


class _PendingOffsets(NamedTuple):
    """Offsets that were sent to a transaction, and their result."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group_metadata: ConsumerGroupMetadata
    result: TransactionalRequestResult


class PendingOperations:
    """The caller's latest operation, and the offsets it has sent to the open transaction.

    After a timeout the caller repeats the call, and waits for the same operation. Until it has
    received the outcome, no other operation may begin.
    """

    def __init__(self) -> None:
        #: The latest operation, and the state that it led to.
        self._latest: tuple[TransactionalRequestResult, TransactionState] | None = None
        self._offsets: list[_PendingOffsets] = []

    # --- operations that change the state

    def begin(self, result: TransactionalRequestResult, target: TransactionState) -> None:
        """Record an operation that has begun and led to the state `target`."""
        self._latest = (result, target)

    def pending(self, target: TransactionState) -> TransactionalRequestResult | None:
        """Return the pending operation if it led to the state `target`, for another wait."""
        if self._latest is None:
            return None
        result, state = self._latest
        return result if state is target and not result.is_acked else None

    def raise_if_pending(self, operation: str, *, offsets: bool = False) -> None:
        """Raise IllegalStateError for `operation` if the outcome of another one is not known.

        With `offsets`, those that were sent to the transaction count, too.
        """
        results = [] if self._latest is None else [self._latest[0]]
        if offsets:
            results += [pending.result for pending in self._offsets]
        for result in results:
            if not result.is_acked:
                raise IllegalStateError(
                    f"{operation} is not possible while the outcome of {result.operation} is "
                    f"unknown: call {result.operation} again to wait for it"
                )
        self._latest = None

    def fail(self, error: Exception) -> None:
        """Fail the latest operation, unless it has ended already."""
        if self._latest is not None:
            self._latest[0].fail(error)

    # --- offsets

    def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        result: TransactionalRequestResult,
    ) -> None:
        """Record offsets that were sent to the open transaction."""
        self._offsets.append(_PendingOffsets(dict(offsets), group_metadata, result))

    def pending_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult | None:
        """Return the pending operation with equal arguments, for another wait."""
        self._offsets = [pending for pending in self._offsets if not pending.result.is_acked]
        for pending in self._offsets:
            if pending.offsets == offsets and pending.group_metadata == group_metadata:
                return pending.result
        return None

    def forget_offsets(self) -> None:
        """Forget the offsets of earlier transactions."""
        self._offsets.clear()
