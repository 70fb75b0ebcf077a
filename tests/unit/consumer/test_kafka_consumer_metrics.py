"""The metrics of KafkaConsumers of the embedded broker: totals, which do not depend on time."""

from __future__ import annotations

import math

import pytest

from spark_kafka_sink.consumer import consumer_core
from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from tests.support.consumer.consuming import consumer_for, poll_until, take
from tests.support.consumer.reading import fill, numbered

FETCHES = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"
CONSUMER = "consumer-metrics"
TP0 = TopicPartition("t", 0)
COUNT = 50
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def broker():
    """Yield a broker whose topic `t` has 50 records in one partition."""
    with DevBroker(topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(COUNT))
        yield broker


def read(consumer: KafkaConsumer, group: str, name: str, **tags: str) -> float:
    """Return the value of a metric."""
    [value] = [
        metric.value()
        for it, metric in consumer.metrics().items()
        if (it.group, it.name) == (group, name)
        and {tag: of for tag, of in it.tags.items() if tag != "client-id"} == tags
    ]
    return value


def test_polled_records_are_counted(broker):
    """Records and bytes count for the client and the topic, distances for the partition."""
    with consumer_for(broker, **{"max.poll.records": 20}) as consumer:
        consumer.assign([TP0])
        take(consumer, COUNT)
        assert COUNT == read(consumer, FETCHES, "records-consumed-total")
        assert COUNT == read(consumer, FETCHES, "records-consumed-total", topic="t")
        size = read(consumer, FETCHES, "bytes-consumed-total", topic="t")
        assert read(consumer, FETCHES, "bytes-consumed-total") == size > COUNT
        assert read(consumer, FETCHES, "fetch-size-max") <= size
        assert read(consumer, FETCHES, "fetch-total") >= 1
        assert read(consumer, FETCHES, "fetch-latency-max") >= 0
        tags = {"topic": "t", "partition": "0"}
        distances = {
            "records-lag": 0,
            "records-lag-max": COUNT - 20,
            "records-lead": COUNT,
            "records-lead-min": 20,
            "preferred-read-replica": -1,
        }
        assert distances == {name: read(consumer, FETCHES, name, **tags) for name in distances}
        assert COUNT - 20 == read(consumer, FETCHES, "records-lag-max")


def test_the_records_of_an_arrow_table_are_counted(broker):
    """`poll_arrow` counts like `poll`."""
    with consumer_for(broker) as consumer:
        consumer.assign([TP0])
        found = 0
        while found < COUNT:
            found += consumer.poll_arrow().num_rows
        assert COUNT == read(consumer, FETCHES, "records-consumed-total")
        assert read(consumer, FETCHES, "bytes-consumed-total", topic="t") > COUNT
        assert 0 == read(consumer, FETCHES, "records-lag", topic="t", partition="0")


def test_only_returned_records_are_counted(broker):
    """Records of an answer that come before the position are not counted as consumed."""
    with consumer_for(broker) as consumer:
        consumer.assign([TP0])
        consumer.seek(TP0, 10)
        take(consumer, COUNT - 10)
        assert COUNT - 10 == read(consumer, FETCHES, "records-consumed-total")


def test_what_a_seek_drops_is_not_counted(broker):
    """Of an answer that was not read to its end, only the records that were returned count."""
    with consumer_for(broker, **{"max.poll.records": 20}) as consumer:
        consumer.assign([TP0])
        take(consumer, 20)
        consumer.seek_to_end()
        assert COUNT == consumer.position(TP0)
        fill(broker.bootstrap_servers, "t", [b"more"])
        take(consumer, 1)
        assert 21 == read(consumer, FETCHES, "records-consumed-total")


def test_calls_and_connections_are_counted(broker):
    """A consumer without a group has metrics of its polls and of its connections."""
    with consumer_for(broker, **{"client.id": "reader"}) as consumer:
        assert -1 == read(consumer, CONSUMER, "last-poll-seconds-ago")
        consumer.assign([TP0])
        take(consumer, COUNT)
        assert read(consumer, CONSUMER, "last-poll-seconds-ago") >= 0
        assert not math.isnan(read(consumer, CONSUMER, "poll-idle-ratio-avg"))
        assert read(consumer, CONSUMER, "connection-count") >= 1
        assert read(consumer, CONSUMER, "incoming-byte-total") > COUNT
        groups = {name.group for name in consumer.metrics()}
        assert {CONSUMER, FETCHES, "consumer-node-metrics", "kafka-metrics-count"} == groups
        assert {"reader"} == {name.tags["client-id"] for name in consumer.metrics()}


class _Listener(ConsumerRebalanceListener):
    """A listener that does nothing."""

    def on_partitions_assigned(self, partitions):
        """Take partitions."""

    def on_partitions_revoked(self, partitions):
        """Release partitions."""


@PROTOCOLS
def test_the_work_of_a_member_is_counted(broker, protocol):
    """A member has joined by one rebalance, sends heartbeats, and commits."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "auto.offset.reset": "earliest",
        "group.id": "g",
        "group.protocol": protocol,
        "enable.auto.commit": False,
        # The other protocol's interval is the broker's.
        **({"heartbeat.interval.ms": 300} if protocol == "classic" else {}),
    }
    with KafkaConsumer(settings) as consumer:
        assert -1 == read(consumer, COORDINATOR, "last-heartbeat-seconds-ago")
        assert -1 == read(consumer, COORDINATOR, "last-rebalance-seconds-ago")
        consumer.subscribe(["t"], listener=_Listener())
        take(consumer, COUNT)
        poll_until(lambda: read(consumer, COORDINATOR, "heartbeat-total") > 0, consumer)
        consumer.commit()
        consumer.committed([TP0])
        expected = {
            "assigned-partitions": 1,
            "rebalance-total": 1,
            "failed-rebalance-total": 0,
            "commit-total": 1,
        }
        if protocol == "classic":
            # The first JoinGroup only gets the member its id.
            expected |= {"join-total": 1, "sync-total": 1, "failed-rebalance-total": 1}
        assert expected == {name: read(consumer, COORDINATOR, name) for name in expected}
        assert read(consumer, COORDINATOR, "last-heartbeat-seconds-ago") >= 0
        assert read(consumer, COORDINATOR, "last-rebalance-seconds-ago") >= 0
        assert read(consumer, COORDINATOR, "partition-assigned-latency-max") >= 0
        assert math.isnan(read(consumer, COORDINATOR, "partition-lost-latency-max"))
        assert read(consumer, CONSUMER, "commit-sync-time-ns-total") > 0
        assert read(consumer, CONSUMER, "committed-time-ns-total") > 0
        consumer.unsubscribe()
        assert 0 == read(consumer, COORDINATOR, "assigned-partitions")
        assert read(consumer, COORDINATOR, "partition-revoked-latency-max") >= 0


class _Reporter:
    """A reporter that records its calls."""

    def __init__(self):
        """Start without events."""
        self.names = set()
        self.closed = 0

    def init(self, metrics):
        """Record the first metrics."""
        self.names |= {metric.metric_name.name for metric in metrics}

    def metric_change(self, metric):
        """Record a metric."""
        self.names.add(metric.metric_name.name)

    def metric_removal(self, metric):
        """Implement the reporter."""

    def close(self):
        """Count the calls."""
        self.closed += 1


def test_reporters_are_told_and_closed_once(broker):
    """A reporter is told of all metrics, and closed with the consumer, whose values stay."""
    reporter = _Reporter()
    with consumer_for(broker, **{"metric.reporters": [reporter]}) as consumer:
        consumer.assign([TP0])
        take(consumer, COUNT)
        assert 0 == reporter.closed
    assert {name.name for name in consumer.metrics()} <= reporter.names
    assert 1 == reporter.closed
    assert COUNT == read(consumer, FETCHES, "records-consumed-total")
    consumer.close()
    assert 1 == reporter.closed


def test_reporters_are_closed_if_there_is_no_consumer(monkeypatch):
    """A consumer that cannot be created leaves no reporter behind."""

    def refuse(*_):
        raise ConfigError("no such group")

    monkeypatch.setattr(consumer_core, "ClassicCoordinator", refuse)
    reporter = _Reporter()
    settings = {"bootstrap.servers": "127.0.0.1:1", "metric.reporters": [reporter], "group.id": "g"}
    with pytest.raises(ConfigError, match="no such group"):
        KafkaConsumer(settings)
    assert 1 == reporter.closed
