"""What ends the producer during single sends, and how closing ends their records."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
)
from spark_kafka_sink.network.connection import broker_connection
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.producer.sending import LONG_LINGER, TIMEOUT, sending_producer, values_of
from tests.support.record.record_columns import columns

# --- what ends the producer


def test_the_end_of_the_network_thread_fails_every_record(broker):
    """After a bug on the network thread all futures fail, and all later calls raise its error."""
    errors = []
    producer = sending_producer(broker, **LONG_LINGER)
    producer.send("one", b"first")
    producer.flush()
    futures = [
        producer.send("one", b"%d" % n, on_delivery=lambda m, e: errors.append(e))
        for n in range(10)
    ]
    producer._core._sender.run_once = lambda now: 1 / 0
    producer._core.gatherer.note_staged()
    producer._core._thread.call_soon(producer._core._wakeup)
    producer._core._thread.join(TIMEOUT)
    for future in futures:
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            future.result(TIMEOUT)
    assert 10 == len(errors)
    for use in (
        producer.flush,
        lambda: producer.send("one", b"v"),
        lambda: producer.send("another", b"v"),
        lambda: producer.append(columns([b"v"])),
    ):
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            use()
    producer.close()


def test_a_rejected_producer_id_request_fails_every_record(broker):
    """Without the permission to write records fail; once it is granted, records are sent."""
    refused = broker.on(
        ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    )
    with sending_producer(broker, **{"linger.ms": 1}) as producer:
        for _ in range(2):
            with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
                producer.send("one", b"v").result(TIMEOUT)
        refused.remove()
        assert 0 == producer.send("one", b"w").result(TIMEOUT).offset
    assert [b"w"] == values_of(broker)


@pytest.mark.parametrize("part", ["encode_request", "InFlightRequest"])
def test_a_request_is_resent_after_a_lack_of_memory(broker, monkeypatch, part):
    """The request is resent over a new connection, and all of buffer.memory is freed."""
    real, produce_requests = getattr(broker_connection, part), []

    def short_once(*arguments: object) -> object:
        # The arguments are a header and a request, or those of a request in flight.
        is_produce = isinstance(arguments[1], ProduceRequest) or arguments[1] is ApiKey.PRODUCE
        produce_requests.extend([arguments] * is_produce)
        if is_produce and len(produce_requests) == 1:
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(broker_connection, part, short_once)
    with sending_producer(broker) as producer:
        pool = producer._core.accumulator._pool
        available = pool.available_bytes
        assert 0 == producer.send("one", b"v").result(TIMEOUT).offset
        producer.flush()
        assert available == pool.available_bytes
    assert [b"v"] == values_of(broker)


# --- close


def test_every_call_after_close_raises_an_error(broker):
    """Calls after close raise an error instead of hanging, and a second close does nothing."""
    producer = sending_producer(broker)
    future = producer.send("one", b"v")
    producer.close()
    producer.close()
    for use in (
        lambda: producer.send("one", b"v"),
        lambda: producer.send("one", b"v", partition=0),
        lambda: producer.send_arrow(pa.table({"value": [b"v"]}), topic="one"),
        lambda: producer.append(columns([b"v"])),
        lambda: producer.partitions_for("one"),
        producer.flush,
    ):
        with pytest.raises(ProducerClosedError, match="is closed"):
            use()
    assert 0 == future.result(0).offset


def test_closing_flushes_first(broker):
    """A graceful close waits for all records and calls all callbacks."""
    offsets = []
    producer = sending_producer(broker, **LONG_LINGER)
    futures = [
        producer.send("one", b"%d" % n, on_delivery=lambda m, e: offsets.append(m.offset))
        for n in range(10)
    ]
    producer.close()
    assert list(range(10)) == offsets
    assert list(range(10)) == [future.result(0).offset for future in futures]


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_close_that_times_out_fails_every_record(broker, timeout):
    """Staged, open, queued and in-flight records fail, and their callbacks receive the error."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    errors = []
    producer = sending_producer(
        broker, **{"batch.size": 500, "linger.ms": 60_000, "delivery.timeout.ms": 180_000}
    )
    futures = [
        producer.send("one", b"%0100d" % n, on_delivery=lambda m, e: errors.append(e))
        for n in range(CHUNK_RECORDS + 10)
    ]
    wait_until_injected(hook)
    if timeout:
        with pytest.raises(KafkaTimeoutError, match=f"within {timeout} s"):
            producer.close(timeout)
    else:
        producer.close(timeout)
    assert all(future.done() for future in futures)
    assert {ProducerClosedError} == {type(future.exception(0)) for future in futures}
    assert len(futures) == len(errors)
    assert not producer._core._thread.is_alive


def test_a_block_that_fails_closes_the_producer_at_once(broker):
    """The context manager closes at once, and the block's own error is raised."""
    with pytest.raises(ZeroDivisionError), sending_producer(broker, **LONG_LINGER) as producer:  # noqa: PT012
        future = producer.send("one", b"v")
        raise ZeroDivisionError
    with pytest.raises(ProducerClosedError):
        future.result(0)


def test_closing_wakes_waiting_threads(broker):
    """A thread that waits for a record gets an error when another thread closes the producer."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    producer = sending_producer(broker, **{"linger.ms": 0})
    future = producer.send("one", b"v")
    wait_until_injected(hook)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.result)
        producer.close(0)
        with pytest.raises(ProducerClosedError):
            waiting.result(TIMEOUT)


FORKED = """
import logging, os, sys, threading
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import ProducerClosedError

# In its debug mode asyncio warns of slow steps of its loops, which depend on the machine.
logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))
settings = {"bootstrap.servers": sys.argv[1], "delivery.timeout.ms": 180_000}
producer = KafkaProducer({**settings, "linger.ms": 60_000})
producer.send("one", b"parent")
producer.flush()
staged = producer.send("one", b"staged")
child = os.fork()
if child == 0:
    told = []
    for use in (
        lambda: producer.send("one", b"child"),
        lambda: producer.send("one", b"child", partition=0),
        lambda: producer.flush(),
        lambda: producer.partitions_for("one"),
        lambda: producer.close(),
        lambda: staged.result(),
        lambda: producer.init_transactions(),
    ):
        try:
            use()
        except ProducerClosedError as error:
            told.append("create a new one after the fork" in str(error))
    with KafkaProducer(settings) as another:
        another.send("one", b"child").result(120)
    os._exit(0 if told == [True] * 7 else 1)
_, status = os.waitpid(child, 0)
producer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_record_can_be_waited_for_during_a_close(broker):
    """A record can be waited for during a close, which only refuses new calls."""
    is_called, may_answer = threading.Event(), threading.Event()

    def refuse_at_first(request, context) -> AnswerError | None:
        is_called.set()
        return None if may_answer.is_set() else AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    broker.on(ApiKey.PRODUCE, refuse_at_first, expect=True)
    producer = sending_producer(broker, **LONG_LINGER)
    future = producer.send("one", b"v")
    closing = threading.Thread(target=producer.close)
    closing.start()
    # Only the close sends it.
    assert is_called.wait(TIMEOUT)
    with pytest.raises(TimeoutError):
        future.result(0)
    may_answer.set()
    assert 0 == future.result(TIMEOUT).offset
    closing.join()


def test_using_a_producer_in_a_forked_child_raises_an_error(broker):
    """No call hangs or resends the parent's records, and a new producer works."""
    root = Path(__file__).parents[3]
    done = subprocess.run(  # noqa: S603  our own interpreter and code
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKED,
            broker.bootstrap_servers,
        ],
        cwd=root,
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert [b"parent", b"child", b"staged"] == values_of(broker)
