"""The state of a producer's id and transaction, and the only ways in which it changes.

This is the base of TransactionManager, which documents its use. Every method here is called with
the lock held; properties may be read without it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.transactions.partition_sequences import PartitionSequences
from spark_kafka_sink.producer.transactions.transaction_request_queue import TransactionRequestQueue
from spark_kafka_sink.producer.transactions.transaction_state import TRANSITIONS, TransactionState
from spark_kafka_sink.producer.transactions.transactional_request_result import (
    TransactionalRequestResult,
)
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    NO_TRANSACTION_TIMEOUT_MS,
    AddPartitionsToTxnHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        ProducerIdAndEpoch,
        TopicPartition,
    )

#: Java's default of transaction.timeout.ms.
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000

_S = TransactionState


class PendingOffsets(NamedTuple):
    """Offsets that were sent to a transaction, and their result."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group_metadata: ConsumerGroupMetadata
    result: TransactionalRequestResult


class TransactionCore:
    """The state of one producer."""

    def __init__(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
    ) -> None:
        """Start without a producer id; without `transactional_id` only the order is maintained."""
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._lock = threading.RLock()
        self._state = _S.UNINITIALIZED
        self._last_error: Exception | None = None
        self._sequences = PartitionSequences(is_transactional=transactional_id is not None)
        self._requests = TransactionRequestQueue()
        self._in_flight: TxnRequestHandler | None = None
        self._coordinator_bumps_epochs = False
        self._is_transaction_v2 = False
        self._next_is_transaction_v2 = False
        self._epoch_bump_required = False
        self._transaction_started = False
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._partitions: set[TopicPartition] = set()
        #: The caller's latest operation, and the state that it led to.
        self._pending_transition: tuple[TransactionalRequestResult, TransactionState] | None = None
        #: The open transaction's offsets whose result the caller has not received.
        self._pending_offsets: list[PendingOffsets] = []

    # --- state

    @property
    def transactional_id(self) -> str | None:
        """The transactional id; None for a producer without transactions."""
        return self._transactional_id

    @property
    def is_transactional(self) -> bool:
        """Whether records are written in transactions."""
        return self._transactional_id is not None

    @property
    def state(self) -> TransactionState:
        """The current state; it may be out of date as soon as it is read."""
        return self._state

    @property
    def last_error(self) -> Exception | None:
        """The cause of ABORTABLE_ERROR or FATAL_ERROR; None in any other state."""
        return self._last_error

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch:
        """The id and epoch by which brokers know this producer."""
        return self._sequences.producer_id_and_epoch

    @producer_id_and_epoch.setter
    def producer_id_and_epoch(self, producer: ProducerIdAndEpoch) -> None:
        self._sequences.producer_id_and_epoch = producer

    @property
    def has_producer_id(self) -> bool:
        """Whether a producer id has been assigned."""
        return self.producer_id_and_epoch.is_valid

    @property
    def has_fatal_error(self) -> bool:
        """Whether the producer can only be closed."""
        return self._state is _S.FATAL_ERROR

    @property
    def has_abortable_error(self) -> bool:
        """Whether the transaction can only be aborted."""
        return self._state is _S.ABORTABLE_ERROR

    @property
    def is_aborting(self) -> bool:
        """Whether an abort has been requested and is not complete."""
        return self._state is _S.ABORTING_TRANSACTION

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort has been requested and is not complete."""
        return self._state in {_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION}

    @property
    def has_ongoing_transaction(self) -> bool:
        """Whether a transaction has begun, and has neither ended nor been lost to a fatal error."""
        return self.is_transactional and (
            self.is_completing or self._state in {_S.IN_TRANSACTION, _S.ABORTABLE_ERROR}
        )

    @property
    def is_transaction_v2(self) -> bool:
        """Whether the open transaction, or the next, follows the rules of KIP-890."""
        return self._is_transaction_v2

    # --- transitions

    def _transition_to(
        self, target: TransactionState, error: Exception | None = None, *, poison: bool = False
    ) -> None:
        """Change the state if the table allows it, or raise; with `poison` the refusal is fatal."""
        if target not in TRANSITIONS[self._state]:
            illegal = IllegalStateError(
                f"state {self._state.name} does not lead to {target.name}"
                + (
                    f" (transactional.id {self._transactional_id!r})"
                    if self.is_transactional
                    else ""
                )
            )
            if poison:
                self._state, self._last_error = _S.FATAL_ERROR, illegal
            raise illegal
        self._state, self._last_error = target, error

    def _fatal(self, error: Exception) -> None:
        self._transition_to(_S.FATAL_ERROR, error, poison=True)
        self._fail_requests(error)

    def _abortable_error(self, error: Exception) -> None:
        if not self.is_aborting:
            self._transition_to(_S.ABORTABLE_ERROR, error, poison=True)

    def _fail_requests(self, error: Exception) -> None:
        for handler in self._requests.drain():
            handler.result.fail(error)
        if self._in_flight is not None:
            self._in_flight.result.fail(error)
        self._new_partitions.clear()
        if self._pending_transition is not None:
            self._pending_transition[0].fail(error)

    @property
    def _can_renew_epoch(self) -> bool:
        """Whether the numbers can restart: EndTxn returns a new epoch, or one can be requested."""
        return self._coordinator_bumps_epochs or self._is_transaction_v2

    def _require_epoch_bump(self) -> None:
        """Require a new epoch for the next transaction; under TV2 every transaction has one."""
        self._epoch_bump_required = self._epoch_bump_required or not self._is_transaction_v2

    def _forget_transaction(self) -> None:
        """Reset the transaction's state: it is over for this producer."""
        self._transaction_started = False
        self._new_partitions.clear()
        self._pending_partitions.clear()
        self._partitions.clear()

    def _enqueue_new_partitions(self) -> None:
        if not self._new_partitions:
            return
        self._pending_partitions |= self._new_partitions
        self._requests.put(
            AddPartitionsToTxnHandler(
                result=TransactionalRequestResult("AddPartitionsToTxn"),
                transactional_id=self._transactional_id or "",
                producer=self.producer_id_and_epoch,
                partitions=frozenset(self._new_partitions),
            )
        )
        self._new_partitions.clear()

    def _enqueue_offset_commit(
        self,
        result: TransactionalRequestResult,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        self._requests.put(
            TxnOffsetCommitHandler(
                result=result,
                transactional_id=self._transactional_id or "",
                producer=self.producer_id_and_epoch,
                group_metadata=group_metadata,
                is_transaction_v2=self._is_transaction_v2,
                offsets=dict(offsets),
            )
        )

    def _enqueue_init_producer_id(
        self, result: TransactionalRequestResult, producer: ProducerIdAndEpoch
    ) -> None:
        """Request a producer id, or a new epoch of the given `producer`."""
        self._requests.put(
            InitProducerIdHandler(
                result=result,
                transactional_id=self._transactional_id,
                transaction_timeout_ms=(
                    self._transaction_timeout_ms
                    if self.is_transactional
                    else NO_TRANSACTION_TIMEOUT_MS
                ),
                producer=producer,
            )
        )
