"""What makes a bulk write fail, and what its error says."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    DeliveryError,
    DeliveryTimeoutError,
    FatalProducerError,
    InvalidPartitionError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    RecordTooLargeError,
)
from spark_kafka_sink.network.connection_waits import look_for_brokers
from spark_kafka_sink.producer import producer_core
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.leaps import MILLISECONDS, leap_at_first_contact, leap_broker
from tests.support.producer.bulk_writes import SMALL_BATCHES, bulk_producer, numbered
from tests.support.producer.producing import patiently, refusal_after_patience
from tests.support.record.record_columns import columns


def test_a_missing_permission_for_a_producer_id_fails_the_write(broker):
    """The error names the missing permission and how to grant it."""
    broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    producer = bulk_producer(broker)
    producer.append(columns([b"v"]))
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        producer.flush()
    producer.close(0)


def test_a_delivery_error_names_rows_partition_cause_and_advice(broker):
    """The error has the rows, the partition, the cause and the advice."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    producer = bulk_producer(broker)
    producer.append(columns([b"v"] * 10, partitions=[1] * 10), first_row=70)
    with pytest.raises(
        DeliveryError,
        match=r"10 records for t-1, among rows 70 to 79 were not delivered: .*"
        r"TOPIC_AUTHORIZATION_FAILED.* Grant this user WRITE",
    ):
        producer.flush()
    with pytest.raises(DeliveryError, match="t-1"):
        producer.append(columns([b"v"]))
    producer.close(0)


def test_the_delivery_timeout_fails_the_write(broker):
    """delivery.timeout.ms ends the retries, and the error reports the last cause."""
    hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS))
    producer = bulk_producer(broker)
    producer.append(columns([b"v"], partitions=[2]))
    with pytest.raises(KafkaTimeoutError):
        producer.flush(0)
    # The second request shows that the response to the first was read.
    wait_until(lambda: hook.fired > 1, seconds=60, what="a retry")
    clock = producer._core._sender._clock
    producer._core._sender._clock = lambda: clock() + 120
    producer._core._thread.call_soon(producer._core._wakeup)
    with pytest.raises(DeliveryError, match=r"t-2.*delivery.timeout.ms.*NOT_ENOUGH_REPLICAS") as e:
        producer.flush()
    assert isinstance(e.value.__cause__, DeliveryTimeoutError)
    producer.close(0)


def test_the_write_fails_after_the_last_retry(broker):
    """After the last of `retries` the write fails with the broker's last error."""
    hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS))
    producer = bulk_producer(broker, retries=2)
    producer.append(columns([b"v"]))
    with pytest.raises(DeliveryError, match="NOT_ENOUGH_REPLICAS"):
        producer.flush()
    assert 3 == hook.fired
    producer.close(0)


def test_an_unexplained_gap_in_the_sequence_fails_the_write(broker):
    """The write fails if the broker has lost acknowledged records."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    producer = bulk_producer(broker)
    producer.append(columns([b"v"]))
    with pytest.raises(DeliveryError, match="has lost records that it had acknowledged"):
        producer.flush()
    producer.close(0)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_single_record_too_large_for_the_topic_fails_the_write(broker, codec):
    """The error for a record that cannot be split names the setting to raise."""
    broker.create_topic("small", partitions=1, configs={"max.message.bytes": "5000"})
    producer = bulk_producer(broker, **{"compression.type": codec})
    producer.append(columns([os.urandom(6_000)], topic="small"))
    with pytest.raises(DeliveryError, match=r"MESSAGE_TOO_LARGE.*max.message.bytes: raise it"):
        producer.flush()
    producer.close(0)


def test_the_error_names_an_invalid_row(broker):
    """The error for an invalid row has the caller's number of that row."""
    producer = bulk_producer(broker)
    with pytest.raises(InvalidTopicError, match=r"row 101: the topic is null"):
        producer.append(columns([b"a", b"b"], topics=["t", None]), first_row=100)
    with pytest.raises(InvalidPartitionError, match=r"row 101, topic 't', partition 3: .* has 3"):
        producer.append(columns([b"a", b"b"], partitions=[0, 3]), first_row=100)
    with pytest.raises(InvalidPartitionError, match="row 0, topic 't', partition -1"):
        producer.append(columns([b"a"], partitions=[-1]))
    with pytest.raises(RecordTooLargeError, match=r"row 101, topic 't', partition 2: .*2000\d\d\d"):
        producer.append(columns([b"a", bytes(2_000_000)], partitions=[1, 2]), first_row=100)
    with pytest.raises(RecordTooLargeError, match=r"row 0, topic 't', partition \d: .*2000\d\d\d"):
        producer.append(columns([bytes(2_000_000)], keys=[b"k"]))
    producer.close(0)


def test_an_unknown_topic_fails_the_write_after_max_block_ms():
    """A topic that neither exists nor is created fails after max.block.ms, with its name."""
    with DevBroker(auto_create_topics=False) as broker:
        producer = bulk_producer(broker, **{"max.block.ms": 500})
        refusal_after_patience(
            lambda: producer.append(columns([b"v"], topic="absent")),
            r"'absent'.*UNKNOWN_TOPIC_OR_PARTITION",
            KafkaTimeoutError,
        )
        producer.close(0)


def test_an_invalid_topic_name_fails_the_write_at_once(broker):
    """An invalid topic name fails at once, without waiting for max.block.ms."""
    producer = bulk_producer(broker)
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        producer.append(columns([b"v"], topic="no/such"))
    producer.close(0)


def test_the_error_for_unreachable_brokers_names_their_addresses(unused_port):
    """If no broker can be reached, the error names the addresses and the cause."""
    address = f"127.0.0.1:{unused_port}"
    config = ProducerConfig.from_mapping({"bootstrap.servers": address, "max.block.ms": 200})
    producer = KafkaProducer(config)
    refusal_after_patience(
        lambda: producer.append(columns([b"v"])),
        rf"through {address} \(bootstrap.servers\).*refused",
        NetworkError,
    )
    producer.close(0)


@pytest.mark.parametrize(
    ("use", "settings"),
    [
        (lambda producer: producer.send("t", b"v").result(0), {}),
        (lambda producer: producer.send_arrow(pa.table({"value": ["v"]}), topic="t"), {}),
        (lambda producer: producer.partitions_for("t"), {}),
        (lambda producer: producer.init_transactions(), {"transactional.id": "orders"}),
    ],
    ids=["send", "send_arrow", "partitions_for", "init_transactions"],
)
def test_a_wrong_port_is_an_error_long_before_max_block_ms(unused_port, monkeypatch, use, settings):
    """A cluster that was never reached, and where nothing listens, is soon an error."""
    leap_at_first_contact(monkeypatch)
    address = f"127.0.0.1:{unused_port}"
    with (
        pytest.raises(NetworkError, match=rf"^no broker answered through {address} .*refused"),
        KafkaProducer({"bootstrap.servers": address, **settings}) as producer,
    ):
        use(producer)


def test_a_cluster_that_was_reached_once_may_restart(broker, monkeypatch):
    """A producer that knows the cluster waits for max.block.ms, and so does one of a Spark task."""
    looks = []

    async def look(client, deadline):
        looks.append(client)
        await look_for_brokers(client, deadline)

    monkeypatch.setattr(producer_core, "look_for_brokers", look)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for topic in ("t", "one"):
            producer.partitions_for(topic)
        assert [producer._core._client] == looks
    with bulk_producer(broker) as producer:
        producer.append(columns([b"v"]))
    assert 1 == len(looks)


def test_a_peer_that_does_not_speak_kafka_is_reported():
    """A malformed response ends the connection, and the error says what was wrong with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1_000)

        peer = threading.Thread(target=answer, daemon=True)
        peer.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        producer = KafkaProducer(
            ProducerConfig.from_mapping(
                {
                    "bootstrap.servers": address,
                    "max.block.ms": 500,
                    "reconnect.backoff.ms": 60_000,
                    "reconnect.backoff.max.ms": 60_000,
                }
            )
        )
        refusal_after_patience(
            lambda: producer.append(columns([b"v"])), "a frame of 1213486160 bytes", NetworkError
        )
        producer.close(0)
        peer.join()


def test_the_write_fails_if_no_memory_is_freed(broker):
    """If the broker does not acknowledge, a writer waits for memory and then raises an error."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    sizes = {"buffer.memory": 100_000, "max.request.size": 50_000, "max.block.ms": 200}
    producer = bulk_producer(broker, **sizes, **SMALL_BATCHES)
    patiently(lambda: producer.partitions_for("t"))
    producer.append(columns(numbered(1_000)))
    wait_until_injected(hook)
    with pytest.raises(BufferExhaustedError, match=r"row \d+, t-\d.*buffer.memory"):
        producer.append(columns(numbered(100_000)))
    producer.close(0)


@pytest.mark.parametrize("version", [0, 2])
def test_a_transactional_id_that_has_expired_is_named_as_such(version):
    """Every error names the setting of the brokers, and another producer may use the id."""
    named = r"expired \(transactional\.id\.expiration\.ms\).*INVALID_PRODUCER_ID_MAPPING"
    with DevBroker(
        topics={"t": 1}, transaction_version=version, transactional_id_expiration_ms=MILLISECONDS
    ) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "orders"}
        with contextlib.closing(KafkaProducer(settings)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", value=b"a").result(120)
            producer.commit_transaction()
            leap_broker(broker)
            producer.begin_transaction()
            lost = producer.send("t", value=b"b")

            with pytest.raises(KafkaError, match=f"{named}.* with another.* raise transactional"):
                lost.result(120)
            with pytest.raises(FatalProducerError, match=f"create another.*{named}"):
                producer.commit_transaction()
        with KafkaProducer(settings) as another:
            another.init_transactions()
            another.begin_transaction()
            another.send("t", value=b"b").result(120)
            another.commit_transaction()
        assert [b"a", b"b"] == [record.value for record in broker.records("t")[0]]
