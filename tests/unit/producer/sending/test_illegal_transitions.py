"""An illegal transition by the Sender ends the producer (KAFKA-14831)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import IllegalStateError, KafkaError
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.sending import transaction_state
from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
from spark_kafka_sink.producer.sending.transaction_state import TransactionState
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.support.producer.producer_batches import batch
from tests.support.producer.transaction_managers import manager_with_id, next_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.producer.sending.txn_request_handlers import TxnRequestHandler

    #: A manager, and a step of the network thread that changes its state.
    Step = tuple[TransactionManager, Callable[[], object]]

LOST = KafkaError("lost")


def _initializing() -> tuple[TransactionManager, TxnRequestHandler]:
    """Build a transactional producer that has requested its producer id."""
    manager = TransactionManager(transactional_id="x")
    manager.initialize_transactions()
    handler = next_request(manager)
    manager.find_coordinator(handler)
    found = Coordinator(key="x", node_id=0, host="h", port=1, error_code=0)
    manager.handle_response(next_request(manager), FindCoordinatorResponse(coordinators=(found,)))
    return manager, next_request(manager)


def _initialized() -> TransactionManager:
    manager, handler = _initializing()
    manager.handle_response(
        handler, InitProducerIdResponse(error_code=0, producer_id=1, producer_epoch=0)
    )
    handler.result.wait(0)
    return manager


def _with_partition() -> tuple[TransactionManager, TxnRequestHandler]:
    """Build a transactional producer that adds a partition to its transaction."""
    manager = _initialized()
    manager.begin_transaction()
    manager.maybe_add_partition(batch().topic_partition)
    return manager, next_request(manager)


def _added(code: int = 0) -> AddPartitionsToTxnResponse:
    result = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=(result,))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=(topic,))


def _fatal() -> Step:
    manager = TransactionManager()
    return manager, lambda: manager.transition_to_fatal_error(LOST)


def _batch_failed() -> Step:
    manager, _ = _with_partition()
    return manager, lambda: manager.maybe_transition_to_error_state(LOST)


def _partition_refused() -> Step:
    manager, handler = _with_partition()
    refused = _added(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return manager, lambda: manager.handle_response(handler, refused)


def _got_an_id() -> Step:
    manager, handler = _initializing()
    answer = InitProducerIdResponse(error_code=0, producer_id=1, producer_epoch=0)
    return manager, lambda: manager.handle_response(handler, answer)


def _transaction_ended() -> Step:
    manager, handler = _with_partition()
    manager.handle_response(handler, _added())
    manager.begin_commit()
    handler = next_request(manager)
    return manager, lambda: manager.handle_response(handler, EndTxnResponse(error_code=0))


def _permission_was_missing() -> Step:
    manager = TransactionManager()
    manager.bump_idempotent_epoch_and_reset_id_if_needed()
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refused = InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    manager.handle_response(next_request(manager), refused)
    return manager, manager.take_authorization_error


def _needs_an_id() -> Step:
    manager = TransactionManager()
    return manager, manager.bump_idempotent_epoch_and_reset_id_if_needed


def _needs_another_id() -> Step:
    manager = manager_with_id(ProducerIdAndEpoch(1, 32_767))
    refused = batch()
    manager.sequences.assign(refused)
    manager.handle_failed_batch(
        refused, broker_error(ErrorCode.MESSAGE_TOO_LARGE, "no"), outcome_known=True
    )
    return manager, manager.bump_idempotent_epoch_and_reset_id_if_needed


@pytest.mark.parametrize(
    "make",
    [
        _fatal,
        _batch_failed,
        _partition_refused,
        _got_an_id,
        _transaction_ended,
        _permission_was_missing,
        _needs_an_id,
        _needs_another_id,
    ],
)
def test_an_illegal_transition_on_the_network_thread_ends_the_producer(monkeypatch, make):
    """After an illegal transition the state is unreliable, so the first error ends the producer."""
    manager, move = make()
    nothing = dict.fromkeys(TransactionState, frozenset())
    monkeypatch.setattr(transaction_state, "TRANSITIONS", nothing)
    with pytest.raises(IllegalStateError, match="invalid transition") as raised:
        move()
    assert manager.state.has_fatal_error
    assert raised.value is manager.state.error


def test_an_illegal_call_changes_nothing():
    """An illegal call raises an error, and the transaction continues."""
    manager, _ = _with_partition()
    with pytest.raises(IllegalStateError, match=r"IN_TRANSACTION.*IN_TRANSACTION.*'x'"):
        manager.begin_transaction()
    assert (False, None) == (manager.state.has_fatal_error, manager.state.error)
    assert TransactionState.IN_TRANSACTION is manager.state.current
