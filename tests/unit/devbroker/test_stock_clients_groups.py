"""Consumer groups of other clients: sharing, leaving, timing out and continuing."""

from __future__ import annotations

import asyncio
import time
import warnings

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import NeverAnswer
from spark_kafka_sink.protocol.api_keys import ApiKey

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
TOPIC, GROUP = "t", "g"
PARTITIONS = 4


@pytest.fixture
def broker():
    with DevBroker(topics={TOPIC: PARTITIONS}, group_min_session_timeout_ms=1) as broker:
        yield broker


def write(broker, *values):
    """Write values to the partitions in turn."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
    assert 0 == producer.flush(TIMEOUT)


def confluent_consumer(broker, **settings):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        | settings
    )
    consumer.subscribe([TOPIC])
    return consumer


def poll_until(condition, *consumers):
    """Poll confluent-kafka consumers until a condition holds, and return the values read."""
    values = []
    deadline = time.monotonic() + TIMEOUT
    while not condition(values):
        assert time.monotonic() < deadline
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                values.append(message.value())
    return values


def assigned(consumer):
    return {partition.partition for partition in consumer.assignment()}


def test_two_members_share_the_partitions(broker):
    """Every record is read by one of the members; when one leaves, the other takes over."""
    write(broker, *(b"%d" % n for n in range(20)))
    first, second = confluent_consumer(broker), confluent_consumer(broker)
    try:
        values = poll_until(lambda seen: len(set(seen)) == 20, first, second)
        poll_until(
            lambda _: len(assigned(first)) == len(assigned(second)) == PARTITIONS / 2,
            first,
            second,
        )
        assert set(range(PARTITIONS)) == assigned(first) | assigned(second)
        assert {b"%d" % n for n in range(20)} == set(values)
        second.close()
        poll_until(lambda _: len(assigned(first)) == PARTITIONS, first)
    finally:
        first.close()


def test_a_member_that_falls_silent_is_removed(broker):
    """After its session timeout the other member gets its partitions."""
    settings = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
    first = confluent_consumer(broker)
    silent = confluent_consumer(broker, **settings, **{"client.id": "silent"})
    try:
        poll_until(lambda _: len(assigned(first)) == len(assigned(silent)) == 2, first, silent)
        broker.on(
            ApiKey.HEARTBEAT,
            lambda _, context: NeverAnswer() if context.header.client_id == "silent" else None,
            expect=True,
        )

        poll_until(lambda _: len(assigned(first)) == PARTITIONS, first)
    finally:
        first.close()
        broker.stop()
        silent.close()


def test_members_of_the_new_protocol_share_the_partitions(broker):
    """Three members, of which one subscribes to an expression, get their parts from the broker."""
    settings = {"group.protocol": "consumer"}
    write(broker, *(b"%d" % n for n in range(20)))
    first, second = (confluent_consumer(broker, **settings) for _ in range(2))
    third = confluent_consumer(broker, **settings)
    third.subscribe([f"^{TOPIC}.*"])
    members = [first, second, third]
    try:
        values = poll_until(lambda seen: len(set(seen)) == 20, *members)
        poll_until(lambda _: sorted(len(assigned(m)) for m in members) == [1, 1, 2], *members)
        assert set(range(PARTITIONS)) == set().union(*map(assigned, members))
        assert {b"%d" % n for n in range(20)} == set(values)
        first.close()
        poll_until(lambda _: len(assigned(second)) == len(assigned(third)) == 2, second, third)
    finally:
        second.close()
        third.close()


def test_a_silent_member_of_the_new_protocol_is_removed():
    """When its session is over, the other member gets its partitions."""
    settings = {"group.protocol": "consumer"}
    with DevBroker(topics={TOPIC: PARTITIONS}, group_consumer_session_timeout_ms=1500) as broker:
        first = confluent_consumer(broker, **settings)
        silent = confluent_consumer(broker, **settings, **{"client.id": "silent"})
        try:
            poll_until(lambda _: len(assigned(first)) == len(assigned(silent)) == 2, first, silent)
            broker.on(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                lambda _, context: NeverAnswer() if context.header.client_id == "silent" else None,
                expect=True,
            )

            poll_until(lambda _: len(assigned(first)) == PARTITIONS, first)
        finally:
            first.close()
            broker.stop()
            silent.close()


def test_a_group_continues_at_its_committed_offsets(broker):
    """Each client starts at the offsets that another client committed."""
    write(broker, b"a", b"b", b"c", b"d")
    consumer = confluent_consumer(broker)
    poll_until(lambda seen: len(seen) == 4, consumer)
    consumer.commit(asynchronous=False)
    consumer.close()
    write(broker, b"e")

    python = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
    )
    try:
        values = []
        deadline = time.monotonic() + TIMEOUT
        while not values:
            assert time.monotonic() < deadline
            for records in python.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        python.commit()
    finally:
        python.close()
    assert [b"e"] == values

    async def read():
        consumer = aiokafka.AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            return (await asyncio.wait_for(consumer.getone(), TIMEOUT)).value
        finally:
            await consumer.stop()

    write(broker, b"f")
    assert b"f" == asyncio.run(read())


def test_a_static_member_keeps_its_partitions(broker):
    """A member restarted within its session timeout gets its partitions without a rebalance."""
    settings = {"group.instance.id": "static", "session.timeout.ms": 10_000}
    first = confluent_consumer(broker)
    second = confluent_consumer(broker, **settings)
    poll_until(lambda _: len(assigned(first)) == len(assigned(second)) == 2, first, second)
    before = assigned(second)
    generation = broker.call(lambda b: b.cluster.groups.find(GROUP).generation_id)
    second.close()
    again = confluent_consumer(broker, **settings)
    try:
        poll_until(lambda _: assigned(again), first, again)

        assert before == assigned(again)
        assert generation == broker.call(lambda b: b.cluster.groups.find(GROUP).generation_id)
    finally:
        first.close()
        again.close()


def test_an_admin_client_sees_the_group(broker):
    """Groups are listed, described, and deleted once they are empty."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    consumer = confluent_consumer(broker, **{"client.id": "reader"})
    poll_until(lambda _: len(assigned(consumer)) == PARTITIONS, consumer)

    (listed,) = admin.list_consumer_groups().result(TIMEOUT).valid
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(TIMEOUT)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.delete_consumer_groups([GROUP])[GROUP].result(TIMEOUT)
    consumer.close()
    admin.delete_consumer_groups([GROUP])[GROUP].result(TIMEOUT)

    assert (GROUP, "STABLE") == (listed.group_id, listed.state.name)
    (member,) = described.members
    assert ("STABLE", "reader", "/127.0.0.1", PARTITIONS) == (
        described.state.name,
        member.client_id,
        member.host,
        len(member.assignment.topic_partitions),
    )
    assert confluent_kafka.KafkaError.NON_EMPTY_GROUP == refused.value.args[0].code()
    assert [] == admin.list_consumer_groups().result(TIMEOUT).valid


@pytest.mark.parametrize("transaction_version", [0, 2])
def test_offsets_are_committed_with_a_transaction(transaction_version):
    """Consumed offsets and produced records are committed together, or not at all."""
    with DevBroker(
        topics={TOPIC: PARTITIONS, "out": 1}, transaction_version=transaction_version
    ) as broker:
        write(broker, b"a", b"b", b"c", b"d")
        consumer = confluent_consumer(broker)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}
        )
        producer.init_transactions(TIMEOUT)
        poll_until(lambda seen: len(seen) == 4, consumer)
        position = consumer.position(consumer.assignment())

        def transact(*, commit):
            producer.begin_transaction()
            producer.produce("out", b"v")
            producer.send_offsets_to_transaction(
                position, consumer.consumer_group_metadata(), TIMEOUT
            )
            (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT)
            committed = consumer.committed(position, TIMEOUT)
            return sorted(partition.offset for partition in committed)

        assert [confluent_kafka.OFFSET_INVALID] * PARTITIONS == transact(commit=False)
        assert [1] * PARTITIONS == transact(commit=True)
        consumer.close()
