"""What closing a producer does, and how a producer ends after a failure."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import DeliveryError, KafkaError, ProducerClosedError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.faults.interrupts import interrupting, needs_signals
from tests.support.producer.bulk_writes import SMALL_BATCHES, all_values, bulk_producer, numbered
from tests.support.record.record_columns import columns


def test_using_a_closed_producer_raises_an_error(broker):
    """Any use after close raises an error, but closing twice does not."""
    producer = bulk_producer(broker)
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError, match="is closed"):
        producer.append(columns([b"v"]))
    with pytest.raises(ProducerClosedError, match="is closed"):
        producer.flush()


def test_closing_leaves_no_thread_and_no_connection(broker):
    """After close the network thread has ended and the sockets are closed."""
    with bulk_producer(broker) as producer:
        producer.append(columns([b"v"]))
    assert producer._core._thread._thread not in threading.enumerate()
    assert producer._core._thread._loop.is_closed()


def test_closing_flushes_first(broker):
    """A graceful close flushes first."""
    producer = bulk_producer(broker)
    producer.append(columns([b"v"]))
    producer.close()
    assert [b"v"] == all_values(broker)


def test_the_context_manager_raises_the_error_of_its_block(broker):
    """The context manager drops pending records rather than hide the error of the block."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    with pytest.raises(ZeroDivisionError), bulk_producer(broker) as producer:  # noqa: PT012
        producer.append(columns([b"v"]))
        producer._core.gatherer.close_batches()
        wait_until_injected(hook)
        raise ZeroDivisionError
    assert not producer._core._thread.is_alive


def test_using_a_producer_after_a_fork_raises_an_error(broker):
    """A child process gets a clear error instead of a hang."""
    producer = bulk_producer(broker)
    producer._staging._process_id += 1
    with pytest.raises(ProducerClosedError, match="create a new one after the fork"):
        producer.append(columns([b"v"]))
    with pytest.raises(ProducerClosedError, match="create a new one after the fork"):
        producer._staging.check_may_wait()
    producer._staging._process_id -= 1
    producer.close()


def test_an_error_on_the_network_thread_is_raised_in_waiting_threads(broker):
    """An error on the network thread is raised in threads that wait for acknowledgements."""
    producer = bulk_producer(broker)
    producer.append(columns([b"v"]))
    producer._core._sender.run_once = lambda now: 1 / 0
    with pytest.raises(Exception, match="the producer's network thread failed: ZeroDivisionError"):
        producer.flush()
    producer.close(0)
    assert not producer._core._thread.is_alive


def test_a_new_topic_after_the_network_thread_has_ended_raises_its_error(broker):
    """A call that needs metadata raises the error that ended the network thread."""
    producer = bulk_producer(broker)
    producer.append(columns([b"v"]))
    producer._core._sender.run_once = lambda now: 1 / 0
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer.flush()
    producer._core._thread.join(120)
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer.append(columns([b"v"], topic="another"))
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer._core.await_partition("another")
    producer.close(0)


def test_rows_for_an_open_batch_are_rejected_after_a_failure(broker):
    """The first append after a failure raises it, even if the row would fit into an open batch."""
    appended = threading.Event()

    def refuse(*_: object) -> AnswerError:
        appended.wait(60)
        return AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    hook = broker.on(ApiKey.PRODUCE, refuse)
    producer = bulk_producer(broker, **SMALL_BATCHES)
    producer.append(columns([b"v", *numbered(500)], partitions=[2] + [1] * 500))
    appended.set()
    for result in producer._core.accumulator.unsettled():
        assert result.wait(0, timeout=120)
    assert hook.fired > 0
    with pytest.raises(DeliveryError, match="t-1"):
        producer.append(columns([b"v"], partitions=[2]))
    producer.close(0)


@needs_signals
def test_ctrl_c_ends_the_wait_of_close(broker):
    """No other wait begins, which would last for max.block.ms."""
    # Only the close sends the record.
    times = {"max.block.ms": 1_000_000, "delivery.timeout.ms": 2_000_000, "linger.ms": 1_000_000}
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **times})
    broker.on(ApiKey.PRODUCE, interrupting, expect=True)
    future = producer.send("t", b"v")
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert isinstance(future.exception(0), ProducerClosedError)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_closing_a_batch_ends_the_producer(broker, monkeypatch, interrupt):
    """An interrupt while a batch is closed ends the producer, so a later flush cannot succeed."""

    def compress(payload: object) -> bytes:
        raise interrupt

    producer = bulk_producer(broker)
    producer.append(columns(numbered(10)))
    with monkeypatch.context() as broken:
        broken.setattr(producer._core._compression._compressor, "compress", compress)
        with pytest.raises(interrupt):
            producer.flush()
    for use in (producer.flush, lambda: producer.append(columns([b"v"])), producer.close):
        with pytest.raises(KafkaError, match=f"in the middle of a batch.*{interrupt.__name__}"):
            use()
    assert not producer._core._thread.is_alive
