"""Single records through the whole producer, to the embedded broker and back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.faults import AnswerError, CloseConnection, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    DeliveryError,
    InvalidPartitionError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    ProducerClosedError,
    RecordTooLargeError,
    SerializationError,
)
from spark_kafka_sink.model import RecordMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import MAX_STAGED_BYTES, KafkaProducer
from spark_kafka_sink.producer.record_gatherer import CHUNK_RECORDS
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.decode import Record, decode_records
from tests.support.producing import patiently
from tests.support.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.protocol.messages.produce import ProduceRequest

PARTITIONS = 3
FAST_RETRIES = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1}
#: Longer than any test takes: who does not wait for a record does not see it sent by itself.
LARGE = bytes(MAX_STAGED_BYTES + 1)
LONG_LINGER = {"linger.ms": 60_000, "delivery.timeout.ms": 180_000}
TIMEOUT = 30
REFUSAL = AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"t": PARTITIONS, "one": 1}) as broker:
        yield broker


def _producer(broker: DevBroker, **settings: object) -> KafkaProducer:
    given = {"bootstrap.servers": broker.bootstrap_servers, **FAST_RETRIES, **settings}
    return KafkaProducer(given)


def _records(broker: DevBroker, topic: str = "one", partition: int = 0) -> list[Record]:
    place = TopicPartition(topic, partition)
    batches = broker.call(lambda b: [bytes(x) for x in b.cluster.partition(place).log.batches()])
    return [record for batch in batches for record in decode_records(batch)]


def _values(broker: DevBroker, topic: str = "one", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in _records(broker, topic, partition)]


def _carries(request: ProduceRequest, value: bytes) -> bool:
    return any(
        value in bytes(partition.records)
        for topic in request.topic_data
        for partition in topic.partition_data
    )


def _in_time(call):
    """Make a call on another thread that must not hang; give what it gives or raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(TIMEOUT)


# --- what arrives


@pytest.mark.parametrize("linger", [0, 5], ids="linger {}".format)
def test_a_record_arrives_with_all_that_it_has(broker, linger):
    """Key, value, headers, partition and timestamp; the future tells where and how large."""
    with _producer(broker, **{"linger.ms": linger}) as producer:
        future = producer.send(
            "t",
            b"value",
            key=b"k",
            headers=[("h", b"x"), ("n", None)],
            partition=2,
            timestamp=1_700_000_000_000,
        )
        metadata = future.result(TIMEOUT)
    assert RecordMetadata("t", 2, 0, 1_700_000_000_000, 1, 5) == metadata
    [record] = _records(broker, "t", 2)
    assert (b"k", b"value", 1_700_000_000_000) == (record.key, record.value, record.timestamp)
    assert [("h", b"x"), ("n", None)] == [(h.key, h.value) for h in record.headers]


@pytest.mark.parametrize(
    ("value", "key"),
    [(None, None), (b"", b""), (None, b"k"), (b"v", None), (bytes(10_000), bytes(9_000))],
    ids=["null", "empty", "tombstone", "no key", "large"],
)
def test_keys_and_values_of_every_kind_arrive(broker, value, key):
    """Null is not empty, and size does not matter up to the limits."""
    with _producer(broker) as producer:
        metadata = producer.send("one", value, key=key).result(TIMEOUT)
    [record] = _records(broker)
    assert (value, key) == (record.value, record.key)
    sizes = [-1 if item is None else len(item) for item in (key, value)]
    assert sizes == [metadata.serialized_key_size, metadata.serialized_value_size]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_records_arrive_once_in_order_and_know_their_offsets(broker, codec):
    """However they are batched and compressed, each future names its own record."""
    count = 3 * CHUNK_RECORDS + 7
    with _producer(broker, **{"compression.type": codec, "batch.size": 3_000}) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(count)]
        offsets = [future.result(TIMEOUT).offset for future in futures]
    assert list(range(count)) == offsets
    assert [b"%d" % number for number in range(count)] == _values(broker)


def test_a_single_record_is_sent_without_anybody_waiting_for_it(broker):
    """linger.ms sends what nobody asks for."""
    told = threading.Event()
    with _producer(broker, **{"linger.ms": 5}) as producer:
        producer.send("one", b"a").result(TIMEOUT)
        producer.send("one", b"b", on_delivery=lambda *_: told.set())
        assert told.wait(TIMEOUT)
    assert [b"a", b"b"] == _values(broker)


def test_records_keep_the_order_of_their_keys(broker):
    """Records of a key go to one partition, in the order of sending."""
    with _producer(broker, **{"batch.size": 500}) as producer:
        for number in range(2_000):
            producer.send("t", b"%d" % number, key=b"%d" % (number % 10))
    for key in range(10):
        found = [
            [int(r.value) for r in _records(broker, "t", p) if r.key == b"%d" % key]
            for p in range(PARTITIONS)
        ]
        assert [list(range(key, 2_000, 10))] == [values for values in found if values]


def test_records_without_a_key_reach_every_partition(broker):
    """They stick to a partition for about a batch, and go on to the next."""
    with _producer(broker, **{"batch.size": 500}) as producer:
        for number in range(3_000):
            producer.send("t", b"%09d" % number)
    values = [_values(broker, "t", p) for p in range(PARTITIONS)]
    assert 3_000 == len({value for each in values for value in each})
    assert all(values)


@pytest.mark.parametrize("threads", [2, 5])
def test_several_threads_send_in_their_own_order(broker, threads):
    """Each thread's records keep their order in a partition; none is lost or doubled."""
    count = 2_000

    def send(thread: int) -> list[int]:
        futures = [
            producer.send("t", b"%d %d" % (thread, number), partition=number % PARTITIONS)
            for number in range(count)
        ]
        return [future.result(TIMEOUT).offset for future in futures]

    with (
        _producer(broker, **{"batch.size": 2_000, "linger.ms": 1}) as producer,
        ThreadPoolExecutor(threads) as pool,
    ):
        offsets = list(pool.map(send, range(threads)))
    for partition in range(PARTITIONS):
        values = _values(broker, "t", partition)
        for thread in range(threads):
            expected = [b"%d %d" % (thread, n) for n in range(partition, count, PARTITIONS)]
            mine = [value for value in values if value.startswith(b"%d " % thread)]
            assert expected == mine
            assert [values.index(v) for v in mine[:20]] == offsets[thread][partition::3][:20]


def test_all_forms_of_sending_keep_one_order(broker):
    """Records, rows and tables of one thread arrive in the order of the calls."""
    with _producer(broker, **LONG_LINGER) as producer:
        first = producer.send("one", b"0")
        producer.append(columns([b"1", b"2"], topic="one"))
        second = producer.send("one", b"3")
        table = producer.send_arrow(pa.table({"value": [b"4", b"5"]}), topic="one")
        third = producer.send("one", bytes(MAX_STAGED_BYTES + 1))
        producer.append(columns([b"7"], topic="one"), first_row=2)
        producer.flush()
        assert [0, 3, 6] == [future.result(0).offset for future in (first, second, third)]
        acks = table.result(0)[TopicPartition("one", 0)]
        assert (4, 5, 2) == (acks.first_offset, acks.last_offset, acks.records)
    values = _values(broker)
    assert [b"0", b"1", b"2", b"3", b"4", b"5", b"7"] == values[:6] + values[7:]


@pytest.mark.parametrize(
    "large",
    [
        {"value": LARGE},
        {"key": LARGE},
        {"headers": [("name", LARGE)]},
        {"headers": [("n" * 5_000, b"")]},
    ],
    ids=["value", "key", "header value", "header name"],
)
def test_a_large_record_is_written_into_a_batch_at_once(broker, large):
    """What is staged is outside of buffer.memory; headers count as well."""
    with _producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"small")
        assert 1 == len(producer._staged)
        producer.send("one", **large)
        assert 0 == len(producer._staged)


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, handled=True),
        CloseConnection(),
        CloseConnection(handled=True),
    ],
    ids=str,
)
def test_a_fault_now_and_then_is_nobodys_business(broker, fault):
    """Retries neither lose nor double nor reorder, and futures name the right offsets."""
    broker.on(ApiKey.PRODUCE, lambda request, context: fault if context.number % 4 == 0 else None)
    with _producer(broker, **{"batch.size": 1_000, "linger.ms": 1}) as producer:
        futures = [producer.send("one", b"%050d" % number) for number in range(1_000)]
        offsets = [future.result(TIMEOUT).offset for future in futures]
    assert [b"%050d" % number for number in range(1_000)] == _values(broker)
    assert list(range(1_000)) == offsets


def test_a_batch_that_the_broker_finds_too_large_is_divided_under_its_futures(broker):
    """MESSAGE_TOO_LARGE halves a batch; each record's future follows it."""
    broker.create_topic("small", partitions=1, configs={"max.message.bytes": "2000"})
    with _producer(broker, **{"compression.type": "lz4", "batch.size": 20_000}) as producer:
        values = [os.urandom(100) for _ in range(300)]
        futures = [producer.send("small", value) for value in values]
        assert list(range(300)) == [future.result(TIMEOUT).offset for future in futures]
    assert values == _values(broker, "small")


# --- callbacks


def test_callbacks_hear_of_each_record_in_order(broker):
    """Metadata and no error, once each, in the order of the offsets."""
    told = []
    with _producer(broker, **{"batch.size": 1_000}) as producer:
        for number in range(1_500):
            producer.send(
                "one", b"%d" % number, on_delivery=lambda m, e: told.append((m.offset, e))
            )
        producer.flush()
        assert [(number, None) for number in range(1_500)] == told


def test_flush_returns_when_the_callbacks_have_been_called(broker):
    """Who has flushed may look at what its callbacks have gathered, as in Java."""
    with _producer(broker, **LONG_LINGER) as producer:
        for _ in range(20):
            told = []
            slow = threading.Event()
            producer.send("one", b"a", on_delivery=lambda *_, slow=slow: slow.wait(0.02))
            producer.send("one", b"b", on_delivery=lambda *_, told=told: told.append(1))
            producer.flush()
            assert [1] == told


def test_a_callback_that_raises_is_logged_and_harms_nobody(broker, caplog):
    """The record is delivered, and so are all others."""
    told = []
    with _producer(broker) as producer:
        producer.send("one", b"a", on_delivery=lambda *_: 1 / 0)
        producer.send("one", b"b", on_delivery=lambda *_: told.append("b"))
        producer.flush()
    assert ["b"] == told
    assert [b"a", b"b"] == _values(broker)
    assert "a delivery callback raised" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("way", ["on_delivery", "add_done_callback", "interceptor"])
def test_a_callback_cannot_end_the_producer(broker, caplog, error, way):
    """What would end a program is logged; the next callback is called, the next record sent."""
    told = []

    def end(*_: object) -> None:
        raise error

    class Ending:
        on_acknowledgement = staticmethod(end)

    settings = {"interceptor.classes": (Ending(),)} if way == "interceptor" else {}
    with _producer(broker, **LONG_LINGER, **settings) as producer:
        first = producer.send("one", b"a", on_delivery=end if way == "on_delivery" else None)
        if way == "add_done_callback":
            first.add_done_callback(end)
        producer.send("one", b"b", on_delivery=lambda *_: told.append("b"))
        producer.flush()
        assert (0, ["b"]) == (first.result(0).offset, told)
        later = producer.send("one", b"c")
        producer.flush()
        assert 2 == later.result(0).offset
    told = (
        "on_acknowledgement of an interceptor failed" if settings else "a delivery callback raised"
    )
    assert told in caplog.text


def test_callbacks_are_called_on_the_network_thread_with_a_future_that_is_done(broker):
    """In the order of the records; of a future that is done already at once, by who asks."""
    told = []
    with _producer(broker, **LONG_LINGER) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(3)]
        for future in futures:
            future.add_done_callback(
                lambda f: told.append((f.done(), f.result(0).offset, threading.current_thread()))
            )
        producer.flush()
        [network_thread] = {thread for _, _, thread in told}
        assert [(True, 0), (True, 1), (True, 2)] == [(done, offset) for done, offset, _ in told]
        assert "kafka-producer-network-thread" in network_thread.name
        futures[1].add_done_callback(lambda f: told.append(threading.current_thread()))
        assert threading.current_thread() is told[-1]


def test_a_callback_may_send(broker):
    """A chain of records, each sent when the one before it is acknowledged."""
    done = threading.Event()
    with _producer(broker, **{"linger.ms": 0}) as producer:

        def send(number: int) -> None:
            if number == 20:
                done.set()
            else:
                producer.send("one", b"%d" % number, on_delivery=lambda m, e: send(number + 1))

        send(0)
        assert done.wait(TIMEOUT)
    assert [b"%d" % number for number in range(20)] == _values(broker)


def test_a_callback_may_send_more_than_a_chunk(broker):
    """The network thread writes what it can, and waits for nothing."""
    count = 3 * CHUNK_RECORDS
    futures = []
    with _producer(broker) as producer:

        def send_many(metadata: object, error: object) -> None:
            futures.extend(producer.send("one", b"%d" % n) for n in range(count))

        producer.send("one", b"first", on_delivery=send_many)
        _in_time(producer.flush)
        _in_time(lambda: [future.result(TIMEOUT) for future in futures])
    assert [b"first", *(b"%d" % n for n in range(count))] == _values(broker)


@pytest.mark.parametrize(
    "wait",
    [
        lambda producer: producer.flush(),
        lambda producer: producer.close(),
        lambda producer: producer.partitions_for("t"),
        lambda producer: producer.append(columns([b"v"])),
        lambda producer: producer.send_arrow(pa.table({"value": [b"v"]}), topic="t"),
        lambda producer: producer.send("one", b"v").result(),
    ],
    ids=["flush", "close", "partitions_for", "append", "send_arrow", "result"],
)
def test_the_network_thread_is_told_that_it_must_not_wait(broker, wait):
    """What could never end on that thread raises there instead."""
    raised = []
    with _producer(broker) as producer:

        def use(metadata: object, error: object) -> None:
            with pytest.raises(ProducerClosedError, match="must not wait for itself") as caught:
                wait(producer)
            raised.append(caught.value)

        producer.send("one", b"v", on_delivery=use).result(TIMEOUT)
        producer.flush()
    assert 1 == len(raised)


def test_the_network_thread_may_send_only_to_topics_that_are_known(broker):
    """It must not wait for metadata, and the record's future says so."""
    futures = []
    with _producer(broker) as producer:
        producer.send(
            "one", b"v", on_delivery=lambda *_: futures.append(producer.send("t", b"w"))
        ).result(TIMEOUT)
        producer.flush()
    with pytest.raises(KafkaTimeoutError, match="'t' is not known yet"):
        futures[0].result(0)


# --- what comes with the future, and what is raised


def test_a_topic_that_does_not_come_fails_its_record():
    """As in Java, send returns a future with the error; callbacks hear of it."""
    told = []
    with DevBroker(auto_create_topics=False) as broker:
        with _producer(broker, **{"max.block.ms": 1_000}) as producer:
            future = producer.send("absent", b"v", on_delivery=lambda *end: told.append(end))
            assert future.done()
            with pytest.raises(KafkaTimeoutError, match=r"'absent'.*UNKNOWN_TOPIC_OR_PARTITION"):
                future.result()
        assert [(None, future.exception())] == told


def test_a_partition_that_does_not_come_fails_its_record(broker):
    """A partition may be added within max.block.ms; after that the error names it."""
    with _producer(broker, **{"max.block.ms": 200}) as producer:
        patiently(lambda: producer.partitions_for("t"))
        producer.send("t", b"v").result(TIMEOUT)
        with pytest.raises(KafkaTimeoutError, match=r"t.*3"):
            producer.send("t", b"v", partition=3).result(0)


def test_a_topic_that_is_refused_fails_its_record(broker):
    """A name that no topic can have is told at once."""
    with (
        _producer(broker) as producer,
        pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"),
    ):
        producer.send("no/such", b"v").result(0)


def test_a_topic_name_that_is_no_text_harms_nobody(broker):
    """Half a surrogate pair cannot be asked for; the producer goes on."""
    with _producer(broker) as producer:
        with pytest.raises(ValueError, match="surrogates not allowed"):
            producer.send("\ud800", b"v")
        with pytest.raises(ValueError, match="surrogates not allowed"):
            producer.send_arrow(pa.table({"value": [b"v"]}), topic="\ud800")
        with pytest.raises(TypeError, match="the topic must be a str"):
            producer.send_arrow(pa.table({"value": [b"v"]}), topic=5)
        producer.send("one", b"v").result(TIMEOUT)


def test_unreachable_brokers_fail_the_record(broker):
    """The error names the addresses and the cause."""
    broker.stop()
    producer = _producer(broker, **{"max.block.ms": 200})
    with pytest.raises(NetworkError, match=r"bootstrap\.servers"):
        producer.send("t", b"v").result(0)
    producer.close(0)
    broker.start()


def test_a_record_too_large_fails_alone(broker):
    """It can never be sent, and says so at once; others go."""
    with _producer(broker, **{"max.request.size": 100_000}) as producer:
        future = producer.send("one", bytes(200_000))
        assert isinstance(future.exception(0), RecordTooLargeError)
        producer.send("one", b"v").result(TIMEOUT)
    assert [b"v"] == _values(broker)


def test_a_small_limit_holds_for_records_that_are_staged(broker):
    """Also where a record is small enough to be staged unlooked at."""
    with _producer(broker, **{"max.request.size": 1_000}) as producer:
        producer.send("one", b"a").result(TIMEOUT)
        refused = producer.send("one", bytes(2_000))
        after = producer.send("one", b"b")
        producer.flush()
        assert isinstance(refused.exception(0), RecordTooLargeError)
        assert 1 == after.result(0).offset
    assert [b"a", b"b"] == _values(broker)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": None}, TypeError),
        ({"topic": ""}, ValueError),
        ({"topic": "t", "partition": -1}, ValueError),
        ({"topic": "t", "partition": "1"}, TypeError),
        ({"topic": "t", "timestamp": -1}, ValueError),
        ({"topic": "t", "headers": [("h", "v")]}, TypeError),
        ({"topic": "t", "value": 5}, SerializationError),
        ({"topic": "t", "key": 5}, SerializationError),
    ],
    ids=str,
)
def test_what_is_no_record_is_raised(broker, arguments, error):
    """A mistake of the caller is raised where it is made, and sends nothing."""
    with _producer(broker) as producer:
        producer.send("t", b"v").result(TIMEOUT)
        with pytest.raises(error):
            producer.send(**{"value": b"v", **arguments})
    assert 1 == sum(len(_values(broker, "t", p)) for p in range(PARTITIONS))


def test_memory_that_does_not_come_free_fails_each_record(broker):
    """When brokers do not answer, records end with BufferExhaustedError; none stays pending."""
    broker.on(ApiKey.PRODUCE, NeverAnswer())
    sizes = {
        "buffer.memory": 20_000,
        "max.request.size": 10_000,
        "batch.size": 2_000,
        "compression.type": "none",
    }
    told = []
    producer = _producer(broker, **sizes, **{"max.block.ms": 100}, **LONG_LINGER)
    patiently(lambda: producer.partitions_for("one"))
    futures = [
        producer.send("one", bytes(100), on_delivery=lambda m, e: told.append(e))
        for _ in range(CHUNK_RECORDS)
    ]
    failed = [future for future in futures if future.done()]
    assert failed
    assert {BufferExhaustedError} == {type(future.exception(0)) for future in failed}
    producer.close(0)
    assert all(future.done() for future in futures)
    assert len(futures) == len(told)


def test_a_batch_that_is_refused_leaves_the_others(broker):
    """One topic's trouble is not another's, with idempotence as well."""
    broker.create_topic("refused", partitions=1)
    broker.on(
        ApiKey.PRODUCE,
        lambda request, context: REFUSAL if _carries(request, b"refuse me") else None,
    )
    told = []
    with _producer(broker, **{"linger.ms": 0, "compression.type": "none"}) as producer:
        before = producer.send("one", b"a")
        before.result(TIMEOUT)
        wrong = producer.send("refused", b"refuse me", on_delivery=lambda m, e: told.append((m, e)))
        with pytest.raises(DeliveryError, match=r"refused-0.*TOPIC_AUTHORIZATION_FAILED"):
            wrong.result(TIMEOUT)
        after = producer.send("one", b"b")
        producer.flush()
        assert 1 == after.result(0).offset
        assert [(None, wrong.exception())] == told
    assert [b"a", b"b"] == _values(broker)


def test_a_lost_record_fails_its_future_and_no_later_call(broker):
    """Who holds a future hears of it there: flush and close do not raise it again."""
    broker.on(ApiKey.PRODUCE, REFUSAL, times=1)
    with _producer(broker, **LONG_LINGER) as producer:
        lost = producer.send("one", b"a")
        producer.flush()
        assert isinstance(lost.exception(0), DeliveryError)
        producer.send("one", b"b")
        producer.flush()
    assert [b"b"] == _values(broker)


def test_lost_rows_of_append_fail_every_later_call(broker):
    """Rows have no future, so the next call tells, whichever it is."""
    broker.on(ApiKey.PRODUCE, REFUSAL, times=1)
    producer = _producer(broker, **LONG_LINGER)
    producer.append(columns([b"a"], topic="one"))
    with pytest.raises(DeliveryError):
        producer.flush()
    for use in (
        producer.flush,
        lambda: producer.append(columns([b"b"], topic="one")),
        lambda: producer.send("one", b"b"),
        lambda: producer.send_arrow(pa.table({"value": [b"b"]}), topic="one"),
        producer.close,
    ):
        with pytest.raises(DeliveryError, match="one-0"):
            use()


def test_rows_of_append_are_not_lost_with_a_batch_that_breaks_off(broker, monkeypatch):
    """A batch may hold records and rows: its records fail, and the rows fail the next call."""

    def fail(records: object) -> bytes:
        raise MemoryError

    producer = _producer(broker, **LONG_LINGER, **{"compression.type": "lz4"})
    producer.append(columns([b"row"], topic="one"))
    future = producer.send("one", b"record")
    with monkeypatch.context() as broken:
        broken.setattr(producer._core._compressor, "compress", fail)
        for _ in range(CHUNK_RECORDS):
            producer.send("one", os.urandom(MAX_STAGED_BYTES))
    for use in (lambda: future.result(0), producer.flush, producer.close):
        with pytest.raises(KafkaError, match="in the middle of a batch"):
            use()


# --- what ends the producer


def test_the_end_of_the_network_thread_resolves_every_record(broker):
    """A mistake of ours leaves nobody waiting, and every later call tells it."""
    told = []
    producer = _producer(broker, **LONG_LINGER)
    producer.send("one", b"first")
    producer.flush()
    futures = [
        producer.send("one", b"%d" % n, on_delivery=lambda m, e: told.append(e)) for n in range(10)
    ]
    producer._core._sender.run_once = lambda now: 1 / 0
    producer._core.gatherer.note_staged()
    producer._core._thread.call_soon(producer._core._wakeup)
    producer._core._thread.join(TIMEOUT)
    for future in futures:
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            future.result(TIMEOUT)
    assert 10 == len(told)
    for use in (
        producer.flush,
        lambda: producer.send("one", b"v"),
        lambda: producer.send("another", b"v"),
        lambda: producer.append(columns([b"v"])),
    ):
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            use()
    producer.close()


def test_a_producer_id_that_is_refused_resolves_every_record(broker):
    """Without the right to write nothing waits for it; once it is granted, records go."""
    refused = broker.on(
        ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    )
    with _producer(broker, **{"linger.ms": 1}) as producer:
        for _ in range(2):
            with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
                producer.send("one", b"v").result(TIMEOUT)
        refused.remove()
        assert 0 == producer.send("one", b"w").result(TIMEOUT).offset
    assert [b"w"] == _values(broker)


# --- close


def test_every_use_after_close_is_an_error(broker):
    """Not a hang; closing again is none."""
    producer = _producer(broker)
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


def test_closing_sends_what_is_gathered(broker):
    """A graceful close waits for every record, and calls every callback."""
    told = []
    producer = _producer(broker, **LONG_LINGER)
    futures = [
        producer.send("one", b"%d" % n, on_delivery=lambda m, e: told.append(m.offset))
        for n in range(10)
    ]
    producer.close()
    assert list(range(10)) == told
    assert list(range(10)) == [future.result(0).offset for future in futures]


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_close_that_runs_out_of_time_fails_every_record(broker, timeout):
    """What is staged, open, queued and in flight ends with an error, and is told to callbacks."""
    broker.on(ApiKey.PRODUCE, NeverAnswer())
    told = []
    producer = _producer(
        broker, **{"batch.size": 500, "linger.ms": 60_000, "delivery.timeout.ms": 180_000}
    )
    futures = [
        producer.send("one", b"%0100d" % n, on_delivery=lambda m, e: told.append(e))
        for n in range(CHUNK_RECORDS + 10)
    ]
    if timeout:
        with pytest.raises(KafkaTimeoutError, match=f"within {timeout} s"):
            producer.close(timeout)
    else:
        producer.close(timeout)
    assert all(future.done() for future in futures)
    assert {ProducerClosedError} == {type(future.exception(0)) for future in futures}
    assert len(futures) == len(told)
    assert not producer._core._thread.is_alive


def test_a_block_that_fails_gives_up_what_is_gathered(broker):
    """The context manager closes at once, and lets the block's own error through."""
    with pytest.raises(ZeroDivisionError), _producer(broker, **LONG_LINGER) as producer:  # noqa: PT012
        future = producer.send("one", b"v")
        raise ZeroDivisionError
    with pytest.raises(ProducerClosedError):
        future.result(0)


def test_closing_wakes_who_waits(broker):
    """A thread that waits for a record, or for memory, is told when another one closes."""
    broker.on(ApiKey.PRODUCE, NeverAnswer())
    producer = _producer(broker, **{"linger.ms": 0})
    future = producer.send("one", b"v")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.result)
        producer.close(0)
        with pytest.raises(ProducerClosedError):
            waiting.result(TIMEOUT)


FORKED = """
import os, sys, threading
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import ProducerClosedError

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
            told.append("make one after the fork" in str(error))
    with KafkaProducer(settings) as another:
        another.send("one", b"child").result(30)
    os._exit(0 if told == [True] * 7 else 1)
_, status = os.waitpid(child, 0)
producer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_told_to_make_its_own_producer(broker):
    """No call hangs or sends the parent's records twice; a new producer works."""
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
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert [b"parent", b"child", b"staged"] == _values(broker)


# --- plug-ins


def test_serializers_make_bytes(broker):
    """Each side has its own; keys that serialize alike go to one partition."""
    settings = {"key.serializer": "string", "value.serializer": "json"}
    with _producer(broker, **settings) as producer:
        places = {
            producer.send("t", {"n": n}, key="schlüssel").result(TIMEOUT).partition
            for n in range(3)
        }
        with pytest.raises(SerializationError):
            producer.send("t", {"n": object()}, key="k")
    [partition] = places
    assert [b'{"n":0}', b'{"n":1}', b'{"n":2}'] == [
        value.replace(b" ", b"") for value in _values(broker, "t", partition)
    ]
    assert {"schlüssel".encode()} == {r.key for r in _records(broker, "t", partition)}


class _Interceptor:
    """Appends its mark to each value, and notes what it sees."""

    def __init__(self, mark: bytes, seen: list[object], *, raises: bool = False) -> None:
        self.mark, self.seen, self.raises = mark, seen, raises

    def on_send(self, record):
        if self.raises:
            raise ZeroDivisionError
        return type(record)(record.topic, record.value + self.mark, record.key)

    def on_acknowledgement(self, metadata, error) -> None:
        self.seen.append((self.mark, metadata, error))
        if self.raises:
            raise ZeroDivisionError

    def close(self) -> None:
        self.seen.append((self.mark, "closed"))


def test_interceptors_are_asked_in_order_and_may_raise(broker):
    """One that raises is passed over; each hears of every end, before the sender's own callback."""
    seen = []
    interceptors = (
        _Interceptor(b"1", seen),
        _Interceptor(b"!", seen, raises=True),
        _Interceptor(b"2", seen),
    )
    producer = _producer(broker, **{"interceptor.classes": interceptors})
    metadata = producer.send("one", b"v", on_delivery=lambda *end: seen.append(end)).result(TIMEOUT)
    producer.close()
    assert [b"v12"] == _values(broker)
    assert [(mark, metadata, None) for mark in (b"1", b"!", b"2")] == seen[:3]
    assert (metadata, None) == seen[3]
    assert [(b"1", "closed"), (b"!", "closed"), (b"2", "closed")] == seen[4:]


def test_interceptors_hear_of_records_that_got_nowhere(broker):
    """A record that failed before any batch is acknowledged to them with its error."""
    seen = []
    settings = {"interceptor.classes": (_Interceptor(b"1", seen),), "max.request.size": 1_000}
    with _producer(broker, **settings) as producer:
        future = producer.send("one", bytes(2_000))
        assert [(b"1", None, future.exception(0))] == seen


@pytest.mark.parametrize(
    ("record", "settings", "error"),
    [
        ({"topic": ""}, {}, ValueError),
        ({"topic": "one", "headers": [("name", 1)]}, {}, TypeError),
        ({"topic": "one", "value": b"v"}, {"value.serializer": "string"}, SerializationError),
    ],
)
def test_interceptors_hear_of_what_is_no_record(broker, record, settings, error):
    """They saw it go, so they hear why it did not; the caller is raised the same error."""
    seen = []
    settings |= {"interceptor.classes": (_Listener(seen),)}
    with _producer(broker, **settings) as producer:
        with pytest.raises(error) as caught:
            producer.send(**record)
        assert [(None, caught.value)] == seen


class _Listener:
    """An interceptor that only listens."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def on_acknowledgement(self, metadata, error) -> None:
        """Take down both."""
        self._seen.append((metadata, error))


def test_a_function_places_each_record(broker):
    """A partitioner plug-in sees every record that names no partition."""

    def last_digit(topic, key, value, partition_count, available) -> int:
        return int(value) % partition_count

    with _producer(broker, **{"partitioner.class": last_digit}) as producer:
        for number in range(9):
            producer.send("t", b"%d" % number)
        producer.send("t", b"9", partition=1)
    assert [[b"0", b"3", b"6"], [b"1", b"4", b"7", b"9"], [b"2", b"5", b"8"]] == [
        _values(broker, "t", p) for p in range(PARTITIONS)
    ]


@pytest.mark.parametrize("answer", [lambda: 1 / 0, lambda: "1", lambda: None, lambda: 2**31])
def test_a_function_that_places_no_record_is_named(broker, answer):
    """Its record fails with the function's name and the topic, and no row, for it has none."""

    def lost(topic, key, value, partition_count, available) -> int:
        return 0 if value == b"right" else answer()

    with _producer(broker, **{"partitioner.class": lost}) as producer:
        error = producer.send("t", b"wrong").exception(0)
        assert isinstance(error, InvalidPartitionError)
        assert re.match(r"topic 't': the partitioner .*\blost failed with \w+Error: ", str(error))
        assert error.row is None
        producer.send("t", b"right").result(TIMEOUT)


def test_a_plug_in_that_raises_fails_the_records_it_was_asked_for_and_is_named(broker):
    """All records that were staged together; those after them go on."""

    class Moody:
        is_angry = True

        def partition_rows(self, topic, columns, rows) -> np.ndarray:
            if self.is_angry:
                raise LookupError("not today")
            return np.zeros(rows.size, np.int32)

    moody = Moody()
    with _producer(broker, **LONG_LINGER, **{"partitioner.class": moody}) as producer:
        refused = [producer.send("t", b"%d" % number) for number in range(5)]
        errors = [future.exception(TIMEOUT) for future in refused]
        told = "topic 't': the partitioner .*Moody failed: LookupError: not today. Have it return"
        assert all(re.match(told, str(error)) for error in errors)
        moody.is_angry = False
        later = producer.send("t", b"later")
        producer.flush()
        assert 0 == later.result(0).offset


def test_errors_of_single_records_name_their_place_and_no_row(broker):
    """Nobody has counted them: neither what is refused here, nor what a broker refuses."""
    with _producer(broker, **{"max.request.size": 1_000}) as producer:
        large = producer.send("one", bytes(2_000))
        assert str(large.exception(0)).startswith("topic 'one': the record takes ")
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with _producer(broker) as producer:
        error = producer.send("one", b"v").exception(TIMEOUT)
    assert str(error).startswith("1 record for one-0 was not delivered: ")
    assert str(error).endswith("Grant this user WRITE on the topic")


def test_a_partitioner_that_names_no_partition_fails_its_record(broker):
    """The error is the record's, and others go on."""

    def wrong(topic, key, value, partition_count, available) -> int:
        return 7 if value == b"wrong" else 0

    with _producer(broker, **{"partitioner.class": wrong}) as producer:
        refused = producer.send("t", b"wrong")
        assert isinstance(refused.exception(0), InvalidPartitionError)
        producer.send("t", b"right").result(TIMEOUT)


def test_round_robin_serves_the_partitions_in_turn(broker):
    """As Java's RoundRobinPartitioner, for records with and without a key."""
    with _producer(broker, **{"partitioner.class": "round_robin"}) as producer:
        places = [producer.send("t", b"v", key=b"k" if number % 2 else None) for number in range(9)]
        partitions = [future.result(TIMEOUT).partition for future in places]
    assert [[0, 1, 2]] * 3 == [sorted(partitions[n : n + 3]) for n in range(0, 9, 3)]


# --- looking


def test_partitions_are_told_with_their_leaders(broker):
    """partitions_for waits for a topic's metadata."""
    with _producer(broker) as producer:
        found = producer.partitions_for("t")
        assert [("t", 0), ("t", 1), ("t", 2)] == [(each.topic, each.partition) for each in found]
        assert all(each.leader is not None for each in found)
        with pytest.raises(ValueError, match="must not be empty"):
            producer.partitions_for("")


def test_a_flush_with_too_little_time_says_so(broker):
    """And the records stay on their way."""
    broker.on(ApiKey.PRODUCE, NeverAnswer(), times=1)
    producer = _producer(broker, **{"request.timeout.ms": 300, **LONG_LINGER})
    future = producer.send("one", b"v")
    with pytest.raises(KafkaTimeoutError, match=r"within 0\.05 s"):
        producer.flush(0.05)
    assert 0 == future.result(TIMEOUT).offset
    producer.close()


def test_what_the_client_is_at_can_be_measured(broker):
    """Requests in flight and the age of the metadata are among the metrics, as in Java."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.partitions_for("one")
        measured = {name.name: metric.value() for name, metric in producer.metrics().items()}
    assert 0 == measured["requests-in-flight"]
    assert 0 <= measured["metadata-age"] < TIMEOUT
