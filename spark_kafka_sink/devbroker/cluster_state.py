"""What the cluster knows: brokers, topics, partitions, producer ids, and what is coordinated.

The controller's part of a broker (Kafka's ReplicationControlManager and ProducerIdControlManager),
with the partitions' logs attached. All brokers of a cluster share one state and one log for each
partition: who leads, which replicas are in sync, and what becomes of both when a broker stops, is
as in Kafka (`leadership`), but nothing is copied, so no replica is ever behind or cut back.
Nothing here knows of requests: handlers ask, and turn what they are refused into answers.
"""

from __future__ import annotations

import base64
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.coordinator_leaders import CoordinatorLeaders, coordinates
from spark_kafka_sink.devbroker.group_coordinator import GroupCoordinator
from spark_kafka_sink.devbroker.internal_topics import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from spark_kafka_sink.devbroker.leadership import NO_LEADER, Leadership, place_replicas
from spark_kafka_sink.devbroker.log_manager import LogManager
from spark_kafka_sink.devbroker.partition import Partition, Topic
from spark_kafka_sink.devbroker.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.storage.data_directory import StoredCluster, StoredTopic
from spark_kafka_sink.devbroker.timers import Timers
from spark_kafka_sink.devbroker.topic_names import collision_key, validate_topic_name
from spark_kafka_sink.devbroker.transaction_coordinator import TransactionCoordinator
from spark_kafka_sink.errors import ConfigError, CorruptRecordError, DecodeError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence
    from pathlib import Path

    from spark_kafka_sink.devbroker.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.topic_config import TopicConfig
    from spark_kafka_sink.model import Node

CLUSTER_METADATA_TOPIC = "__cluster_metadata"

#: So many producer ids are set aside at once (ProducerIdsBlock).
_PRODUCER_ID_BLOCK_SIZE = 1000


class ClusterState:
    """Brokers, topics, producer ids, and the coordinators."""

    def __init__(
        self,
        *,
        cluster_id: str | None = None,
        settings: BrokerSettings | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Begin with no broker and no topic; a cluster id is made up if none is given.

        With a data directory the cluster must be opened before it is used.
        """
        self.settings = settings or BrokerSettings()
        self.timers = Timers()
        #: Everybody's logs.
        self.logs = LogManager(self.settings, self.timers, path=data_dir)
        #: The brokers that run, by id, with the address of their first listener.
        self.nodes: dict[int, Node] = {}
        self._coordinators = CoordinatorLeaders(self.logs, self.nodes.keys())
        self.transactions = TransactionCoordinator(
            self.settings,
            self.timers,
            coordinator_epoch=self._coordinator_epoch,
            # Looked up when called, so that a test can put something else in its place.
            new_producer_id=lambda: self.next_producer_id(),  # noqa: PLW0108
            write_marker=self._write_marker,
            log=self._coordinators.logs[TRANSACTION_STATE_TOPIC],
        )
        self._changed: set[Hashable] = set()
        self.groups = GroupCoordinator(
            self.settings,
            self.timers,
            changed=self.changed,
            log=self._coordinators.logs[GROUP_METADATA_TOPIC],
        )
        self.cluster_id = cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        #: The addresses that they have beside it, by the listener's name.
        self.other_addresses: dict[str, dict[int, Node]] = {}
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[uuid.UUID, Topic] = {}
        self._topics_by_collision_key: dict[str, Topic] = {}
        self._next_producer_id = 0
        #: Producer ids before it may be given out without saying so on disk.
        self._producer_id_block_end = 0
        self._internal_topic_ids: dict[str, uuid.UUID] = {}

    # What is kept on disk.

    def open(self, now: float) -> None:
        """Read what the data directory keeps, if there is one. Raises OSError, ConfigError."""
        self.timers.now = max(self.timers.now, now)
        if not self.logs.is_durable:
            return
        stored = self.logs.open(now)
        try:
            if stored is None:
                self._internal_topic_ids = {name: uuid.uuid4() for name in self._coordinators.logs}
                self._save()
            else:
                self._load(stored)
            for name, log in self._coordinators.logs.items():
                log.open(self._internal_topic_ids[name], now)
            self.logs.remove_strays()
            self.transactions.load(now)
            self.groups.load(self._topics, now)
        except BaseException as error:
            # Not closed in order: some logs may not have been looked through yet.
            self.logs.abandon()
            self._forget()
            if isinstance(error, CorruptRecordError | DecodeError):
                raise ConfigError(f"the data directory cannot be read: {error}") from error
            raise

    def close(self, now: float) -> None:
        """Release the data directory, with all that is known; in memory nothing changes.

        Raises OSError.
        """
        if self.logs.is_durable:
            try:
                self.logs.close(now)
            finally:
                self._forget()

    def _forget(self) -> None:
        """Know nothing but what the next `open` reads."""
        self.timers.clear()
        self.nodes.clear()
        self._coordinators.clear()
        self._topics.clear()
        self._topics_by_id.clear()
        self._topics_by_collision_key.clear()

    def _load(self, stored: StoredCluster) -> None:
        self.cluster_id = stored.cluster_id
        # What was left of the last block is lost.
        self._next_producer_id = self._producer_id_block_end = stored.next_producer_id
        self._internal_topic_ids = dict(stored.internal_topic_ids)
        for kept in stored.topics:
            topic = Topic(
                name=kept.name,
                topic_id=kept.topic_id,
                config=self.settings.topic_defaults.with_values(kept.configs),
                overrides=dict(kept.configs),
            )
            for index, replicas in enumerate(kept.replicas):
                log = self._open_log(topic, index)
                # All were in sync, and the first broker that comes leads, in the next epoch.
                leadership = Leadership(replicas, NO_LEADER, log.leader_epoch, replicas)
                topic.partitions.append(
                    Partition(topic=topic, index=index, leadership=leadership, log=log)
                )
            self._know(topic)

    def _save(
        self, topics: Mapping[str, Topic] | None = None, *, next_producer_id: int | None = None
    ) -> None:
        """Keep what is known of topics and producer ids, or what is going to be.

        A change is written first, then made in memory. Raises RefusedError, KAFKA_STORAGE_ERROR.
        """
        data = self.logs.data
        if data is None:
            return
        topics = self._topics if topics is None else topics
        if next_producer_id is None:
            next_producer_id = self._producer_id_block_end
        stored = StoredCluster(
            cluster_id=self.cluster_id,
            next_producer_id=next_producer_id,
            internal_topic_ids=self._internal_topic_ids,
            topics=tuple(
                StoredTopic(
                    name=name,
                    topic_id=topics[name].topic_id,
                    configs=topics[name].overrides,
                    replicas=tuple(partition.replicas for partition in topics[name].partitions),
                )
                for name in sorted(topics)
            ),
        )
        with refused_if_disk_fails("the cluster's topics cannot be written down"):
            data.write_cluster(stored)

    def _open_log(self, topic: Topic, index: int) -> PartitionLog:
        return self.logs.log(
            TopicPartition(topic.name, index), topic.topic_id, topic.config, self.timers.now
        )

    def _know(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._topics_by_id[topic.topic_id] = topic
        self._topics_by_collision_key[collision_key(topic.name)] = topic

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
        existing = self._topics_by_collision_key.get(collision_key(name))
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
        replication_factor: int | None = None,
        assignments: Sequence[tuple[int, ...]] | None = None,
    ) -> Topic:
        """Create a topic whose partitions are spread over the brokers.

        `overrides` are those settings of `config` that were set for this topic. Each partition is
        on so many brokers as `replication_factor` says (by default the settings'), or on those of
        `assignments`, the preferred leader first.

        Raises RefusedError as `check_new_topic_name` does, with INVALID_PARTITIONS for a number
        below 1, with INVALID_REPLICATION_FACTOR for more replicas than there are brokers, and with
        KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        self.check_new_topic_name(name)
        if partitions < 1:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        self.groups.check_new_topic()
        if replication_factor is None:
            replication_factor = self.settings.default_replication_factor
        if assignments is None:
            assignments = self._place(range(partitions), replication_factor)
        topic = Topic(
            name=name, topic_id=uuid.uuid4(), config=config, overrides=dict(overrides or {})
        )
        with self._new_partitions(topic, assignments) as partitions_made:
            topic.partitions.extend(partitions_made)
            self._save(self._topics | {name: topic})
        self._know(topic)
        return topic

    def check_replication_factor(self, replication_factor: int) -> None:
        """Raise RefusedError with INVALID_REPLICATION_FACTOR if there are fewer brokers."""
        if replication_factor > len(self.nodes):
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): "
                f"{len(self.nodes)} broker(s) run.",
            )

    def _place(self, indexes: Sequence[int], replication_factor: int) -> list[tuple[int, ...]]:
        """Spread partitions over the brokers that run."""
        self.check_replication_factor(replication_factor)
        brokers = sorted(self.nodes)
        return [place_replicas(index, replication_factor, brokers) for index in indexes]

    @contextmanager
    def _new_partitions(
        self, topic: Topic, assignments: Sequence[tuple[int, ...]]
    ) -> Iterator[list[Partition]]:
        """Make partitions that follow those of a topic; after an error their logs go again."""
        made: list[Partition] = []
        try:
            with refused_if_disk_fails(f"logs of {topic.name} cannot be made"):
                for index, replicas in enumerate(assignments, start=len(topic.partitions)):
                    leadership = Leadership.begin(replicas, self.nodes)
                    log = self._open_log(topic, index)
                    made.append(Partition(topic=topic, index=index, leadership=leadership, log=log))
            yield made
        except RefusedError:
            for partition in made:
                self.logs.delete(TopicPartition(topic.name, partition.index))
            raise

    def delete_topic(self, topic: Topic) -> None:
        """Forget a topic, its records, and what groups have read of it; files may go later.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        self._save({name: kept for name, kept in self._topics.items() if name != topic.name})
        del self._topics[topic.name]
        del self._topics_by_id[topic.topic_id]
        del self._topics_by_collision_key[collision_key(topic.name)]
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.index)
            self.logs.delete(topic_partition)
            self.changed(topic_partition)
        # With the room that the records have left.
        self.groups.delete_topic(topic.name)

    def configure_topic(
        self, topic: Topic, config: TopicConfig, overrides: Mapping[str, str]
    ) -> None:
        """Replace the settings of a topic; `overrides` are those that somebody has set.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        changed = replace(topic, config=config, overrides=dict(overrides))
        self._save(self._topics | {topic.name: changed})
        topic.config, topic.overrides = changed.config, changed.overrides
        for partition in topic.partitions:
            self.logs.configure(
                TopicPartition(topic.name, partition.index), config, self.timers.now
            )

    def add_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None = None
    ) -> None:
        """Let a topic have `count` partitions; `assignments` are the brokers of the new ones.

        Raises RefusedError as `create_topic`.
        """
        topic = self._topics[name]
        indexes = range(len(topic.partitions), count)
        places = assignments or self._place(indexes, topic.replication_factor)
        with self._new_partitions(topic, places) as made:
            self._save(self._topics | {name: replace(topic, partitions=[*topic.partitions, *made])})
        topic.partitions.extend(made)

    # Brokers that come and go.

    def register(self, node: Node, now: float) -> None:
        """Take note that a broker runs, and where; it follows, or leads what nobody else can."""
        self.nodes[node.node_id] = node
        self.elect(now)

    def fence(self, node_id: int, now: float) -> None:
        """Take note that a broker has stopped: others lead from now on, as far as there are any."""
        if self.nodes.pop(node_id, None) is not None:
            self.elect(now)

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the broker that leads a partition, -1 for none.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._find_leadership(topic_partition).leader_id

    def move_leader(self, topic_partition: TopicPartition, node_id: int, now: float) -> None:
        """Let another replica in sync lead a partition; those of internal topics coordinate.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, or with INVALID_REPLICA_ASSIGNMENT if
        the broker keeps no replica that is in sync.
        """
        try:
            moved = self._find_leadership(topic_partition).move_to(node_id)
        except ValueError as error:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{topic_partition}: {error}"
            ) from None
        if moved and coordinates(topic_partition):
            self._coordinator_moved(*topic_partition, now)
        elif moved:
            self._leader_moved(self.partition(topic_partition))

    def _find_leadership(self, topic_partition: TopicPartition) -> Leadership:
        if coordinates(topic_partition):
            return self._coordinators.all(topic_partition.topic)[topic_partition.partition]
        return self.partition(topic_partition).leadership

    def elect(self, now: float) -> None:
        """See to it that everything has a leader that runs, as far as there is one."""
        for topic in self._topics.values():
            for partition in topic.partitions:
                if partition.leadership.update(self.nodes, topic.config.min_insync_replicas):
                    self._leader_moved(partition)
        for name, index in self._coordinators.elect():
            self._coordinator_moved(name, index, now)

    def _leader_moved(self, partition: Partition) -> None:
        partition.log.begin_leader_epoch(partition.leader_epoch)
        self.changed(TopicPartition(partition.topic.name, partition.index))

    def _coordinator_moved(self, topic: str, index: int, now: float) -> None:
        if topic == GROUP_METADATA_TOPIC:
            self.groups.moved(index, now)

    # Coordinators.

    def group_coordinator(self, group_id: str) -> int:
        """Return the broker that looks after a group, -1 while there is none."""
        return self._coordinators.of(GROUP_METADATA_TOPIC, group_id).leader_id

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that looks after a transactional id, -1 while there is none."""
        return self._coordinators.of(TRANSACTION_STATE_TOPIC, transactional_id).leader_id

    def check_group_coordinator(self, node_id: int, group_id: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker looks after the group."""
        self._coordinators.check(GROUP_METADATA_TOPIC, group_id, node_id)

    def check_transaction_coordinator(self, node_id: int, transactional_id: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker looks after the id."""
        self._coordinators.check(TRANSACTION_STATE_TOPIC, transactional_id, node_id)

    def _coordinator_epoch(self, transactional_id: str) -> int:
        return self._coordinators.of(TRANSACTION_STATE_TOPIC, transactional_id).leader_epoch

    # What others wait for and ask for.

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
            partition = self.partition(topic_partition)
            if partition.leader_id == NO_LEADER:
                raise RefusedError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader"
                )
            partition.log.append_marker(marker)
            self.changed(topic_partition)

    def next_producer_id(self) -> int:
        """Return a producer id that was never used.

        Raises RefusedError with COORDINATOR_LOAD_IN_PROGRESS if it cannot be written down.
        """
        producer_id = self._next_producer_id
        if producer_id >= self._producer_id_block_end:
            block_end = producer_id + _PRODUCER_ID_BLOCK_SIZE
            try:
                self._save(next_producer_id=block_end)
            except RefusedError as refused:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                raise RefusedError(code, refused.message) from refused
            self._producer_id_block_end = block_end
        self._next_producer_id += 1
        return producer_id
