"""Where the worlds of exactly-once tests are: in the embedded broker, or on a real Kafka."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import confluent_kafka

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.handlers.api_versions import ApiVersionsHandler
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.exactly_once.exactly_once_world import world_at
from tests.support.kafka.java_tools import run_java_tool
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.model import TopicPartition
    from tests.support.exactly_once.exactly_once_world import World
    from tests.support.kafka.real_kafka import KafkaCluster

_SECONDS = 60


class Site(Protocol):
    """What a world needs of its cluster, besides Kafka's protocol."""

    bootstrap_servers: str
    #: The embedded broker, if it is one.
    embedded: DevBroker | None

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; configs by Kafka's names with underscores for dots."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if there is one, and wait until it is gone."""

    def drop_topics(self, *names: str) -> None:
        """Delete topics whose names nobody needs again."""

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """Have the log of a partition begin later, once it reaches there."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass, where that can be done without waiting."""

    def set_transaction_version(self, level: int) -> None:
        """Finalize another level of transaction.version; who is connected learns of it later."""

    def read_committed(self, topic: str) -> list[str]:
        """Read what a consumer that is not ours sees, sorted."""


class EmbeddedSite:
    """A DevBroker."""

    def __init__(self, broker: DevBroker) -> None:
        self.embedded = broker
        self.bootstrap_servers = broker.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """See Site."""
        self.embedded.create_topic(name, partitions=partitions, configs=_by_kafkas_names(configs))

    def delete_topic(self, name: str) -> None:
        """See Site."""

        def delete(broker: Any) -> None:
            topic = broker.cluster.topic(name)
            if topic is not None:
                broker.cluster.delete_topic(topic)

        self.embedded.call(delete)

    def drop_topics(self, *names: str) -> None:
        """See Site."""
        for name in names:
            self.delete_topic(name)

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """See Site."""
        self.embedded.call(
            lambda broker: broker.cluster.partition(place).log.delete_records(before)
        )

    def pass_time(self, seconds: float) -> None:
        """See Site."""
        later = time.time() + seconds
        self.embedded.call(lambda broker: broker.tick(later))

    def set_transaction_version(self, level: int) -> None:
        """See Site."""

        def finalize(broker: Any) -> None:
            settings = replace(broker.settings, transaction_version=level)
            broker.settings = broker.cluster.transactions._settings = settings
            handler = ApiVersionsHandler(broker.supported_versions, transaction_version=level)
            broker._api_versions = broker._handlers[ApiKey.API_VERSIONS] = handler

        self.embedded.call(finalize)

    def delay_markers(self, milliseconds: int) -> None:
        """Have markers written so long after EndTxn was answered."""

        def delay(broker: Any) -> None:
            coordinator = broker.cluster.transactions
            coordinator._settings = replace(
                coordinator._settings, transaction_marker_delay_ms=milliseconds
            )

        self.embedded.call(delay)

    def lose_markers(self, topic: str, count: int, *, after: int = 0) -> Callable[[], int]:
        """Leave markers out of a topic, and take them for written; give how many that were.

        As a coordinator of Kafka 4.3 does that finds a partition without a leader (KAFKA-20734).
        """
        passed: list[bool] = []

        def lose(broker: Any) -> None:
            markers = broker.cluster.transactions._markers
            write = markers._write_marker

            def write_or_not(place: TopicPartition, marker: Any) -> None:
                if place.topic == topic:
                    passed.append(len(passed) >= after + count or len(passed) < after)
                    if not passed[-1]:
                        return
                write(place, marker)

            markers._write_marker = write_or_not

        self.embedded.call(lose)
        return lambda: passed.count(False)

    def read_committed(self, topic: str) -> list[str]:
        """See Site."""
        return _read_committed(self.bootstrap_servers, topic)


class KafkaSite:
    """A real Kafka of one node."""

    embedded = None

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.bootstrap_servers = cluster.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """See Site."""
        self._cluster.create_topic(partitions, name=name, config=_by_kafkas_names(configs))

    def delete_topic(self, name: str) -> None:
        """See Site."""
        self._cluster.delete_topics([name])
        wait_until(
            lambda: name not in self._cluster.admin.list_topics(timeout=_SECONDS).topics,
            seconds=_SECONDS,
            what=f"the end of {name}",
        )

    def drop_topics(self, *names: str) -> None:
        """See Site."""
        self._cluster.delete_topics(names)

    def delete_records(self, place: TopicPartition, before: int) -> None:
        """See Site."""
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
        """See Site: here it has to be waited for."""

    def set_transaction_version(self, level: int) -> None:
        """See Site: by the tool that an operator would use."""
        feature = f"transaction.version={level}"
        verb = "upgrade" if level > 1 else "downgrade"
        run_java_tool(
            "org.apache.kafka.tools.FeatureCommand",
            *("--bootstrap-server", self.bootstrap_servers, verb, "--feature", feature),
        )

    def read_committed(self, topic: str) -> list[str]:
        """See Site."""
        return _read_committed(self.bootstrap_servers, topic)


def _by_kafkas_names(configs: dict[str, str]) -> dict[str, str]:
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
                raise TimeoutError(f"nothing more to read of {topic}: {len(values)} values")
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
    """Give a world in an embedded broker of its own."""
    with (
        DevBroker(auto_create_topics=False, **settings) as broker,
        world_at(EmbeddedSite(broker)) as made,
    ):
        yield made
