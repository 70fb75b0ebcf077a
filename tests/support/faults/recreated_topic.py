"""A topic that is recreated with fewer partitions while a producer is running."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.kafka.real_kafka import ask_until_answered, wait_until
from tests.support.producer.producing import patiently
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from tests.support.producer.producing import Bootstrap

#: More than a busy machine needs.
SECONDS = 120
BEFORE, AFTER = 6, 2
KEYS = 20


def recreate_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Delete a topic, create it again, and wait until a broker serves the new one.

    The cluster must not create topics automatically, since the producer requests metadata in
    between.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    old_id = _topic_id(admin, topic)
    admin.delete_topics([topic])[topic].result(SECONDS)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    # The broker responds to a deletion before all brokers have applied it.
    ask_until_answered(
        lambda: admin.create_topics([new])[topic].result(SECONDS),
        {KafkaError.TOPIC_ALREADY_EXISTS},
    )
    # The controller has created it, but until a broker learns that, it serves the deleted topic.
    wait_until(
        lambda: _topic_id(admin, topic) not in {None, old_id},
        seconds=SECONDS,
        what=f"the new {topic}",
    )


def _topic_id(admin: AdminClient, topic: str) -> str | None:
    """Return the id of a topic, or None if the broker that answers does not know the topic."""
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=SECONDS)[topic]
    with suppress(KafkaException):
        return str(described.result(SECONDS).topic_id)
    return None


def _producer(cluster: Bootstrap, **settings: object) -> KafkaProducer:
    """Create a producer whose metadata requests do not recreate a deleted topic."""
    given = {"bootstrap.servers": cluster.bootstrap_servers, **settings}
    config = ProducerConfig.from_mapping(given)
    return KafkaProducer(replace(config, allow_auto_create_topics=False))


def await_partition_count(producer: KafkaProducer, topic: str, count: int) -> None:
    """Wait until the producer's metadata has this many partitions."""
    pause = threading.Event()
    assert any(
        len(producer.partitions_for(topic)) == count or pause.wait(0.1) for _ in range(10 * SECONDS)
    )


def write_before_and_after_shrinking(cluster: Bootstrap, topic: str) -> list[set[int]]:
    """Write records, with and without keys, before and after a topic of 6 partitions shrinks to 2.

    Returns the partitions of the records: sent one by one, then appended as a table, before and
    after.
    """
    places = []
    with _producer(
        cluster,
        **{"metadata.max.age.ms": 200, "delivery.timeout.ms": 30_000, "request.timeout.ms": 10_000},
        # Without batching, each record without a key goes to the current sticky partition.
        **{"batch.size": 0},
    ) as producer:
        for count in (BEFORE, AFTER):
            patiently(lambda: producer.partitions_for(topic))
            await_partition_count(producer, topic, count)
            futures = [producer.send(topic, b"v", key=b"key-%d" % n) for n in range(KEYS)]
            futures += [producer.send(topic, b"v") for _ in range(KEYS)]
            producer.flush()
            places.append({future.result(0).partition for future in futures})
            producer.take_acks()
            keys = [b"key-%d" % n for n in range(KEYS)] + [None] * KEYS
            producer.append(columns([b"v"] * 2 * KEYS, keys=keys, topic=topic))
            producer.flush()
            places.append({place.partition for place in producer.take_acks()})
            if count == BEFORE:
                recreate_topic(cluster.bootstrap_servers, topic, AFTER)
    return places


class Shrinking(NamedTuple):
    """The outcomes of records that were sent before their topic shrank, and written after."""

    #: The outcome of the record to the removed partition.
    gone: Exception | None
    #: The outcomes of the records sent with it, to this topic and to another one.
    others: list[Exception | None]


def send_before_a_shrinking(cluster: Bootstrap, topic: str, other: str) -> Shrinking:
    """Send records that linger until `topic` has 2 partitions instead of 6, then flush."""
    with _producer(cluster, **{"metadata.max.age.ms": 200, "linger.ms": 300_000}) as producer:
        patiently(lambda: producer.partitions_for(topic))
        patiently(lambda: producer.partitions_for(other))
        await_partition_count(producer, topic, BEFORE)
        gone = producer.send(topic, b"v", partition=BEFORE - 1)
        others = [producer.send(topic, b"v", key=b"key-%d" % n) for n in range(KEYS)]
        others += [producer.send(other, b"v") for _ in range(KEYS)]
        recreate_topic(cluster.bootstrap_servers, topic, AFTER)
        await_partition_count(producer, topic, AFTER)
        producer.flush()
        return Shrinking(gone.exception(0), [future.exception(0) for future in others])
