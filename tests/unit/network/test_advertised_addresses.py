"""Brokers that advertise an address where nobody is: what each kind of client makes of it."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_kafka_sink import (
    KafkaConsumer,
    KafkaError,
    KafkaProducer,
    NetworkError,
    TopicPartition,
    read_arrow,
)
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.config.source_options import SourceOptions
from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.consumer.range_reader import PartitionRange, read_range
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.network import cluster_connection_states
from spark_kafka_sink.network.connection_waits import UnreachedError
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.spark.sink import exactly_once_write
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.fake_source import FakeClients

HOUR = 3_600_000
ADVICE = "; broker 1 advertises this address (its advertised.listeners): clients must be able to "
FINAL = f"{ADVICE}reach it; waiting longer would not help"
#: The first partition is led by the broker with the wrong address, the second by another one.
WRONG, RIGHT = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def hasty(monkeypatch):
    """Make the first failure prove that an address is wrong."""
    monkeypatch.setattr(cluster_connection_states, "FINAL_SECONDS", 0.0)


@pytest.fixture(params=["kafka-internal.invalid", "127.0.0.1"])
def alone(request, unused_port, hasty):
    """Yield the only broker of a cluster; it advertises a dead port, or a name without address."""
    with DevBroker(topics={"t": 1}) as broker:
        broker.call(lambda it: it.advertise(request.param, unused_port, listener="PLAINTEXT"))
        yield broker


@pytest.fixture
def cluster(unused_port, hasty):
    """Yield two brokers, of which the first advertises a dead port."""
    with DevBroker(brokers=2, topics={"t": 2}) as brokers:
        brokers.call(lambda it: it.advertise("127.0.0.1", unused_port, listener="PLAINTEXT"))
        yield brokers


def warnings_in(caplog):
    """Return the warnings about addresses."""
    name = NetworkClient.__module__
    return [text for logger, level, text in caplog.record_tuples if logger == name and level == 30]


# --- reads that a user waits for


def test_read_arrow_names_the_address(alone):
    """It does not use up default.api.timeout.ms."""
    with pytest.raises(NetworkError, match=re.escape(FINAL)):
        read_arrow(alone.bootstrap_servers, "t", default_api_timeout_ms=HOUR)


def test_read_arrow_needs_no_other_leaders(cluster, monkeypatch):
    """A broker with a wrong address does not matter to a partition that it does not lead."""
    assert 0 == read_arrow(cluster.bootstrap_servers, RIGHT).read_all().num_rows
    note_failure = NetworkClient._note_failure

    def leap_at_failure(client, node, error):
        note_failure(client, node, error)
        now = client._loop.time
        client._loop.time = lambda: now() + HOUR / 1000

    monkeypatch.setattr(NetworkClient, "_note_failure", leap_at_failure)
    with pytest.raises(NetworkError, match=re.escape(ADVICE)):
        read_arrow(cluster.bootstrap_servers, WRONG, default_api_timeout_ms=HOUR)


def partitions(broker, *, is_stream):
    """Return the partitions that the driver of a read finds."""
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "t",
        "kafka.default.api.timeout.ms": str(HOUR),
    }
    options = SourceOptions.from_mapping(given, is_stream=is_stream)
    with ConsumerClient(options.consumer) as client:
        clients = FakeClients(client)
        return SourceCluster(options, is_stream=is_stream, clients=clients).partitions()


def test_a_batch_names_the_address(alone):
    """Already the first question of the driver does."""
    with pytest.raises(UnreachedError, match=re.escape(FINAL)):
        partitions(alone, is_stream=False)


def test_a_stream_keeps_trying_if_another_broker_can_be_reached(cluster):
    """The broker may have crashed, and a stream must not end with it."""
    assert (WRONG, RIGHT) == partitions(cluster, is_stream=True)


def test_a_task_ends_if_it_can_reach_no_broker(alone):
    """Executors may be in another network than the driver."""
    config = SourceOptions.from_mapping(
        {"kafka.bootstrap.servers": alone.bootstrap_servers, "subscribe": "t"}, is_stream=False
    ).consumer
    with ConsumerClient(config) as client:
        rows = read_range(
            client, PartitionRange("t", 0, 0, 1), arrow_schema(None), poll_timeout=HOUR
        )
        with pytest.raises(UnreachedError, match=re.escape(FINAL)):
            next(rows)


# --- exactly-once writes


def exactly_once(broker, **more):
    return SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "topic": "t",
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": "orders",
            "kafka.delivery.timeout.ms": str(HOUR),
            **more,
        }
    )


def test_the_driver_of_an_exactly_once_write_names_the_address(alone, monkeypatch):
    """It says before the tasks run that it cannot reach any broker."""
    monkeypatch.setattr(exactly_once_write, "_kept", {})
    options = exactly_once(alone)
    with (
        pytest.raises(UnreachedError, match=re.escape(FINAL)),
        exactly_once_write.two_phase_commit(options.producer, options.exactly_once),
    ):
        pass


def test_the_driver_tries_all_brokers_until_it_knows_that_none_can_be_reached(
    unused_port, monkeypatch
):
    """With two wrong addresses, a single attempt at the second one would prove nothing."""
    monkeypatch.setattr(exactly_once_write, "_kept", {})
    monkeypatch.setattr(cluster_connection_states, "FINAL_SECONDS", 0.2)
    with DevBroker(brokers=2, topics={"t": 2}) as brokers:
        for node_id, address in ((1, ("127.0.0.1", unused_port)), (2, ("kafka.invalid", 9092))):
            broker = brokers._server.broker(node_id)
            brokers.call(
                lambda _, broker=broker, address=address: broker.advertise(
                    *address, listener="PLAINTEXT"
                )
            )
        options = exactly_once(brokers)
        with (
            pytest.raises(UnreachedError, match="waiting longer would not help"),
            exactly_once_write.two_phase_commit(options.producer, options.exactly_once),
        ):
            pass


# --- producers, consumers


def test_a_producer_keeps_its_records_until_the_broker_is_reached(alone, caplog):
    """It warns within seconds, and no record fails, although no broker can be reached."""
    caplog.set_level(logging.WARNING)
    settings = {"bootstrap.servers": alone.bootstrap_servers, "delivery.timeout.ms": HOUR}
    with KafkaProducer(settings) as producer:
        sent = producer.send("t", b"kept")
        wait_until(lambda: warnings_in(caplog), seconds=120, what="the warning")
        assert not sent.done()
        host, port = alone.bootstrap_servers.split(":")
        alone.call(lambda it: it.advertise(host, int(port), listener="PLAINTEXT"))
        producer._core._thread.submit(producer._core._client.refresh_metadata(1e9)).result(120)
        assert 0 == sent.result(timeout=120).offset


def test_a_transactional_producer_warns_and_waits_for_its_coordinator(alone, caplog):
    """The cause of its time-out, after max.block.ms, would be the address."""
    caplog.set_level(logging.WARNING)
    settings = {"bootstrap.servers": alone.bootstrap_servers, "max.block.ms": HOUR}
    with (
        ThreadPoolExecutor(1) as thread,
        KafkaProducer({**settings, "transactional.id": "a"}) as producer,
    ):
        waiting = thread.submit(producer.init_transactions)
        wait_until(lambda: warnings_in(caplog), seconds=120, what="the warning")
        assert ADVICE in str(producer._core._client.cause())
        assert not waiting.done()
        producer.close(0)
        assert isinstance(waiting.exception(timeout=120), KafkaError)


def test_a_producer_warns_of_an_address_and_keeps_trying(cluster, caplog):
    """Records for other brokers are sent; the cause of the others' delay names the address, too."""
    caplog.set_level(logging.WARNING)
    with KafkaProducer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
        waiting = producer.send("t", b"waiting", partition=0)
        wait_until(lambda: warnings_in(caplog), seconds=120, what="the warning")
        assert 0 == producer.send("t", b"sent", partition=1).result(timeout=120).offset
        assert not waiting.done()
        network = producer._core._client
        assert ADVICE in str(network.cause(network.metadata.snapshot.leader_of(WRONG)))
        producer.close(0)
    [warning] = warnings_in(caplog)
    assert ADVICE in warning
    assert warning.endswith("has never reached it")


def test_a_consumer_warns_of_an_address_and_keeps_trying(alone, caplog):
    """Its calls with a timeout name the address, and `poll` returns nothing."""
    caplog.set_level(logging.WARNING)
    with KafkaConsumer({"bootstrap.servers": alone.bootstrap_servers, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        while not warnings_in(caplog):
            assert not consumer.poll(0.01).records()
        assert not consumer.poll(0).records()
        assert ADVICE in str(consumer._core.offset_commits._unanswered())
        consumer.close(0)
    [warning] = warnings_in(caplog)
    assert ADVICE in warning
