"""Clients of other projects: what one writes the others read back, without groups."""

from __future__ import annotations

import asyncio
import warnings

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function of Python.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:read_text is deprecated"),
    pytest.mark.usefixtures("kafka_python_sockets_closed"),
]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT = 60.0
TOPIC = "t"
PARTITIONS = 3

#: The key, value and headers of the records that each client writes to partition 1.
RECORDS = [
    (b"key", b"value", [("h", b"1"), ("h", b"2"), ("e", b"")]),
    (None, b"no key", []),
    (b"tombstone", None, []),
    (b"", b"", []),
    *[(b"k%d" % n, b"v%d" % n * 50, []) for n in range(200)],
]


def write_with_confluent(bootstrap_servers, codec):
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
        }
    )
    failures = []
    for key, value, headers in RECORDS:
        producer.produce(
            TOPIC,
            key=key,
            value=value,
            headers=headers,
            partition=1,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert 0 == producer.flush(TIMEOUT)
    assert [] == failures


def write_with_kafka_python(bootstrap_servers, codec):
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap_servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
    )
    try:
        futures = [
            producer.send(TOPIC, key=key, value=value, headers=headers, partition=1)
            for key, value, headers in RECORDS
        ]
        for future in futures:
            future.get(timeout=TIMEOUT)
    finally:
        producer.close(timeout=TIMEOUT)


def write_with_aiokafka(bootstrap_servers, codec):
    async def write():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(TOPIC, key=key, value=value, headers=headers, partition=1)
                for key, value, headers in RECORDS
            ]
            await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT)
        finally:
            await producer.stop()

    asyncio.run(write())


def read_with_confluent(bootstrap_servers, count):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 1, 0)])
        records = []
        while len(records) < count:
            messages = consumer.consume(count - len(records), timeout=TIMEOUT)
            assert messages, f"{len(records)} of {count} records"
            for message in messages:
                assert None is message.error()
                records.append((message.key(), message.value(), message.headers() or []))
        return records
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap_servers, count):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers, group_id=None, check_crcs=True
    )
    try:
        partition = kafka.TopicPartition(TOPIC, 1)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        assert {partition: count} == consumer.end_offsets([partition])
        records = []
        while len(records) < count:
            polled = consumer.poll(timeout_ms=TIMEOUT * 1000)
            assert polled, f"{len(records)} of {count} records"
            records.extend((r.key, r.value, list(r.headers)) for r in polled[partition])
        return records
    finally:
        consumer.close()


def read_with_aiokafka(bootstrap_servers, count):
    async def read():
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers, group_id=None, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(TOPIC, 1)])
            return [
                (record.key, record.value, list(record.headers))
                for record in [
                    await asyncio.wait_for(consumer.getone(), TIMEOUT) for _ in range(count)
                ]
            ]
        finally:
            await consumer.stop()

    return asyncio.run(read())


WRITERS = [write_with_confluent, write_with_kafka_python, write_with_aiokafka]
READERS = [read_with_confluent, read_with_kafka_python, read_with_aiokafka]


@pytest.fixture
def broker():
    with DevBroker(topics={TOPIC: PARTITIONS}) as broker:
        yield broker


#: kafka-python supports snappy only with an additional package.
PAIRS = [
    pytest.param(write, codec, id=f"{write.__name__.removeprefix('write_with_')}-{codec}")
    for write in WRITERS
    for codec in CODECS
    if (write, codec) != (write_with_kafka_python, "snappy")
]


@pytest.mark.parametrize(("write", "codec"), PAIRS)
def test_stock_consumers_read_the_records_of_stock_producers(broker, write, codec):
    """Three producers, five codecs and three consumers agree on every record."""
    write(broker.bootstrap_servers, codec)

    for read in READERS:
        if codec == "snappy" and read is read_with_kafka_python:
            continue
        assert RECORDS == read(broker.bootstrap_servers, len(RECORDS)), read.__name__


def test_idempotent_retries_do_not_duplicate(broker):
    """Every record is there once after lost responses, closed connections and retries."""
    broker.on(
        ApiKey.PRODUCE,
        lambda _, context: CloseConnection(handled=True) if context.number in {1, 3} else None,
        expect=True,
    )
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS), times=1)

    write_with_confluent(broker.bootstrap_servers, "lz4")

    assert RECORDS == read_with_confluent(broker.bootstrap_servers, len(RECORDS))
    assert len(RECORDS) == broker.call(
        lambda b: b.cluster.topic(TOPIC).partitions[1].log.log_end_offset
    )


def test_a_topic_is_created_for_a_producer_that_writes_to_it(broker):
    """A stock producer can write to a topic that did not exist."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors = []
    producer.produce("new", b"x", on_delivery=lambda error, _: errors.append(error))

    assert 0 == producer.flush(TIMEOUT)
    assert [None] == errors
    assert ["new", TOPIC] == broker.topic_names


def test_an_admin_client_creates_topics(broker):
    """A stock admin client creates a topic with configs and finds it in the list."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    futures = admin.create_topics(
        [NewTopic("made", num_partitions=5, config={"message.timestamp.type": "LogAppendTime"})],
        request_timeout=TIMEOUT,
    )

    assert None is futures["made"].result(TIMEOUT)
    assert 5 == len(admin.list_topics(timeout=TIMEOUT).topics["made"].partitions)


def test_a_record_that_is_too_large_is_refused(broker):
    """A stock producer gets an error if its batch exceeds max.message.bytes."""
    broker.create_topic("small", configs={"max.message.bytes": "500"})
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors = []
    producer.produce("small", b"x" * 1000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT)

    assert [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE] == [error.code() for error in errors]


def test_offsets_are_found_by_time(broker):
    """A stock consumer looks up an offset by a record's timestamp."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for time in (1000, 3000, 2000):
        producer.produce(TOPIC, b"x", partition=0, timestamp=time)
    assert 0 == producer.flush(TIMEOUT)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"}
    )

    try:
        asked = [confluent_kafka.TopicPartition(TOPIC, 0, time) for time in (1500,)]
        (found,) = consumer.offsets_for_times(asked, timeout=TIMEOUT)
        ends = consumer.get_watermark_offsets(asked[0], timeout=TIMEOUT)
    finally:
        consumer.close()

    assert (1, (0, 3)) == (found.offset, ends)
