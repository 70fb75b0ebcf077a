"""Transactions that are left open for another process to end."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.transaction_values import EndOutcome, TransactionEnd
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    FatalProducerError,
    IllegalStateError,
    TransactionAbortableError,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.kafka.readers import read_with_confluent

TIMEOUT = 120.0


@pytest.fixture(params=[2, 0], ids=["tv2", "tv1"])
def broker(request):
    with DevBroker(topics={"t": 1}, transaction_version=request.param) as made:
        yield made


@pytest.fixture
def producer(broker):
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": "orders.1",
        "retry.backoff.ms": 1,
    }
    with KafkaProducer(settings) as made:
        made.init_transactions()
        yield made


def end(broker, prepared, *, committed, transactional_id="orders.1"):
    """End a transaction from another process."""
    config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    with DriverClient(config) as admin:
        return admin.end_transaction(
            TransactionEnd(
                transactional_id, prepared.producer, committed, prepared.transaction_version
            ),
            timeout=TIMEOUT,
        )


def values(broker):
    return [record.value for record in read_with_confluent(broker.bootstrap_servers, "t")]


def test_another_process_ends_a_prepared_transaction(broker, producer):
    """The other process commits with the producer's id, epoch and transaction version."""
    producer.begin_transaction()
    producer.send("t", b"one")
    prepared = producer.prepare_transaction()
    assert [] == values(broker)
    assert EndOutcome.ENDED is end(broker, prepared, committed=True).outcome
    assert [b"one"] == values(broker)


def test_the_next_transaction_has_a_new_epoch(broker, producer):
    """After init_transactions the producer continues at sequence 0 over its open connections."""
    epochs = []
    for value, committed in ((b"one", True), (b"two", False), (b"three", True)):
        producer.begin_transaction()
        producer.send("t", value)
        prepared = producer.prepare_transaction()
        epochs.append(prepared.producer.epoch)
        end(broker, prepared, committed=committed)
        producer.init_transactions()
    assert [b"one", b"three"] == values(broker)
    assert sorted(set(epochs)) == epochs


def test_a_producer_leaves_several_transactions_open_under_different_ids(broker, producer):
    """Each is ended by itself, in any order, and no id is confused with another."""
    ids = [f"orders.{number}" for number in range(1, 5)]
    prepared = {}
    for transactional_id in ids:
        if prepared:
            producer.init_transactions(transactional_id)
        producer.begin_transaction()
        producer.send("t", transactional_id.encode())
        prepared[transactional_id] = producer.prepare_transaction()
    assert [] == values(broker)
    for transactional_id in ("orders.3", "orders.1", "orders.4", "orders.2"):
        answer = end(
            broker,
            prepared[transactional_id],
            committed=transactional_id != "orders.1",
            transactional_id=transactional_id,
        )
        assert EndOutcome.ENDED is answer.outcome
    assert [b"orders.2", b"orders.3", b"orders.4"] == values(broker)


@pytest.mark.parametrize(
    ("transactional_id", "error", "message"),
    [
        (5, TypeError, "the transactional id is a text, not 5"),
        ("", ValueError, "the transactional id must not be empty"),
        ("a" * 32_768, ValueError, "the transactional id has 32768 bytes; Kafka's limit is 32767"),
        ("\ud800", ValueError, "the transactional id cannot be encoded as UTF-8"),
    ],
    ids=["a number", "empty", "too long", "not text"],
)
def test_an_id_that_cannot_be_sent_is_refused(broker, producer, transactional_id, error, message):
    """The call changes nothing, and the prepared transaction is still there to be ended."""
    producer.begin_transaction()
    producer.send("t", b"one")
    prepared = producer.prepare_transaction()
    with pytest.raises(error, match=message):
        producer.init_transactions(transactional_id)
    assert EndOutcome.ENDED is end(broker, prepared, committed=True).outcome
    producer.init_transactions("orders.2")
    assert [b"one"] == values(broker)


def test_another_id_is_refused_unless_the_transaction_is_prepared(producer):
    """An open transaction, or one not begun, keeps its id."""
    with pytest.raises(IllegalStateError, match="from state READY to INITIALIZING"):
        producer.init_transactions("orders.2")
    producer.begin_transaction()
    with pytest.raises(IllegalStateError, match=r"\(transactional.id 'orders.1'\)"):
        producer.init_transactions("orders.2")


def test_a_producer_whose_next_initialization_fails_writes_nothing_more(broker, producer):
    """It must not go on under the epoch of the prepared transaction, which is open."""
    producer.begin_transaction()
    producer.send("t", b"one")
    prepared = producer.prepare_transaction()
    broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.TRANSACTION_ABORTABLE))
    with pytest.raises(BrokerError, match=r"initialize transactional.id 'orders.2'"):
        producer.init_transactions("orders.2")
    for call in (producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(FatalProducerError):
            call()
    assert not producer._core.transaction_manager.sequences.producer_id_and_epoch.is_valid
    end(broker, prepared, committed=True)
    assert [b"one"] == values(broker)


def test_offsets_without_an_answer_keep_the_transaction_from_being_prepared(broker, producer):
    """Their requests would otherwise follow under the id of the next transaction."""
    producer.begin_transaction()
    broker.on(ApiKey.FIND_COORDINATOR, NeverAnswer(), expect=False)
    producer._core.transaction_manager.send_offsets_to_transaction(
        {TopicPartition("t", 0): OffsetAndMetadata(3)}, ConsumerGroupMetadata("group")
    )
    with pytest.raises(IllegalStateError, match="the outcome of send_offsets_to_transaction is"):
        producer.prepare_transaction()
    # Otherwise it would wait for an answer that never comes.
    producer.close(0)


def test_closing_leaves_a_prepared_transaction_open(broker, producer):
    """Closing leaves a prepared transaction open, to be ended by another process."""
    producer.begin_transaction()
    producer.send("t", b"one")
    prepared = producer.prepare_transaction()
    producer.close()
    assert EndOutcome.ENDED is end(broker, prepared, committed=True).outcome
    assert [b"one"] == values(broker)


def test_the_next_initialization_aborts_an_open_prepared_transaction(broker, producer):
    """Initializing the transactional id aborts its open transaction, as always."""
    producer.begin_transaction()
    producer.send("t", b"one")
    prepared = producer.prepare_transaction()
    producer.init_transactions()
    assert EndOutcome.ENDED is not end(broker, prepared, committed=True).outcome
    assert [] == values(broker)


def test_a_prepared_transaction_accepts_no_more_records(producer):
    """Sending, beginning and ending are refused until the producer is initialized again."""
    producer.begin_transaction()
    producer.send("t", b"one")
    producer.prepare_transaction()
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        producer.prepare_transaction,
        lambda: producer.send("t", b"two"),
    ):
        with pytest.raises(IllegalStateError, match="PREPARED_TRANSACTION"):
            call()


def test_a_transaction_with_a_lost_record_cannot_be_prepared(broker, producer):
    """After a refused record the transaction can only be aborted."""
    hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.INVALID_RECORD))
    producer.begin_transaction()
    future = producer.send("t", b"one")
    with pytest.raises(TransactionAbortableError):
        producer.prepare_transaction()
    with pytest.raises(DeliveryError):
        future.result(TIMEOUT)
    hook.remove()
    producer.abort_transaction()


def test_preparing_requires_an_open_transaction(producer):
    """Preparing a transaction that has not begun raises an error."""
    with pytest.raises(IllegalStateError, match="from state READY to PREPARED_TRANSACTION"):
        producer.prepare_transaction()
