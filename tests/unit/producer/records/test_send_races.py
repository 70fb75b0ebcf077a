"""Single sends against the embedded broker, where threads, time and errors interact."""

from __future__ import annotations

import threading
import time
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, Delay
from spark_kafka_sink.errors import (
    BufferExhaustedError,
    DeliveryError,
    FatalProducerError,
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS
from spark_kafka_sink.producer.sending.transaction_state import TransactionState
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.producing import patiently
from tests.support.producer.sending import values_of
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.producer.records.record_futures import FutureRecordMetadata

TRANSACTIONAL = {"transactional.id": "x", "linger.ms": 60_000}
FAST_RETRIES = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5}
#: Seconds for which a node receives no requests.
PAUSE = 0.3
#: Many times what the sockets of a connection hold while nothing is read.
UNREAD_BYTES = 8_000_000


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"t": 1}) as broker:
        yield broker


def _producer(broker: DevBroker, **settings: object) -> KafkaProducer:
    return KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, **FAST_RETRIES, **settings}
    )


def _deliver(producer: KafkaProducer, value: bytes) -> None:
    """Send a record, flush, and wait until it is acknowledged."""
    written = producer.send("t", value)
    producer.flush()
    written.result(120)


def _await(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true soon, or fail."""
    pause = threading.Event()
    assert any(condition() or pause.wait(0.01) for _ in range(6_000))


def _on_network_thread(producer: KafkaProducer, call: Callable[[], object]) -> None:
    async def do() -> None:
        call()

    producer._core._thread.run(do(), 120)


def _leader(producer: KafkaProducer) -> Node:
    leader = producer._core.snapshot.leader_of(TopicPartition("t", 0))
    assert leader is not None
    return leader


def test_an_open_batch_is_sent_after_the_throttle_of_its_broker(broker):
    """Nothing signals the end of a throttle (KIP-219), yet a batch is sent soon after it."""
    with _producer(broker) as producer:
        producer.send("t", b"a").result(120)
        leader, client = _leader(producer), producer._core._client
        _on_network_thread(producer, lambda: client.throttle(leader, PAUSE))
        assert 1 == producer.send("t", b"b").result(120).offset


def test_an_open_batch_is_sent_after_the_reconnect_backoff_of_its_broker(broker):
    """Nothing signals the end of a back-off, yet a batch is sent soon after it."""
    backoff = {"reconnect.backoff.ms": int(PAUSE * 1000), "reconnect.backoff.max.ms": 1_000}
    with _producer(broker, **backoff) as producer:
        producer.send("t", b"a").result(120)
        connection = producer._core._client._connections[_leader(producer).node_id]
        _on_network_thread(producer, connection.close)
        assert 1 == producer.send("t", b"b").result(120).offset


def test_a_record_behind_an_expired_one_ends_in_time(broker):
    """A batch that is open while the one before it expires is sent, or expires as well."""
    settings = {
        "acks": "0",
        "enable.idempotence": False,
        "delivery.timeout.ms": 1_000,
        "request.timeout.ms": 1_000,
        "linger.ms": 0,
        "compression.type": "none",
        "send.buffer.bytes": 65_536,
        "max.request.size": 2 * UNREAD_BYTES,
    }
    with _producer(broker, **settings) as producer:
        patiently(lambda: producer.partitions_for("t"))
        # The broker reads nothing more on this connection.
        hook = broker.on(ApiKey.PRODUCE, Delay(3_600), times=1)
        _await(lambda: producer.send("t", b"a").exception(120) is None and hook.fired == 1)
        unread = producer.send("t", bytes(UNREAD_BYTES))
        connections = producer._core._client._connections
        _await(lambda: unread.done() or any(c.has_unsent for c in list(connections.values())))
        behind = producer.send("t", b"b")
        assert isinstance(unread.exception(120), DeliveryError)
        assert isinstance(behind.exception(120), DeliveryError | None)


# --- transactions


def test_a_staged_record_without_memory_fails_its_transaction(broker, monkeypatch):
    """The commit fails even if the application does not check the record's future."""
    with _producer(broker, **{"transactional.id": "x"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"a").result(120)
        pool = producer._core.accumulator._pool
        held = pool.available_bytes
        pool.reserve(held)
        with monkeypatch.context() as impatient:
            # Only here, since max.block.ms limits the other calls as well.
            gatherer = producer._core.gatherer
            for part in (producer._core, gatherer, gatherer._builder):
                impatient.setattr(part, "_max_block", 0.1)
            lost = producer.send("t", b"b")
            with pytest.raises(BufferExhaustedError):
                lost.result(120)
        pool.release(held)
        with pytest.raises(TransactionAbortableError, match=r"buffer\.memory"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("t", b"c")
        producer.commit_transaction()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_record_overtaken_by_the_end_of_its_transaction_fails(broker, monkeypatch, end):
    """The future of a send that the end of its transaction overtook fails."""
    with _producer(broker, **TRANSACTIONAL) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _deliver(producer, b"in")
        prepare = producer._staging._preparation.prepare

        def be_overtaken(record: object) -> object:
            getattr(producer, end)()
            return prepare(record)

        with monkeypatch.context() as overtaking:
            overtaking.setattr(producer._staging._preparation, "prepare", be_overtaken)
            late = producer.send("t", b"late")
        producer.begin_transaction()
        _deliver(producer, b"next")
        producer.commit_transaction()
        with pytest.raises(IllegalStateError, match="in the next transaction"):
            late.result(120)
    assert [b"in", b"next"] == values_of(broker, "t")


def test_rows_overtaken_by_the_end_of_their_transaction_are_rejected(broker):
    """Rows overtaken by the end of their transaction are refused, under the lock of the batches."""
    with _producer(broker, **TRANSACTIONAL) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        await_partition = producer._core.await_partition

        def be_overtaken(topic: str, **limits: float) -> int:
            producer.commit_transaction()
            return await_partition(topic, **limits)

        producer._core.await_partition = be_overtaken
        with pytest.raises(IllegalStateError, match="begin a transaction first"):
            producer.append(columns([b"late"]))
        producer._core.await_partition = await_partition
        producer.begin_transaction()
        producer.append(columns([b"next"]))
        producer.commit_transaction()
    assert [b"next"] == values_of(broker, "t")


def test_a_batch_closed_during_an_abort_stays_out_of_the_next_transaction(broker):
    """An abort between the check of a batch and its append keeps the batch out of the next one."""
    with _producer(broker, **TRANSACTIONAL) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _deliver(producer, b"first")
        aborted = producer.send("t", b"aborted")
        abort = threading.Thread(target=producer.abort_transaction, daemon=True)
        accumulator, manager = producer._core.accumulator, producer._core.transaction_manager
        enqueue = accumulator.enqueue

        def be_overtaken(batch: object) -> None:
            abort.start()
            _await(lambda: manager.state.current is TransactionState.READY)
            enqueue(batch)

        accumulator.enqueue = be_overtaken
        producer._core.gatherer.close_batches()
        accumulator.enqueue = enqueue
        abort.join()
        producer.begin_transaction()
        _deliver(producer, b"next")
        producer.commit_transaction()
        assert isinstance(aborted.exception(120), KafkaError)
    assert [b"first", b"next"] == values_of(broker, "t")


@pytest.mark.parametrize(
    ("part", "where"),
    [("_sender.completion", "_on_partition_response"), ("_sender", "run_once")],
    ids=["answers", "loop"],
)
def test_no_commit_succeeds_after_a_failure_of_the_network_thread(broker, part, where):
    """A bug on the network thread fails the batches in flight and the transaction at once."""
    producer = _producer(broker, **TRANSACTIONAL)
    producer.init_transactions()
    producer.begin_transaction()
    _deliver(producer, b"a")
    owner = attrgetter(part)(producer._core)
    works = getattr(owner, where)

    def fail_with_a_batch_in_flight(*args: object, **named: object) -> object:
        if producer._core.accumulator.has_incomplete:
            1 / 0  # noqa: B018
        return works(*args, **named)

    setattr(owner, where, fail_with_a_batch_in_flight)
    lost = producer.send("t", b"lost")
    producer._core.gatherer.close_batches()
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        lost.result(120)
    with pytest.raises(FatalProducerError, match="ZeroDivisionError"):
        producer.commit_transaction()
    producer.close()


# --- time


def _without_memory(broker: DevBroker) -> tuple[KafkaProducer, FutureRecordMetadata]:
    """Build a producer with a staged record for which there is no memory."""
    producer = _producer(broker, **{"linger.ms": 3_600_000, "max.block.ms": 3_600_000})
    producer.partitions_for("t")
    pool = producer._core.accumulator._pool
    pool.reserve(pool.available_bytes)
    return producer, producer.send("t", b"v")


@pytest.mark.parametrize("is_locked", [False, True], ids=["free", "locked"])
@pytest.mark.parametrize("call", ["result", "flush", "close"])
def test_no_call_exceeds_its_timeout(broker, call, is_locked):
    """Neither max.block.ms nor another thread's wait for memory extends a timeout."""
    producer, future = _without_memory(broker)
    waiting = threading.Thread(target=future.exception, daemon=True)
    if is_locked:
        waiting.start()
        _await(lambda: producer._core.accumulator._pool.waiting_threads > 0)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        (future.result if call == "result" else getattr(producer, call))(0.1)
    assert time.monotonic() - started < 600
    if call != "close":
        assert not future.done()
    producer.close(0)
    assert isinstance(future.exception(120), KafkaError)
    if is_locked:
        waiting.join(120)


def test_a_send_behind_a_wait_for_memory_raises_no_error(broker):
    """The record is already staged, so an error would make the caller send it twice."""
    producer, first = _without_memory(broker)
    waiting = threading.Thread(target=first.exception, daemon=True)
    waiting.start()
    pool = producer._core.accumulator._pool
    _await(lambda: pool.waiting_threads > 0)
    producer._core._max_block = 0.1
    futures = [producer.send("t", b"%d" % n) for n in range(CHUNK_RECORDS)]
    pool.release(pool.total_bytes - pool.available_bytes)
    producer.close()
    waiting.join(120)
    assert list(range(1 + CHUNK_RECORDS)) == [f.result(0).offset for f in [first, *futures]]


# --- memory and batches


def test_a_record_without_memory_is_retried(broker):
    """A record without memory is retried, because memory may be freed without a signal."""
    with _producer(broker, **{"linger.ms": 20}) as producer:
        producer.send("t", b"a").result(120)
        pool = producer._core.accumulator._pool
        held = pool.available_bytes
        pool.reserve(held)
        staged = producer.send("t", b"b")
        _await(lambda: producer._gatherer.staged_since is not None)
        pause = threading.Event()
        pause.wait(0.1)
        pool.release(held)
        _await(staged.done)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_size_of_0_disables_batching(broker, codec):
    """With batch.size=0 each record is a batch, as in Java."""
    settings = {"batch.size": 0, "linger.ms": 100, "compression.type": codec}
    with _producer(broker, **settings) as producer:
        for _ in range(10):
            producer.send("t", b"v")
    assert 10 == broker.call(
        lambda b: len(list(b.cluster.partition(TopicPartition("t", 0)).log.batches()))
    )


def test_a_lost_row_does_not_end_the_network_thread(broker):
    """The futures of later batches fail, all memory is freed, and the thread stays alive."""
    producer = _producer(broker, **{"linger.ms": 100, "compression.type": "none"})
    producer.send("t", b"a").result(120)
    refusal = AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    broker.on(ApiKey.PRODUCE, refusal, times=1)
    producer.append(columns([b"lost"]))
    _await(lambda: producer._core.accumulator.has_failed)
    producer._plain_topics.add("t")
    with pytest.raises(DeliveryError):
        producer.send("t", b"b").result(120)
    assert producer._core._thread.is_alive
    with pytest.raises(DeliveryError):
        producer.close()
    pool = producer._core.accumulator._pool
    assert pool.total_bytes == pool.available_bytes


def test_appended_rows_are_sent_after_linger_ms(broker):
    """The network thread closes batches of appended rows after linger.ms, without another call."""
    with _producer(broker, **{"linger.ms": 50}) as producer:
        producer.partitions_for("t")
        producer.append(columns([b"a"]))
        _await(lambda: values_of(broker, "t") == [b"a"])


def test_rows_before_a_bad_one_are_sent_after_linger_ms(broker):
    """The rows before a bad one are sent, although the call has raised an error."""
    values = pa.array([b"a", bytes(2_000_000)])
    with _producer(broker, **{"linger.ms": 50}) as producer:
        producer.partitions_for("t")
        with pytest.raises(RecordTooLargeError):
            producer.send_arrow(pa.table({"value": values}), topic="t")
        _await(lambda: values_of(broker, "t") == [b"a"])
