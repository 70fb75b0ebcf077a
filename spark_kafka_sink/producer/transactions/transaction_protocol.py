"""What is requested next, and what each answer changes: the network thread's half.

It decides by the state, and acts on its parts through their public methods. It has no lock:
TransactionManager guards it. An answer that does not fit the state ends the producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import (
    BrokerError,
    FatalProducerError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import Node, ProducerIdAndEpoch
from spark_kafka_sink.producer.batch.delivery_errors import advice_of
from spark_kafka_sink.producer.batch.error_rules import (
    ProduceAction,
    TxnAction,
    produce_action,
    txn_action,
)
from spark_kafka_sink.producer.transactions.transaction_requests import ADD_PARTITIONS_RETRY_BACKOFF
from spark_kafka_sink.producer.transactions.transaction_state import TransactionState
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.epoch_rules import EpochRules
    from spark_kafka_sink.producer.transactions.partition_sequences import PartitionSequences
    from spark_kafka_sink.producer.transactions.pending_operations import PendingOperations
    from spark_kafka_sink.producer.transactions.transaction_partitions import TransactionPartitions
    from spark_kafka_sink.producer.transactions.transaction_requests import TransactionRequests
    from spark_kafka_sink.producer.transactions.transaction_state import TransactionStateMachine
    from spark_kafka_sink.producer.transactions.txn_request_handlers import (
        TxnRequestHandler,
        Verdict,
    )

_S = TransactionState


class TransactionProtocol:
    """The requests of a transaction in their order, and the effects of their answers."""

    def __init__(
        self,
        machine: TransactionStateMachine,
        *,
        requests: TransactionRequests,
        partitions: TransactionPartitions,
        sequences: PartitionSequences,
        epochs: EpochRules,
        operations: PendingOperations,
    ) -> None:
        """Create it from the parts that it acts on; TransactionManager owns them."""
        self._machine = machine
        self._requests = requests
        self._partitions = partitions
        self._sequences = sequences
        self._epochs = epochs
        self._operations = operations

    # --- the next request

    def next_request(self, *, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Return the request to send next; None if none may be sent now."""
        requests = self._requests
        if requests.in_flight is not None:
            return None
        self.request_new_partitions()
        if self._machine.is_aborting:
            requests.drop_unsent_offsets()
        while (handler := requests.peek()) is not None:
            if handler.is_end_txn and has_incomplete_batches:
                return None
            requests.pop()
            if self._fails_with_last_error(handler):
                continue
            if handler.is_end_txn and not self._partitions.is_started:
                # Nothing was written: the coordinator knows of no transaction.
                self._transaction_ended(handler)
                continue
            requests.in_flight = handler
            return handler
        return None

    def request_new_partitions(self) -> None:
        """Request that the partitions of new batches be added to the transaction (TV1)."""
        if partitions := self._partitions.new:
            # In this order, because the caller may be interrupted: to request a partition twice is
            # harmless, but one that is pending without a request would never be added.
            self._requests.add_partitions(self._sequences.producer_id_and_epoch, partitions)
            self._partitions.requested(partitions)

    def _fails_with_last_error(self, handler: TxnRequestHandler) -> bool:
        error = self._machine.error
        if error is None:
            return False
        if self._machine.has_abortable_error and isinstance(handler, FindCoordinatorHandler):
            # The abort that will follow needs it.
            return False
        handler.result.fail(error)
        return True

    # --- errors

    def fatal(self, error: Exception) -> None:
        """End the producer, and fail everything that waits."""
        self._machine.transition_to(_S.FATAL_ERROR, error, poison=True)
        self.fail_requests(error)

    def fail_requests(self, error: Exception) -> None:
        """Fail all requests and the caller's operation."""
        self._requests.fail(error)
        self._partitions.drop_new()
        self._operations.fail(error)

    def handle_lost_record(self, error: Exception) -> None:
        """End the transaction, or the producer, because a record was not delivered."""
        if self._machine.has_fatal_error:
            return
        if _is_fatal(error):
            self.fatal(error)
        elif self._machine.has_ongoing_transaction and not self._machine.is_aborting:
            self._machine.transition_to(_S.ABORTABLE_ERROR, _abortable(error), poison=True)

    def take_authorization_error(self) -> Exception | None:
        """Return the error, once, if the request for an id was not authorized; it may be repeated.

        All requests that needed the id have failed by then, but not the batches.
        """
        error = self._machine.error
        if not (
            self._machine.has_abortable_error
            and isinstance(error, BrokerError)
            and txn_action(ApiKey.INIT_PRODUCER_ID, error.code) is TxnAction.UNAUTHORIZED
        ):
            return None
        self.fail_requests(error)
        self._machine.transition_to(_S.UNINITIALIZED, poison=True)
        return error

    # --- answers

    def handle_response(self, handler: TxnRequestHandler, response: Any) -> BrokerError | None:
        """Handle the answer to a request; return the error for which it is sent again later."""
        self._requests.in_flight = None
        if self._machine.has_fatal_error:
            return None
        verdict = handler.verdict(response)
        match verdict.action:
            case TxnAction.DONE:
                self._succeeded(handler, response)
            case TxnAction.RETRY:
                handler.retry_delay = None
                self._requests.retry(handler)
            case TxnAction.RETRY_SOON:
                soon = not self._partitions.has_added
                handler.retry_delay = ADD_PARTITIONS_RETRY_BACKOFF if soon else None
                self._requests.retry(handler)
            case TxnAction.FIND_COORDINATOR:
                self._requests.find_coordinator_and_retry(handler)
            case TxnAction.REINITIALIZE:
                self._reinitialize(handler, verdict)
            case _:
                self._refused(handler, verdict)
        waits = verdict.action in {
            TxnAction.RETRY,
            TxnAction.RETRY_SOON,
            TxnAction.FIND_COORDINATOR,
        }
        return broker_error(verdict.code, verdict.context) if waits else None

    def handle_failure(self, handler: TxnRequestHandler, error: Exception) -> None:
        """Fail a request that could not be sent, for a reason that is not retriable."""
        self._requests.in_flight = None
        handler.result.fail(error)
        if not self._machine.has_fatal_error:
            self.fatal(error)

    def _refused(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Fail the request, and the transaction or producer if the verdict says so."""
        if isinstance(handler, AddPartitionsToTxnHandler):
            # No longer pending: the transaction of the partitions added before must still be able
            # to end.
            self._partitions.refused(handler.partitions)
        action = verdict.action
        if action is TxnAction.ABORTABLE_WITH_BUMP and not self._epochs.can_renew_epoch:
            action = TxnAction.FATAL
        if action is TxnAction.FENCED:
            error: Exception = self._fenced(verdict.context)
        else:
            error = broker_error(verdict.code, verdict.context, _advice(action, verdict.code))
        if action in {TxnAction.FENCED, TxnAction.FATAL}:
            handler.result.fail(error)
            self.fatal(error)
            return
        if action is TxnAction.ABORTABLE_WITH_BUMP:
            self._epochs.require_bump_after_failure()
        handler.result.fail(error)
        if not self._machine.is_aborting:
            self._machine.transition_to(_S.ABORTABLE_ERROR, error, poison=True)

    def _fenced(self, context: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{context}: a newer producer has taken over transactional.id "
            f"{self._machine.transactional_id!r}, or the coordinator aborted this producer's "
            f"transaction after transaction.timeout.ms ({self._requests.transaction_timeout_ms} "
            f"ms). Close this producer ({self._sequences.producer_id_and_epoch})",
            code=ErrorCode.PRODUCER_FENCED,
            name=error_name(ErrorCode.PRODUCER_FENCED),
        )

    def _reinitialize(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Require a new epoch, to find out if we are fenced or the coordinator had aborted."""
        if not self._epochs.coordinator_bumps_epochs:
            self._refused(handler, verdict._replace(action=TxnAction.FENCED))
            return
        self._epochs.require_bump()
        self._transaction_ended(handler)

    def _succeeded(self, handler: TxnRequestHandler, response: Any) -> None:
        match handler:
            case FindCoordinatorHandler():
                answer = handler.coordinator(response)
                self._requests.found(handler, Node(answer.node_id, answer.host, answer.port))
                handler.result.done()
            case InitProducerIdHandler():
                self._initialized(handler, response)
            case AddPartitionsToTxnHandler():
                self._partitions.accepted(handler.partitions)
                handler.result.done()
            case AddOffsetsToTxnHandler():
                self._partitions.note_started()
                self._requests.commit_offsets(
                    handler.result,
                    self._sequences.producer_id_and_epoch,
                    handler.offsets,
                    handler.group_metadata,
                    is_transaction_v2=self._epochs.is_transaction_v2,
                )
            case EndTxnHandler():
                producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
                if producer.is_valid:
                    self._sequences.producer_id_and_epoch = producer
                    self._sequences.reset()
                self._transaction_ended(handler)
            case _:
                handler.result.done()

    def _initialized(self, handler: InitProducerIdHandler, response: Any) -> None:
        self._sequences.producer_id_and_epoch = ProducerIdAndEpoch(
            response.producer_id, response.producer_epoch
        )
        if handler.is_epoch_bump:
            self._sequences.reset()
        self._machine.transition_to(_S.READY, poison=True)
        if self._machine.is_transactional:
            self._epochs.adopt_version()
        handler.result.done()

    def _transaction_ended(self, handler: TxnRequestHandler) -> None:
        """Prepare for the next transaction, with a new epoch if the last one requires it."""
        needs_epoch = self._epochs.next_needs_epoch
        if needs_epoch and not self._epochs.coordinator_bumps_epochs:
            error = KafkaError(
                "records of the transaction failed, and continuing requires a new epoch, which "
                "brokers before Kafka 2.5 cannot assign: close this producer and create another"
            )
            handler.result.fail(error)
            self.fatal(error)
            return
        self._machine.transition_to(_S.INITIALIZING if needs_epoch else _S.READY, poison=True)
        self._partitions.clear()
        if needs_epoch:
            self._epochs.bump_requested()
            self._requests.init_producer_id(handler.result, self._sequences.producer_id_and_epoch)
            return
        self._epochs.adopt_version()
        handler.result.done()


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
