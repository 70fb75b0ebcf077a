"""What the coordinator knows of one transactional id, and the steps from state to state.

Kafka's TransactionMetadata. There each step is first prepared and then completed, when the
transaction log has taken it; here the coordinator takes a step on a copy, which counts when it has
been written. Nothing else changes the state, and a step that the table of states does not have
raises IllegalTransitionError and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.producer_state import MAX_EPOCH
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.transaction_state import TRANSITIONS, TransactionState
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

#: From this transaction.version on, every transaction's end bumps the epoch (KIP-890).
EPOCH_BUMP_VERSION = 2
_NO_TIME = -1


class IllegalTransitionError(KafkaError):
    """A transactional id was to go where its state does not lead."""


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """Tell whether a producer may not use a higher epoch: the last one is left for fencing."""
    return producer_epoch >= MAX_EPOCH - 1


@dataclass(slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    #: Milliseconds since 1970, as all times here.
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    #: The epoch before the last bump that the producer asked for itself.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    #: The producer id before the last step.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The producer id from the next transaction on, when the epochs of this one are used up.
    next_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    #: When the transaction began, -1 where there is none.
    start_ms: int = _NO_TIME
    #: The transaction.version of the client that took the last step.
    client_version: int = 0

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """What the producer is known by."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer has used up the epochs of its id."""
        return is_epoch_exhausted(self.producer_epoch)

    def increment_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> None:
        """Give the id to a producer, with a new epoch (prepareIncrementProducerEpoch).

        A producer that says which epoch it expects goes on with the next one, and gets the same
        answer when it asks again. Raises RefusedError with PRODUCER_FENCED if it expects another,
        with UNKNOWN_SERVER_ERROR if there is no next one: Kafka does not foresee who would ask.
        """
        self._check(TransactionState.EMPTY)
        if self.epoch_exhausted:
            raise RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"producer {self.producer_id} has no epochs left behind {self.producer_epoch}",
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
                f"{self.transactional_id} has epoch {self.producer_epoch}, not {expected_epoch}",
            )
        self._begin_empty(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def rotate_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, record_last_epoch: bool
    ) -> None:
        """Give the id to a producer under a new producer id (prepareProducerIdRotation)."""
        self._check(TransactionState.EMPTY)
        last_epoch = self.producer_epoch if record_last_epoch else NO_PRODUCER_EPOCH
        self._begin_empty(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def add_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> None:
        """Begin a transaction, or let it grow (prepareAddPartitions)."""
        begins = self.state is not TransactionState.ONGOING
        self._move(TransactionState.ONGOING, self.producer_id, now_ms)
        if begins:
            self.start_ms = now_ms
        self.partitions = self.partitions | partitions
        self.client_version = client_version

    def fence(self) -> None:
        """Begin to shut out the producer of an open transaction (prepareFenceProducerEpoch)."""
        self._check(TransactionState.PREPARE_EPOCH_FENCE)
        self.state = TransactionState.PREPARE_EPOCH_FENCE

    def bump_fencing_epoch(self) -> None:
        """Shut a producer out where the transaction's end alone would not bump its epoch."""
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
        """Decide how the transaction ends (prepareAbortOrCommit)."""
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
        """Take note that all markers are written (prepareComplete)."""
        producer_id = self.producer_id
        rotates = (
            self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID
        )
        self._move(
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            self.next_producer_id if rotates else producer_id,
            now_ms,
        )
        if rotates:
            self.producer_epoch = 0
        self.next_producer_id = NO_PRODUCER_ID
        self.partitions = set()

    @property
    def identity_after_completion(self) -> ProducerIdAndEpoch:
        """What the producer is known by once the markers are written."""
        if self.next_producer_id != NO_PRODUCER_ID and self.client_version >= EPOCH_BUMP_VERSION:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.identity

    def expire(self) -> None:
        """Die of old age."""
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
