"""Transactions of other clients: committed records are read, and aborted ones are not."""

from __future__ import annotations

import asyncio
import warnings

import aiokafka
import confluent_kafka
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import CloseConnection
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.network.leaps import MILLISECONDS, leap_broker

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function of Python.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:read_text is deprecated"),
    pytest.mark.usefixtures("kafka_python_sockets_closed"),
]

TIMEOUT = 60.0
TOPIC = "t"
#: The value written in each transaction, and whether it is committed.
TRANSACTIONS = [(b"a", True), (b"b", False), (b"c", True), (b"d", False), (b"e", True)]
COMMITTED = [b"a", b"a2", b"c", b"c2", b"e", b"e2"]


@pytest.fixture(params=[(2, 0), (0, 0), (2, 30)], ids=["TV2", "TV1", "TV2 with slow markers"])
def broker(request):
    transaction_version, delay_ms = request.param
    with DevBroker(
        topics={TOPIC: 1},
        transaction_version=transaction_version,
        transaction_marker_delay_ms=delay_ms,
    ) as broker:
        yield broker


def transact_with_confluent(bootstrap_servers):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": "x", "linger.ms": 0}
    )
    producer.init_transactions(TIMEOUT)
    for value, committed in TRANSACTIONS:
        producer.begin_transaction()
        producer.produce(TOPIC, value)
        producer.flush(TIMEOUT)
        producer.produce(TOPIC, value + b"2")
        producer.flush(TIMEOUT)
        if committed:
            producer.commit_transaction(TIMEOUT)
        else:
            producer.abort_transaction(TIMEOUT)


def transact_with_kafka_python(bootstrap_servers):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id="x")
    try:
        producer.init_transactions()
        for value, committed in TRANSACTIONS:
            producer.begin_transaction()
            producer.send(TOPIC, value).get(timeout=TIMEOUT)
            producer.send(TOPIC, value + b"2").get(timeout=TIMEOUT)
            if committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(timeout=TIMEOUT)


def transact_with_aiokafka(bootstrap_servers):
    async def transact():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, transactional_id="x"
        )
        await producer.start()
        try:
            for value, committed in TRANSACTIONS:
                await producer.begin_transaction()
                await producer.send_and_wait(TOPIC, value)
                await producer.send_and_wait(TOPIC, value + b"2")
                if committed:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(transact())


def read_with_confluent(bootstrap_servers, count):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values = []
    try:
        while True:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            if message.error():
                assert confluent_kafka.KafkaError._PARTITION_EOF == message.error().code()
                if len(values) >= count:
                    return values
            else:
                values.append(message.value())
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap_servers, count):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers, group_id=None, isolation_level="read_committed"
    )
    try:
        partition = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        values = []
        while len(values) < count or consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


def read_with_aiokafka(bootstrap_servers, count):
    async def read():
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
            return [
                record.value
                for record in [
                    await asyncio.wait_for(consumer.getone(), TIMEOUT) for _ in range(count)
                ]
            ]
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.parametrize(
    "transact", [transact_with_confluent, transact_with_kafka_python, transact_with_aiokafka]
)
def test_readers_see_exactly_the_committed_records(broker, transact):
    """With all producers and consumers, committed records are read and aborted ones are not."""
    transact(broker.bootstrap_servers)

    for read in (read_with_confluent, read_with_kafka_python, read_with_aiokafka):
        assert COMMITTED == read(broker.bootstrap_servers, len(COMMITTED)), read.__name__


def test_a_second_producer_fences_the_first(broker):
    """The first producer cannot commit any more, and its records are not read."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}
    first = confluent_kafka.Producer(settings)
    first.init_transactions(TIMEOUT)
    first.begin_transaction()
    first.produce(TOPIC, b"lost")
    first.flush(TIMEOUT)
    second = confluent_kafka.Producer(settings)
    second.init_transactions(TIMEOUT)
    second.begin_transaction()
    second.produce(TOPIC, b"kept")
    second.commit_transaction(TIMEOUT)

    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(TIMEOUT)

    assert caught.value.args[0].fatal()
    assert [b"kept"] == read_with_confluent(broker.bootstrap_servers, 1)


def test_lost_answers_change_nothing(broker):
    """A producer commits as usual if its requests are handled but the responses are lost."""
    for api_key in (ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE):
        broker.on(
            api_key,
            lambda _, context: CloseConnection(handled=True) if context.number == 2 else None,
        )

    transact_with_confluent(broker.bootstrap_servers)

    assert COMMITTED == read_with_confluent(broker.bootstrap_servers, len(COMMITTED))


def test_a_transaction_that_takes_too_long_is_aborted():
    """The broker's own timer aborts it, without a request."""
    errors = []
    with DevBroker(topics={TOPIC: 1}) as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "x",
                "transaction.timeout.ms": MILLISECONDS,
            }
        )
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        producer.produce(TOPIC, b"late", on_delivery=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT)
        assert [None] == errors
        leap_broker(broker)
        other = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        other.produce(TOPIC, b"other")
        other.flush(TIMEOUT)

        assert [b"other"] == read_with_confluent(broker.bootstrap_servers, 1)
