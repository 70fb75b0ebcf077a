"""The effects of settings of reads that brokers and callers see: each test changes one setting."""

from __future__ import annotations

import socket
import threading

import pytest

from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.config.source_options import SourceOptions
from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.consumer.range_reader import PartitionRange, read_range
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from tests.support.spark.fake_source import FakeClients

T0 = TopicPartition("t", 0)
VALUES = arrow_schema(["value"])
#: In seconds; more than a busy machine needs.
PATIENCE = 60.0


@pytest.fixture
def broker():
    with DevBroker(topics={"t": 1}) as broker:
        with _producer(broker) as producer:
            producer.send("t", b"a value", partition=0).result(PATIENCE)
        yield broker


def _producer(broker: DevBroker) -> KafkaProducer:
    return KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "none"}
    )


def _damage(broker: DevBroker) -> None:
    """Change a byte of the stored value."""

    def change(server):
        log = server.cluster.partition(T0).log
        [batch] = log.batches()
        damaged = bytes(batch).replace(b"a value", b"A value")
        [segment] = log.segments
        segment.records.truncate(0)
        segment.records.append(memoryview(damaged))

    broker.call(change)


def _read(broker: DevBroker, settings: dict[str, object], end: int = 1) -> list[bytes]:
    config = ConsumerConfig.from_mapping(
        {"bootstrap.servers": broker.bootstrap_servers, **settings}
    )
    with ConsumerClient(config) as client:
        batches = read_range(client, PartitionRange("t", 0, 0, end), VALUES, poll_timeout=PATIENCE)
        return [value.as_py() for batch in batches for value in batch.column("value")]


def _fetched(broker: DevBroker, settings: dict[str, object]) -> tuple[object, object]:
    """Return the first Fetch request of a read, and its context."""
    seen = []
    broker.on(ApiKey.FETCH, lambda request, context: seen.append((request, context)))
    assert [b"a value"] == _read(broker, settings)
    return seen[0]


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("fetch.max.bytes", 70_000, 70_000),
        ("fetch.min.bytes", 7, 7),
        ("fetch.max.wait.ms", 70, 70),
        ("client.rack", "east", "east"),
        ("isolation.level", "read_committed", 1),
        ("isolation.level", "read_uncommitted", 0),
        ("max.partition.fetch.bytes", 60_000, 60_000),
    ],
)
def test_a_fetch_request_has_the_setting(broker, setting, value, expected):
    """A Fetch request carries the settings that brokers obey."""
    request, _ = _fetched(broker, {setting: value})
    fields = {
        "fetch.max.bytes": request.max_bytes,
        "fetch.min.bytes": request.min_bytes,
        "fetch.max.wait.ms": request.max_wait_ms,
        "client.rack": request.rack_id,
        "isolation.level": request.isolation_level,
        "max.partition.fetch.bytes": request.topics[0].partitions[0].partition_max_bytes,
    }
    assert expected == fields[setting]


@pytest.mark.parametrize("name", ["spark-kafka-sink", "billing"])
def test_a_fetch_request_has_the_client_id(broker, name):
    """A Fetch request carries client.id."""
    _, context = _fetched(broker, {"client.id": name})
    assert name == context.header.client_id


@pytest.mark.parametrize("size", [50_000, -1])
def test_sockets_get_the_configured_buffer_size(broker, monkeypatch, size):
    """Each socket gets the configured buffer size, and -1, the default, leaves it unchanged."""
    # Other threads use sockets, too: only this client's thread counts.
    thread_name = "kafka-consumer-network-thread | buffers"
    sizes = []
    set_option = socket.socket.setsockopt

    def take_down(self, level, name, *value):
        by = threading.current_thread().name
        if (by, level, name) == (thread_name, socket.SOL_SOCKET, socket.SO_RCVBUF):
            sizes.extend(value)
        return set_option(self, level, name, *value)

    monkeypatch.setattr(socket.socket, "setsockopt", take_down)
    given = {} if size == -1 else {"receive.buffer.bytes": size}
    assert [b"a value"] == _read(broker, {"client.id": "buffers", **given})
    assert ({size} if size > 0 else set()) == set(sizes)


def test_checksums_are_checked_unless_switched_off(broker):
    """A damaged batch is an error; without check.crcs its records are read as they are."""
    _damage(broker)
    with pytest.raises(CorruptRecordError, match="wrong checksum"):
        _read(broker, {})
    assert [b"A value"] == _read(broker, {"check.crcs": "false"})


@pytest.mark.parametrize(("limit", "is_enough"), [(99_999, False), (110_000, True)])
def test_a_batch_may_not_grow_beyond_the_limit(broker, limit, is_enough):
    """A batch that decompresses to more than the limit is an error that names the setting."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"}
    with KafkaProducer(settings) as producer:
        producer.send("t", bytes(100_000), partition=0).result(PATIENCE)

    given = {"max.uncompressed.batch.bytes": limit}
    if is_enough:
        assert [b"a value", bytes(100_000)] == _read(broker, given, 2)
    else:
        with pytest.raises(CorruptRecordError, match=r"raise max\.uncompressed\.batch\.bytes"):
            _read(broker, given, 2)


@pytest.mark.parametrize(("milliseconds", "seconds"), [(7_000, 7.0), (9_000, 9.0)])
def test_a_look_up_has_the_configured_time(milliseconds, seconds):
    """The planner of a Spark read gives each look-up default.api.timeout.ms."""
    given = SourceOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "kafka.default.api.timeout.ms": milliseconds,
            "subscribe": "t",
        },
        is_stream=True,
    )
    client = _Client()
    cluster = SourceCluster(given, is_stream=True, clients=FakeClients(client))
    assert {T0: 5} == cluster.earliest([T0])
    assert [seconds] == client.timeouts


class _Client:
    """A client that notes how long it may take."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def earliest_offsets(self, partitions, *, timeout):
        """Return 5 for each partition."""
        self.timeouts.append(timeout)
        return dict.fromkeys(partitions, 5)
