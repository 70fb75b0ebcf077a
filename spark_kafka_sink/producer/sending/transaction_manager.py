"""The producer's id, its order, and its transactions (Kafka's TransactionManager).

The calling threads begin and end transactions and wait for results. The network thread fetches the
next request, passes in answers, and reports the outcome of each batch. One lock guards everything
and is only held briefly. Nothing is sent here and no clock is read.

A producer without a transactional id uses only the idempotent half. With one, the calls follow the
table in `transaction_state`.

The manager guards its parts with the lock, and each part knows nothing of the others. It alone
joins them, to choose the next request and to act on its answer:

    state         TransactionStateMachine: the state and its error
    epochs        EpochRules: TV1 or TV2, and whether the next transaction needs a new epoch
    sequences     PartitionSequences: the order of batches, the idempotent half
    _partitions   TransactionPartitions: what the open transaction includes
    _operations   PendingOperations: what a caller has begun and waits for
    _queue        TransactionRequestQueue: the requests that wait

Other classes read the public parts; they change only `sequences`, whose methods for them take the
lock. An answer that does not fit the state ends the producer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import (
    BrokerError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    Node,
    PreparedTransaction,
    ProducerIdAndEpoch,
)
from spark_kafka_sink.producer.batch.error_rules import (
    ProduceAction,
    TxnAction,
    advice_of,
    produce_action,
    txn_action,
)
from spark_kafka_sink.producer.sending.partition_sequences import PartitionSequences
from spark_kafka_sink.producer.sending.transaction_state import (
    EpochRules,
    PendingOperations,
    TransactionalRequestResult,
    TransactionPartitions,
    TransactionState,
    TransactionStateMachine,
)
from spark_kafka_sink.producer.sending.txn_request_handlers import (
    NO_TRANSACTION_TIMEOUT_MS,
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TransactionRequestQueue,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
    Verdict,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

#: Java's default of transaction.timeout.ms.
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
#: Seconds between attempts at a transaction's first request while the previous one is still ending.
ADD_PARTITIONS_RETRY_BACKOFF = 0.02

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
        self._lock = threading.RLock()
        #: The state; it may be out of date as soon as another thread has read it.
        self.state: Final = TransactionStateMachine(transactional_id)
        self.epochs: Final = EpochRules()
        self.sequences: Final = PartitionSequences(
            self._lock, is_transactional=self.state.is_transactional
        )
        self._transaction_timeout_ms = transaction_timeout_ms
        self._partitions = TransactionPartitions()
        self._operations = PendingOperations()
        self._queue = TransactionRequestQueue()
        #: The request that was taken to be sent and is not done.
        self._in_flight: TxnRequestHandler | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to do before batches are sent, and nothing to request.

        A producer without transactions has its id then, and no partition has to restart.
        """
        return (
            not self.state.is_transactional
            and self.state.current is _S.READY
            and self.sequences.are_settled
        )

    # --- calls of the producer's users: IllegalStateError in another state than the table demands,
    # TransactionAbortableError if the transaction can only be aborted

    def initialize_transactions(
        self, transactional_id: str | None = None
    ) -> TransactionalRequestResult:
        """Request the producer id, ending any transaction that an earlier producer left open.

        It may be requested again after `prepare_transaction`, also of another `transactional_id`.
        Any other second call raises IllegalStateError, and so does a call while another operation
        is pending.
        """

        def begin() -> TransactionalRequestResult:
            self.state.raise_if_failed()
            was_prepared = self.state.current is _S.PREPARED_TRANSACTION
            self.state.transition_to(_S.INITIALIZING)
            if was_prepared:
                self._partitions.clear()
                self.sequences.reset()
                # Nothing may be written under the prepared transaction's epoch any more.
                self.sequences.producer_id_and_epoch = NO_PRODUCER_ID_AND_EPOCH
            if transactional_id is not None:
                self.state.transactional_id = transactional_id
            result = TransactionalRequestResult("init_transactions")
            self._request_producer_id(result, NO_PRODUCER_ID_AND_EPOCH)
            return result

        with self._lock:
            if transactional_id not in {None, self.state.transactional_id}:
                self._operations.raise_if_pending(f"init_transactions({transactional_id!r})")
            return self._begin_or_resume(begin, _S.INITIALIZING, "init_transactions")

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent until there is something to write."""
        with self._lock:
            self._ensure_transactional("begin_transaction")
            self._operations.raise_if_pending("begin_transaction")
            self.state.raise_if_failed()
            self.state.transition_to(_S.IN_TRANSACTION)
            self._operations.forget_offsets()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult:
        """Commit a group's offsets with the open transaction.

        Returns the pending operation if it has equal arguments, so that a caller can wait again
        after a timeout.
        """
        with self._lock:
            self._ensure_transactional("send_offsets_to_transaction")
            self._operations.raise_if_pending("send_offsets_to_transaction")
            self.state.raise_if_failed()
            if self.state.current is not _S.IN_TRANSACTION:
                raise IllegalStateError(
                    f"offsets cannot be sent in state {self.state.current.name}: "
                    "begin a transaction first"
                )
            pending = self._operations.pending_offsets(offsets, group_metadata)
            if pending is not None:
                return pending
            result = TransactionalRequestResult("send_offsets_to_transaction")
            self._operations.add_offsets(offsets, group_metadata, result)
            if self.epochs.is_transaction_v2:
                self._partitions.is_started = True
                self._commit_offsets(result, offsets, group_metadata)
            else:
                self._queue.put(
                    AddOffsetsToTxnHandler(
                        result=result,
                        transactional_id=self.state.transactional_id or "",
                        producer=self.sequences.producer_id_and_epoch,
                        offsets=offsets,
                        group_metadata=group_metadata,
                    )
                )
            return result

    def prepare_transaction(self) -> PreparedTransaction:
        """Return the transaction, once everything is written, for another process to end."""
        with self._lock:
            self._ensure_transactional("prepare_transaction")
            self._operations.raise_if_pending("prepare_transaction", offsets=True)
            self.state.raise_if_failed()
            self.state.transition_to(_S.PREPARED_TRANSACTION)
            return PreparedTransaction(
                self.sequences.producer_id_and_epoch, self.epochs.transaction_version
            )

    def begin_commit(self) -> TransactionalRequestResult:
        """Commit as soon as all records are acknowledged."""

        def begin() -> TransactionalRequestResult:
            self.state.raise_if_failed()
            self.state.transition_to(_S.COMMITTING_TRANSACTION)
            return self._begin_completing("commit_transaction", committed=True)

        return self._begin_or_resume(begin, _S.COMMITTING_TRANSACTION, "commit_transaction")

    def begin_abort(self) -> TransactionalRequestResult:
        """Abort: drop unsent records, wait for those in flight, then send EndTxn."""

        def begin() -> TransactionalRequestResult:
            if self.state.current is not _S.ABORTABLE_ERROR:
                self.state.raise_if_failed()
            self.state.transition_to(_S.ABORTING_TRANSACTION)
            self._partitions.drop_new()
            return self._begin_completing("abort_transaction", committed=False)

        return self._begin_or_resume(begin, _S.ABORTING_TRANSACTION, "abort_transaction")

    def begin_end(self) -> TransactionalRequestResult:
        """Abort, but let a commit that has begun go on: the coordinator may have it already."""
        with self._lock:
            if self.state.current is _S.COMMITTING_TRANSACTION:
                return self.begin_commit()
            return self.begin_abort()

    def fail_if_not_ready_for_send(self) -> None:
        """Raise the error that keeps records from being sent now, before any work is done.

        This is the error that ended the producer or its transaction, or IllegalStateError if no
        transaction is open.
        """
        with self._lock:
            self._operations.raise_if_pending("send")
            state = self.state.current
            if state is _S.IN_TRANSACTION:
                return
            self.state.raise_if_failed()
            if self.state.is_transactional:
                advice = (
                    "begin a transaction first"
                    if self.sequences.producer_id_and_epoch.is_valid
                    else "call init_transactions, then begin a transaction"
                )
                raise IllegalStateError(f"records cannot be sent in state {state.name}: {advice}")

    def maybe_add_partition(self, topic_partition: TopicPartition) -> None:
        """Add the partition of a closed batch to the open transaction.

        Raises the same errors as `fail_if_not_ready_for_send`.
        """
        with self._lock:
            self.fail_if_not_ready_for_send()
            if not self.state.is_transactional:
                return
            if self.epochs.is_transaction_v2:
                self._partitions.add(topic_partition)
            else:
                self._partitions.request(topic_partition)

    def maybe_transition_to_error_state(self, error: Exception) -> None:
        """Record that a record was not delivered: it ends the transaction, or the producer."""
        with self._lock:
            if self.state.has_fatal_error:
                return
            if _is_fatal(error):
                self.transition_to_fatal_error(error)
            elif self.state.has_ongoing_transaction and not self.state.is_aborting:
                self.state.transition_to(_S.ABORTABLE_ERROR, _abortable(error), poison=True)

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
        if not self.state.is_transactional:
            raise IllegalStateError(f"{operation} requires transactional.id to be set")

    def _begin_completing(self, operation: str, *, committed: bool) -> TransactionalRequestResult:
        self._request_new_partitions()
        result = TransactionalRequestResult(operation)
        self._queue.put(
            EndTxnHandler(
                result=result,
                transactional_id=self.state.transactional_id or "",
                producer=self.sequences.producer_id_and_epoch,
                committed=committed,
                is_transaction_v2=self.epochs.is_transaction_v2,
            )
        )
        return result

    # --- requests: queued with the lock held

    def _request_producer_id(
        self, result: TransactionalRequestResult, producer: ProducerIdAndEpoch
    ) -> None:
        """Request a producer id, or a new epoch of the given `producer`."""
        is_transactional = self.state.is_transactional
        self._queue.put(
            InitProducerIdHandler(
                result=result,
                transactional_id=self.state.transactional_id,
                transaction_timeout_ms=(
                    self._transaction_timeout_ms if is_transactional else NO_TRANSACTION_TIMEOUT_MS
                ),
                producer=producer,
            )
        )

    def _request_new_partitions(self) -> None:
        """Request that the partitions of new batches be added to the transaction (TV1)."""
        if partitions := self._partitions.new:
            # In this order, because the caller may be interrupted: to request a partition twice is
            # harmless, but one that is pending without a request would never be added.
            self._queue.put(
                AddPartitionsToTxnHandler(
                    result=TransactionalRequestResult("AddPartitionsToTxn"),
                    transactional_id=self.state.transactional_id or "",
                    producer=self.sequences.producer_id_and_epoch,
                    partitions=partitions,
                )
            )
            self._partitions.requested(partitions)

    def _commit_offsets(
        self,
        result: TransactionalRequestResult,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        self._queue.put(
            TxnOffsetCommitHandler(
                result=result,
                transactional_id=self.state.transactional_id or "",
                producer=self.sequences.producer_id_and_epoch,
                group_metadata=group_metadata,
                is_transaction_v2=self.epochs.is_transaction_v2,
                offsets=dict(offsets),
            )
        )

    # --- requests: sent and answered on the network thread

    def next_request(self, *, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Return the request to send next; None if none may be sent now.

        Only one request is in flight: the next is returned once this one was answered, put back, or
        has failed. A transaction does not end before all its batches have
        (`has_incomplete_batches`).
        """
        with self._lock:
            if self._in_flight is not None:
                return None
            self._request_new_partitions()
            if self.state.is_aborting:
                self._queue.drop_unsent_offsets()
            while (handler := self._queue.peek()) is not None:
                if handler.is_end_txn and has_incomplete_batches:
                    return None
                self._queue.pop()
                if self._fails_with_last_error(handler):
                    continue
                if handler.is_end_txn and not self._partitions.is_started:
                    # Nothing was written: the coordinator knows of no transaction.
                    self._transaction_ended(handler)
                    continue
                self._in_flight = handler
                return handler
            return None

    def _fails_with_last_error(self, handler: TxnRequestHandler) -> bool:
        error = self.state.error
        if error is None:
            return False
        if self.state.has_abortable_error and isinstance(handler, FindCoordinatorHandler):
            # The abort that will follow needs it.
            return False
        handler.result.fail(error)
        return True

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that was not answered, or that must be resent."""
        with self._lock:
            self._in_flight = None
            handler.attempts += 1
            self._queue.put(handler)

    def find_coordinator(self, handler: TxnRequestHandler) -> None:
        """Put a request back until its coordinator is known."""
        with self._lock:
            self._in_flight = None
            self._queue.lookup(handler)
            self._queue.put(handler)

    def find_coordinator_and_retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that failed to reach its coordinator, until that is found again."""
        with self._lock:
            self._queue.lookup(handler)
            self.retry(handler)

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Return the broker that a request goes to, if it is known."""
        with self._lock:
            return self._queue.coordinator(handler)

    def handle_coordinator_ready(
        self, *, init_producer_id_version: int, transaction_version: int
    ) -> None:
        """Update which features the transaction coordinator and its cluster support.

        `transaction_version` is the finalized feature of that name, 0 if there is none. Nothing
        else decides, because some services offer Produce 12 but reject its semantics.
        """
        with self._lock:
            self.epochs.update_features(
                init_producer_id_version=init_producer_id_version,
                transaction_version=transaction_version,
            )

    def handle_response(self, handler: TxnRequestHandler, response: Any) -> BrokerError | None:
        """Handle the answer to a request; return the error for which it is sent again later."""
        with self._lock:
            self._in_flight = None
            if self.state.has_fatal_error:
                return None
            verdict = handler.verdict(response)
            match verdict.action:
                case TxnAction.DONE:
                    self._succeeded(handler, response)
                case TxnAction.RETRY | TxnAction.RETRY_SOON as action:
                    is_soon = action is TxnAction.RETRY_SOON and not self._partitions.has_added
                    handler.retry_delay = ADD_PARTITIONS_RETRY_BACKOFF if is_soon else None
                    self.retry(handler)
                    return broker_error(verdict.code, verdict.context)
                case TxnAction.FIND_COORDINATOR:
                    self.find_coordinator_and_retry(handler)
                    return broker_error(verdict.code, verdict.context)
                case TxnAction.REINITIALIZE:
                    self._reinitialize(handler, verdict)
                case _:
                    self._refused(handler, verdict)
            return None

    def handle_failure(self, handler: TxnRequestHandler, error: Exception) -> None:
        """Fail a request that could not be sent, for a reason that is not retriable."""
        with self._lock:
            self._in_flight = None
            handler.result.fail(error)
            self.transition_to_fatal_error(error)

    def _refused(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Fail the request, and the transaction or producer if the verdict says so."""
        if isinstance(handler, AddPartitionsToTxnHandler):
            # No longer pending: the transaction of the partitions added before must still be able
            # to end.
            self._partitions.refused(handler.partitions)
        action = verdict.action
        if action is TxnAction.ABORTABLE_WITH_BUMP and not self.epochs.can_renew_epoch:
            action = TxnAction.FATAL
        if action is TxnAction.FENCED:
            error: Exception = self._fenced(verdict.context)
        else:
            error = broker_error(verdict.code, verdict.context, _advice(action, verdict.code))
        if action in {TxnAction.FENCED, TxnAction.FATAL}:
            handler.result.fail(error)
            self.transition_to_fatal_error(error)
            return
        if action is TxnAction.ABORTABLE_WITH_BUMP:
            self.epochs.require_bump_after_failure()
        handler.result.fail(error)
        if not self.state.is_aborting:
            self.state.transition_to(_S.ABORTABLE_ERROR, error, poison=True)

    def _fenced(self, context: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{context}: a newer producer has taken over transactional.id "
            f"{self.state.transactional_id!r}, or the coordinator aborted this producer's "
            f"transaction after transaction.timeout.ms ({self._transaction_timeout_ms} "
            f"ms). Close this producer ({self.sequences.producer_id_and_epoch})",
            code=ErrorCode.PRODUCER_FENCED,
            name=error_name(ErrorCode.PRODUCER_FENCED),
        )

    def _reinitialize(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Require a new epoch, to find out if we are fenced or the coordinator had aborted."""
        if not self.epochs.coordinator_bumps_epochs:
            self._refused(handler, verdict._replace(action=TxnAction.FENCED))
            return
        self.epochs.bump_required = True
        self._transaction_ended(handler)

    def _succeeded(self, handler: TxnRequestHandler, response: Any) -> None:
        match handler:
            case FindCoordinatorHandler():
                coordinator = handler.coordinator(response)
                self._queue.found(
                    handler, Node(coordinator.node_id, coordinator.host, coordinator.port)
                )
                handler.result.done()
            case InitProducerIdHandler():
                self._initialized(handler, response)
            case AddPartitionsToTxnHandler():
                self._partitions.accepted(handler.partitions)
                handler.result.done()
            case AddOffsetsToTxnHandler():
                self._partitions.is_started = True
                self._commit_offsets(handler.result, handler.offsets, handler.group_metadata)
            case EndTxnHandler():
                producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
                if producer.is_valid:
                    self.sequences.producer_id_and_epoch = producer
                    self.sequences.reset()
                self._transaction_ended(handler)
            case _:
                handler.result.done()

    def _initialized(self, handler: InitProducerIdHandler, response: Any) -> None:
        self.sequences.producer_id_and_epoch = ProducerIdAndEpoch(
            response.producer_id, response.producer_epoch
        )
        if handler.is_epoch_bump:
            self.sequences.reset()
        self.state.transition_to(_S.READY, poison=True)
        if self.state.is_transactional:
            self.epochs.adopt_version()
        handler.result.done()

    def _transaction_ended(self, handler: TxnRequestHandler) -> None:
        """Prepare for the next transaction, with a new epoch if the last one requires it."""
        needs_epoch = self.epochs.next_needs_epoch
        if needs_epoch and not self.epochs.coordinator_bumps_epochs:
            error = KafkaError(
                "records of the transaction failed, and continuing requires a new epoch, which "
                "brokers before Kafka 2.5 cannot assign: close this producer and create another"
            )
            handler.result.fail(error)
            self.transition_to_fatal_error(error)
            return
        self.state.transition_to(_S.INITIALIZING if needs_epoch else _S.READY, poison=True)
        self._partitions.clear()
        if needs_epoch:
            self.epochs.bump_required = False
            self._request_producer_id(handler.result, self.sequences.producer_id_and_epoch)
            return
        self.epochs.adopt_version()
        handler.result.done()

    # --- failure and closing

    def transition_to_fatal_error(self, error: Exception) -> None:
        """End the producer, unless it has ended already, and fail everything that waits."""
        with self._lock:
            if not self.state.has_fatal_error:
                self.state.transition_to(_S.FATAL_ERROR, error, poison=True)
                self._fail_requests(error)

    def take_authorization_error(self) -> Exception | None:
        """Return the error, once, if the request for an id was not authorized; it may be repeated.

        All requests that needed the id have failed by then, but not the batches.
        """
        with self._lock:
            error = self.state.error
            if not (
                self.state.has_abortable_error
                and isinstance(error, BrokerError)
                and txn_action(ApiKey.INIT_PRODUCER_ID, error.code) is TxnAction.UNAUTHORIZED
            ):
                return None
            self._fail_requests(error)
            self.state.transition_to(_S.UNINITIALIZED, poison=True)
            return error

    def close(self) -> None:
        """Fail every pending request: the producer was closed without waiting."""
        with self._lock:
            self._fail_requests(
                KafkaError("the producer was closed before the operation completed")
            )

    def _fail_requests(self, error: Exception) -> None:
        """Fail the requests that wait, which are dropped, the one in flight, and the operation."""
        for handler in self._queue.drain():
            handler.result.fail(error)
        if self._in_flight is not None:
            self._in_flight.result.fail(error)
        self._partitions.drop_new()
        self._operations.fail(error)

    # --- batches: queried by the accumulator, reported by the Sender

    def bump_idempotent_epoch_and_reset_id_if_needed(self) -> None:
        """Restart partitions that need it (KIP-360), and request a producer id if there is none."""
        with self._lock:
            self.sequences.resolve()
            if not self.sequences.restart_quiet_partitions() and self.state.current is _S.READY:
                self.state.transition_to(_S.UNINITIALIZED, poison=True)
            if (
                not self.state.is_transactional
                and not self.sequences.producer_id_and_epoch.is_valid
                and self.state.current is _S.UNINITIALIZED
            ):
                self.state.transition_to(_S.INITIALIZING, poison=True)
                result = TransactionalRequestResult("InitProducerId")
                self._request_producer_id(result, NO_PRODUCER_ID_AND_EPOCH)

    def may_drain(self, first: ProducerBatch) -> bool:
        """Return whether a partition's first queued batch may be sent now.

        Nothing is sent without a producer id, or before the partition has been added to the
        transaction; for the other rules, see `PartitionSequences.may_drain`.
        """
        with self._lock:
            if not self.sequences.producer_id_and_epoch.is_valid or self.state.has_fatal_error:
                return False
            if self.state.is_transactional and first.topic_partition not in self._partitions:
                return False
            return self.sequences.may_drain(first)

    def may_set_aside(self, batch: ProducerBatch) -> bool:
        """Return whether a refused batch may be replaced by those of its records that were not.

        The transaction goes on then, where in Java's client it can only be aborted.
        """
        with self._lock:
            return (
                self.state.error is None
                and not self.state.is_aborting
                and self.sequences.may_set_aside(batch)
            )

    def handle_failed_batch(
        self, batch: ProducerBatch, error: Exception, *, outcome_known: bool
    ) -> None:
        """Record that a batch fails, and its effect on the transaction and the order.

        With `outcome_known` the broker certainly did not append it. Otherwise it may have: the
        batch expired, or its retries are used up.
        """
        with self._lock:
            self.maybe_transition_to_error_state(error)
            if self.state.has_fatal_error or not batch.has_sequence:
                return
            self.sequences.fail(batch, outcome_known=outcome_known)
            if self.state.is_transactional:
                self.epochs.require_bump_after_failure()


def _advice(action: TxnAction, code: int) -> str | None:
    if action is TxnAction.FATAL and code != ErrorCode.INVALID_PRODUCER_ID_MAPPING:
        return "Close this producer and create another"
    return advice_of(code)


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
