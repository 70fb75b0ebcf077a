"""The effect of settings on single records and transactions, as the broker sees them."""

from __future__ import annotations

import struct
import time

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.record.decode import decode_records

PARTITIONS = 3


@pytest.fixture
def broker():
    with DevBroker(topics={"t": PARTITIONS}) as broker:
        yield broker


def _producer(broker, **settings):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **named})


def _records(broker, partition):
    log = broker.call(
        lambda b: list(
            map(bytes, b.cluster.partition(TopicPartition("t", partition)).log.batches())
        )
    )
    return [record for batch in log for record in decode_records(batch)]


@pytest.mark.parametrize(
    ("serializer", "value", "written"),
    [
        ("string", "ä", b"\xc3\xa4"),
        ("org.apache.kafka.common.serialization.IntegerSerializer", 5, struct.pack(">i", 5)),
        ("json", [1], b"[1]"),
        (lambda value: value.hex().encode(), b"\x01", b"01"),
        ("bytes", b"x", b"x"),
    ],
)
@pytest.mark.parametrize("part", ["key", "value"])
def test_keys_and_values_are_serialized(broker, part, serializer, value, written):
    """Keys are serialized by key.serializer, and values by value.serializer."""
    with _producer(broker, **{f"{part}_serializer": serializer}) as producer:
        record = {"key": b"k", "value": b"v", part: value}
        producer.send("t", record["value"], key=record["key"], partition=0)
    [arrived] = _records(broker, 0)
    assert written == getattr(arrived, part)


def test_records_pass_through_interceptors(broker):
    """Each record passes through interceptor.classes."""

    class Watching:
        """An interceptor that stores the values of records."""

        def __init__(self):
            self.seen = []

        def on_send(self, record):
            """Store the value."""
            self.seen.append(record.value)
            return record

    watching = Watching()
    with _producer(broker, interceptor_classes=[watching]) as producer:
        producer.send("t", b"v")
    assert [b"v"] == watching.seen


@pytest.mark.parametrize(
    ("partitioner", "used"),
    [
        ("default", [0, 8, 0]),
        ("crc32", [8, 0, 0]),
        ("fnv1a", [0, 0, 8]),
    ],
)
def test_the_partitioner_chooses_the_partition_of_a_key(broker, partitioner, used):
    """The partitioner chooses the partition of a key."""
    with _producer(broker, partitioner_class=partitioner) as producer:
        for _ in range(8):
            producer.send("t", b"v", key=b"c")
    assert used == [len(_records(broker, partition)) for partition in range(PARTITIONS)]


@pytest.mark.parametrize("partitioner", ["murmur2_consistent", "consistent", "fnv1a_consistent"])
def test_a_consistent_partitioner_keeps_records_without_a_key_together(broker, partitioner):
    """A null key is hashed like an empty one, so that keyless records share a partition."""
    with _producer(broker, partitioner_class=partitioner, batch_size=0) as producer:
        for _ in range(30):
            producer.send("t", b"v")
    counts = [len(_records(broker, partition)) for partition in range(PARTITIONS)]
    assert [0, 0, 30] == sorted(counts)


def test_round_robin_spreads_one_key_over_all(broker):
    """The round-robin partitioner ignores keys."""
    with _producer(broker, partitioner_class="round_robin") as producer:
        for _ in range(9):
            producer.send("t", b"v", key=b"c")
    assert [3, 3, 3] == [len(_records(broker, partition)) for partition in range(PARTITIONS)]


def test_a_batch_lingers_for_more_records(broker):
    """A single record is sent after linger.ms, and not earlier."""

    def waits(milliseconds, count):
        with _producer(broker, linger_ms=milliseconds) as producer:
            producer.send("t", b"first").result(60)
            for _ in range(count):
                begun = time.monotonic()
                producer.send("t", b"another").result(60)
                yield time.monotonic() - begun

    assert min(waits(400, count=1)) >= 0.4
    # At least one of these records is not delayed by anything else.
    assert min(waits(0, count=5)) < 0.4


@pytest.mark.parametrize(("name", "milliseconds"), [("first", 5_000), ("second", 7_000)])
def test_init_producer_id_has_id_and_timeout(broker, name, milliseconds):
    """InitProducerId carries the transactional id and the transaction timeout."""
    sent = []
    broker.on(ApiKey.INIT_PRODUCER_ID, lambda request, _: sent.append(request))
    with _producer(broker, transactional_id=name, transaction_timeout_ms=milliseconds) as producer:
        producer.init_transactions()
    assert [(name, milliseconds)] == [
        (request.transactional_id, request.transaction_timeout_ms) for request in sent
    ]
