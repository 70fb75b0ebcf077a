"""What closing a producer raises: only losses that no other call or future has reported."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer import producer_core, threaded_core
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.producer.sending import values_of
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 120
LONG_LINGER = {"linger.ms": 60_000, "delivery.timeout.ms": 180_000}


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"t": 1}) as broker:
        yield broker


def _producer(broker: DevBroker, **settings: object) -> KafkaProducer:
    return KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **settings})


def _in_transaction(broker: DevBroker, **settings: object) -> KafkaProducer:
    """Build a producer with an open transaction."""
    producer = _producer(broker, **{"transactional.id": "x", **settings})
    producer.init_transactions()
    producer.begin_transaction()
    return producer


class _Obstacle:
    """An obstacle that blocks the network thread until its producer has been closed."""

    def __init__(self) -> None:
        self._is_blocked, self._may_continue = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Block the calling thread."""
        self._is_blocked.set()
        assert self._may_continue.wait(TIMEOUT)

    def closing(self, producer: KafkaProducer, caplog: pytest.LogCaptureFixture) -> str:
        """Close a producer whose network thread is blocked, and return what was logged."""
        assert self._is_blocked.wait(TIMEOUT)
        with caplog.at_level(logging.WARNING):
            producer.close(0)
        self._may_continue.set()
        assert producer._core._thread.join(TIMEOUT)
        [message] = caplog.messages
        return message


def _end_network_thread(producer: KafkaProducer) -> None:
    producer._core._sender.run_once = lambda now: 1 / 0
    producer._core._thread.call_soon(producer._core._wakeup)
    producer._core._thread.join(TIMEOUT)


@pytest.mark.parametrize("is_noticed", [False, True], ids=["at once", "later"])
def test_a_fenced_producer_closes_without_an_error(broker, is_noticed):
    """Closing raises nothing if the commit has already raised the fencing error."""
    broker.on(ApiKey.END_TXN, AnswerError(ErrorCode.PRODUCER_FENCED))
    producer = _in_transaction(broker)
    producer.append(columns([b"v"]))
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    if is_noticed:
        while not producer._core.has_ended:
            producer._core._thread.call_soon(producer._core._wakeup)
            producer._core._thread.join(0.01)
    producer.close()
    assert not producer._core._thread.is_alive


def test_close_does_not_raise_errors_reported_by_futures(broker):
    """Closing does not raise the errors of refused or lost records that their futures report."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with _producer(broker) as producer:
        refused = producer.send("t", b"v")
    assert isinstance(refused.exception(0).__cause__, BrokerError)
    producer = _producer(broker, **LONG_LINGER)
    gathered = producer.send("t", b"a")
    producer._core.gatherer.write_staged()
    _end_network_thread(producer)
    producer.close()
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        gathered.result(0)


@pytest.mark.parametrize("version", [0, 2], ids=["TV1", "TV2"])
def test_closing_after_a_loss_aborts_the_open_transaction(version):
    """Closing after a loss raises it and aborts, so that consumers need not wait for a timeout."""
    with DevBroker(topics={"t": 2}, transaction_version=version) as broker:
        ends = _seen(broker, ApiKey.END_TXN)
        producer = _in_transaction(broker)
        producer.append(columns([b"in"], partitions=[1]))
        producer.flush()
        broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        producer.append(columns([b"refused"], partitions=[0]))
        with pytest.raises(DeliveryError):
            producer.flush()
        with pytest.raises(DeliveryError):
            producer.close()
        assert [False] == [request.committed for request in ends]


def test_closing_at_once_logs_that_a_transaction_stays_open(broker, caplog):
    """Closing at once leaves the transaction to its timeout, and the log says for how long."""
    ends = _seen(broker, ApiKey.END_TXN)
    producer = _in_transaction(broker, **{"transaction.timeout.ms": 12_345})
    producer.send("t", b"v").result(TIMEOUT)
    producer.close(0)
    assert [] == ends
    assert "12345 ms" in caplog.text


def test_a_block_that_raises_aborts_its_transaction(broker):
    """Readers of committed records need not wait for the transaction's timeout."""
    ends = _seen(broker, ApiKey.END_TXN)
    producer = _in_transaction(broker, **LONG_LINGER)
    sent = producer.send("t", b"sent")
    producer.flush()
    unsent = producer.send("t", b"unsent")
    with pytest.raises(ZeroDivisionError), producer:
        raise ZeroDivisionError
    assert 0 == sent.result(0).offset
    assert isinstance(unsent.exception(0), TransactionAbortedError)
    assert [False] == [request.committed for request in ends]


def test_a_block_that_raises_does_not_wait_long_for_brokers(broker, caplog, monkeypatch):
    """If they do not answer, the transaction is left to its timeout, and the log says so."""
    monkeypatch.setattr(producer_core, "_TIME_TO_END", 0.01)
    producer = _in_transaction(broker)
    producer.send("t", b"v").result(TIMEOUT)
    broker.on(ApiKey.END_TXN, NeverAnswer())
    with pytest.raises(ZeroDivisionError), producer:
        raise ZeroDivisionError
    assert "while a transaction of transactional.id 'x' was open" in caplog.text


@pytest.mark.parametrize("version", [0, 2], ids=["TV1", "TV2"])
def test_closing_with_an_empty_transaction_waits_for_nothing(version):
    """With nothing to abort, no request is sent and max.block.ms is not waited for."""
    with DevBroker(topics={"t": 1}, transaction_version=version) as broker:
        ends = _seen(broker, ApiKey.END_TXN)
        producer = _in_transaction(broker, **{"max.block.ms": 10**9})
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        closing.join(TIMEOUT)
        assert not closing.is_alive()
        assert [] == ends


def _seen(broker: DevBroker, api_key: ApiKey) -> list[object]:
    seen: list[object] = []
    broker.on(api_key, lambda request, _: seen.append(request))
    return seen


def test_close_raises_the_errors_of_rejected_rows(broker):
    """Closing raises the errors of appended rows, which have no futures."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
        producer.close()


@pytest.mark.parametrize("is_closed", [False, True], ids=["open batch", "closed batch"])
def test_close_raises_the_loss_of_rows_at_the_end_of_the_producer(broker, is_closed):
    """Rows lost with the network thread are raised by close, wherever they were."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer(), expect=is_closed)
    producer = _producer(broker, **LONG_LINGER)
    producer.append(columns([b"v"]))
    if is_closed:
        producer._core.gatherer.close_batches()
        wait_until_injected(hook)
    _end_network_thread(producer)
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer.close()


def test_close_does_not_report_acknowledged_rows_as_lost(broker):
    """Closing reports nothing about acknowledged rows, even if the producer has failed."""
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    producer.flush()
    acks = producer.acks()
    _end_network_thread(producer)
    assert producer._core.has_ended
    assert None is producer.close()
    assert not producer._core._thread.is_alive
    assert 1 == acks[TopicPartition("t", 0)].records
    assert acks == producer.acks()
    assert [b"v"] == values_of(broker, "t")


def test_close_raises_a_timeout_error_for_abandoned_records(broker):
    """Closing raises KafkaTimeoutError, and the futures of the records fail as well."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    producer = _producer(broker)
    future = producer.send("t", b"v")
    wait_until_injected(hook)
    with pytest.raises(KafkaTimeoutError, match=r"within 0\.1 s"):
        producer.close(timeout=0.1)
    assert future.exception(0) is not None
    assert not producer._core._thread.is_alive


def test_close_logs_the_callback_that_blocks_the_network_thread(broker, caplog, monkeypatch):
    """If a callback does not return, close stops waiting and logs the name of the function."""
    monkeypatch.setattr(threaded_core, "JOIN_TIMEOUT", 0.0)
    obstacle = _Obstacle()

    def endless_callback(*_: object) -> None:
        obstacle.wait()

    producer = _producer(broker, **{"client.id": "me"})
    producer.send("t", b"v", on_delivery=endless_callback)
    producer._core.gatherer.close_batches()
    message = obstacle.closing(producer, caplog)
    assert "'me' is closed, but its network thread is still running" in message
    assert "a delivery callback or an interceptor has not returned" in message
    assert "in endless_callback" in message


def test_close_logs_where_the_network_thread_is_blocked(broker, caplog, monkeypatch):
    """Without a callback the log shows where the thread is, unless it ends in time."""
    producer = _producer(broker)
    with caplog.at_level(logging.WARNING):
        producer.close()
    assert [] == caplog.messages
    monkeypatch.setattr(threaded_core, "JOIN_TIMEOUT", 0.0)
    obstacle = _Obstacle()

    def endless_check(_: float) -> float:
        obstacle.wait()
        return 0.0

    producer = _producer(broker)
    producer._core._sender.run_once = endless_check
    producer._core.wake_network_thread()
    message = obstacle.closing(producer, caplog)
    assert "delivery callback" not in message
    assert "in endless_check" in message


def test_a_thread_that_has_ended_has_no_stack(broker):
    """The stack of a thread that ends while it is inspected is empty."""
    producer = _producer(broker)
    producer.close()
    assert not producer._core._thread.stack()
