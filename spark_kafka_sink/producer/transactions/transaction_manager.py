"""The producer's id, its order, and its transactions (Kafka's TransactionManager).

The calling threads begin and end transactions and wait for results. The network thread fetches the
next request, passes in answers, and reports the outcome of each batch. One lock guards everything
and is only held briefly. Nothing is sent here and no clock is read.

A producer without a transactional id uses only the idempotent half. With one, the calls follow the
table in `transaction_state`.

The manager guards its parts with the lock, and each part knows nothing of the others:

    TransactionStateMachine   the state and its error
    PendingOperations         what a caller has begun and waits for
    TransactionRequests       the requests that wait, and the one in flight
    TransactionPartitions     what the open transaction includes
    EpochRules                TV1 or TV2, and whether the next transaction needs a new epoch
    PartitionSequences        the order of batches: the idempotent half

TransactionProtocol alone joins them, to choose the next request and to act on its answer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import (
    BrokerError,
    IllegalStateError,
    KafkaError,
)
from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    UNKNOWN_OFFSET,
    PreparedTransaction,
)
from spark_kafka_sink.producer.batch.error_rules import (
    ProduceAction,
    produce_action,
)
from spark_kafka_sink.producer.transactions.partition_sequences import PartitionSequences
from spark_kafka_sink.producer.transactions.transaction_protocol import (
    EpochRules,
    PendingOperations,
    TransactionPartitions,
    TransactionProtocol,
)
from spark_kafka_sink.producer.transactions.transaction_requests import TransactionRequests
from spark_kafka_sink.producer.transactions.transaction_state import (
    TransactionState,
    TransactionStateMachine,
)
from spark_kafka_sink.producer.transactions.transactional_request_result import (
    TransactionalRequestResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        Node,
        OffsetAndMetadata,
        ProducerIdAndEpoch,
        TopicPartition,
    )
    from spark_kafka_sink.network.cluster.metadata import TopicMetadata
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.transactions.txn_request_handlers import TxnRequestHandler

#: Java's default of transaction.timeout.ms.
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000

_S = TransactionState


class TransactionManager:
    """The id, order and transactions of one producer, for all its threads; see the module."""

    def __init__(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
    ) -> None:
        """Start without a producer id; without `transactional_id` only the order is maintained."""
        #: Whether records are written in transactions.
        self.is_transactional: Final = transactional_id is not None
        self._lock = threading.RLock()
        self._machine = TransactionStateMachine(transactional_id)
        self._operations = PendingOperations()
        self._requests = TransactionRequests(transactional_id, transaction_timeout_ms)
        self._partitions = TransactionPartitions()
        self._epochs = EpochRules()
        self._sequences = PartitionSequences(is_transactional=transactional_id is not None)
        self._protocol = TransactionProtocol(
            self._machine,
            requests=self._requests,
            partitions=self._partitions,
            sequences=self._sequences,
            epochs=self._epochs,
            operations=self._operations,
        )

    # --- the state; it may be out of date as soon as it is read

    @property
    def transactional_id(self) -> str | None:
        """The transactional id; None for a producer without transactions."""
        return self._machine.transactional_id

    @property
    def state(self) -> TransactionState:
        """The current state."""
        return self._machine.current

    @property
    def last_error(self) -> Exception | None:
        """The cause of ABORTABLE_ERROR or FATAL_ERROR; None in any other state."""
        return self._machine.error

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch:
        """The id and epoch by which brokers know this producer."""
        return self._sequences.producer_id_and_epoch

    @property
    def has_producer_id(self) -> bool:
        """Whether a producer id has been assigned."""
        return self._sequences.producer_id_and_epoch.is_valid

    @property
    def has_fatal_error(self) -> bool:
        """Whether the producer can only be closed."""
        return self._machine.has_fatal_error

    @property
    def has_abortable_error(self) -> bool:
        """Whether the transaction can only be aborted."""
        return self._machine.has_abortable_error

    @property
    def is_aborting(self) -> bool:
        """Whether an abort has been requested and is not complete."""
        return self._machine.is_aborting

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort has been requested and is not complete."""
        return self._machine.is_completing

    @property
    def has_ongoing_transaction(self) -> bool:
        """Whether a transaction has begun, and has neither ended nor been lost to a fatal error."""
        return self._machine.has_ongoing_transaction

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to do before batches are sent, and nothing to request.

        A producer without transactions has its id then, and no partition has to restart.
        """
        return (
            not self.is_transactional
            and self._machine.current is _S.READY
            and self._sequences.are_settled
        )

    @property
    def is_transaction_v2(self) -> bool:
        """Whether the open transaction, or the next, follows the rules of KIP-890."""
        return self._epochs.is_transaction_v2

    # --- calls of the producer's users

    def initialize_transactions(
        self, transactional_id: str | None = None
    ) -> TransactionalRequestResult:
        """Request the producer id, ending any transaction that an earlier producer left open.

        It may be requested again after `prepare_transaction`, also of another `transactional_id`.
        Any other second call raises IllegalStateError, and so does a call while another operation
        is pending.
        """

        def begin() -> TransactionalRequestResult:
            self._machine.raise_if_failed()
            was_prepared = self._machine.current is _S.PREPARED_TRANSACTION
            self._machine.transition_to(_S.INITIALIZING)
            if was_prepared:
                self._partitions.clear()
                self._sequences.reset()
                # Nothing may be written under the prepared transaction's epoch any more.
                self._sequences.producer_id_and_epoch = NO_PRODUCER_ID_AND_EPOCH
            if transactional_id is not None:
                self._machine.transactional_id = transactional_id
                self._requests.transactional_id = transactional_id
            result = TransactionalRequestResult("init_transactions")
            self._requests.init_producer_id(result, NO_PRODUCER_ID_AND_EPOCH)
            return result

        with self._lock:
            if transactional_id not in {None, self.transactional_id}:
                self._operations.raise_if_pending(f"init_transactions({transactional_id!r})")
            return self._begin_or_resume(begin, _S.INITIALIZING, "init_transactions")

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent until there is something to write.

        Raises IllegalStateError unless the producer is initialized and no transaction is open.
        """
        with self._lock:
            self._ensure_transactional("begin_transaction")
            self._operations.raise_if_pending("begin_transaction")
            self._machine.raise_if_failed()
            self._machine.transition_to(_S.IN_TRANSACTION)
            self._operations.forget_offsets()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult:
        """Commit a group's offsets with the open transaction.

        Returns the pending operation if it has equal arguments, so that a caller can wait again
        after a timeout. Raises IllegalStateError when no transaction is open.
        """
        with self._lock:
            self._ensure_transactional("send_offsets_to_transaction")
            self._operations.raise_if_pending("send_offsets_to_transaction")
            self._machine.raise_if_failed()
            if self._machine.current is not _S.IN_TRANSACTION:
                raise IllegalStateError(
                    f"offsets cannot be sent in state {self._machine.current.name}: "
                    "begin a transaction first"
                )
            pending = self._operations.pending_offsets(offsets, group_metadata)
            if pending is not None:
                return pending
            result = TransactionalRequestResult("send_offsets_to_transaction")
            self._operations.add_offsets(offsets, group_metadata, result)
            producer = self._sequences.producer_id_and_epoch
            if self._epochs.is_transaction_v2:
                self._partitions.note_started()
                self._requests.commit_offsets(
                    result, producer, offsets, group_metadata, is_transaction_v2=True
                )
            else:
                self._requests.add_group(result, producer, offsets, group_metadata)
            return result

    def prepare_transaction(self) -> PreparedTransaction:
        """Return the transaction, once everything is written, for another process to end.

        Raises IllegalStateError when no transaction is open, TransactionAbortableError when it can
        only be aborted.
        """
        with self._lock:
            self._ensure_transactional("prepare_transaction")
            self._operations.raise_if_pending("prepare_transaction", offsets=True)
            self._machine.raise_if_failed()
            self._machine.transition_to(_S.PREPARED_TRANSACTION)
            return PreparedTransaction(
                self._sequences.producer_id_and_epoch, self._epochs.transaction_version
            )

    def begin_commit(self) -> TransactionalRequestResult:
        """Commit as soon as all records are acknowledged.

        Raises IllegalStateError when no transaction is open, TransactionAbortableError when it can
        only be aborted.
        """

        def begin() -> TransactionalRequestResult:
            self._machine.raise_if_failed()
            self._machine.transition_to(_S.COMMITTING_TRANSACTION)
            return self._begin_completing("commit_transaction", committed=True)

        return self._begin_or_resume(begin, _S.COMMITTING_TRANSACTION, "commit_transaction")

    def begin_abort(self) -> TransactionalRequestResult:
        """Abort: drop unsent records, wait for those in flight, then send EndTxn.

        Raises IllegalStateError when no transaction is open.
        """

        def begin() -> TransactionalRequestResult:
            if self._machine.current is not _S.ABORTABLE_ERROR:
                self._machine.raise_if_failed()
            self._machine.transition_to(_S.ABORTING_TRANSACTION)
            self._partitions.drop_new()
            return self._begin_completing("abort_transaction", committed=False)

        return self._begin_or_resume(begin, _S.ABORTING_TRANSACTION, "abort_transaction")

    def fail_if_not_ready_for_send(self) -> None:
        """Raise the error that keeps records from being sent now, before any work is done.

        This is the error that ended the producer or its transaction, or IllegalStateError if no
        transaction is open.
        """
        with self._lock:
            self._operations.raise_if_pending("send")
            state = self._machine.current
            if state is _S.IN_TRANSACTION:
                return
            self._machine.raise_if_failed()
            if self.is_transactional:
                advice = (
                    "begin a transaction first"
                    if self.has_producer_id
                    else "call init_transactions, then begin a transaction"
                )
                raise IllegalStateError(f"records cannot be sent in state {state.name}: {advice}")

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Add the partition of a closed batch to the open transaction.

        Raises the same errors as `fail_if_not_ready_for_send`.
        """
        with self._lock:
            self.fail_if_not_ready_for_send()
            if not self.is_transactional:
                return
            if self._epochs.is_transaction_v2:
                self._partitions.add(topic_partition)
            else:
                self._partitions.request(topic_partition)

    def maybe_transition_to_error_state(self, error: Exception) -> None:
        """Record that a record was not delivered: it ends the transaction, or the producer."""
        with self._lock:
            self._protocol.handle_lost_record(error)

    def _begin_or_resume(
        self,
        begin: Callable[[], TransactionalRequestResult],
        target: TransactionState,
        operation: str,
    ) -> TransactionalRequestResult:
        """Return the pending operation if it is the same, to wait again; otherwise begin it."""
        with self._lock:
            self._ensure_transactional(operation)
            pending = self._operations.pending(target)
            if pending is not None:
                return pending
            self._operations.raise_if_pending(operation)
            result = begin()
            self._operations.begin(result, target)
            return result

    def _ensure_transactional(self, operation: str) -> None:
        if not self.is_transactional:
            raise IllegalStateError(f"{operation} requires transactional.id to be set")

    def _begin_completing(self, operation: str, *, committed: bool) -> TransactionalRequestResult:
        self._protocol.request_new_partitions()
        result = TransactionalRequestResult(operation)
        self._requests.end_transaction(
            result,
            self._sequences.producer_id_and_epoch,
            committed=committed,
            is_transaction_v2=self._epochs.is_transaction_v2,
        )
        return result

    # --- requests: sent and answered on the network thread

    def next_request(self, *, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Return the request to send next; None if none may be sent now.

        Only one request is in flight: the next is returned once this one was answered, put back, or
        has failed. A transaction does not end before all its batches have
        (`has_incomplete_batches`).
        """
        with self._lock:
            return self._protocol.next_request(has_incomplete_batches=has_incomplete_batches)

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that was not answered, or that must be resent."""
        with self._lock:
            self._requests.retry(handler)

    def find_coordinator(self, handler: TxnRequestHandler) -> None:
        """Put a request back until its coordinator is known."""
        with self._lock:
            self._requests.find_coordinator(handler)

    def find_coordinator_and_retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that failed to reach its coordinator, until that is found again."""
        with self._lock:
            self._requests.find_coordinator_and_retry(handler)

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Return the broker that a request goes to, if it is known."""
        with self._lock:
            return self._requests.coordinator(handler)

    def handle_coordinator_ready(
        self, *, init_producer_id_version: int, transaction_version: int
    ) -> None:
        """Update which features the transaction coordinator and its cluster support.

        `transaction_version` is the finalized feature of that name, 0 if there is none. Nothing
        else decides, because some services offer Produce 12 but reject its semantics.
        """
        with self._lock:
            self._epochs.update_features(
                init_producer_id_version=init_producer_id_version,
                transaction_version=transaction_version,
            )

    def handle_response(self, handler: TxnRequestHandler, response: Any) -> BrokerError | None:
        """Handle the answer to a request; return the error for which it is sent again later."""
        with self._lock:
            return self._protocol.handle_response(handler, response)

    def handle_failure(self, handler: TxnRequestHandler, error: Exception) -> None:
        """Fail a request that could not be sent, for a reason that is not retriable."""
        with self._lock:
            self._protocol.handle_failure(handler, error)

    # --- failure and closing

    def transition_to_fatal_error(self, error: Exception) -> None:
        """End the producer, and fail all pending requests."""
        with self._lock:
            if not self.has_fatal_error:
                self._protocol.fatal(error)

    def take_authorization_error(self) -> Exception | None:
        """Return the error, once, if the request for an id was not authorized; it may be repeated.

        All requests that needed the id have failed by then, but not the batches.
        """
        with self._lock:
            return self._protocol.take_authorization_error()

    def close(self) -> None:
        """Fail every pending request: the producer was closed without waiting."""
        with self._lock:
            self._protocol.fail_requests(
                KafkaError("the producer was closed before the operation completed")
            )

    # --- batches: queried by the accumulator, reported by the Sender

    def follow_topics(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Find topics that were recreated; see `partition_sequences`."""
        with self._lock:
            self._sequences.follow_topics(topics)

    def bump_idempotent_epoch_and_reset_id_if_needed(self) -> None:
        """Restart partitions that need it (KIP-360), and request a producer id if there is none."""
        with self._lock:
            self._sequences.resolve()
            if not self._sequences.restart_quiet_partitions() and self._machine.current is _S.READY:
                self._machine.transition_to(_S.UNINITIALIZED, poison=True)
            if (
                not self.is_transactional
                and not self.has_producer_id
                and self._machine.current is _S.UNINITIALIZED
            ):
                self._machine.transition_to(_S.INITIALIZING, poison=True)
                result = TransactionalRequestResult("InitProducerId")
                self._requests.init_producer_id(result, NO_PRODUCER_ID_AND_EPOCH)

    def may_drain(self, first: ProducerBatch) -> bool:
        """Return whether a partition's first queued batch may be sent now.

        Nothing is sent without a producer id, or before the partition has been added to the
        transaction; for the other rules, see `PartitionSequences.may_drain`.
        """
        with self._lock:
            if not self.has_producer_id or self._machine.has_fatal_error:
                return False
            if self.is_transactional and first.topic_partition not in self._partitions:
                return False
            return self._sequences.may_drain(first)

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Assign the next sequence numbers to a batch that is drained for the first time."""
        with self._lock:
            self._sequences.assign(batch)

    def in_retry_order(self, batches: Sequence[ProducerBatch]) -> list[ProducerBatch]:
        """Return the batches of one partition that await a retry, sorted by sequence number."""
        with self._lock:
            return self._sequences.in_retry_order(batches)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Assign a batch's sequence numbers to the parts it was split into."""
        with self._lock:
            self._sequences.split(batch, parts)

    def complete(self, batch: ProducerBatch, base_offset: int = UNKNOWN_OFFSET) -> None:
        """Record that the broker has a batch, and at which offset, if it is known."""
        with self._lock:
            self._sequences.acknowledge(batch, base_offset)

    def fail(self, batch: ProducerBatch) -> None:
        """Remove a batch that will not be resent."""
        with self._lock:
            self._sequences.remove(batch)

    def can_retry(self, batch: ProducerBatch, code: int, log_start_offset: int) -> bool:
        """Return whether a batch with this error may succeed if it is resent.

        The bytes stay the same except after OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID,
        where the partition may have to restart; see `PartitionSequences.can_retry`.
        """
        action = produce_action(code)
        if action is not ProduceAction.BUMP_EPOCH:
            return action in {ProduceAction.RETRY, ProduceAction.REFRESH_METADATA}
        with self._lock:
            return self._sequences.can_retry(batch, code, log_start_offset)

    def handle_failed_batch(
        self, batch: ProducerBatch, error: Exception, *, outcome_known: bool
    ) -> None:
        """Record that a batch fails, and its effect on the transaction and the order.

        With `outcome_known` the broker certainly did not append it. Otherwise it may have: the
        batch expired, or its retries are used up.
        """
        with self._lock:
            self.maybe_transition_to_error_state(error)
            if self.has_fatal_error or not batch.has_sequence:
                return
            self._sequences.fail(batch, outcome_known=outcome_known)
            if self.is_transactional:
                self._epochs.require_bump_after_failure()
