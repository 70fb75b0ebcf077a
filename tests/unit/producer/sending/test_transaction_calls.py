"""Transactional calls: which are allowed, how they wait, and what closing does."""

from __future__ import annotations

import itertools
import threading

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
from spark_kafka_sink.producer.sending.transaction_state import (
    TRANSITIONS,
    TransactionStateMachine,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.sender_harness import (
    place,
)
from tests.support.producer.transaction_managers import reach
from tests.support.producer.transactions_over_mock import GROUP, OFFSETS, S, answer_end, is_ready

# --- illegal calls


def test_illegal_calls_raise_an_error_and_change_nothing(either):
    """An illegal call raises an error with the state, and changes nothing."""
    manager = either.manager
    for call in (manager.begin_transaction, manager.begin_commit, manager.begin_abort):
        with pytest.raises(IllegalStateError, match="UNINITIALIZED"):
            call()
    with pytest.raises(IllegalStateError, match="call init_transactions"):
        manager.fail_if_not_ready_for_send()
    either.initialize()
    for call in (manager.begin_commit, manager.begin_abort, manager.initialize_transactions):
        with pytest.raises(IllegalStateError, match="READY"):
            call()
    with pytest.raises(IllegalStateError, match="begin a transaction first"):
        manager.maybe_add_partition(place())
    with pytest.raises(IllegalStateError, match="begin a transaction first"):
        manager.send_offsets_to_transaction(OFFSETS, GROUP)
    assert S.READY is manager.state.current
    manager.begin_transaction()
    for call in (manager.begin_transaction, manager.initialize_transactions):
        with pytest.raises(IllegalStateError, match="IN_TRANSACTION"):
            call()
    manager.begin_commit()
    either.step()
    assert S.READY is manager.state.current


def test_a_producer_without_a_transactional_id_has_no_transactions():
    """The error of each call names the setting that it needs."""
    manager = TransactionManager()
    for call in (
        manager.initialize_transactions,
        manager.begin_transaction,
        manager.begin_commit,
        manager.begin_abort,
        lambda: manager.send_offsets_to_transaction(OFFSETS, GROUP),
    ):
        with pytest.raises(IllegalStateError, match=r"requires transactional\.id"):
            call()
    manager.fail_if_not_ready_for_send()
    manager.maybe_add_partition(place())


@pytest.mark.parametrize("source", list(S), ids=lambda state: state.name)
@pytest.mark.parametrize("target", list(S), ids=lambda state: state.name)
def test_only_the_transitions_in_the_table_change_the_state(source, target):
    """An illegal call has no effect, and an illegal step of the Sender is fatal."""
    for poison in (False, True):
        machine = TransactionStateMachine("x")
        reach(machine, source)
        if target in TRANSITIONS[source]:
            machine.transition_to(target, poison=poison)
            assert target is machine.current
            continue
        with pytest.raises(IllegalStateError, match=f"{source.name} to {target.name}"):
            machine.transition_to(target, poison=poison)
        assert (S.FATAL_ERROR if poison else source) is machine.current


def test_an_impossible_response_ends_the_producer(tv2):
    """After an impossible response the producer does not continue (KAFKA-14831)."""
    tv2.begin(0)
    tv2.produce()
    result = tv2.manager.begin_commit()
    tv2.step()
    tv2.manager.maybe_transition_to_error_state(KafkaError("lost"))
    tv2.end_txn(epoch=1)
    with pytest.raises(IllegalStateError, match="from state ABORTABLE_ERROR to READY"):
        result.wait(0)
    with pytest.raises(FatalProducerError, match="from state ABORTABLE_ERROR to READY"):
        tv2.manager.begin_transaction()


# --- waiting


def test_an_operation_that_timed_out_is_resumed_by_the_same_call(either):
    """The request is sent once, however often it is called, and other calls are refused."""
    either.begin(0)
    either.produce()
    first = either.manager.begin_commit()
    with pytest.raises(KafkaTimeoutError, match="call commit_transaction again"):
        first.wait(0)
    for call in (
        either.manager.begin_abort,
        either.manager.begin_transaction,
        either.manager.fail_if_not_ready_for_send,
    ):
        with pytest.raises(IllegalStateError, match="call commit_transaction again"):
            call()
    assert first is either.manager.begin_commit()
    answer_end(either, epoch=1)
    either.step()
    assert [] == either.network.sent
    first.wait(0)
    assert is_ready(either)


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_end_that_has_begun_goes_on_whatever_it_is(either, is_committed):
    """Whoever ends a transaction after an error gets the operation that is under way."""
    either.begin(0)
    either.produce()
    manager = either.manager
    first = manager.begin_commit() if is_committed else manager.begin_abort()
    assert first is manager.begin_end()


def test_a_transaction_without_an_end_is_aborted(either):
    """Nobody may commit what an error has left open."""
    either.begin(0)
    either.produce()
    either.manager.begin_end()
    assert either.manager.state.is_aborting


def test_initializing_that_timed_out_is_resumed_by_the_same_call(either):
    """Repeated calls of init_transactions request the producer id once."""
    first = either.manager.initialize_transactions()
    with pytest.raises(KafkaTimeoutError):
        first.wait(0)
    assert first is either.manager.initialize_transactions()
    with pytest.raises(IllegalStateError, match=r"init_transactions\('other'\) is not possible"):
        either.manager.initialize_transactions("other")
    either.find_coordinator()
    either.init_producer_id()
    first.wait(0)


def test_a_failure_after_a_timeout_is_raised_by_the_next_call(either):
    """If a commit fails after its wait timed out, calling it again raises the error."""
    either.begin(0)
    first = either.manager.begin_commit()
    either.produce(ErrorCode.INVALID_RECORD)
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        either.manager.begin_commit().wait(0)
    assert first.is_acked
    either.manager.begin_abort()


def test_a_response_wakes_the_waiting_thread(either):
    """The calling thread waits until the network thread has the response."""
    result = either.manager.initialize_transactions()
    waiter = threading.Thread(target=result.wait, args=(120,), daemon=True)
    waiter.start()
    either.find_coordinator()
    either.init_producer_id()
    waiter.join(120)
    assert (True, None) == (result.is_acked, result.error)


# --- closing


def test_closing_completes_a_commit(either):
    """Closing completes a pending commit."""
    either.begin(0)
    either.produce()
    result = either.manager.begin_commit()
    either.sender.initiate_close(timeout=60)

    def answer() -> None:
        sent = either.take(ApiKey.END_TXN)
        sent.answer(type("Answer", (), {"error_code": 0, "producer_id": -1, "producer_epoch": -1}))

    either.run_to_the_end(lambda: None, answer)
    result.wait(0)


def test_closing_aborts_an_open_transaction(either):
    """Closing aborts an open transaction, so the next producer need not wait for its timeout."""
    either.begin(0)
    either.produce()
    either.sender.initiate_close(timeout=60)

    def answer() -> None:
        sent = either.take(ApiKey.END_TXN)
        assert not sent.request.committed
        sent.answer(type("Answer", (), {"error_code": 0, "producer_id": -1, "producer_epoch": -1}))

    either.run_to_the_end(lambda: None, answer)
    assert not either.manager.state.has_ongoing_transaction


def test_closing_aborts_a_transaction_that_has_failed(either):
    """Closing aborts a failed transaction as well."""
    either.begin(0)
    either.produce(ErrorCode.INVALID_RECORD)
    either.sender.initiate_close(timeout=60)

    def answer() -> None:
        sent = either.take(ApiKey.END_TXN)
        assert not sent.request.committed
        sent.answer(type("Answer", (), {"error_code": 0, "producer_id": 1, "producer_epoch": 1}))

    either.run_to_the_end(lambda: None, answer)
    assert not either.manager.state.has_ongoing_transaction


def test_closing_after_a_fatal_error_ends_at_once(either):
    """After a fatal error closing waits for nothing."""
    batch = either.begin(0)[0]
    either.manager.transition_to_fatal_error(ValueError("lost"))
    either.step()
    either.sender.initiate_close(timeout=60)
    either.run_to_the_end()
    assert batch.is_done


def test_closing_by_force_fails_pending_calls(either):
    """Closing by force fails pending calls, so none waits forever."""
    either.begin(0)
    result = either.manager.begin_commit()
    either.sender.initiate_close()
    either.run_to_the_end()
    with pytest.raises(KafkaError, match="the producer was closed before"):
        result.wait(0)


@pytest.mark.parametrize("reads", range(4))
def test_a_commit_during_a_run_of_the_sender_waits_for_its_batches(either, monkeypatch, reads):
    """However the threads interleave, the last batch of a transaction is sent before EndTxn."""
    either.begin(0)
    either.produce()
    count = itertools.count()

    def has_incomplete(accumulator: RecordAccumulator) -> bool:
        seen = bool(accumulator._incomplete)
        if next(count) == reads:
            either.add(0)
            assert either.manager is not None
            either.manager.begin_commit()
        return seen

    monkeypatch.setattr(RecordAccumulator, "has_incomplete", property(has_incomplete))
    for _ in range(4):
        either.step()
    assert [ApiKey.PRODUCE] == [sent.request.api_key for sent in either.network.sent]
