"""The end of a process whose producers were not closed."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.producer import kafka_producer
from spark_kafka_sink.producer.kafka_producer import open_producers
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.forked import call_in_fork
from tests.support.kafka.real_kafka import wait_until
from tests.support.producer.bulk_writes import bulk_producer
from tests.support.producer.sending import LONG_LINGER, TIMEOUT, sending_producer, values_of
from tests.support.record.record_columns import columns

LOST = "{} of the producer 'late' had not been acknowledged when the process ended"

#: It ends with records in three producers: one is still referred to, one was dropped, and one
#: belongs to a thread. No thread can be started from then on, as with Python 3.12 and later.
SCRIPT = """
import atexit, sys, threading
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.network.daemon_thread import is_exiting
from spark_kafka_sink.producer import kafka_producer

kafka_producer.EXIT_SECONDS = 120
settings = {"bootstrap.servers": sys.argv[1].replace("127.0.0.1", "localhost")}

def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def at_exit():
    print(is_exiting())
    threading.Thread.start = refuse

def send(linger_ms):
    producer = KafkaProducer({**settings, "linger.ms": linger_ms})
    for number in range(1000):
        producer.send("one", b"%d" % number)
    return producer

kept = send(600_000)
send(5)
atexit.register(at_exit)
print(is_exiting(), flush=True)
raise ValueError("the job failed")
"""


def test_a_process_sends_its_records_before_it_ends(broker):
    """Producers that are dropped, or that nobody closes after an error, still send everything."""
    done = subprocess.run(  # noqa: S603  our own interpreter and code
        [sys.executable, "-W", "default::ResourceWarning", "-c", SCRIPT, broker.bootstrap_servers],
        cwd=Path(__file__).parents[3],
        timeout=600,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (1, "False\nTrue\n") == (done.returncode, done.stdout)
    assert 2_000 == len(values_of(broker))
    assert "The records that it had are still sent, but once the process ends for at mo" in (
        done.stderr
    )
    assert done.stderr.endswith("ValueError: the job failed\n")


@pytest.fixture
def at_once(monkeypatch):
    """Set a limit of no time at the end of the process."""
    monkeypatch.setattr(kafka_producer, "EXIT_SECONDS", 0)


@pytest.fixture
def in_time(monkeypatch):
    """Set a limit of as much time at the end of the process as a slow machine may need."""
    monkeypatch.setattr(kafka_producer, "EXIT_SECONDS", TIMEOUT)


@pytest.mark.usefixtures("at_once")
def test_records_that_are_not_acknowledged_in_time_are_counted(broker, caplog):
    """The end waits no longer than its limit, and a warning says how many may be lost."""
    silent = set()
    broker.on(
        ApiKey.PRODUCE,
        lambda _, context: silent.add(context.connection_id) or NeverAnswer(),
        expect=True,
    )
    settings = {"client.id": "late", "linger.ms": 0}
    first = sending_producer(broker, **settings)
    second = sending_producer(broker, **settings)
    for number in range(7):
        first.send("one", b"%d" % number)
    second.send("one", b"v")
    wait_until(lambda: len(silent) == 2, seconds=TIMEOUT, what="a request of each")
    open_producers.end()
    messages = sorted(caplog.messages)
    assert [LOST.format("1 record"), LOST.format("7 records")] == [
        message.partition(",")[0] for message in messages
    ]
    assert "call flush() or close() before the end. Last error" in messages[0]
    first.close(0)
    second.close(0)


@pytest.mark.usefixtures("in_time")
def test_records_that_fail_at_the_end_are_counted(broker, caplog):
    """Nothing else would report them."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.INVALID_RECORD))
    with sending_producer(broker, **{"client.id": "late"}, **LONG_LINGER) as producer:
        producer.send("one", b"v")
        open_producers.end()
        assert [LOST.format("1 record")] == [
            message.partition(",")[0] for message in caplog.messages if "late" in message
        ]


def _send_and_drop(broker):
    future = sending_producer(broker, **LONG_LINGER).send("one", b"v")
    gc.collect()
    return future


@pytest.mark.usefixtures("in_time")
def test_a_dropped_producer_is_waited_for(broker):
    """Its records are acknowledged when the end has been waited for."""
    with pytest.warns(ResourceWarning, match=f"once the process ends for at most {TIMEOUT} s"):
        future = _send_and_drop(broker)
    open_producers.end()
    assert future.done()
    assert [b"v"] == values_of(broker)


@pytest.mark.usefixtures("in_time")
def test_an_open_transaction_is_neither_flushed_nor_committed(broker, caplog):
    """A warning says so; a transaction that has ended or is prepared causes none."""
    with (
        sending_producer(broker, **{"transactional.id": "ended"}, **LONG_LINGER) as ended,
        sending_producer(broker, **{"transactional.id": "open"}, **LONG_LINGER) as producer,
    ):
        for each in (ended, producer):
            each.init_transactions()
            each.begin_transaction()
            each.send("one", each._config.transactional_id.encode())
        ended.commit_transaction()
        open_producers.end()
        (message,) = caplog.messages
        assert "the process ended while a transaction of transactional.id 'open' was open" in (
            message
        )
        assert [b"ended"] == values_of(broker)
        producer.abort_transaction()


@pytest.mark.usefixtures("at_once")
def test_closed_producers_those_of_tasks_and_idle_ones_are_silent(broker, caplog):
    """A task that did not flush has failed, and Spark runs it again."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    closed = sending_producer(broker, **{"linger.ms": 0})
    closed.send("one", b"v")
    wait_until_injected(hook)
    closed.close(0)
    task = bulk_producer(broker)
    task.append(columns([b"v"]))
    with sending_producer(broker):
        open_producers.end()
    task.close(0)
    assert [] == caplog.messages


@pytest.mark.usefixtures("in_time")
def test_ctrl_c_ends_the_flush(broker, caplog, monkeypatch):
    """What was not acknowledged by then is counted."""
    producer = sending_producer(broker, **{"client.id": "late"}, **LONG_LINGER)
    producer.send("one", b"v")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(producer._core, "flush", interrupt)
    open_producers.end()
    (message,) = caplog.messages
    assert message.startswith(LOST.format("1 record"))
    producer.close(0)


@pytest.mark.usefixtures("at_once")
def test_a_forked_process_ends_without_the_producers_of_its_parent(broker, caplog):
    """It has neither their threads nor their connections."""

    def end():
        open_producers.end()
        return str(caplog.messages)

    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"v")
        assert "[]" == call_in_fork(end)
