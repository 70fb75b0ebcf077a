"""The end of a process whose reads are not at their end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.consumer.read_arrow import OpenRead, OpenReads, read_arrow
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.testing import ApiKey, NeverAnswer
from tests.support import leaks
from tests.support.consumer.reading import PATIENCE, fill, numbered

ROOT = Path(__file__).parents[3]
CONFIG = ConsumerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9"})
BATCHES = [pa.record_batch({"a": [number]}) for number in range(3)]
ENDED = "nothing can be read any more: the process is ending"


@pytest.fixture
def reads(monkeypatch):
    """Return reads whose end does not wait for the last calls."""
    monkeypatch.setattr("spark_kafka_sink.consumer.read_arrow._LAST_CALLS", 0)
    return OpenReads()


def batches_of(client):
    """Yield the batches, and close the client."""
    with client:
        yield from BATCHES


def test_a_read_that_has_begun_is_ended(reads):
    """No other batch can be read, the error says why, and the connections are closed."""
    before = leaks.look()
    read = reads.add(OpenRead(CONFIG, batches_of))
    assert BATCHES[0] == next(read)
    reads.end()
    with pytest.raises(IllegalStateError, match=ENDED):
        next(read)
    assert [] == leaks.left_since(before)


def test_a_read_that_has_not_begun_is_ended(reads):
    """It cannot begin any more."""
    read = reads.add(OpenRead(CONFIG, batches_of))
    reads.end()
    with pytest.raises(IllegalStateError, match=ENDED):
        next(read)


@pytest.mark.parametrize(("count", "was_open"), [(0, False), (1, True), (3, True), (4, False)])
def test_only_a_read_in_the_middle_is_waited_for(count, was_open):
    """Nobody calls a read that has not begun, or is at its end."""
    read = OpenRead(CONFIG, batches_of)
    for _ in range(count):
        next(read, None)
    assert was_open is read.end()


def test_a_read_whose_batch_failed_is_at_its_end(reads):
    """The error is raised once; it has closed the client."""

    def fail(client):
        with client:
            yield BATCHES[0]
            raise ValueError("broken")

    read = OpenRead(CONFIG, fail)
    next(read)
    with pytest.raises(ValueError, match="broken"):
        next(read)
    assert [] == list(read)
    assert read.end() is False


def test_a_forked_process_leaves_the_reads_alone(monkeypatch):
    """The connections belong to the other process."""
    read = OpenRead(CONFIG, batches_of)
    next(read)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        assert read.end() is False
    assert BATCHES[1:] == list(read)


def test_threads_may_ask_at_the_same_time():
    """Each of them gets a batch of its own."""
    asked = threading.Event()

    def slow(client):
        with client:
            assert asked.wait(PATIENCE)
            yield from BATCHES

    read = OpenRead(CONFIG, slow)
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(next, read) for _ in BATCHES]
        asked.set()
        found = [answer.result(PATIENCE) for answer in answers]
    assert sorted(map(repr, BATCHES)) == sorted(map(repr, found))


def test_a_batch_that_is_being_read_is_given_up(reads, monkeypatch):
    """A thread that waits for a broker gets an error."""
    monkeypatch.setattr("spark_kafka_sink.consumer.read_arrow.open_reads", reads)
    with DevBroker(topics={"t": 1}) as broker, ThreadPoolExecutor(1) as thread:
        fill(broker.bootstrap_servers, "t", numbered(1))
        asked = threading.Event()
        broker.on(ApiKey.FETCH, lambda *_: asked.set() or NeverAnswer(), expect=True)
        read = read_arrow(broker.bootstrap_servers, "t", poll_timeout=4 * PATIENCE)
        answer = thread.submit(read.read_next_batch)
        assert asked.wait(PATIENCE)
        reads.end()
        with pytest.raises(Exception, match="the consumer client was closed while it was reading"):
            answer.result(PATIENCE)


SCRIPT = """
import sys
import duckdb
from spark_kafka_sink import read_arrow

batches = read_arrow(sys.argv[1], "t", columns=["value"], max_partition_fetch_bytes=100_000)
duckdb.sql("SET threads = 1")
# A slow query would print one.
duckdb.sql("SET enable_progress_bar = false")
print(duckdb.sql("SELECT * FROM batches LIMIT 1").fetchall(), flush=True)
sys.stdin.readline()
"""


def test_a_process_ends_although_duckdb_reads_ahead():
    """The thread that DuckDB's LIMIT leaves behind neither crashes the process nor holds it up."""
    waits = threading.Event()

    def stall(request, _):
        # The query needs a batch or two of 16384 rows, and about eight are read ahead.
        if request.topics[0].partitions[0].fetch_offset < 80_000:
            return None
        waits.set()
        return NeverAnswer()

    with DevBroker(topics={"t": 1}) as broker:
        settings = {"compression.type": "none", "batch.size": 16_384}
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **settings}) as producer:
            rows = pa.table({"value": pa.array([b"x" * 100] * 400_000, pa.binary())})
            producer.send_arrow(rows, topic="t").result(PATIENCE)
        broker.on(ApiKey.FETCH, stall, expect=True)
        with subprocess.Popen(  # noqa: S603 -- the arguments are ours
            [sys.executable, "-c", SCRIPT, broker.bootstrap_servers],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert waits.wait(PATIENCE)
                printed, errors = process.communicate("\n", timeout=PATIENCE)
            finally:
                process.kill()
    assert (0, f"[({b'x' * 100!r},)]\n", "") == (process.returncode, printed, errors)
