"""The metadata of a cluster at one offset of the metadata log (Kafka's MetadataImage).

Each broker has one, its metadata cache, and so has the controller. It changes only by `apply`, and
images that have applied the same records are equal. It never reads the log itself, so a broker's
image may be as old as a test wants.

A record that does not fit (of an unknown broker, topic or partition) raises MetadataError: then the
controller has a bug, and going on would hide it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, assert_never

from spark_kafka_sink.devbroker.metadata.records import (
    TOPIC_RESOURCE,
    BrokerChange,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    TopicIdPartition,
    TopicRecord,
    UnregisterBroker,
)
from spark_kafka_sink.errors import KafkaError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Mapping, Sequence

#: The offset before the first record.
NOTHING_APPLIED = -1


class MetadataError(KafkaError):
    """A record of the metadata log that does not fit those before it."""


@dataclass(slots=True)
class TopicImage:
    """A topic and its partitions, by number."""

    name: str
    topic_id: uuid.UUID
    partitions: dict[int, PartitionRecord] = field(default_factory=dict)


@dataclass(slots=True)
class MetadataDelta:
    """What some records have changed, so that a broker looks only at that (Kafka's class)."""

    #: Each changed partition as it was before, or None for a new one. Those of deleted topics are
    #: not among them.
    partitions: dict[TopicIdPartition, PartitionRecord | None] = field(default_factory=dict)
    #: The deleted topics, by id.
    deleted_topics: dict[uuid.UUID, TopicImage] = field(default_factory=dict)
    #: The brokers that were registered, changed or unregistered.
    brokers: set[int] = field(default_factory=set)
    #: The topics and brokers whose settings have changed.
    configs: set[ConfigResource] = field(default_factory=set)


class MetadataImage:
    """The brokers, topics, partitions and settings after the record at `offset`."""

    def __init__(self) -> None:
        """Create the image of an empty log."""
        #: The offset of the last record applied, -1 for none.
        self.offset = NOTHING_APPLIED
        #: The first producer id that no broker has been given.
        self.next_producer_id = 0
        self._brokers: dict[int, RegisterBroker] = {}
        self._registration_offsets: dict[int, int] = {}
        self._topics: dict[uuid.UUID, TopicImage] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._configs: dict[ConfigResource, dict[str, str]] = {}

    def __eq__(self, other: object) -> bool:
        """Return whether both have applied the same records, or records with the same effect."""
        if not isinstance(other, MetadataImage):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def brokers(self) -> Mapping[int, RegisterBroker]:
        """The registered brokers by id, those that are fenced included."""
        return MappingProxyType(self._brokers)

    @property
    def topics(self) -> Mapping[uuid.UUID, TopicImage]:
        """The topics by id."""
        return MappingProxyType(self._topics)

    def find_topic(self, name: str) -> TopicImage | None:
        """Return the topic with this name, if there is one."""
        topic_id = self._topic_ids.get(name)
        return None if topic_id is None else self._topics[topic_id]

    def find_partition(self, partition: TopicIdPartition) -> PartitionRecord | None:
        """Return a partition, if it exists."""
        topic = self._topics.get(partition.topic_id)
        return None if topic is None else topic.partitions.get(partition.partition)

    def partitions(self) -> Iterator[PartitionRecord]:
        """Yield all partitions."""
        for topic in self._topics.values():
            yield from topic.partitions.values()

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        """Return the settings that were set for a topic or broker, by Kafka's names."""
        return MappingProxyType(self._configs.get(resource, {}))

    def topic_config(self, name: str) -> Mapping[str, str]:
        """Return the settings that were set for a topic, by Kafka's names."""
        return self.config(ConfigResource(TOPIC_RESOURCE, name))

    def is_active(self, node_id: int) -> bool:
        """Return whether a broker may lead partitions and be in sync."""
        broker = self._brokers.get(node_id)
        return broker is not None and broker.is_active

    def registration_offset(self, node_id: int) -> int | None:
        """Return the offset of a broker's registration; None if it is not registered."""
        return self._registration_offsets.get(node_id)

    def apply(self, records: Sequence[MetadataRecord]) -> MetadataDelta:
        """Apply the records that follow the last one applied; return what has changed.

        Raises MetadataError for a record that does not fit.
        """
        delta = MetadataDelta()
        for record in records:
            self._apply(record, delta)
            self.offset += 1
        return delta

    def _apply(self, record: MetadataRecord, delta: MetadataDelta) -> None:
        match record:
            case PartitionChange():
                self._change_partition(record, delta)
            case PartitionRecord():
                self._add_partition(record, delta)
            case TopicRecord():
                self._add_topic(record)
            case RemoveTopic():
                self._remove_topic(record, delta)
            case ConfigRecord():
                self._change_config(record, delta)
            case RegisterBroker():
                self._brokers[record.node_id] = record
                self._registration_offsets[record.node_id] = self.offset + 1
                delta.brokers.add(record.node_id)
            case BrokerChange():
                self._change_broker(record, delta)
            case UnregisterBroker():
                self._check_broker(record)
                del self._brokers[record.node_id], self._registration_offsets[record.node_id]
                delta.brokers.add(record.node_id)
            case ProducerIds():
                self.next_producer_id = record.next_producer_id
            case _:
                assert_never(record)

    def _add_topic(self, record: TopicRecord) -> None:
        if record.name in self._topic_ids or record.topic_id in self._topics:
            raise MetadataError(f"topic {record.name} ({record.topic_id}) exists already")
        self._topic_ids[record.name] = record.topic_id
        self._topics[record.topic_id] = TopicImage(record.name, record.topic_id)

    def _remove_topic(self, record: RemoveTopic, delta: MetadataDelta) -> None:
        topic = self._topics.pop(record.topic_id, None)
        if topic is None:
            raise MetadataError(f"there is no topic with id {record.topic_id} to remove")
        del self._topic_ids[topic.name]
        # A topic of the same name that is created later begins with the defaults.
        self._configs.pop(ConfigResource(TOPIC_RESOURCE, topic.name), None)
        for partition in topic.partitions.values():
            delta.partitions.pop(partition.id, None)
        delta.deleted_topics[topic.topic_id] = topic

    def _add_partition(self, record: PartitionRecord, delta: MetadataDelta) -> None:
        topic = self._topics.get(record.topic_id)
        if topic is None:
            raise MetadataError(f"there is no topic with id {record.topic_id} for a new partition")
        if record.partition in topic.partitions:
            raise MetadataError(f"partition {topic.name}-{record.partition} exists already")
        topic.partitions[record.partition] = record
        delta.partitions[record.id] = None

    def _change_partition(self, record: PartitionChange, delta: MetadataDelta) -> None:
        before = self.find_partition(record.id)
        if before is None:
            raise MetadataError(
                f"there is no partition {record.partition} of topic {record.topic_id} to change"
            )
        self._topics[record.topic_id].partitions[record.partition] = record.apply_to(before)
        delta.partitions.setdefault(record.id, before)

    def _change_config(self, record: ConfigRecord, delta: MetadataDelta) -> None:
        values = self._configs.setdefault(record.resource, {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if not values:
            del self._configs[record.resource]
        delta.configs.add(record.resource)

    def _change_broker(self, record: BrokerChange, delta: MetadataDelta) -> None:
        broker = self._check_broker(record)
        if record.fenced is not None:
            broker = replace(broker, fenced=record.fenced)
        if record.in_controlled_shutdown is not None:
            broker = replace(broker, in_controlled_shutdown=record.in_controlled_shutdown)
        self._brokers[record.node_id] = broker
        delta.brokers.add(record.node_id)

    def _check_broker(self, record: BrokerChange | UnregisterBroker) -> RegisterBroker:
        broker = self._brokers.get(record.node_id)
        if broker is None or broker.broker_epoch != record.broker_epoch:
            raise MetadataError(
                f"broker {record.node_id} is not registered with epoch {record.broker_epoch}"
            )
        return broker
