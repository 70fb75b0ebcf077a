"""The producer's id, its order, and its transactions (Kafka's TransactionManager).

The calling threads begin and end transactions and wait for results. The network thread fetches the
next request, passes in answers, and reports the outcome of each batch. One lock guards everything
and is only held briefly. Nothing is sent here and no clock is read.

A producer without a transactional id uses only the idempotent half. With one, the calls follow the
table in `transaction_state`. Up to transaction.version 1 (TV1) a separate request adds partitions
to the transaction; from 2 on (TV2, KIP-890) Produce does so itself. The version is the
coordinator's finalized feature. It is checked between transactions, so that a transaction ends by
the rules under which it began.

Unlike Java, whether the next transaction needs a new epoch is decided when the old one has ended,
not when its end is requested: batches may fail in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.errors import (
    BrokerError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, PreparedTransaction
from spark_kafka_sink.producer.batch.error_rules import (
    ProduceAction,
    TxnAction,
    produce_action,
    txn_action,
)
from spark_kafka_sink.producer.transactions.transaction_core import PendingOffsets
from spark_kafka_sink.producer.transactions.transaction_requests import (
    TRANSACTION_V2,
    TransactionRequests,
)
from spark_kafka_sink.producer.transactions.transaction_state import TransactionState
from spark_kafka_sink.producer.transactions.transactional_request_result import (
    TransactionalRequestResult,
)
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    AddOffsetsToTxnHandler,
    EndTxnHandler,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.network.cluster.metadata import TopicMetadata
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

_S = TransactionState


class TransactionManager(TransactionRequests):
    """The calls of users, and those of the accumulator and Sender about batches; see the module."""

    # --- calls of the producer's users

    def initialize_transactions(self) -> TransactionalRequestResult:
        """Request the producer id, ending any transaction that an earlier producer left open.

        It may be requested again after `prepare_transaction`. Any other second call raises
        IllegalStateError, and so does a call while another operation is pending.
        """

        def begin() -> TransactionalRequestResult:
            self._fail_if_in_error()
            was_prepared = self._state is _S.PREPARED_TRANSACTION
            self._transition_to(_S.INITIALIZING)
            if was_prepared:
                self._forget_transaction()
                self._sequences.reset()
            result = TransactionalRequestResult("init_transactions")
            self._enqueue_init_producer_id(result, NO_PRODUCER_ID_AND_EPOCH)
            return result

        return self._begin_or_resume(begin, _S.INITIALIZING, "init_transactions")

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent until there is something to write.

        Raises IllegalStateError unless the producer is initialized and no transaction is open.
        """
        with self._lock:
            self._ensure_transactional("begin_transaction")
            self._fail_if_operation_pending("begin_transaction")
            self._fail_if_in_error()
            self._transition_to(_S.IN_TRANSACTION)
            self._pending_offsets.clear()

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
            transactional_id = self._ensure_transactional("send_offsets_to_transaction")
            self._fail_if_operation_pending("send_offsets_to_transaction")
            self._fail_if_in_error()
            if self._state is not _S.IN_TRANSACTION:
                raise IllegalStateError(
                    f"offsets cannot be sent in state {self._state.name}: begin a transaction first"
                )
            pending = [each for each in self._pending_offsets if not each.result.is_acked]
            for each in pending:
                if each.offsets == offsets and each.group_metadata == group_metadata:
                    return each.result
            result = TransactionalRequestResult("send_offsets_to_transaction")
            self._pending_offsets = [
                *pending,
                PendingOffsets(dict(offsets), group_metadata, result),
            ]
            if self._is_transaction_v2:
                self._transaction_started = True
                self._enqueue_offset_commit(result, offsets, group_metadata)
            else:
                self._requests.put(
                    AddOffsetsToTxnHandler(
                        result=result,
                        transactional_id=transactional_id,
                        producer=self.producer_id_and_epoch,
                        offsets=offsets,
                        group_metadata=group_metadata,
                    )
                )
            return result

    def prepare_transaction(self) -> PreparedTransaction:
        """Return the transaction, once everything is written, for another process to end.

        Raises IllegalStateError when no transaction is open, TransactionAbortableError when it can
        only be aborted.
        """
        with self._lock:
            self._ensure_transactional("prepare_transaction")
            self._fail_if_operation_pending("prepare_transaction")
            self._fail_if_in_error()
            self._transition_to(_S.PREPARED_TRANSACTION)
            version = TRANSACTION_V2 if self._is_transaction_v2 else TRANSACTION_V2 - 1
            return PreparedTransaction(self.producer_id_and_epoch, version)

    def begin_commit(self) -> TransactionalRequestResult:
        """Commit as soon as all records are acknowledged.

        Raises IllegalStateError when no transaction is open, TransactionAbortableError when it can
        only be aborted.
        """

        def begin() -> TransactionalRequestResult:
            self._fail_if_in_error()
            self._transition_to(_S.COMMITTING_TRANSACTION)
            return self._begin_completing("commit_transaction", committed=True)

        return self._begin_or_resume(begin, _S.COMMITTING_TRANSACTION, "commit_transaction")

    def begin_abort(self) -> TransactionalRequestResult:
        """Abort: drop unsent records, wait for those in flight, then send EndTxn.

        Raises IllegalStateError when no transaction is open.
        """

        def begin() -> TransactionalRequestResult:
            if self._state is not _S.ABORTABLE_ERROR:
                self._fail_if_in_error()
            self._transition_to(_S.ABORTING_TRANSACTION)
            self._new_partitions.clear()
            return self._begin_completing("abort_transaction", committed=False)

        return self._begin_or_resume(begin, _S.ABORTING_TRANSACTION, "abort_transaction")

    def fail_if_not_ready_for_send(self) -> None:
        """Raise the error that keeps records from being sent now, before any work is done.

        This is the error that ended the producer or its transaction, or IllegalStateError if no
        transaction is open.
        """
        with self._lock:
            self._fail_if_operation_pending("send")
            self._fail_if_in_error()
            if self.is_transactional and self._state is not _S.IN_TRANSACTION:
                advice = (
                    "begin a transaction first"
                    if self.has_producer_id
                    else "call init_transactions, then begin a transaction"
                )
                raise IllegalStateError(
                    f"records cannot be sent in state {self._state.name}: {advice}"
                )

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Add the partition of a closed batch to the open transaction.

        Raises the same errors as `fail_if_not_ready_for_send`.
        """
        with self._lock:
            self.fail_if_not_ready_for_send()
            if not self.is_transactional:
                return
            if self._is_transaction_v2:
                self._partitions.add(topic_partition)
                self._transaction_started = True
            elif not (
                topic_partition in self._partitions or topic_partition in self._pending_partitions
            ):
                self._new_partitions.add(topic_partition)

    def maybe_transition_to_error_state(self, error: Exception) -> None:
        """Record that a record was not delivered: it ends the transaction, or the producer."""
        with self._lock:
            if self.has_fatal_error:
                return
            if _is_fatal(error):
                self._fatal(error)
            elif self.has_ongoing_transaction and not self.is_aborting:
                self._transition_to(_S.ABORTABLE_ERROR, _abortable(error), poison=True)

    def _begin_or_resume(
        self,
        begin: Callable[[], TransactionalRequestResult],
        target: TransactionState,
        operation: str,
    ) -> TransactionalRequestResult:
        """Return the pending operation if it is the same, to wait again; otherwise begin it."""
        with self._lock:
            self._ensure_transactional(operation)
            if self._pending_transition is not None:
                result, state = self._pending_transition
                if result.is_acked:
                    self._pending_transition = None
                elif state is target:
                    return result
            self._fail_if_operation_pending(operation)
            result = begin()
            self._pending_transition = (result, target)
            return result

    def _fail_if_operation_pending(self, operation: str) -> None:
        if self._pending_transition is None:
            return
        result, _ = self._pending_transition
        if not result.is_acked:
            raise IllegalStateError(
                f"{operation} is not possible before the end of {result.operation} is known: "
                f"call {result.operation} again"
            )
        self._pending_transition = None

    def _ensure_transactional(self, operation: str) -> str:
        if self._transactional_id is None:
            raise IllegalStateError(f"{operation} needs transactional.id to be set")
        return self._transactional_id

    def _fail_if_in_error(self) -> None:
        """Raise a new error if the transaction or producer has failed, caused by that failure."""
        error = self._last_error
        if error is None:
            return
        if self.has_abortable_error:
            raise TransactionAbortableError(
                f"the transaction failed: abort it, then go on. Its error was: {error}"
            ) from error
        if isinstance(error, ProducerFencedError):
            raise ProducerFencedError(str(error), code=error.code, name=error.name) from error
        raise FatalProducerError(
            f"the producer was ended by an earlier error; close it and make another. "
            f"The error was: {error}"
        ) from error

    def _begin_completing(self, operation: str, *, committed: bool) -> TransactionalRequestResult:
        self._enqueue_new_partitions()
        result = TransactionalRequestResult(operation)
        self._requests.put(
            EndTxnHandler(
                result=result,
                transactional_id=self._transactional_id or "",
                producer=self.producer_id_and_epoch,
                committed=committed,
                is_transaction_v2=self._is_transaction_v2,
            )
        )
        return result

    # --- failure and closing

    def transition_to_fatal_error(self, error: Exception) -> None:
        """End the producer, and fail all pending requests."""
        with self._lock:
            if not self.has_fatal_error:
                self._fatal(error)

    def take_authorization_error(self) -> Exception | None:
        """Return the error, once, if the request for an id was not authorized; it may be repeated.

        All requests that needed the id have failed by then, but not the batches.
        """
        with self._lock:
            error = self._last_error
            if not (
                self.has_abortable_error
                and isinstance(error, BrokerError)
                and txn_action(ApiKey.INIT_PRODUCER_ID, error.code) is TxnAction.UNAUTHORIZED
            ):
                return None
            self._fail_requests(error)
            self._transition_to(_S.UNINITIALIZED, poison=True)
            return error

    def close(self) -> None:
        """Fail every pending request: the producer was closed without waiting."""
        with self._lock:
            self._fail_requests(KafkaError("the producer was closed before the operation ended"))

    # --- batches: queried by the accumulator, reported by the Sender

    def follow_topics(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Find topics that were recreated; see `partition_sequences`."""
        with self._lock:
            self._sequences.follow_topics(topics)

    def bump_idempotent_epoch_and_reset_id_if_needed(self) -> None:
        """Restart partitions that need it (KIP-360), and request a producer id if there is none."""
        with self._lock:
            self._sequences.resolve()
            if not self._sequences.restart_quiet_partitions() and self._state is _S.READY:
                self._transition_to(_S.UNINITIALIZED, poison=True)
            if (
                not self.is_transactional
                and not self.has_producer_id
                and self._state is _S.UNINITIALIZED
            ):
                self._transition_to(_S.INITIALIZING, poison=True)
                result = TransactionalRequestResult("InitProducerId")
                self._enqueue_init_producer_id(result, NO_PRODUCER_ID_AND_EPOCH)

    def may_drain(self, first: ProducerBatch) -> bool:
        """Return whether a partition's first queued batch may be sent now.

        Nothing is sent without a producer id, or before the partition has been added to the
        transaction. A batch that was never sent waits while older ones have another epoch, or were
        given up with an unknown outcome (RecordAccumulator.shouldStopDrainBatchesForPartition).

        A retried batch is sent when it is the oldest one in flight: the broker would refuse any
        other as out of order. A batch that was never sent must wait in four more cases in which
        Java sends it, because the retry of an older one might then be refused for ever:

        - Nothing in the partition has been acknowledged yet, or nothing since its topic was
          recreated. A broker that does not know a producer accepts any sequence number in its first
          batch. If it refused the first batch for a moment, as the leader of a new topic does, the
          second would be accepted as the first.
        - An older one is being retried.
        - A newer one was acknowledged before an older one, because the leader has moved while the
          old leader still owes an answer.
        - Five are in flight. A broker recognizes duplicates only among the last five batches. (They
          are counted here, because a connection also counts answers that were not processed yet.)
        """
        with self._lock:
            if not self.has_producer_id or self.has_fatal_error:
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

    def note_offset(self, batch: ProducerBatch, base_offset: int) -> None:
        """Record the offset at which a batch was appended, if it is known."""
        with self._lock:
            self._sequences.note_offset(batch, base_offset)

    def complete(self, batch: ProducerBatch) -> None:
        """Record that the broker has a batch."""
        with self._lock:
            self._sequences.acknowledge(batch)

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
                self._require_epoch_bump()


def _is_fatal(error: Exception) -> bool:
    if isinstance(error, BrokerError):
        return produce_action(error.code) is ProduceAction.FATAL
    return isinstance(error, UnsupportedVersionError | FatalProducerError)


def _abortable(error: Exception) -> Exception:
    """Convert a retriable error after its last retry, or INVALID_TXN_STATE, to an abortable one."""
    is_txn_state = isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_TXN_STATE
    if not is_txn_state and not getattr(error, "retriable", False):
        return error
    abortable = TransactionAbortableError(f"records of the transaction were not written: {error}")
    abortable.__cause__ = error
    return abortable
