"""The network thread's half of TransactionManager: the next request and the handling of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import KafkaError, ProducerFencedError, TransactionAbortedError
from spark_kafka_sink.model import Node, ProducerIdAndEpoch
from spark_kafka_sink.producer.batch.delivery_errors import advice_of
from spark_kafka_sink.producer.batch.error_rules import TxnAction
from spark_kafka_sink.producer.transactions.transaction_core import TransactionCore
from spark_kafka_sink.producer.transactions.transaction_state import TransactionState
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name
from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.txn_request_handlers import (
        TxnRequestHandler,
        Verdict,
    )

#: Seconds between attempts at a transaction's first request while the previous one is still ending.
ADD_PARTITIONS_RETRY_BACKOFF = 0.02
#: The first InitProducerId version that can bump the epoch of its producer (KIP-360).
FIRST_VERSION_WITH_EPOCH_BUMP = 3
TRANSACTION_V2 = 2

_S = TransactionState


class TransactionRequests(TransactionCore):
    """The requests that the network thread sends, and the handling of their answers."""

    def next_request(self, *, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Return the request to send next; None if none may be sent now.

        Only one request is in flight: the next is returned once this one was answered, put back, or
        has failed. A transaction does not end before all its batches have
        (`has_incomplete_batches`).
        """
        with self._lock:
            if self._in_flight is not None:
                return None
            self._enqueue_new_partitions()
            if self.is_aborting:
                self._drop_unsent_offsets()
            while (handler := self._requests.peek()) is not None:
                if handler.is_end_txn and has_incomplete_batches:
                    return None
                self._requests.pop()
                if self._fails_with_last_error(handler):
                    continue
                if handler.is_end_txn and not self._transaction_started:
                    # Nothing was written: the coordinator knows of no transaction.
                    self._transaction_ended(handler)
                    continue
                self._in_flight = handler
                return handler
            return None

    def _drop_unsent_offsets(self) -> None:
        """Drop offset requests: an abort must not wait for an unreachable group coordinator.

        Requests that a broker may have seen must be answered first: they must not arrive after the
        end of the transaction.
        """

        def is_in_vain(handler: TxnRequestHandler) -> bool:
            is_offsets = isinstance(handler, AddOffsetsToTxnHandler | TxnOffsetCommitHandler)
            return is_offsets and not handler.was_sent

        for handler in self._requests.remove(is_in_vain):
            handler.result.fail(
                TransactionAbortedError("the offsets were not sent: the transaction was aborted")
            )
        if not self._requests.holds(TxnOffsetCommitHandler):
            self._requests.remove(_looks_for_group)

    def _fails_with_last_error(self, handler: TxnRequestHandler) -> bool:
        if self._last_error is None:
            return False
        if self.has_abortable_error and isinstance(handler, FindCoordinatorHandler):
            # The abort that will follow needs it.
            return False
        handler.result.fail(self._last_error)
        return True

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that was not answered, or that must be resent."""
        with self._lock:
            self._in_flight = None
            handler.attempts += 1
            self._requests.put(handler)

    def find_coordinator(self, handler: TxnRequestHandler) -> None:
        """Put a request back until its coordinator is known."""
        with self._lock:
            self._in_flight = None
            self._requests.lookup(handler)
            self._requests.put(handler)

    def find_coordinator_and_retry(self, handler: TxnRequestHandler) -> None:
        """Put back a request that failed to reach its coordinator, until that is found again."""
        with self._lock:
            self._requests.lookup(handler)
            self.retry(handler)

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
            self._coordinator_bumps_epochs = (
                init_producer_id_version >= FIRST_VERSION_WITH_EPOCH_BUMP
            )
            self._next_is_transaction_v2 = transaction_version >= TRANSACTION_V2

    def handle_response(self, handler: TxnRequestHandler, response: Any) -> None:
        """Handle the answer to a request."""
        with self._lock:
            self._in_flight = None
            if self.has_fatal_error:
                return
            verdict = handler.verdict(response)
            match verdict.action:
                case TxnAction.DONE:
                    self._succeeded(handler, response)
                case TxnAction.RETRY:
                    handler.retry_delay = None
                    self.retry(handler)
                case TxnAction.RETRY_SOON:
                    soon = not self._partitions
                    handler.retry_delay = ADD_PARTITIONS_RETRY_BACKOFF if soon else None
                    self.retry(handler)
                case TxnAction.FIND_COORDINATOR:
                    self.find_coordinator_and_retry(handler)
                case TxnAction.REINITIALIZE:
                    self._reinitialize(handler, verdict)
                case _:
                    self._refused(handler, verdict)

    def handle_failure(self, handler: TxnRequestHandler, error: Exception) -> None:
        """Fail a request that could not be sent, for a reason that is not retriable."""
        with self._lock:
            self._in_flight = None
            handler.result.fail(error)
            if not self.has_fatal_error:
                self._fatal(error)

    def _refused(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Fail the request, and the transaction or producer if the verdict says so."""
        if isinstance(handler, AddPartitionsToTxnHandler):
            # No longer pending: the transaction of the partitions added before must still be able
            # to end.
            self._pending_partitions -= handler.partitions
        action = verdict.action
        if action is TxnAction.ABORTABLE_WITH_BUMP and not self._can_renew_epoch:
            action = TxnAction.FATAL
        if action is TxnAction.FENCED:
            error: Exception = self._fenced(verdict.context)
        else:
            error = broker_error(verdict.code, verdict.context, _advice(action, verdict.code))
        if action in {TxnAction.FENCED, TxnAction.FATAL}:
            handler.result.fail(error)
            self._fatal(error)
            return
        if action is TxnAction.ABORTABLE_WITH_BUMP:
            self._require_epoch_bump()
        handler.result.fail(error)
        self._abortable_error(error)

    def _fenced(self, context: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{context}: a newer producer has taken over transactional.id "
            f"{self._transactional_id!r}, or its coordinator ended this producer's transaction "
            f"after transaction.timeout.ms ({self._transaction_timeout_ms} ms). "
            f"Close this producer ({self.producer_id_and_epoch})",
            code=ErrorCode.PRODUCER_FENCED,
            name=error_name(ErrorCode.PRODUCER_FENCED),
        )

    def _reinitialize(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Require a new epoch, to find out if we are fenced or the coordinator had aborted."""
        if not self._coordinator_bumps_epochs:
            self._refused(handler, verdict._replace(action=TxnAction.FENCED))
            return
        self._epoch_bump_required = True
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
                self._pending_partitions -= handler.partitions
                self._partitions |= handler.partitions
                self._transaction_started = True
                handler.result.done()
            case AddOffsetsToTxnHandler():
                self._transaction_started = True
                self._enqueue_offset_commit(handler.result, handler.offsets, handler.group_metadata)
            case EndTxnHandler():
                producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
                if producer.is_valid:
                    self.producer_id_and_epoch = producer
                    self._sequences.reset()
                self._transaction_ended(handler)
            case _:
                handler.result.done()

    def _initialized(self, handler: InitProducerIdHandler, response: Any) -> None:
        self.producer_id_and_epoch = ProducerIdAndEpoch(
            response.producer_id, response.producer_epoch
        )
        if handler.is_epoch_bump:
            self._sequences.reset()
        self._transition_to(_S.READY, poison=True)
        self._is_transaction_v2 = self._next_is_transaction_v2 and self.is_transactional
        handler.result.done()

    def _transaction_ended(self, handler: TxnRequestHandler) -> None:
        """Prepare for the next transaction, with a new epoch if the last one requires it."""
        if self._next_is_transaction_v2 and not self._is_transaction_v2:
            # Partitions of the last transaction must not count as added to the next one (KIP-890).
            self._epoch_bump_required = True
        needs_epoch = self._epoch_bump_required
        if needs_epoch and not self._coordinator_bumps_epochs:
            error = KafkaError(
                "records of the transaction failed, and brokers before 2.5 cannot give the epoch "
                "that is needed to go on: close this producer and make another"
            )
            handler.result.fail(error)
            self._fatal(error)
            return
        self._transition_to(_S.INITIALIZING if needs_epoch else _S.READY, poison=True)
        self._epoch_bump_required = False
        self._forget_transaction()
        if needs_epoch:
            self._enqueue_init_producer_id(handler.result, self.producer_id_and_epoch)
            return
        self._is_transaction_v2 = self._next_is_transaction_v2
        handler.result.done()


def _advice(action: TxnAction, code: int) -> str | None:
    if action is TxnAction.FATAL:
        return "Close this producer, and make another"
    return advice_of(code)


def _looks_for_group(handler: TxnRequestHandler) -> bool:
    return isinstance(handler, FindCoordinatorHandler) and handler.key_type == CoordinatorType.GROUP
