"""A broker of the cluster that refuses the consumer's credentials, beside one that takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AlterResponse
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.testing import Listener, SaslSettings

TIMEOUT = 120.0
MINE, FOREIGN = TopicPartition("t", 0), TopicPartition("t", 1)
ALICE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="hers";'
    ),
}


def listeners(password):
    sasl = SaslSettings(users={"alice": password}, mechanisms=("PLAIN",))
    return [Listener(security_protocol="SASL_PLAINTEXT", sasl=sasl)]


@pytest.fixture
def refusing():
    """Yield a broker that does not take Alice's password."""
    with DevBroker(topics={"t": 2}, listeners=listeners("another")) as made:
        yield made


@pytest.fixture
def broker(refusing):
    """Yield a broker that takes it, and calls the other one the leader of partition 1."""
    port = int(refusing.bootstrap_servers.rpartition(":")[2])

    def with_another_leader(metadata):
        [node] = metadata.brokers
        return replace(
            metadata,
            brokers=(node, replace(node, node_id=node.node_id + 1, port=port)),
            topics=tuple(
                replace(
                    topic,
                    partitions=tuple(
                        replace(each, leader_id=node.node_id + each.partition_index)
                        for each in topic.partitions
                    ),
                )
                for topic in metadata.topics
            ),
        )

    with DevBroker(topics={"t": 2}, listeners=listeners("hers")) as made:
        made.on(ApiKey.METADATA, AlterResponse(with_another_leader))
        yield made


def test_a_leader_that_refuses_the_login_is_an_error_and_others_are_read(broker):
    """Its partition cannot be read, which `poll` raises; records of the other one are returned."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, **ALICE}
    with KafkaProducer(settings) as producer:
        for _ in range(5):
            producer.send("t", b"x", partition=0)
    with KafkaConsumer(settings) as consumer:
        consumer.assign([MINE, FOREIGN])
        consumer.seek(MINE, 0)
        consumer.seek(FOREIGN, 0)
        read, refused = 0, 0
        while read < 5 or refused < 3:
            try:
                read += sum(map(len, consumer.poll(TIMEOUT).values()))
            except AuthenticationError as error:
                assert "(id 2): PLAIN authentication of user 'alice' failed" in str(error)  # noqa: PT017
                refused += 1


def test_the_refusal_of_one_broker_is_none_of_another(broker):
    """A call that only needs the broker that takes the login is answered."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, **ALICE}
    with KafkaConsumer(settings) as consumer:
        consumer.assign([FOREIGN])
        consumer.seek(FOREIGN, 0)
        with pytest.raises(AuthenticationError):
            consumer.poll(TIMEOUT)
        assert {MINE: 0} == consumer.end_offsets([MINE], timeout=TIMEOUT)
    with AdminClient(settings) as admin:
        assert ["t"] == sorted(admin.list_topics())
