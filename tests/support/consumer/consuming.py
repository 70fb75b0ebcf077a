"""KafkaConsumers of tests: polled until something has happened, never for a fixed time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.consumer.polling.rebalance_listener import ConsumerRebalanceListener

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from spark_kafka_sink.model import TopicPartition

#: Seconds; more than a busy machine needs.
PATIENCE = 60.0
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


class Bootstrap(Protocol):
    """A cluster."""

    @property
    def bootstrap_servers(self) -> str:
        """The initial addresses."""


def consumer_for(kafka: Bootstrap, group: str | None = None, **settings: object) -> KafkaConsumer:
    """Create a consumer that begins at the first record; settings have Kafka's names."""
    return KafkaConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "auto.offset.reset": "earliest",
            **FAST,
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
