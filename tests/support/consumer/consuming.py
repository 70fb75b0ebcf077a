"""KafkaConsumers of tests: polled until something has happened, never for a fixed time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, Producer

from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from tests.support.kafka.real_kafka import KafkaCluster

#: Seconds; more than a busy machine needs.
PATIENCE = 60.0
#: The partitions of a topic that is filled, and the records of each.
PARTITIONS = 3
COUNT = 40
#: Seconds of each poll, so that several consumers can be polled in turn.
_POLL = 0.05
#: Retries follow soon; a member is missed soon, but not while the machine is busy.
FAST = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "heartbeat.interval.ms": 300,
    "fetch.max.wait.ms": 100,
}
#: Settings of FAST that the broker decides about in the consumer protocol.
_CLASSIC_ONLY = {"heartbeat.interval.ms"}


class Bootstrap(Protocol):
    """A cluster."""

    @property
    def bootstrap_servers(self) -> str:
        """The initial addresses."""


def consumer_for(kafka: Bootstrap, group: str | None = None, **settings: object) -> KafkaConsumer:
    """Create a consumer that begins at the first record; settings have Kafka's names."""
    is_classic = settings.get("group.protocol", "classic") == "classic"
    fast = {key: it for key, it in FAST.items() if is_classic or key not in _CLASSIC_ONLY}
    return KafkaConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "auto.offset.reset": "earliest",
            **fast,
            **({} if group is None else {"group.id": group}),
            **settings,
        }
    )


class Event(NamedTuple):
    """A call of a listener's method, and the generation at that time."""

    what: str
    partitions: frozenset[TopicPartition]
    generation: int


class RecordingListener(ConsumerRebalanceListener):
    """A listener that records its calls; those without partitions only if they are assignments."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        """Listen to `consumer`, which has to subscribe with this listener."""
        self._consumer = consumer
        self.events: list[Event] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Record new partitions."""
        self._record("assigned", partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Record partitions that another member gets next."""
        if partitions:
            self._record("revoked", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Record partitions that another member may have already."""
        if partitions:
            self._record("lost", partitions)

    def _record(self, what: str, partitions: Collection[TopicPartition]) -> None:
        generation = self._consumer.group_metadata().generation_id
        self.events.append(Event(what, frozenset(partitions), generation))

    @property
    def names(self) -> list[str]:
        """What has happened, in order."""
        return [event.what for event in self.events]


def take(consumer: KafkaConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until `count` records have come; fail if there are more, or fewer in a minute."""
    found: list[ConsumerRecord] = []
    poll_until(lambda: len(found) >= count, consumer, found=found, what=f"{count} records")
    assert count == len(found)
    return found


def in_log_order(records: Iterable[ConsumerRecord]) -> list[ConsumerRecord]:
    """Return the records by partition and offset, and check that they came so."""
    came = list(records)
    ordered = sorted(came, key=lambda it: (it.topic, it.partition, it.offset))
    by_partition = sorted(came, key=lambda it: (it.topic, it.partition))
    assert ordered == by_partition, "the records of a partition are not in order"
    return ordered


def poll_until(
    condition: Callable[[], object],
    *consumers: KafkaConsumer,
    found: list[ConsumerRecord] | None = None,
    what: str = "the condition",
) -> list[ConsumerRecord]:
    """Poll consumers in turn until the condition holds; return (and add to `found`) the records.

    Raises TimeoutError if it does not hold in a minute.
    """
    records = [] if found is None else found
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about in {PATIENCE:g} s")
        for consumer in consumers:
            records += consumer.poll(_POLL).records()
    return records


def fill(
    kafka: Bootstrap,
    topic: str,
    *,
    partitions: int = PARTITIONS,
    first: int = 0,
    count: int = COUNT,
    timestamp: int = 0,
) -> None:
    """Write numbered records: of each partition `count`, from number `first` on."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(first, first + count):
        for partition in range(partitions):
            producer.produce(topic, f"{number}", partition=partition, timestamp=timestamp)
    assert producer.flush(PATIENCE) == 0


def partitions_of(topic: str, count: int = PARTITIONS) -> list[TopicPartition]:
    """Return the first partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(count)]


def values_by_partition(records: Iterable[ConsumerRecord]) -> dict[int, list[int]]:
    """Return the numbers of records, which must have come in the order of each partition."""
    found: dict[int, list[int]] = {}
    for record in in_log_order(records):
        found.setdefault(record.partition, []).append(int(record.value))
    return found


def committed_as_seen_by_confluent(kafka: KafkaCluster, group: str, topic: str) -> dict[int, int]:
    """Return the committed offsets of a topic's partitions."""
    asked = ConsumerGroupTopicPartitions(group)
    [future] = kafka.admin.list_consumer_group_offsets([asked]).values()
    found = future.result(PATIENCE).topic_partitions
    return {it.partition: it.offset for it in found if it.topic == topic}
