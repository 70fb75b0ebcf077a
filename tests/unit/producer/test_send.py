"""Single records, sent to the embedded broker."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewPartitions
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.errors import (
    KafkaTimeoutError,
)
from spark_kafka_sink.model import RecordMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.record_staging import MAX_STAGED_BYTES
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS, MAX_HEAVY_BYTES
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.bulk_writes import is_even
from tests.support.producer.producing import patiently
from tests.support.producer.sending import (
    LONG_LINGER,
    PARTITIONS,
    TIMEOUT,
    records_of,
    sending_producer,
    values_of,
)
from tests.support.record.record_columns import columns

LARGE = bytes(MAX_STAGED_BYTES + 1)


# --- delivery


def test_a_topic_is_requested_though_the_call_does_not_wait_for_it(broker):
    """With max.block.ms=0 the first call fails, and a later one finds the topic, as in Java."""
    with sending_producer(broker, **{"max.block.ms": 0}) as producer:
        for topic in ("one", "t"):
            with pytest.raises(KafkaTimeoutError, match="is not known after 0"):
                producer.partitions_for(topic)
            assert patiently(lambda name=topic: producer.partitions_for(name))
        grown = len(producer.partitions_for("one"))
        with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_partitions({"one": NewPartitions(grown + 1)})
        sent = patiently(lambda: producer.send("one", b"v", partition=grown).result(TIMEOUT))
    assert grown == sent.partition


@pytest.mark.parametrize("linger", [0, 5], ids="linger {}".format)
def test_a_record_arrives_with_all_its_fields(broker, linger):
    """Key, value, headers, partition and timestamp arrive, and the future has offset and sizes."""
    with sending_producer(broker, **{"linger.ms": linger}) as producer:
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
    [record] = records_of(broker, "t", 2)
    assert (b"k", b"value", 1_700_000_000_000) == (record.key, record.value, record.timestamp)
    assert [("h", b"x"), ("n", None)] == [(h.key, h.value) for h in record.headers]


@pytest.mark.parametrize(
    ("value", "key"),
    [(None, None), (b"", b""), (None, b"k"), (b"v", None), (bytes(10_000), bytes(9_000))],
    ids=["null", "empty", "tombstone", "no key", "large"],
)
def test_keys_and_values_of_every_kind_arrive(broker, value, key):
    """Null is distinct from empty, and any size up to the limits arrives."""
    with sending_producer(broker) as producer:
        metadata = producer.send("one", value, key=key).result(TIMEOUT)
    [record] = records_of(broker)
    assert (value, key) == (record.value, record.key)
    sizes = [-1 if item is None else len(item) for item in (key, value)]
    assert sizes == [metadata.serialized_key_size, metadata.serialized_value_size]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_records_arrive_once_in_order_with_their_offsets(broker, codec):
    """The future of each record has its offset, however records are batched and compressed."""
    count = 3 * CHUNK_RECORDS + 7
    with sending_producer(broker, **{"compression.type": codec, "batch.size": 3_000}) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(count)]
        offsets = [future.result(TIMEOUT).offset for future in futures]
    assert list(range(count)) == offsets
    assert [b"%d" % number for number in range(count)] == values_of(broker)


def test_a_single_record_is_sent_although_no_call_waits_for_it(broker):
    """linger.ms sends a record that no call waits for."""
    delivered = threading.Event()
    with sending_producer(broker, **{"linger.ms": 5}) as producer:
        producer.send("one", b"a").result(TIMEOUT)
        producer.send("one", b"b", on_delivery=lambda *_: delivered.set())
        assert delivered.wait(TIMEOUT)
    assert [b"a", b"b"] == values_of(broker)


def test_records_keep_the_order_of_their_keys(broker):
    """Records with the same key go to one partition, in the order of sending."""
    with sending_producer(broker, **{"batch.size": 500}) as producer:
        for number in range(2_000):
            producer.send("t", b"%d" % number, key=b"%d" % (number % 10))
    for key in range(10):
        found = [
            [int(r.value) for r in records_of(broker, "t", p) if r.key == b"%d" % key]
            for p in range(PARTITIONS)
        ]
        assert [list(range(key, 2_000, 10))] == [values for values in found if values]


def test_records_without_a_key_reach_every_partition(broker):
    """Records without a key stay on a partition for about a batch, and then move on."""
    with sending_producer(broker, **{"batch.size": 500}) as producer:
        for number in range(3_000):
            producer.send("t", b"%09d" % number)
    values = [values_of(broker, "t", p) for p in range(PARTITIONS)]
    assert 3_000 == len({value for each in values for value in each})
    assert all(values)


def test_records_without_a_key_are_spread_evenly(broker):
    """With default settings, no partition has 10 % more or fewer of 100,000 rows than others."""
    with sending_producer(broker) as producer:
        for _ in range(100_000):
            producer.send("t", b"a value of 20 bytes.")
        producer.flush()
        acks = producer.acks()
    assert is_even([acks[TopicPartition("t", p)].records for p in range(PARTITIONS)], 100_000)


@pytest.mark.parametrize("threads", [2, 5])
def test_several_threads_send_in_their_own_order(broker, threads):
    """Records of a thread keep their order within a partition; none is lost or duplicated."""
    count = 2_000

    def send(thread: int) -> list[int]:
        futures = [
            producer.send("t", b"%d %d" % (thread, number), partition=number % PARTITIONS)
            for number in range(count)
        ]
        return [future.result(TIMEOUT).offset for future in futures]

    with (
        sending_producer(broker, **{"batch.size": 2_000, "linger.ms": 1}) as producer,
        ThreadPoolExecutor(threads) as pool,
    ):
        offsets = list(pool.map(send, range(threads)))
    for partition in range(PARTITIONS):
        values = values_of(broker, "t", partition)
        for thread in range(threads):
            expected = [b"%d %d" % (thread, n) for n in range(partition, count, PARTITIONS)]
            mine = [value for value in values if value.startswith(b"%d " % thread)]
            assert expected == mine
            assert [values.index(v) for v in mine[:20]] == offsets[thread][partition::3][:20]


def test_all_forms_of_sending_keep_one_order(broker):
    """Records, rows and tables of one thread arrive in the order of the calls."""
    with sending_producer(broker, **LONG_LINGER) as producer:
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
    values = values_of(broker)
    assert [b"0", b"1", b"2", b"3", b"4", b"5", b"7"] == values[:6] + values[7:]


@pytest.mark.parametrize(
    "record",
    [
        {"value": bytes(4_000)},
        {"key": bytes(600), "value": bytes(400)},
        {"value": bytes(1_000), "headers": [("h", bytes(1_000))]},
        {"value": bytes(2_000), "partition": 0},
    ],
    ids=["value", "key", "headers", "partition"],
)
def test_staged_records_are_limited_by_their_bytes(broker, record):
    """Staged records, which are outside buffer.memory, are limited by their bytes."""
    size = sum(len(record.get(name, b"")) for name in ("key", "value"))
    size += sum(len(value) for _, value in record.get("headers", ()))
    most = MAX_HEAVY_BYTES // size + 1
    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"first")
        staged = []
        for _ in range(3 * most):
            producer.send("one", **record)
            staged.append(len(producer._gatherer.staged))
        producer.flush()
    assert most // 2 < max(staged) <= most
    assert staged.count(0) >= 3
    assert 3 * most + 1 == len(values_of(broker))


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
    """A large record, including headers, is not staged, as that is outside buffer.memory."""
    with sending_producer(broker, **LONG_LINGER) as producer:
        producer.send("one", b"small")
        assert 1 == len(producer._gatherer.staged)
        producer.send("one", **large)
        assert 0 == len(producer._gatherer.staged)


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
def test_occasional_faults_do_not_affect_records(broker, fault):
    """Retries neither lose, duplicate nor reorder records, and futures have the right offsets."""
    broker.on(
        ApiKey.PRODUCE,
        lambda request, context: fault if context.number % 4 == 0 else None,
        expect=True,
    )
    with sending_producer(broker, **{"batch.size": 1_000, "linger.ms": 1}) as producer:
        futures = [producer.send("one", b"%050d" % number) for number in range(1_000)]
        offsets = [future.result(TIMEOUT).offset for future in futures]
    assert [b"%050d" % number for number in range(1_000)] == values_of(broker)
    assert list(range(1_000)) == offsets


def test_the_futures_of_a_batch_too_large_for_the_broker_survive_its_split(broker):
    """MESSAGE_TOO_LARGE halves a batch, and each record's future follows it."""
    broker.create_topic("small", partitions=1, configs={"max.message.bytes": "2000"})
    with sending_producer(broker, **{"compression.type": "lz4", "batch.size": 20_000}) as producer:
        values = [os.urandom(100) for _ in range(300)]
        futures = [producer.send("small", value) for value in values]
        assert list(range(300)) == [future.result(TIMEOUT).offset for future in futures]
    assert values == values_of(broker, "small")


# --- queries


def test_partitions_are_returned_with_their_leaders(broker):
    """partitions_for waits for a topic's metadata."""
    with sending_producer(broker) as producer:
        found = producer.partitions_for("t")
        assert [("t", 0), ("t", 1), ("t", 2)] == [(each.topic, each.partition) for each in found]
        assert all(each.leader is not None for each in found)
        with pytest.raises(ValueError, match="must not be empty"):
            producer.partitions_for("")


def test_a_flush_that_times_out_raises_an_error(broker):
    """A flush that times out raises an error, and its records are still sent."""
    refusal = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    producer = sending_producer(broker, **LONG_LINGER)
    future = producer.send("one", b"v")
    with pytest.raises(KafkaTimeoutError, match=r"within 0\.05 s"):
        producer.flush(0.05)
    refusal.remove()
    assert 0 == future.result(TIMEOUT).offset
    producer.close()


def test_the_state_of_the_client_is_among_the_metrics(broker):
    """Requests in flight and the age of the metadata are among the metrics, as in Java."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.partitions_for("one")
        measured = {name.name: metric.value() for name, metric in producer.metrics().items()}
    assert 0 == measured["requests-in-flight"]
    assert 0 <= measured["metadata-age"] < TIMEOUT
