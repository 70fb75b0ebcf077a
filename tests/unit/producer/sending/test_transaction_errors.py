"""Errors of a transaction: those that need an abort, and those that end the producer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.batch.batch_compression import BatchCompression
from spark_kafka_sink.producer.sending.txn_request_handlers import (
    FindCoordinatorHandler,
    TxnOffsetCommitHandler,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.producer_batches import halves_of
from tests.support.producer.sender_harness import (
    LATER,
    PRODUCER_ID,
    SenderHarness,
    numbers,
    place,
    produce_response,
)
from tests.support.producer.transactions_over_mock import (
    GROUP,
    OFFSETS,
    TRANSACTIONAL,
    S,
    answer_end,
    is_ready,
)

# --- abortable errors


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_rejected_batch_fails_only_the_transaction(either, code):
    """Sends and commits raise the error, and after an abort the producer continues."""
    [refused] = either.begin(0)
    either.produce(code)
    assert isinstance(refused.result.error, DeliveryError)
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.fail_if_not_ready_for_send()
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.begin_commit()
    with pytest.raises(TransactionAbortableError, match=code.name):
        either.manager.begin_transaction()
    abort = either.manager.begin_abort()
    answer_end(either, epoch=1)
    if not either.manager.epochs.is_transaction_v2:
        bump = either.init_producer_id(epoch=1)
        assert (PRODUCER_ID, 0) == (bump.request.producer_id, bump.request.producer_epoch)
    abort.wait(0)
    assert ProducerIdAndEpoch(PRODUCER_ID, 1) == either.manager.sequences.producer_id_and_epoch
    assert is_ready(either)


def test_a_commit_fails_if_a_batch_is_rejected(either):
    """The commit raises the error, and EndTxn is not sent."""
    either.begin(0)
    result = either.manager.begin_commit()
    either.produce(ErrorCode.INVALID_RECORD)
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        result.wait(0)
    assert [] == either.network.sent
    either.manager.begin_abort()
    either.step()
    assert ApiKey.END_TXN == either.take().request.api_key


def test_unsent_batches_of_a_failed_transaction_are_dropped(either):
    """Unsent batches of a failed transaction are dropped, as they could only be aborted."""
    either.begin(0)
    waiting = either.add(0)
    either.produce(ErrorCode.INVALID_RECORD)
    assert isinstance(waiting.result.error, BrokerError)


def test_batches_behind_a_rejected_one_are_not_retried_forever(either):
    """Batches behind a refused one fail as out of order instead of being retried forever."""
    either.begin(0)
    either.produce()
    either.add(0)
    behind = either.add(0)
    either.step()
    either.produce(ErrorCode.INVALID_RECORD)
    either.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in str(behind.result.error)
    either.manager.begin_abort()
    either.step()
    assert ApiKey.END_TXN == either.take().request.api_key


def test_an_unexplained_gap_fails_the_transaction(either):
    """A gap fails the transaction, so lost records are never skipped with a new epoch."""
    either.begin(0)
    either.produce()
    batch = either.add(0)
    either.step()
    either.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(batch.result.error, DeliveryError)
    assert S.ABORTABLE_ERROR is either.manager.state.current


def test_a_transaction_forgotten_because_of_retention_continues(either):
    """If the log starts past our last offset, UNKNOWN_PRODUCER_ID restarts at 0 in the epoch."""
    either.begin(0)
    either.produce(offset=3)
    batch = either.add(0)
    either.step()
    either.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=10)
    either.step(LATER)
    assert (0, 0) == numbers(batch)
    either.produce(offset=10)
    assert batch.result.error is None


def test_an_unexplained_unknown_producer_id_fails_the_transaction(either):
    """UNKNOWN_PRODUCER_ID with our records still in the log fails the transaction."""
    either.begin(0)
    either.produce(offset=30)
    either.add(0)
    either.step()
    either.produce(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=10)
    assert S.ABORTABLE_ERROR is either.manager.state.current


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
)
@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
def test_a_batch_without_retries_left_fails_the_transaction(version, code):
    """Used-up retries make the transaction abortable, as the next one may succeed."""
    with SenderHarness(transaction_version=version, retries=1, **TRANSACTIONAL) as harness:
        [refused] = harness.begin(0)
        harness.produce(code)
        harness.step(LATER)
        harness.produce(code)
        assert isinstance(refused.result.error, DeliveryError)
        assert S.ABORTABLE_ERROR is harness.manager.state.current
        with pytest.raises(TransactionAbortableError, match=code.name):
            harness.manager.fail_if_not_ready_for_send()


def test_an_expired_batch_fails_only_the_transaction(either):
    """After a timeout an abort is possible (KIP-654), and the next epoch avoids its numbers."""
    either.begin(0)
    either.take(ApiKey.PRODUCE)
    either.step(121)
    with pytest.raises(TransactionAbortableError, match=r"delivery\.timeout\.ms"):
        either.manager.fail_if_not_ready_for_send()
    abort = either.manager.begin_abort()
    answer_end(either, epoch=1)
    if not either.manager.epochs.is_transaction_v2:
        either.init_producer_id(epoch=1)
    abort.wait(0)
    assert is_ready(either)


def test_a_batch_that_expires_during_an_abort_does_not_affect_the_next_transaction(tv1):
    """The batch's sequence number may have been used, so the next transaction has another epoch."""
    tv1.begin(0)
    tv1.take(ApiKey.PRODUCE)
    abort = tv1.manager.begin_abort()
    tv1.step(121)
    tv1.end_txn()
    tv1.init_producer_id(epoch=1)
    abort.wait(0)
    assert is_ready(tv1)


def test_a_batch_that_expires_unsent_does_not_bump_the_epoch(tv1):
    """A batch without a sequence number leaves no gap."""
    tv1.network.down.add(1)
    tv1.begin(0)
    tv1.produce()
    tv1.add(1)
    tv1.add_partitions()
    tv1.step(121)
    abort = tv1.manager.begin_abort()
    tv1.end_txn()
    abort.wait(0)
    assert S.READY is tv1.manager.state.current


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        9_999,
    ],
)
def test_rejected_partitions_fail_the_transaction(tv1, code):
    """Batches for refused partitions are dropped, and after an abort the producer continues."""
    tv1.begin()
    batch = tv1.add(0)
    tv1.add_partitions(code)
    assert isinstance(batch.result.error, BrokerError)
    abort = tv1.manager.begin_abort()
    tv1.step()
    abort.wait(0)
    assert is_ready(tv1)


def test_the_most_severe_partition_error_decides(tv1):
    """The error names the refused partition, not those that were not attempted because of it."""
    tv1.begin()
    tv1.add(0)
    tv1.add(1)
    tv1.add_partitions(
        codes={0: ErrorCode.OPERATION_NOT_ATTEMPTED, 1: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    )
    assert "t-1" in str(tv1.manager.state.error)


def test_rejected_partitions_do_not_delay_added_ones(tv1):
    """A batch of an added partition that is being retried still ends before the abort."""
    [retried] = tv1.begin(0)
    tv1.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    tv1.add(1)
    tv1.add_partitions(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    tv1.step(LATER)
    tv1.produce()
    assert retried.result.error is None
    abort = tv1.manager.begin_abort()
    tv1.end_txn()
    abort.wait(0)


def test_a_transaction_that_timed_out_before_its_commit_can_be_aborted(either):
    """INVALID_TXN_STATE means that nothing was committed, and a new epoch follows (KIP-588)."""
    either.begin(0)
    either.produce()
    commit = either.manager.begin_commit()
    either.end_txn(ErrorCode.INVALID_TXN_STATE)
    with pytest.raises(BrokerError, match="INVALID_TXN_STATE"):
        commit.wait(0)
    abort = either.manager.begin_abort()
    either.end_txn(ErrorCode.INVALID_TXN_STATE)
    either.init_producer_id(epoch=2)
    abort.wait(0)
    assert is_ready(either)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_an_abort_after_the_coordinators_own_is_not_fencing(either, code):
    """After the coordinator's own abort on timeout, InitProducerId lets the producer continue."""
    either.begin(0)
    either.produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    abort = either.manager.begin_abort()
    either.end_txn(code)
    bump = either.init_producer_id(epoch=2)
    assert (PRODUCER_ID, 0) == (bump.request.producer_id, bump.request.producer_epoch)
    abort.wait(0)
    assert is_ready(either)


def test_the_halves_of_a_split_batch_belong_to_the_transaction(either, monkeypatch):
    """MESSAGE_TOO_LARGE splits a transactional batch like any other."""
    [whole] = either.begin(0)
    monkeypatch.setattr(BatchCompression, "halves", halves_of(1, 1))
    whole.record_count = 2
    either.produce(ErrorCode.MESSAGE_TOO_LARGE)
    halves = either.accumulator._in_order()
    assert [(True, 0), (True, 1)] == [(h.is_transactional, h.base_sequence) for h in halves]
    either.produce()
    either.produce()
    assert S.IN_TRANSACTION is either.manager.state.current


# --- fatal errors


def test_an_abort_of_a_fenced_producer_raises_the_fencing_error(either):
    """InitProducerId with the old epoch fails if another producer has the transactional id."""
    either.begin(0)
    either.produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    abort = either.manager.begin_abort()
    either.end_txn(ErrorCode.PRODUCER_FENCED)
    either.init_producer_id(code=ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ProducerFencedError, match=r"orders\.7"):
        abort.wait(0)
    with pytest.raises(ProducerFencedError):
        either.manager.begin_transaction()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("api", ["init", "partitions", "offsets", "offset_commit", "commit"])
def test_a_fenced_producer_raises_the_fencing_error_in_every_call(tv1, api, code):
    """Coordinators return either of two codes, and every later call raises ProducerFencedError."""
    if api == "init":
        result = tv1.manager.initialize_transactions()
        tv1.find_coordinator()
        tv1.init_producer_id(code=code)
    elif api == "partitions":
        tv1.begin()
        batch = tv1.add(0)
        result = None
        tv1.add_partitions(code)
        assert isinstance(batch.result.error, ProducerFencedError)
    elif api == "commit":
        tv1.begin(0)
        tv1.produce()
        result = tv1.manager.begin_commit()
        tv1.end_txn(code)
    else:
        tv1.begin()
        result = tv1.manager.send_offsets_to_transaction(OFFSETS, GROUP)
        tv1.add_offsets(code if api == "offsets" else 0)
        if api == "offset_commit":
            tv1.find_coordinator()
            tv1.offset_commit(code)
    if result is not None:
        with pytest.raises(ProducerFencedError):
            result.wait(0)
    for call in (
        tv1.manager.begin_transaction,
        tv1.manager.begin_commit,
        tv1.manager.begin_abort,
        tv1.manager.initialize_transactions,
        tv1.manager.fail_if_not_ready_for_send,
        lambda: tv1.manager.maybe_add_partition(place()),
    ):
        with pytest.raises(ProducerFencedError, match=r"orders\.7"):
            call()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_a_coordinator_that_rejects_the_transaction_ends_the_producer(tv1, code):
    """Unsent batches fail, and every later call names the error."""
    tv1.begin(0)
    pending = tv1.take(ApiKey.PRODUCE)
    waiting = tv1.add(1)
    tv1.add_partitions(code)
    assert isinstance(waiting.result.error, BrokerError)
    with pytest.raises(FatalProducerError, match=code.name):
        tv1.manager.begin_abort()
    pending.answer(produce_response(pending))
    tv1.step()


def test_an_abortable_error_of_an_abort_ends_the_producer(either):
    """TRANSACTION_ABORTABLE in response to an abort is fatal, since another would loop."""
    either.begin(0)
    either.produce()
    abort = either.manager.begin_abort()
    either.end_txn(ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(BrokerError, match="TRANSACTION_ABORTABLE"):
        abort.wait(0)
    assert S.FATAL_ERROR is either.manager.state.current


def test_a_failed_batch_ends_the_producer_if_the_broker_cannot_bump_epochs(tv1):
    """Before InitProducerId 3 (KIP-360) the gap cannot be closed."""
    versions = {**tv1.network.api_versions.versions, ApiKey.INIT_PRODUCER_ID: (0, 2)}
    tv1.network.api_versions = replace(tv1.network.api_versions, versions=versions)
    tv1.begin(0)
    tv1.produce(ErrorCode.INVALID_RECORD)
    abort = tv1.manager.begin_abort()
    tv1.end_txn()
    with pytest.raises(KafkaError, match=r"brokers before Kafka 2\.5"):
        abort.wait(0)
    assert S.FATAL_ERROR is tv1.manager.state.current


def test_a_broker_without_transactions_ends_the_producer(tv1):
    """The error names the API that the broker lacks."""
    versions = dict(tv1.network.api_versions.versions)
    del versions[ApiKey.ADD_PARTITIONS_TO_TXN]
    tv1.network.api_versions = replace(tv1.network.api_versions, versions=versions)
    tv1.begin()
    tv1.add(0)
    tv1.step()
    tv1.step()
    with pytest.raises(FatalProducerError, match="ADD_PARTITIONS_TO_TXN"):
        tv1.manager.fail_if_not_ready_for_send()


def test_a_fatal_error_fails_the_request_in_flight(tv2):
    """A fatal error fails pending requests, whose responses will not be handled."""
    tv2.begin(0)
    result = tv2.manager.send_offsets_to_transaction(OFFSETS, GROUP)
    tv2.step()
    tv2.produce(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        result.wait(0)


def test_a_missing_permission_for_the_transactional_id_can_be_granted_later(either):
    """init_transactions raises the error, and can be called again."""
    refused = either.manager.initialize_transactions()
    either.find_coordinator()
    either.init_producer_id(code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        refused.wait(0)
    granted = either.manager.initialize_transactions()
    either.init_producer_id()
    granted.wait(0)
    assert is_ready(either)


def test_a_batch_fails_even_if_its_failure_is_an_illegal_transition(tv2, monkeypatch):
    """A bug that ends the producer leaves no caller waiting (KAFKA-14831)."""

    def refuse(*_: object, **__: object) -> None:
        raise IllegalStateError("no legal step")

    [batch] = tv2.begin(0)
    monkeypatch.setattr(tv2.manager, "handle_failed_batch", refuse)
    tv2.produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert "no legal step" in str(batch.result.error)
    assert not tv2.accumulator.has_incomplete


# --- errors that nobody expected


@pytest.mark.parametrize("method", ["request", "verdict"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_an_unexpected_error_of_a_request_ends_the_waits(either, monkeypatch, method, is_first):
    """The caller that waits for the request gets the error, and so does every later call."""

    def broken(*_: object) -> None:
        raise AttributeError(method)

    handler = FindCoordinatorHandler
    if is_first:
        monkeypatch.setattr(handler, method, broken)
        result = either.manager.initialize_transactions()
    else:
        handler = TxnOffsetCommitHandler
        either.begin()
        monkeypatch.setattr(handler, method, broken)
        result = either.manager.send_offsets_to_transaction(OFFSETS, GROUP)
        if not either.manager.epochs.is_transaction_v2:
            either.add_offsets()
    if method == "verdict" and is_first:
        either.find_coordinator()
    elif not is_first:
        either.find_coordinator(node_id=2)
        if method == "verdict":
            either.offset_commit()
    either.step()
    expected = f"{handler.api_key.name} failed: AttributeError.*{method}"
    with pytest.raises(KafkaError, match=expected) as raised:
        result.wait(0)
    assert isinstance(raised.value.__cause__, AttributeError)
    with pytest.raises(KafkaError, match=expected):
        either.manager.begin_transaction()
    either.step()
    assert either.accumulator.has_failed
