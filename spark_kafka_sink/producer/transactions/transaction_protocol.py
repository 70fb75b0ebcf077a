"""What is requested next, and what each answer changes: the network thread's half.

`TransactionProtocol` decides by the state, and acts on its parts through their public methods.
Three of them are here: `EpochRules`, `TransactionPartitions` and `PendingOperations`. Nothing here
has a lock: TransactionManager guards it. An answer that does not fit the state ends the producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.errors import (
    BrokerError,
    FatalProducerError,
    IllegalStateError,
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
    from collections.abc import Mapping

    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.producer.transactions.partition_sequences import PartitionSequences
    from spark_kafka_sink.producer.transactions.transaction_requests import TransactionRequests
    from spark_kafka_sink.producer.transactions.transaction_state import TransactionStateMachine
    from spark_kafka_sink.producer.transactions.transactional_request_result import (
        TransactionalRequestResult,
    )
    from spark_kafka_sink.producer.transactions.txn_request_handlers import (
        TxnRequestHandler,
        Verdict,
    )

_S = TransactionState

#: The first InitProducerId version that can bump the epoch of its producer (KIP-360).
FIRST_VERSION_WITH_EPOCH_BUMP = 3
TRANSACTION_V2 = 2


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
        self._coordinator_bumps_epochs = False
        self._is_transaction_v2 = False
        self._next_is_transaction_v2 = False
        self._bump_required = False

    @property
    def is_transaction_v2(self) -> bool:
        """Whether the open transaction, or the next, follows the rules of KIP-890."""
        return self._is_transaction_v2

    @property
    def transaction_version(self) -> int:
        """The transaction.version of the open transaction; 1 includes older clusters."""
        return TRANSACTION_V2 if self._is_transaction_v2 else TRANSACTION_V2 - 1

    @property
    def coordinator_bumps_epochs(self) -> bool:
        """Whether a new epoch can be requested."""
        return self._coordinator_bumps_epochs

    @property
    def can_renew_epoch(self) -> bool:
        """Whether the numbers can restart: EndTxn returns a new epoch, or one can be requested."""
        return self._coordinator_bumps_epochs or self._is_transaction_v2

    @property
    def next_needs_epoch(self) -> bool:
        """Whether a new epoch must be requested before the next transaction."""
        # Partitions of the last transaction must not count as added to the next one (KIP-890).
        is_upgraded = self._next_is_transaction_v2 and not self._is_transaction_v2
        return self._bump_required or is_upgraded

    def update_features(self, *, init_producer_id_version: int, transaction_version: int) -> None:
        """Update what the coordinator supports; the open transaction keeps its rules."""
        self._coordinator_bumps_epochs = init_producer_id_version >= FIRST_VERSION_WITH_EPOCH_BUMP
        self._next_is_transaction_v2 = transaction_version >= TRANSACTION_V2

    def require_bump(self) -> None:
        """Require a new epoch for the next transaction."""
        self._bump_required = True

    def require_bump_after_failure(self) -> None:
        """Require a new epoch for the next transaction; under TV2 every transaction has one."""
        self._bump_required = self._bump_required or not self._is_transaction_v2

    def bump_requested(self) -> None:
        """Record that the required epoch, if any, has been requested."""
        self._bump_required = False

    def adopt_version(self) -> None:
        """Make the next transaction follow the rules that the coordinator supports now."""
        self._is_transaction_v2 = self._next_is_transaction_v2


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
        self._is_started = False

    @property
    def is_started(self) -> bool:
        """Whether the coordinator may know of the transaction, so that it must be ended there."""
        return self._is_started

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

    def note_started(self) -> None:
        """Record that the coordinator may know of the transaction."""
        self._is_started = True

    def request(self, topic_partition: TopicPartition) -> None:
        """Add a partition with the next request, unless it is known already (TV1)."""
        if not (topic_partition in self._added or topic_partition in self._pending):
            self._new.add(topic_partition)

    def add(self, topic_partition: TopicPartition) -> None:
        """Add a partition at once, because its Produce request will (TV2)."""
        self._added.add(topic_partition)
        self._is_started = True

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
        self._is_started = True

    def refused(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the coordinator has not added pending partitions."""
        self._pending -= partitions

    def clear(self) -> None:
        """Start with an empty transaction again."""
        self._is_started = False
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
                coordinator = handler.coordinator(response)
                self._requests.found(
                    handler, Node(coordinator.node_id, coordinator.host, coordinator.port)
                )
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
