"""Every row of the error rule tables: where it applies, and where it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import BrokerError, DeliveryError
from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
)
from spark_kafka_sink.producer.batch.error_rules import (
    ABORT_RULES,
    PRODUCE_RULES,
    TXN_RULES,
    ProduceAction,
    TxnAction,
    produce_action,
    txn_action,
)
from spark_kafka_sink.producer.sending.transaction_state import (
    TransactionalRequestResult,
    TransactionState,
)
from spark_kafka_sink.producer.sending.txn_request_handlers import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TransactionRequestQueue,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_invalid_metadata, is_retriable
from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType
from tests.support.producer.sender_harness import BACKOFF, SenderHarness, place
from tests.support.producer.transaction_managers import manager_in_state, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager

P = ProduceAction
T = TxnAction
S = TransactionState
PRODUCER = ProducerIdAndEpoch(1000, 3)
LATER = BACKOFF * 2


def _produce_rows(*actions: ProduceAction) -> list[ErrorCode]:
    return [ErrorCode(code) for code, action in PRODUCE_RULES.items() if action in actions]


# --- Produce


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_exactly_the_errors_kafka_calls_retriable_are_retried(code):
    """The table refines Kafka's classification and never contradicts it."""
    action = produce_action(code)
    assert is_retriable(code) == (action in {P.RETRY, P.REFRESH_METADATA})
    assert is_invalid_metadata(code) == (action is P.REFRESH_METADATA)


def test_an_unknown_error_code_fails_the_batch():
    """An unknown error code, as from a newer broker, counts as final."""
    assert P.FAIL_BATCH is produce_action(9_999)


@pytest.mark.parametrize("code", _produce_rows(P.COMPLETE), ids=lambda code: code.name)
def test_codes_for_a_duplicate_complete_the_batch(code):
    """A batch that the broker already has completes once and is not sent again."""
    with SenderHarness(enable_idempotence=False) as harness:
        batch = harness.add()
        harness.step()
        harness.produce(code)
        harness.step(LATER)
        assert (True, None) == (batch.is_done, batch.result.error)
        assert [] == harness.network.sent


@pytest.mark.parametrize(
    "code", _produce_rows(P.RETRY, P.REFRESH_METADATA), ids=lambda code: code.name
)
@pytest.mark.parametrize("retries", [1, 0])
def test_retriable_codes_are_retried_while_retries_remain(code, retries):
    """A batch is retried while `retries` allow, with new metadata if the code calls for them."""
    with SenderHarness(enable_idempotence=False, retries=retries) as harness:
        updates = []
        harness.network.metadata.request_update = lambda: updates.append(code)
        batch = harness.add()
        harness.step()
        harness.produce(code)
        assert bool(updates) == is_invalid_metadata(code)
        harness.step(LATER)
        if retries:
            harness.produce()
        assert (batch.result.error is None) == bool(retries)
        assert [] == harness.network.sent


@pytest.mark.parametrize("code", _produce_rows(P.BUMP_EPOCH), ids=lambda code: code.name)
@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}], ids=["with", "without"])
def test_codes_that_bump_the_epoch_of_an_idempotent_producer(code, settings):
    """A producer without idempotence has no epoch to raise, so its batch fails."""
    with SenderHarness(**settings) as harness:
        batch = harness.add()
        if harness.manager is not None:
            harness.initialize()
        harness.step()
        harness.produce(code, log_start_offset=10)
        harness.step(LATER)
        assert (batch.result.error is None) == (harness.manager is not None)
        if harness.manager is not None:
            assert 1 == batch.producer_id_and_epoch.epoch


@pytest.mark.parametrize("code", _produce_rows(P.FAIL_BATCH, P.SPLIT), ids=lambda code: code.name)
def test_codes_that_fail_only_the_batch(code):
    """Other batches complete normally; a batch of one record cannot be split and fails."""
    with SenderHarness() as harness:
        batch, other = harness.add(0), harness.add(1)
        harness.initialize()
        harness.produce(code)
        harness.produce()
        assert isinstance(batch.result.error, DeliveryError)
        assert (True, None) == (other.is_done, other.result.error)
        harness.accumulator.raise_if_failed()
        harness.manager.fail_if_not_ready_for_send()


@pytest.mark.parametrize("code", _produce_rows(P.FATAL), ids=lambda code: code.name)
@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}], ids=["with", "without"])
def test_codes_that_are_fatal_for_a_producer_with_an_id(code, settings):
    """Without a producer id only the batch fails."""
    with SenderHarness(**settings) as harness:
        batch, other = harness.add(0), harness.add(1)
        if harness.manager is not None:
            harness.initialize()
        harness.step()
        harness.produce(code)
        assert isinstance(batch.result.error, DeliveryError)
        assert (harness.manager is not None) == other.is_done
        if harness.manager is None:
            harness.accumulator.raise_if_failed()
        else:
            assert harness.manager.state.has_fatal_error


# --- transactional requests

FIELDS = {"transactional_id": "x", "producer": PRODUCER}
GROUP = ConsumerGroupMetadata("g")
OFFSETS = {place(): OffsetAndMetadata(1)}


def _handler(api_key: ApiKey, *, committed: bool = True) -> TxnRequestHandler:
    result = TransactionalRequestResult(api_key.name)
    match api_key:
        case ApiKey.FIND_COORDINATOR:
            return FindCoordinatorHandler(
                result=result, key_type=CoordinatorType.TRANSACTION, key="x"
            )
        case ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdHandler(result=result, **FIELDS)
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return AddPartitionsToTxnHandler(
                result=result, partitions=frozenset({place()}), **FIELDS
            )
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnHandler(
                result=result, offsets=OFFSETS, group_metadata=GROUP, **FIELDS
            )
        case ApiKey.TXN_OFFSET_COMMIT:
            return TxnOffsetCommitHandler(
                result=result,
                offsets=dict(OFFSETS),
                group_metadata=GROUP,
                is_transaction_v2=False,
                **FIELDS,
            )
    return EndTxnHandler(result=result, committed=committed, is_transaction_v2=False, **FIELDS)


def _response(api_key: ApiKey, code: int) -> SimpleNamespace:
    """Build a response for partition t-0 with the fields of every API."""
    partition = SimpleNamespace(
        partition_index=0, error_code=code, partition_error_code=code, node_id=1, host="h", port=1
    )
    topic = SimpleNamespace(name="t", partitions=[partition], results_by_partition=[partition])
    return SimpleNamespace(
        error_code=code,
        producer_id=PRODUCER.producer_id,
        producer_epoch=4,
        coordinators=[partition],
        topics=[topic],
        results_by_topic_v3_and_below=[topic],
    )


STATES = {
    ApiKey.FIND_COORDINATOR: S.IN_TRANSACTION,
    ApiKey.INIT_PRODUCER_ID: S.INITIALIZING,
    ApiKey.ADD_PARTITIONS_TO_TXN: S.IN_TRANSACTION,
    ApiKey.ADD_OFFSETS_TO_TXN: S.IN_TRANSACTION,
    ApiKey.TXN_OFFSET_COMMIT: S.IN_TRANSACTION,
    ApiKey.END_TXN: S.COMMITTING_TRANSACTION,
}


def _handle(
    api_key: ApiKey, code: int, *, committed: bool = True, init_producer_id_version: int = 5
) -> tuple[TransactionManager, TxnRequestHandler]:
    """Return the producer's manager, and the handler, after the response."""
    state = STATES[api_key] if committed else S.ABORTING_TRANSACTION
    manager = manager_in_state(PRODUCER, state)
    manager.epochs.update_features(
        init_producer_id_version=init_producer_id_version, transaction_version=1
    )
    handler = _handler(api_key, committed=committed)
    manager.handle_response(handler, _response(api_key, code))
    return manager, handler


def _is_done(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    if handler.api_key is ApiKey.ADD_OFFSETS_TO_TXN:
        assert [ApiKey.TXN_OFFSET_COMMIT] == waiting(manager)
    else:
        assert (True, None) == (handler.result.is_completed, handler.result.error)
    assert manager.state.error is None


def _is_retried(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    assert [handler.api_key] == waiting(manager)
    assert (1, False) == (handler.attempts, handler.result.is_completed)


def _looks_up_coordinator(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    assert [ApiKey.FIND_COORDINATOR, handler.api_key] == waiting(manager)
    assert not handler.result.is_completed


def _is_aborted(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    assert isinstance(handler.result.error, BrokerError)
    assert S.ABORTABLE_ERROR is manager.state.current
    assert [] == waiting(manager)


def _is_unauthorized(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    _is_aborted(manager, handler)
    assert handler.result.error is manager.take_authorization_error()
    assert manager.take_authorization_error() is None
    assert S.UNINITIALIZED is manager.state.current


def _is_reinitialized(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    assert S.INITIALIZING is manager.state.current
    assert [ApiKey.INIT_PRODUCER_ID] == waiting(manager)
    assert not handler.result.is_completed


def _is_ended(manager: TransactionManager, handler: TxnRequestHandler) -> None:
    assert isinstance(handler.result.error, BrokerError)
    assert S.FATAL_ERROR is manager.state.current


HOLDS: dict[TxnAction, Callable[[TransactionManager, TxnRequestHandler], None]] = {
    T.DONE: _is_done,
    T.NOT_ATTEMPTED: _is_aborted,
    T.RETRY: _is_retried,
    T.RETRY_SOON: _is_retried,
    T.FIND_COORDINATOR: _looks_up_coordinator,
    T.ABORTABLE: _is_aborted,
    T.ABORTABLE_WITH_BUMP: _is_aborted,
    T.UNAUTHORIZED: _is_unauthorized,
    T.REINITIALIZE: _is_reinitialized,
    T.FENCED: _is_ended,
    T.FATAL: _is_ended,
}

TXN_ROWS = [
    pytest.param(api_key, code, action, id=f"{api_key.name}-{ErrorCode(code).name}")
    for api_key, rules in TXN_RULES.items()
    for code, action in rules.items()
]
ABORT_ROWS = [
    pytest.param(code, action, id=ErrorCode(code).name) for code, action in ABORT_RULES.items()
]


@pytest.mark.parametrize(("api_key", "code", "action"), TXN_ROWS)
def test_a_transactional_response_has_the_effect_in_its_row(api_key, code, action):
    """A response has the effect of its row, such as a retry, a coordinator lookup or an abort."""
    HOLDS[action](*_handle(api_key, code))


@pytest.mark.parametrize(("code", "action"), ABORT_ROWS)
def test_a_response_to_an_abort_has_the_effect_in_its_row(code, action):
    """An abort never results in another abort."""
    HOLDS[action](*_handle(ApiKey.END_TXN, code, committed=False))


@pytest.mark.parametrize(("api_key", "code", "action"), TXN_ROWS)
def test_no_row_applies_after_a_fatal_error(api_key, code, action):
    """After a fatal error a response changes nothing."""
    del action
    manager = manager_in_state(PRODUCER, STATES[api_key])
    manager.transition_to_fatal_error(ValueError("the first"))
    manager.handle_response(_handler(api_key), _response(api_key, code))
    assert (S.FATAL_ERROR, "the first") == (manager.state.current, str(manager.state.error))
    assert [] == waiting(manager)


@pytest.mark.parametrize(
    ("api_key", "code"),
    [(row.values[0], row.values[1]) for row in TXN_ROWS if row.values[2] is T.ABORTABLE_WITH_BUMP],
)
def test_without_epoch_bumps_codes_that_need_one_are_fatal(api_key, code):
    """Brokers before 2.5 cannot raise a producer's epoch (KIP-360)."""
    _is_ended(*_handle(api_key, code, init_producer_id_version=2))


@pytest.mark.parametrize(
    "code", [code for code, action in ABORT_RULES.items() if action is T.REINITIALIZE]
)
def test_without_epoch_bumps_a_rejected_abort_means_fencing(code):
    """Without epoch bumps fencing cannot be told apart from an abort by the coordinator."""
    _is_ended(*_handle(ApiKey.END_TXN, code, committed=False, init_producer_id_version=2))


@pytest.mark.parametrize("api_key", list(TXN_RULES), ids=lambda api_key: api_key.name)
def test_codes_without_a_row_follow_kafka(api_key):
    """Codes without a row follow Kafka: retried or fatal, but abortable for AddPartitionsToTxn."""
    unnamed = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert T.RETRY is txn_action(api_key, unnamed)
    final = T.ABORTABLE if api_key is ApiKey.ADD_PARTITIONS_TO_TXN else T.FATAL
    assert final is txn_action(api_key, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert final is txn_action(api_key, 9_999)


def test_a_partition_missing_from_the_response_is_rejected():
    """A response that omits the partition is an error, not an approval."""
    manager = manager_in_state(PRODUCER, S.IN_TRANSACTION)
    handler = _handler(ApiKey.ADD_PARTITIONS_TO_TXN)
    manager.handle_response(handler, SimpleNamespace(results_by_topic_v3_and_below=[]))
    _is_aborted(manager, handler)


def test_a_coordinator_response_must_have_exactly_one_coordinator():
    """A response with two coordinators for one key is fatal."""
    manager = manager_in_state(PRODUCER, S.IN_TRANSACTION)
    handler = _handler(ApiKey.FIND_COORDINATOR)
    two = _response(ApiKey.FIND_COORDINATOR, 0).coordinators * 2
    manager.handle_response(handler, SimpleNamespace(coordinators=two))
    _is_ended(manager, handler)


# --- the order of requests


def test_requests_are_sent_by_priority_and_then_in_order():
    """EndTxn comes after all requests of its transaction, and an epoch bump comes last."""
    queue = TransactionRequestQueue()
    bump = _handler(ApiKey.INIT_PRODUCER_ID)
    end = _handler(ApiKey.END_TXN)
    partitions = _handler(ApiKey.ADD_PARTITIONS_TO_TXN)
    offsets = _handler(ApiKey.ADD_OFFSETS_TO_TXN)
    new = InitProducerIdHandler(
        result=TransactionalRequestResult("init"),
        transactional_id="x",
        producer=NO_PRODUCER_ID_AND_EPOCH,
    )
    find = _handler(ApiKey.FIND_COORDINATOR)
    for handler in (bump, end, partitions, offsets, new, find):
        queue.put(handler)
    assert find is queue.peek()
    assert [find, new, partitions, offsets, end, bump] == queue.drain()
    assert None is queue.peek()


def test_a_coordinator_is_looked_up_once_for_all_requests():
    """At most one lookup is pending for each key of each type."""
    queue = TransactionRequestQueue()
    queue.lookup(_handler(ApiKey.END_TXN))
    queue.lookup(_handler(ApiKey.ADD_PARTITIONS_TO_TXN))
    queue.lookup(_handler(ApiKey.TXN_OFFSET_COMMIT))
    assert [(CoordinatorType.TRANSACTION, "x"), (CoordinatorType.GROUP, "g")] == [
        (handler.key_type, handler.key) for handler in queue.drain()
    ]
