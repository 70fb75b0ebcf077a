"""The coordinator's metadata of one transactional id, and the steps between its states.

The counterpart of Kafka's TransactionMetadata. There a step is first prepared and then completed,
once the transaction log has it; here the coordinator changes a copy, which takes effect once it is
written. Nothing else changes the state. A step that is not in the table of transitions raises
IllegalTransitionError and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import IllegalTransitionError, RefusedError
from spark_kafka_sink.devbroker.log.producer_state import MAX_EPOCH
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

#: From this transaction.version, the end of every transaction bumps the epoch (KIP-890).
EPOCH_BUMP_VERSION = 2
_NO_TIME = -1


class TransactionState(StrEnum):
    """The state of a transactional id, with its name in DescribeTransactions.

    In the order of Kafka's TransactionState.id. PREPARE_EPOCH_FENCE is transient while a producer
    is fenced, and never visible.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


_BETWEEN_TRANSACTIONS = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    }
)

#: The states that may follow each state. An abort may begin even if nothing was written: with
#: transaction.version 2 clients abort whenever they are unsure.
TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: _BETWEEN_TRANSACTIONS,
    TransactionState.ONGOING: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_EPOCH_FENCE,
        }
    ),
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: _BETWEEN_TRANSACTIONS,
    TransactionState.COMPLETE_ABORT: _BETWEEN_TRANSACTIONS,
    TransactionState.DEAD: frozenset(),
}

#: States in which the transaction's markers are being written.
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
#: States in which an id may expire.
EXPIRABLE = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """Return whether no epoch is left for a producer: the last one is reserved for fencing."""
    return producer_epoch >= MAX_EPOCH - 1


@dataclass(slots=True, kw_only=True)
class TransactionMetadata:
    """The metadata of one transactional id."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    #: Milliseconds since 1970, like all times here.
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    #: The epoch before the last bump, if its producer may continue from it; otherwise -1.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    #: The producer id before the last step.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The producer id from the next transaction, if the epochs of this one are exhausted.
    next_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    #: When the transaction began, -1 if there is none.
    start_ms: int = _NO_TIME
    #: The transaction.version of the client that made the last step.
    client_version: int = 0

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer's current id and epoch."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer has exhausted the epochs of its id."""
        return is_epoch_exhausted(self.producer_epoch)

    def increment_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> None:
        """Assign the id to a producer, with a new epoch (prepareIncrementProducerEpoch).

        A producer that states its expected epoch continues with the next one; if it repeats the
        request, the response is the same. Raises RefusedError with PRODUCER_FENCED for a wrong
        expected epoch, with UNKNOWN_SERVER_ERROR if there is no next one, a case that Kafka does
        not handle.
        """
        self._check(TransactionState.EMPTY)
        if self.epoch_exhausted:
            raise RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"producer {self.producer_id} has no epochs left after {self.producer_epoch}",
            )
        if expected_epoch is None:
            epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        elif self.producer_epoch in {expected_epoch, NO_PRODUCER_EPOCH}:
            epoch, last_epoch = self.producer_epoch + 1, self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            raise RefusedError(
                ErrorCode.PRODUCER_FENCED,
                f"the producer epoch of {self.transactional_id} is {self.producer_epoch}, not "
                f"{expected_epoch}",
            )
        self._begin_empty(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def rotate_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, record_last_epoch: bool
    ) -> None:
        """Assign the id to a producer with a new producer id (prepareProducerIdRotation)."""
        self._check(TransactionState.EMPTY)
        last_epoch = self.producer_epoch if record_last_epoch else NO_PRODUCER_EPOCH
        self._begin_empty(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def add_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> None:
        """Begin a transaction, or add partitions to it (prepareAddPartitions)."""
        begins = self.state is not TransactionState.ONGOING
        self._move(TransactionState.ONGOING, self.producer_id, now_ms)
        if begins:
            self.start_ms = now_ms
        self.partitions = self.partitions | partitions
        self.client_version = client_version

    def fence(self) -> None:
        """Start to fence the producer of an open transaction (prepareFenceProducerEpoch)."""
        self._check(TransactionState.PREPARE_EPOCH_FENCE)
        self.state = TransactionState.PREPARE_EPOCH_FENCE

    def bump_fencing_epoch(self) -> None:
        """Fence a producer whose epoch the transaction's end alone would not bump."""
        self.producer_epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        self.last_producer_epoch = NO_PRODUCER_EPOCH

    def prepare_end(
        self,
        state: TransactionState,
        client_version: int,
        now_ms: int,
        *,
        next_producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Set how the transaction ends (prepareAbortOrCommit)."""
        nothing_to_end = self.state not in {
            TransactionState.ONGOING,
            TransactionState.PREPARE_EPOCH_FENCE,
        }
        self._move(state, self.producer_id, now_ms)
        if client_version >= EPOCH_BUMP_VERSION:
            self.last_producer_epoch = self.producer_epoch
            self.producer_epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        if nothing_to_end:
            self.start_ms = now_ms
        self.next_producer_id = next_producer_id
        self.client_version = client_version

    def complete(self, now_ms: int) -> None:
        """Complete the transaction, whose markers are all written (prepareComplete)."""
        producer_id, epoch = self.identity_after_completion
        self._move(
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            producer_id,
            now_ms,
        )
        self.producer_epoch = epoch
        self.next_producer_id = NO_PRODUCER_ID
        self.partitions = set()

    @property
    def identity_after_completion(self) -> ProducerIdAndEpoch:
        """The producer's id and epoch once the markers are written."""
        if self.next_producer_id != NO_PRODUCER_ID and self.client_version >= EPOCH_BUMP_VERSION:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.identity

    def expire(self) -> None:
        """Mark the id as dead, because it has expired."""
        self._check(TransactionState.DEAD)
        self.state = TransactionState.DEAD
        self.partitions = set()

    def _begin_empty(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> None:
        self._move(TransactionState.EMPTY, producer_id, now_ms)
        self.producer_epoch = epoch
        self.last_producer_epoch = last_epoch
        self.timeout_ms = timeout_ms
        self.partitions = set()
        self.start_ms = _NO_TIME

    def _move(self, state: TransactionState, producer_id: int, now_ms: int) -> None:
        self._check(state)
        self.state = state
        self.previous_producer_id = self.producer_id
        self.producer_id = producer_id
        self.last_update_ms = now_ms

    def _check(self, state: TransactionState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(
                f"{self.transactional_id} cannot go from {self.state} to {state}"
            )
