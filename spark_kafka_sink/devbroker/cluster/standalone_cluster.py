"""The cluster of one broker, which leads and coordinates everything, and is its own controller.

Kafka's ReplicationControlManager and ProducerIdControlManager, together with the partitions' logs,
each the only replica of its partition. While the broker is stopped, no partition has a leader;
when it returns, it leads in a new epoch.

The cluster's id, its topics, ACLs, users and quotas, and the producer ids used so far are stored in
`cluster.json`, with a data directory, otherwise only in memory:

- Memory always matches the disk: if a write fails, nothing changes.
- A change takes effect, and is acknowledged, only after it has been written.
- A request causes one write, however much it changes, because every write is flushed to disk: one
  that changes many topics plans the changes first (`change_topics`).
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import topic_values
from spark_kafka_sink.devbroker.base.timers import Timers
from spark_kafka_sink.devbroker.base.topic_names import (
    COORDINATED_TOPICS,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinates,
    coordinator_partition,
)
from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState, Verification
from spark_kafka_sink.devbroker.cluster.cluster_store import ClusterStore
from spark_kafka_sink.devbroker.cluster.partition import NO_LEADER, Leadership, Partition, Topic
from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges
from spark_kafka_sink.devbroker.groups.group_coordinator import GroupCoordinator
from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
from spark_kafka_sink.devbroker.log.data_directory import StoredCluster, StoredTopic
from spark_kafka_sink.devbroker.log.log_manager import LogManager
from spark_kafka_sink.devbroker.transactions.transaction_coordinator import TransactionCoordinator
from spark_kafka_sink.errors import ConfigError, CorruptRecordError, DecodeError
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.cluster.cluster_state import OnMarkers
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker

NO_CONTROLLER = -1
#: The name under which settings of all brokers are stored.
_ALL_BROKERS = ""
#: How many producer ids are reserved at once (ProducerIdsBlock).
_PRODUCER_ID_BLOCK_SIZE = 1000


class StandaloneCluster(ClusterState):
    """The topics, producer ids and coordinators of one broker."""

    def __init__(
        self,
        *,
        cluster_id: str | None = None,
        settings: BrokerSettings | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Start without topics; a missing cluster id is generated.

        The broker runs once it has an address in `nodes`, and its id is that of the settings. With
        a data directory the cluster must be opened before use. Raises ConfigError.
        """
        settings = settings or BrokerSettings()
        timers = Timers()
        logs = LogManager(settings, timers, path=data_dir)
        super().__init__(settings, timers, logs, ClusterStore(settings, cluster_id))
        self.node_id = settings.node_id
        self.broker_ids = {self.node_id}
        self._next_producer_id = 0
        #: The leader epochs with which coordinators began, by internal topic and partition.
        self._coordinator_epochs: dict[str, dict[int, int]] = {}
        self._coordinator_logs = {
            name: CoordinatorLog(logs, name, partial(self._coordinator_epoch, name))
            for name in sorted(COORDINATED_TOPICS)
        }
        self.transactions = TransactionCoordinator(
            self, self._coordinator_logs[TRANSACTION_STATE_TOPIC]
        )
        self.groups = GroupCoordinator(self, self._coordinator_logs[GROUP_METADATA_TOPIC])

    # Storage.

    def open(self, now: float) -> None:
        """Load the contents of the data directory, if there is one. Raises OSError, ConfigError."""
        self.timers.now = max(self.timers.now, now)
        if not self.logs.is_durable:
            return
        stored = self.logs.open(now)
        self.store.data = self.logs.data
        try:
            self._check_standalone()
            if stored is None:
                ids = {name: uuid.uuid4() for name in self._coordinator_logs}
                self._store(StoredCluster(cluster_id=self.cluster_id, internal_topic_ids=ids))
            else:
                self.store.load(stored)
            # The unused ids of the last block are skipped.
            self._next_producer_id = self.store.stored.next_producer_id
            self.topic_defaults = self._changed_topic_defaults()
            self._load_topics()
            for name, log in self._coordinator_logs.items():
                log.open(self.store.stored.internal_topic_ids[name], now)
                epochs = log.leader_epochs().items()
                self._coordinator_epochs[name] = {index: epoch + 1 for index, epoch in epochs}
            self.logs.remove_strays()
            self.transactions.load(now)
            self.groups.load(self.topic_index.names, now)
        except BaseException as error:
            # Not an orderly close: some logs may not have been recovered yet.
            self.logs.abandon()
            self._forget()
            if isinstance(error, CorruptRecordError | DecodeError):
                raise ConfigError(f"the data directory cannot be read: {error}") from error
            raise

    def close(self, now: float) -> None:
        """Close the data directory and discard all state; without one, do nothing.

        Raises OSError.
        """
        if self.logs.is_durable:
            try:
                self.logs.close(now)
            finally:
                self._forget()

    def _check_standalone(self) -> None:
        """Raise ConfigError if the directory is that of brokers that replicate."""
        if self.logs.data is not None and self.logs.data.has_brokers:
            raise ConfigError(
                f"{self.logs.data.path} belongs to several brokers, and this is one: start as many "
                "as before, or use another directory"
            )

    def _forget(self) -> None:
        """Discard all state; the next `open` starts from the data directory."""
        self.store.data = None
        self.timers.clear()
        self.nodes.clear()
        self._coordinator_epochs.clear()
        self.topic_index.clear()

    def write_topics(self, changed: Mapping[str, Topic | None]) -> None:
        """Store new or changed topics; None removes one.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        topics = dict(self.store.stored.topics)
        for name, topic in changed.items():
            if topic is None:
                topics.pop(name, None)
            else:
                topics[name] = StoredTopic(
                    name=name,
                    topic_id=topic.topic_id,
                    configs=topic.overrides,
                    replicas=tuple(partition.replicas for partition in topic.partitions),
                )
        self._store(replace(self.store.stored, topics=topics))

    def _store(self, stored: StoredCluster) -> None:
        self.store.write(stored, "the topics of the cluster")
        self.metadata_offset += 1

    @property
    def broker_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The settings that were changed while brokers ran, by broker id; empty for all brokers."""
        return self.store.stored.broker_configs

    def configure_brokers(self, name: str, values: Mapping[str, str]) -> None:
        """Replace the settings that were changed for a broker, or with an empty name for all.

        They must be valid defaults of topics, by the names that brokers have for them. Raises
        RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        configs = {**self.broker_configs, name: dict(values)}
        self._store(
            replace(
                self.store.stored,
                broker_configs={name: values for name, values in configs.items() if values},
            )
        )
        self.topic_defaults = self._changed_topic_defaults()
        for topic in self.topic_index:
            topic.config = self.topic_defaults.with_values(topic.overrides)
            for partition in topic.partitions:
                self.logs.configure(partition.topic_partition, topic.config, self.timers.now)

    def _changed_topic_defaults(self) -> TopicConfig:
        defaults = self.settings.topic_defaults
        for name in (_ALL_BROKERS, str(self.node_id)):
            defaults = defaults.with_values(topic_values(self.broker_configs.get(name, {})))
        return defaults

    def _load_topics(self) -> None:
        for stored in self.store.stored.topics.values():
            topic = Topic(
                name=stored.name,
                topic_id=stored.topic_id,
                config=self.topic_defaults.with_values(stored.configs),
                overrides=dict(stored.configs),
            )
            for index in range(len(stored.replicas)):
                log = self.logs.log(
                    TopicPartition(topic.name, index), topic.topic_id, topic.config, self.timers.now
                )
                topic.partitions.append(
                    Partition(
                        topic=topic,
                        index=index,
                        leadership=Leadership((self.node_id,), NO_LEADER, log.leader_epoch, isr=()),
                        log=log,
                    )
                )
            self.topic_index.add(topic)

    # The controller.

    @property
    def controller_id(self) -> int:
        """The broker itself, -1 while it is stopped."""
        return self.node_id if self.nodes else NO_CONTROLLER

    @property
    def controller_epoch(self) -> int:
        """The epoch of the controller, which never changes."""
        return 1

    @property
    def racks(self) -> dict[int, str]:
        """The rack of the broker by its id, if it has one."""
        return {self.node_id: self.settings.racks[0]} if any(self.settings.racks) else {}

    @property
    def next_deadline(self) -> float | None:
        """When `run_due` must be called, in seconds since 1970; None for never."""
        return self.timers.next_deadline

    def run_due(self, now: float) -> None:
        """Run the timers that are due by `now`."""
        self.timers.run_due(now)

    @contextmanager
    def change_topics(self) -> Iterator[TopicChanges]:
        """Yield a plan of changes; the end of the `with` block writes and applies them.

        The end of the block raises RefusedError with KAFKA_STORAGE_ERROR if they cannot be written.
        After that, or any other error, nothing has changed.
        """
        changes = TopicChanges(self)
        try:
            yield changes
            deleted = changes.commit()
        except BaseException:
            changes.discard()
            raise
        for topic in deleted:
            for partition in topic.partitions:
                self.changed(partition.topic_partition)
        if deleted:
            # Only now: deleting the records has freed disk space for this write.
            self.groups.delete_topics({topic.name for topic in deleted})

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        config: TopicConfig | None = None,
        overrides: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
    ) -> Topic:
        """Create one topic; see `TopicChanges.create_topic`. Raises RefusedError.

        Without a `config` it has the default settings with the `overrides`.
        """
        if config is None:
            config = self.topic_defaults.with_values(overrides or {})
        with self.change_topics() as changes:
            return changes.create_topic(
                name,
                partitions=partitions,
                config=config,
                overrides=overrides,
                replication_factor=replication_factor,
            )

    def delete_topic(self, topic: Topic) -> None:
        """Delete one topic; see `TopicChanges.delete_topic`. Raises RefusedError."""
        with self.change_topics() as changes:
            changes.delete_topic(topic)

    def next_producer_id(self) -> int:
        """Return a producer id that was never used before.

        Raises RefusedError with COORDINATOR_LOAD_IN_PROGRESS if a new block cannot be stored.
        """
        producer_id = self._next_producer_id
        if producer_id >= self.store.stored.next_producer_id:
            block_end = producer_id + _PRODUCER_ID_BLOCK_SIZE
            try:
                self._store(replace(self.store.stored, next_producer_id=block_end))
            except RefusedError as refused:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                raise RefusedError(code, refused.message) from refused
        self._next_producer_id += 1
        return producer_id

    # Leadership.

    def elect(self, now: float) -> None:
        """Make the broker, which runs now, lead the partitions without a leader."""
        self.metadata_offset += 1
        for topic in self.topic_index:
            for partition in topic.partitions:
                if partition.leader_id == NO_LEADER:
                    self._lead(partition)
        self.groups.restart(now)

    def fence(self) -> None:
        """Record that the broker has stopped: nothing has a leader."""
        self.metadata_offset += 1
        self.nodes.clear()
        for topic in self.topic_index:
            for partition in topic.partitions:
                partition.leadership = Leadership(
                    partition.replicas, NO_LEADER, partition.leader_epoch + 1, isr=()
                )

    def _lead(self, partition: Partition) -> None:
        """Make the broker lead a partition, in a new epoch."""
        partition.leadership = Leadership.of_only(self.node_id, partition.leader_epoch + 1)
        partition.log.begin_leader_epoch(partition.leader_epoch)
        self.changed(partition.topic_partition)

    @property
    def _leader(self) -> int:
        """The broker while it runs, otherwise -1."""
        return self.node_id if self.nodes else NO_LEADER

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the broker if it runs, -1 otherwise.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION.
        """
        if not coordinates(topic_partition):
            self.partition(topic_partition)
        return self._leader

    def move_leader(self, topic_partition: TopicPartition, node_id: int, now: float) -> None:
        """Do nothing if the broker is to lead a partition, which it does while it runs.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, or with INVALID_REPLICA_ASSIGNMENT for
        another broker.
        """
        del now
        isr = () if self.leader(topic_partition) == NO_LEADER else (self.node_id,)
        if node_id not in isr:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic_partition}: broker {node_id} is not in the ISR, {isr}",
            )

    def elect_unclean_leader(
        self, topic_partition: TopicPartition, end_offset: int, node_id: int
    ) -> None:
        """Make the broker lead in a new epoch with a log that ends at `end_offset`.

        As after a restart from a damaged disk, later records are lost. Raises RefusedError as
        `PartitionLog.truncate_to`, with UNKNOWN_TOPIC_OR_PARTITION, or with
        INVALID_REPLICA_ASSIGNMENT for another broker, or if it does not run.
        """
        partition = self.partition(topic_partition)
        if node_id not in self.nodes:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic_partition}: broker {node_id} is not one of the running replicas",
            )
        self.logs.truncate(topic_partition, end_offset)
        self._lead(partition)

    def stop_replication(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Raise RefusedError: no broker is a follower.

        The error is UNKNOWN_TOPIC_OR_PARTITION or INVALID_REPLICA_ASSIGNMENT.
        """
        self.partition(topic_partition)
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{topic_partition}: broker {node_id} is not a follower",
        )

    def resume_replication(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Do nothing: no broker is a follower. Raises RefusedError: UNKNOWN_TOPIC_OR_PARTITION."""
        del node_id
        self.partition(topic_partition)

    # Coordinators.

    def prepare_coordinators(self, topic: str, now: float) -> None:
        """Do nothing: the partitions of internal topics can be looked up without being created."""

    def group_coordinator(self, group_id: str) -> int:
        """Return the broker that coordinates a group, -1 while there is none."""
        del group_id
        return self._leader

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, -1 while there is none."""
        del transactional_id
        return self._leader

    def check_group_coordinator(self, group_id: str) -> None:
        """Do nothing: the broker coordinates every group."""

    def check_transaction_coordinator(self, transactional_id: str) -> None:
        """Do nothing: the broker coordinates every id."""

    def coordinator_epoch(self, transactional_id: str) -> int:
        """Return the leader epoch of the partition that a transactional id maps to."""
        index = coordinator_partition(transactional_id)
        return self._coordinator_epoch(TRANSACTION_STATE_TOPIC, index)

    def _coordinator_epoch(self, topic: str, index: int) -> int:
        return self._coordinator_epochs.get(topic, {}).get(index, 0)

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        adds: bool,
        now: float,
    ) -> Verification:
        """Add partitions to a transaction or verify them, at the coordinator of its id."""
        now_ms = int(now * 1000)
        try:
            if not adds:
                return Verification(
                    self.transactions.verify_partitions(
                        transactional_id, producer, partitions, now_ms=now_ms
                    )
                )
            self.transactions.add_partitions(
                transactional_id, producer, partitions, client_version=2, now_ms=now_ms
            )
        except RefusedError as refused:
            return Verification(dict.fromkeys(partitions, refused.error_code))
        return Verification(dict.fromkeys(partitions, ErrorCode.NONE))

    def write_markers(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        marker: TransactionMarker,
        written: OnMarkers,
    ) -> None:
        """Write a transaction's markers; call `written` with the errors of those that failed."""
        del transactional_id
        refusals: dict[TopicPartition, RefusedError] = {}
        for topic_partition in partitions:
            try:
                self.write_marker(topic_partition, marker)
            except RefusedError as refused:
                refusals[topic_partition] = refused
        written(refusals, marker.timestamp / 1000)

    def write_marker(self, topic_partition: TopicPartition, marker: TransactionMarker) -> None:
        """Write a transaction marker; a partition deleted in the meantime needs none."""
        if topic_partition.topic == GROUP_METADATA_TOPIC:
            self.groups.offsets.append_marker(topic_partition.partition, marker)
        elif self.has(topic_partition):
            self.partition(topic_partition).append_marker(marker, self.timers.now)
            self.changed(topic_partition)

    # Logs.

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return the log of a partition. Raises RefusedError: UNKNOWN_TOPIC_OR_PARTITION."""
        return self.partition(topic_partition).log

    def compact(self, topic_partition: TopicPartition, now: float) -> None:
        """Compact a log now. Raises RefusedError."""
        self.logs.compact(topic_partition, now)

    @property
    def is_durable(self) -> bool:
        """Whether records survive the process."""
        return self.logs.is_durable
