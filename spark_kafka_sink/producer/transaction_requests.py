"""The network thread's half of TransactionManager: which request goes next, what answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import KafkaError, ProducerFencedError, TransactionAbortedError
from spark_kafka_sink.model import Node, ProducerIdAndEpoch
from spark_kafka_sink.producer.delivery_errors import advice_of
from spark_kafka_sink.producer.error_rules import TxnAction
from spark_kafka_sink.producer.transaction_core import TransactionCore
from spark_kafka_sink.producer.transaction_state import TransactionState
from spark_kafka_sink.producer.txn_request_handlers import (
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
    from spark_kafka_sink.producer.txn_request_handlers import TxnRequestHandler, Verdict

#: Seconds between tries of the first request of a transaction while the one before still ends.
ADD_PARTITIONS_RETRY_BACKOFF = 0.02
#: The first InitProducerId that can raise the epoch of the producer that asks (KIP-360).
FIRST_VERSION_WITH_EPOCH_BUMP = 3
TRANSACTION_V2 = 2

_S = TransactionState


class TransactionRequests(TransactionCore):
    """Gives out requests, and takes their answers."""

    def next_request(self, *, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Give out the request to send next; None if there is none that may be sent now.

        One at a time: the next is given out when this one was answered, put back, or has failed. A
        transaction does not end before all of its batches have (`has_incomplete_batches`).
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
        """Have an abort not wait for a group whose coordinator cannot be reached.

        What a broker may have seen has to be answered first: it must not come after the end of the
        transaction.
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
            # Needed for the abort that is to be expected.
            return False
        handler.result.fail(self._last_error)
        return True

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put a request back: it was not answered, or is to be asked again."""
        with self._lock:
            self._in_flight = None
            handler.attempts += 1
            self._requests.put(handler)

    def find_coordinator(self, handler: TxnRequestHandler) -> None:
        """Put a request back until the broker that it goes to is known."""
        with self._lock:
            self._in_flight = None
            self._requests.lookup(handler)
            self._requests.put(handler)

    def find_coordinator_and_retry(self, handler: TxnRequestHandler) -> None:
        """Put a request back that was sent in vain, until the broker that it goes to is found."""
        with self._lock:
            self._requests.lookup(handler)
            self.retry(handler)

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Give the broker that a request goes to, if it is known."""
        with self._lock:
            return self._requests.coordinator(handler)

    def handle_coordinator_ready(
        self, *, init_producer_id_version: int, transaction_version: int
    ) -> None:
        """Note what the transaction coordinator can do, and which rules its cluster agreed on.

        `transaction_version` is the finalized feature of that name, 0 where there is none: some
        services offer Produce 12 and refuse its meaning, so nothing else decides.
        """
        with self._lock:
            self._coordinator_bumps_epochs = (
                init_producer_id_version >= FIRST_VERSION_WITH_EPOCH_BUMP
            )
            self._next_is_transaction_v2 = transaction_version >= TRANSACTION_V2

    def handle_response(self, handler: TxnRequestHandler, response: Any) -> None:
        """Take the answer to a request."""
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
        """Note that a request could not be sent at all, for no reason that time may mend."""
        with self._lock:
            self._in_flight = None
            handler.result.fail(error)
            if not self.has_fatal_error:
                self._fatal(error)

    def _refused(self, handler: TxnRequestHandler, verdict: Verdict) -> None:
        """Fail the request, and what the verdict says fails with it."""
        if isinstance(handler, AddPartitionsToTxnHandler):
            # No longer on their way: what was added before must still be able to end.
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
        """Let InitProducerId say whether we are fenced, or the coordinator was just faster."""
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
        """Get ready for the next transaction, with another epoch if the last one demands it."""
        if self._next_is_transaction_v2 and not self._is_transaction_v2:
            # Partitions of the last transaction must not pass for added to the next (KIP-890).
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
