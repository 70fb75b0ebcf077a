"""The clusters on which exactly-once tests run: the embedded broker, or a real Kafka."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import confluent_kafka

from spark_kafka_sink.devbroker import DevBroker
from tests.support.exactly_once.exactly_once_world import world_at
from tests.support.kafka.java_tools import run_java_tool
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.model import TopicPartition
    from tests.support.exactly_once.exactly_once_world import World
    from tests.support.kafka.real_kafka import KafkaCluster

_SECONDS = 120


class Site(Protocol):
    """What a world needs from its cluster besides Kafka's protocol."""

    bootstrap_servers: str
    #: The embedded broker, or None on a real Kafka.
    embedded: DevBroker | None

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; configs have Kafka's names, with underscores for dots."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists, and wait until it is deleted."""

    def drop_topics(self, *names: str) -> None:
        """Delete topics whose names are not used again."""

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """Advance the log start offset of a partition once the log reaches that offset."""

    def pass_time(self, seconds: float) -> None:
        """Advance the time, on clusters where that needs no waiting."""

    def set_transaction_version(self, level: int) -> None:
        """Set the finalized level of transaction.version; connected clients learn of it later."""

    def read_committed(self, topic: str) -> list[str]:
        """Return the values that a read_committed librdkafka consumer reads, sorted."""


class EmbeddedSite:
    """A site in a DevBroker."""

    def __init__(self, broker: DevBroker) -> None:
        self.embedded = broker
        self.bootstrap_servers = broker.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic, see Site."""
        self.embedded.create_topic(name, partitions=partitions, configs=_with_kafka_names(configs))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, see Site."""

        def delete(broker: Any) -> None:
            topic = broker.cluster.topic(name)
            if topic is not None:
                broker.cluster.delete_topic(topic)

        self.embedded.call(delete)

    def drop_topics(self, *names: str) -> None:
        """Delete topics, see Site."""
        for name in names:
            self.delete_topic(name)

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """Advance the log start offset, see Site."""
        self.embedded.call(
            lambda broker: broker.cluster.partition(place).log.delete_records(before)
        )

    def pass_time(self, seconds: float) -> None:
        """Make the broker do what is due by then, see Site."""
        later = time.time() + seconds
        self.embedded.call(lambda broker: broker.tick(later))

    def set_transaction_version(self, level: int) -> None:
        """Set the finalized level of transaction.version, see Site."""

        def finalize(broker: Any) -> None:
            settings = replace(broker.settings, transaction_version=level)
            broker.settings = broker.cluster.transactions._settings = settings

        self.embedded.call(finalize)

    def delay_markers(self, milliseconds: int) -> None:
        """Delay markers by this many milliseconds after the EndTxn response."""

        def delay(broker: Any) -> None:
            coordinator = broker.cluster.transactions
            coordinator._settings = replace(
                coordinator._settings, transaction_marker_delay_ms=milliseconds
            )

        self.embedded.call(delay)

    def lose_markers(self, topic: str, count: int, *, after: int = 0) -> Callable[[], int]:
        """Drop markers to a topic but treat them as written; return a function that counts them.

        A coordinator of Kafka 4.3 does the same if it finds a partition without a leader
        (KAFKA-20734).
        """
        passed: list[bool] = []

        def lose(broker: Any) -> None:
            write = broker.cluster.write_marker

            def write_or_not(place: TopicPartition, marker: Any) -> None:
                if place.topic == topic:
                    passed.append(len(passed) >= after + count or len(passed) < after)
                    if not passed[-1]:
                        return
                write(place, marker)

            broker.cluster.write_marker = write_or_not

        self.embedded.call(lose)
        return lambda: passed.count(False)

    def read_committed(self, topic: str) -> list[str]:
        """Return the committed values, see Site."""
        return _read_committed(self.bootstrap_servers, topic)


class KafkaSite:
    """A site on a real Kafka with one node."""

    embedded = None

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.bootstrap_servers = cluster.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic, see Site."""
        self._cluster.create_topic(partitions, name=name, config=_with_kafka_names(configs))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, see Site."""
        self._cluster.delete_topics([name])
        wait_until(
            lambda: name not in self._cluster.admin.list_topics(timeout=_SECONDS).topics,
            seconds=_SECONDS,
            what=f"the end of {name}",
        )

    def drop_topics(self, *names: str) -> None:
        """Delete topics, see Site."""
        self._cluster.delete_topics(names)

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """Advance the log start offset, see Site."""
        topic, partition = place
        wait_until(
            lambda: self._cluster.end_offsets(topic)[partition] >= before,
            seconds=_SECONDS,
            what=f"{place} to reach offset {before}",
        )
        asked = confluent_kafka.TopicPartition(topic, partition, before)
        for deleted in self._cluster.admin.delete_records([asked]).values():
            deleted.result()

    def pass_time(self, seconds: float) -> None:
        """Do nothing: the tests have to wait, see Site."""

    def set_transaction_version(self, level: int) -> None:
        """Set the finalized level of transaction.version with the operator's tool, see Site."""
        feature = f"transaction.version={level}"
        verb = "upgrade" if level > 1 else "downgrade"
        run_java_tool(
            "org.apache.kafka.tools.FeatureCommand",
            *("--bootstrap-server", self.bootstrap_servers, verb, "--feature", feature),
        )

    def read_committed(self, topic: str) -> list[str]:
        """Return the committed values, see Site."""
        return _read_committed(self.bootstrap_servers, topic)


def _with_kafka_names(configs: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in configs.items()}


def _read_committed(bootstrap_servers: str, topic: str) -> list[str]:
    """Read a small topic with librdkafka, in isolation level read_committed."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    values: list[str] = []
    try:
        partitions = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, begin) for number in partitions]
        )
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(_SECONDS)
            if message is None:
                raise TimeoutError(f"no more records in {topic} after {len(values)} values")
            error = message.error()
            if error is None:
                values.append((message.value() or b"").decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return sorted(values)


@contextmanager
def embedded_world(**settings: Any) -> Iterator[World]:
    """Yield a world in a new embedded broker."""
    with (
        DevBroker(auto_create_topics=False, **settings) as broker,
        world_at(EmbeddedSite(broker)) as made,
    ):
        yield made
