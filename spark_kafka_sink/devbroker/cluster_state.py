"""What the cluster knows: brokers, topics, partitions, producer ids, and what is coordinated.

The controller's part of a broker (Kafka's ReplicationControlManager and ProducerIdControlManager),
with the partitions' logs attached, since every partition has its one replica in this process.
Nothing here knows of requests: handlers ask, and turn what they are refused into answers.
"""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.group_coordinator import GroupCoordinator
from spark_kafka_sink.devbroker.internal_topics import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from spark_kafka_sink.devbroker.partition_log import PartitionLog
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.timers import Timers
from spark_kafka_sink.devbroker.transaction_coordinator import TransactionCoordinator
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from spark_kafka_sink.devbroker.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.topic_config import TopicConfig
    from spark_kafka_sink.model import Node

MAX_TOPIC_NAME_LENGTH = 249
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state"})

_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raise RefusedError with INVALID_TOPIC_EXCEPTION for what Kafka's Topic.validate refuses."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"{len(name)} characters are more than the {MAX_TOPIC_NAME_LENGTH} allowed"
    elif not _LEGAL_TOPIC_NAME.fullmatch(name):
        reason = f"'{name}' has characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def _collision_key(name: str) -> str:
    """Return what two names share whose metrics would be confused (Topic.unifyCollisionChars)."""
    return name.replace(".", "_")


@dataclass(slots=True)
class Partition:
    """A partition: who leads it, and its log."""

    topic: Topic
    index: int
    leader_id: int
    log: PartitionLog = field(default_factory=PartitionLog)

    @property
    def leader_epoch(self) -> int:
        """How often the leader has changed."""
        return self.log.leader_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        """Brokers that keep the partition; all of them are in sync."""
        return (self.leader_id,)

    def check_leader(self, node_id: int) -> None:
        """Raise RefusedError with NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""
        if node_id != self.leader_id:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.topic.name}-{self.index} is led by broker {self.leader_id}, not {node_id}",
            )

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise RefusedError if a client knows another leader epoch than the partition's (KIP-320).

        FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one; -1 knows none.
        """
        if leader_epoch in {NO_LEADER_EPOCH, self.leader_epoch}:
            return
        raise RefusedError(
            ErrorCode.FENCED_LEADER_EPOCH
            if leader_epoch < self.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {leader_epoch}, where the partition has {self.leader_epoch}",
        )


@dataclass(slots=True)
class Topic:
    """A topic and its partitions."""

    name: str
    topic_id: uuid.UUID
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)
    #: The settings that somebody has set, by Kafka's names; `config` is what they come to.
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether the topic belongs to Kafka itself."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition."""
        return len(self.partitions[0].replicas)


class ClusterState:
    """Brokers, topics, producer ids, and the coordinators."""

    def __init__(
        self, *, cluster_id: str | None = None, settings: BrokerSettings | None = None
    ) -> None:
        """Begin with no broker and no topic; a cluster id is made up if none is given."""
        self.settings = settings or BrokerSettings()
        self.timers = Timers()
        self.transactions = TransactionCoordinator(
            self.settings,
            self.timers,
            # Looked up when called, so that a test can put something else in its place.
            new_producer_id=lambda: self.next_producer_id(),  # noqa: PLW0108
            write_marker=self._write_marker,
        )
        self._changed: set[Hashable] = set()
        self.groups = GroupCoordinator(self.settings, self.timers, changed=self.changed)
        self.cluster_id = cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        #: Brokers by id, with the address of their first listener.
        self.nodes: dict[int, Node] = {}
        #: The addresses that they have beside it, by the listener's name.
        self.other_addresses: dict[str, dict[int, Node]] = {}
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[uuid.UUID, Topic] = {}
        self._topics_by_collision_key: dict[str, Topic] = {}
        self._next_producer_id = 0

    @property
    def controller_id(self) -> int:
        """Broker that takes requests for the controller, -1 while there is none."""
        return min(self.nodes, default=-1)

    def nodes_at(self, listener: str) -> dict[int, Node]:
        """Return all brokers, by id, as clients of a listener reach them."""
        here = self.other_addresses.get(listener, {})
        return {node_id: here.get(node_id, node) for node_id, node in self.nodes.items()}

    @property
    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> Topic | None:
        """Return the topic of that name."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic of that id (KIP-516)."""
        return self._topics_by_id.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return a partition, or raise RefusedError with UNKNOWN_TOPIC_OR_PARTITION."""
        if not self.has(topic_partition):
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_partition}"
            )
        return self._topics[topic_partition.topic].partitions[topic_partition.partition]

    def has(self, topic_partition: TopicPartition) -> bool:
        """Tell whether there is such a partition."""
        topic = self._topics.get(topic_partition.topic)
        return topic is not None and 0 <= topic_partition.partition < len(topic.partitions)

    def check_new_topic_name(self, name: str) -> None:
        """Raise RefusedError unless a topic of that name may be created.

        INVALID_TOPIC_EXCEPTION (bad, or confusable with an existing topic's name),
        TOPIC_ALREADY_EXISTS, or INVALID_REQUEST for the topic that no client may make.
        """
        if name == CLUSTER_METADATA_TOPIC:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        validate_topic_name(name)
        if name in self._topics:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        existing = self._topics_by_collision_key.get(_collision_key(name))
        if existing is not None:
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {existing.name}",
            )

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        config: TopicConfig,
        overrides: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic whose partitions are spread over the brokers.

        `overrides` are those settings of `config` that were set for this topic.

        Raises RefusedError as `check_new_topic_name` does, with INVALID_PARTITIONS for a number
        below 1, and with INVALID_REPLICATION_FACTOR while there is no broker.
        """
        self.check_new_topic_name(name)
        if partitions < 1:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        if not self.nodes:
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "No broker is there to lead the partitions"
            )
        topic = Topic(
            name=name, topic_id=uuid.uuid4(), config=config, overrides=dict(overrides or {})
        )
        brokers = sorted(self.nodes)
        topic.partitions.extend(
            Partition(topic=topic, index=index, leader_id=brokers[index % len(brokers)])
            for index in range(partitions)
        )
        self._topics[name] = topic
        self._topics_by_id[topic.topic_id] = topic
        self._topics_by_collision_key[_collision_key(name)] = topic
        return topic

    def delete_topic(self, topic: Topic) -> None:
        """Forget a topic, its records, and what groups have read of it."""
        del self._topics[topic.name]
        del self._topics_by_id[topic.topic_id]
        del self._topics_by_collision_key[_collision_key(topic.name)]
        self.groups.offsets.delete_topic(topic.name)
        for partition in topic.partitions:
            self.changed(TopicPartition(topic.name, partition.index))

    def add_partitions(self, name: str, count: int, leaders: list[int] | None = None) -> None:
        """Let a topic have `count` partitions; `leaders` are the brokers of the new ones."""
        topic = self._topics[name]
        brokers = sorted(self.nodes)
        for number, index in enumerate(range(len(topic.partitions), count)):
            leader_id = leaders[number] if leaders else brokers[index % len(brokers)]
            topic.partitions.append(Partition(topic=topic, index=index, leader_id=leader_id))

    def coordinator_of(self, key: str) -> int:
        """Return the broker that looks after a group or transactional id, -1 while there is none.

        The leader of the partition of the internal topic that the id belongs to.
        """
        brokers = sorted(self.nodes)
        return brokers[coordinator_partition(key) % len(brokers)] if brokers else -1

    def check_coordinator(self, node_id: int, key: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker looks after the id."""
        coordinator = self.coordinator_of(key)
        if node_id != coordinator:
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR,
                f"broker {coordinator} coordinates {key!r}, not {node_id}",
            )

    def changed(self, watched: Hashable) -> None:
        """Let requests look again that wait for something: a partition has grown, or the like."""
        self._changed.add(watched)

    def take_changed(self) -> set[Hashable]:
        """Return what has changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def _write_marker(self, topic_partition: TopicPartition, marker: TransactionMarker) -> None:
        """Write a transaction's marker; what has been deleted meanwhile needs none."""
        if topic_partition.topic == GROUP_METADATA_TOPIC:
            self.groups.offsets.append_marker(topic_partition.partition, marker)
        elif self.has(topic_partition):
            self.partition(topic_partition).log.append_marker(marker)
            self.changed(topic_partition)

    def next_producer_id(self) -> int:
        """Give out a producer id that nobody has had."""
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id
