"""The state of a cluster: its brokers, topics, partitions, producer ids and coordinators.

The controller's part of a broker (Kafka's ReplicationControlManager and ProducerIdControlManager),
together with the partitions' logs. All brokers of a cluster share one state and one log for each
partition. Leaders and in-sync replicas, and how both change when a broker stops, are as in Kafka
(`partition`), but nothing is copied, so no replica lags or is truncated unless a test wants it.
This module does not deal with requests: handlers call it and turn RefusedError into responses.

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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import topic_values
from spark_kafka_sink.devbroker.base.timers import Timers
from spark_kafka_sink.devbroker.base.topic_names import (
    COORDINATOR_PARTITIONS,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from spark_kafka_sink.devbroker.cluster.cluster_store import ClusterStore
from spark_kafka_sink.devbroker.cluster.partition import (
    NO_LEADER,
    Leadership,
    Partition,
    Topic,
    place_replicas,
)
from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges, Topics
from spark_kafka_sink.devbroker.groups.group_coordinator import GroupCoordinator
from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
from spark_kafka_sink.devbroker.log.data_directory import StoredCluster, StoredTopic
from spark_kafka_sink.devbroker.log.log_manager import LogManager
from spark_kafka_sink.devbroker.transactions.transaction_coordinator import TransactionCoordinator
from spark_kafka_sink.errors import ConfigError, CorruptRecordError, DecodeError
from spark_kafka_sink.model import Node, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Hashable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from spark_kafka_sink.devbroker.base.authorizer import Acl
    from spark_kafka_sink.devbroker.base.client_quotas import Quotas
    from spark_kafka_sink.devbroker.base.scram_credential import ScramCredential
    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse
    from spark_kafka_sink.security.sasl import SaslMechanism

    #: Called with the errors of the partitions that have no marker, and the time in seconds.
    OnMarkers = Callable[[Mapping[TopicPartition, RefusedError], float], None]

#: Internal topics whose partition leaders are coordinators.
_COORDINATED = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
_REPLICATION_FACTOR = 3
NO_CONTROLLER = -1
#: The name under which settings of all brokers are stored.
_ALL_BROKERS = ""
#: How many producer ids are reserved at once (ProducerIdsBlock).
_PRODUCER_ID_BLOCK_SIZE = 1000


@dataclass(slots=True, eq=False)
class Forwarded:
    """A client's request that a broker has forwarded to the controller."""

    is_pending: bool = True
    response: ApiResponse | None = None
    error_code: ErrorCode = ErrorCode.NONE

    def answer(self, response: ApiResponse | None, error_code: ErrorCode) -> None:
        """Set the response, or the error if there is none."""
        self.is_pending = False
        self.response = response
        self.error_code = error_code

    def result(self) -> ApiResponse:
        """Return the response. Raises RefusedError if the request has failed, or is pending."""
        if self.response is None:
            code = ErrorCode.REQUEST_TIMED_OUT if self.is_pending else self.error_code
            raise RefusedError(code, "the controller has not responded")
        return self.response


@dataclass(slots=True, eq=False)
class Verification:
    """What the transaction coordinator says of the partitions of a write, once it has."""

    codes: Mapping[TopicPartition, ErrorCode] | None = None


def coordinates(topic_partition: TopicPartition) -> bool:
    """Return whether the leader of a partition is a coordinator."""
    topic, index = topic_partition
    return topic in _COORDINATED and 0 <= index < COORDINATOR_PARTITIONS


class CoordinatorLeaders:
    """The partition leaders of the internal topics, and the topics' logs.

    A group or transactional id is coordinated by the leader of the partition that it maps to. The
    partitions are spread over the brokers when a coordinator is first looked up, those that do not
    run then included, as Kafka spreads new partitions. After every restart they are placed again,
    with the next leader epoch.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._leaders: dict[str, list[Leadership]] = {}
        #: By internal topic.
        self.logs = {
            name: CoordinatorLog(cluster.logs, name, partial(self._leader_epoch, name))
            for name in sorted(_COORDINATED)
        }

    def clear(self) -> None:
        """Remove all placements."""
        self._leaders.clear()

    def of(self, topic: str, key: str) -> Leadership:
        """Return the leadership of the partition of an internal topic that an id maps to."""
        return self.all(topic)[coordinator_partition(key)]

    def check(self, topic: str, key: str, node_id: int) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker coordinates an id."""
        leader_id = self.of(topic, key).leader_id
        if node_id != leader_id:
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR,
                f"the coordinator of {key!r} is broker {leader_id}, not {node_id}",
            )

    def all(self, topic: str) -> list[Leadership]:
        """Return the leadership of each partition of an internal topic."""
        leaders = self._leaders.get(topic)
        if leaders is None:
            # As offsets.topic.replication.factor, if there are enough brokers.
            running, brokers = self._cluster.nodes, self._cluster.broker_ids
            count = min(_REPLICATION_FACTOR, len(brokers))
            leaders = [
                Leadership.begin(
                    place_replicas(index, count, running, brokers) if running else (), running
                )
                for index in range(COORDINATOR_PARTITIONS)
            ]
            for index, leader_epoch in self.logs[topic].leader_epochs().items():
                # As after every restart, the partition gets a new leader.
                leaders[index].leader_epoch = leader_epoch + 1
            if running:
                self._leaders[topic] = leaders
        return leaders

    def elect(self) -> Iterator[tuple[str, int]]:
        """Elect running leaders where needed and possible; yield the partitions that moved."""
        for topic, leaders in self._leaders.items():
            for index, leadership in enumerate(leaders):
                if leadership.update(self._cluster.nodes, 1):
                    yield topic, index

    def _leader_epoch(self, topic: str, index: int) -> int:
        return self.all(topic)[index].leader_epoch


class ClusterState:
    """Brokers, topics, producer ids, and the coordinators."""

    #: Whether the controller changes topics, settings and leaders, so that handlers `forward`.
    has_controller = False

    def __init__(
        self,
        *,
        cluster_id: str | None = None,
        settings: BrokerSettings | None = None,
        data_dir: Path | None = None,
        timers: Timers | None = None,
        logs: LogManager | None = None,
        store: ClusterStore | None = None,
    ) -> None:
        """Start without brokers or topics; a missing cluster id is generated.

        With a data directory the cluster must be opened before use. Without `logs`, which use the
        `timers`, the cluster has its own, and so without a `store`.
        """
        self.settings = settings or BrokerSettings()
        self.timers = timers or Timers()
        #: The logs of all partitions, internal topics included.
        self.logs = logs or LogManager(self.settings, self.timers, path=data_dir)
        #: The running brokers, by id, with the address of their first listener.
        self.nodes: dict[int, Node] = {}
        #: The ids of all brokers, running or not.
        self.broker_ids: set[int] = set()
        #: The addresses of their other listeners, by the listener's name.
        self.other_addresses: dict[str, dict[int, Node]] = {}
        #: What is stored once for all brokers.
        self.store = store or ClusterStore(self.settings, cluster_id)
        #: Decides who may do what; None if everyone may do everything.
        self.authorizer = self.store.authorizer
        self._next_producer_id = 0
        #: The defaults of topics: those of the settings, and what was changed since.
        self.topic_defaults = self.settings.topic_defaults
        self._controller_epoch = 0
        #: How many changes there have been to what the controller manages, since the start.
        self.metadata_offset = 0
        self._last_controller_id = NO_CONTROLLER
        self.topic_index = Topics()
        self._changed: set[Hashable] = set()
        # Last: they take the fields above from this object.
        self._coordinators = CoordinatorLeaders(self)
        coordinator_logs = self._coordinators.logs
        self.transactions = TransactionCoordinator(self, coordinator_logs[TRANSACTION_STATE_TOPIC])
        self.groups = GroupCoordinator(self, coordinator_logs[GROUP_METADATA_TOPIC])

    # Storage.

    def open(self, now: float) -> None:
        """Load the contents of the data directory, if there is one. Raises OSError, ConfigError."""
        self.timers.now = max(self.timers.now, now)
        if not self.logs.is_durable:
            return
        stored = self.logs.open(now)
        self.store.data = self.logs.data
        try:
            self._check_shared()
            if stored is None:
                ids = {name: uuid.uuid4() for name in self._coordinators.logs}
                self._store(StoredCluster(cluster_id=self.cluster_id, internal_topic_ids=ids))
            else:
                self.store.load(stored)
            # The unused ids of the last block are skipped.
            self._next_producer_id = self.store.stored.next_producer_id
            self.topic_defaults = self._changed_topic_defaults()
            self._load_topics()
            for name, log in self._coordinators.logs.items():
                log.open(self.store.stored.internal_topic_ids[name], now)
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

    def _check_shared(self) -> None:
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
        self._coordinators.clear()
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
                    # All brokers of a cluster start together, which ends reassignments.
                    replicas=tuple(partition.leadership.target for partition in topic.partitions),
                )
        self._store(replace(self.store.stored, topics=topics))

    def change_acls(self, acls: Iterable[Acl]) -> None:
        """Store and apply all ACLs.

        Raises RefusedError with SECURITY_DISABLED without an authorizer, or with
        KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        self.store.change_acls(acls)
        self.metadata_offset += 1

    @property
    def scram_users(self) -> Mapping[tuple[str, SaslMechanism], ScramCredential]:
        """The users that clients have created for logins with SCRAM, by name and mechanism."""
        return self.store.stored.scram_users

    def change_scram_users(
        self, users: Mapping[tuple[str, SaslMechanism], ScramCredential]
    ) -> None:
        """Store and apply all of these users.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        self.store.change_scram_users(users)
        self.metadata_offset += 1

    @property
    def client_quotas(self) -> Quotas:
        """The quotas of users and clients, by entity."""
        return self.store.stored.client_quotas

    def change_client_quotas(self, quotas: Quotas) -> None:
        """Store and apply all quotas.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        if quotas != self.store.stored.client_quotas:
            self.store.change_client_quotas(quotas)
            self.metadata_offset += 1

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
        names = [_ALL_BROKERS]
        if len(self.broker_ids) == 1:
            # Several brokers share their logs, which have one configuration.
            names += map(str, self.broker_ids)
        defaults = self.settings.topic_defaults
        for name in names:
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
            for index, replicas in enumerate(stored.replicas):
                log = self.logs.log(
                    TopicPartition(topic.name, index), topic.topic_id, topic.config, self.timers.now
                )
                # All replicas count as in sync; the first broker to start leads, in the next epoch.
                leadership = Leadership(replicas, NO_LEADER, log.leader_epoch, replicas)
                topic.partitions.append(
                    Partition(topic=topic, index=index, leadership=leadership, log=log)
                )
            self.topic_index.add(topic)

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.store.stored.cluster_id

    @property
    def controller_id(self) -> int:
        """The broker that handles requests to the controller, -1 while none runs."""
        return min(self.nodes, default=NO_CONTROLLER)

    @property
    def controller_epoch(self) -> int:
        """How often the controller has changed since the start of the cluster."""
        return self._controller_epoch

    @property
    def racks(self) -> dict[int, str]:
        """The racks of the brokers that have one, by id."""
        first = self.settings.node_id
        return {node_id: rack for node_id, rack in enumerate(self.settings.racks, first) if rack}

    def nodes_at(self, listener: str) -> dict[int, Node]:
        """Return all brokers, by id, with the addresses that clients of a listener use."""
        addresses = self.other_addresses.get(listener, {})
        return {node_id: addresses.get(node_id, node) for node_id, node in self.nodes.items()}

    @property
    def topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        return sorted(self.topic_index, key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic | None:
        """Return the topic with this name, or None."""
        return self.topic_index.find(name)

    def existing_topic(self, name: str) -> Topic:
        """Return the topic with this name, or raise RefusedError: UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topic(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
            )
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id (KIP-516), or None."""
        return self.topic_index.find_by_id(topic_id)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return a partition, or raise RefusedError with UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self._find(topic_partition)
        if partition is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_partition} does not exist"
            )
        return partition

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition exists."""
        return self._find(topic_partition) is not None

    def _find(self, topic_partition: TopicPartition) -> Partition | None:
        topic = self.topic_index.find(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

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
        assignments: Sequence[tuple[int, ...]] | None = None,
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
                assignments=assignments,
            )

    def delete_topic(self, topic: Topic) -> None:
        """Delete one topic; see `TopicChanges.delete_topic`. Raises RefusedError."""
        with self.change_topics() as changes:
            changes.delete_topic(topic)

    def forward(self, request: AnyRequest, version: int, now: float) -> Forwarded:
        """Send a request to the controller; only a cluster that `has_controller` can."""
        raise NotImplementedError

    # Brokers that start and stop.

    def register(self, node: Node, now: float) -> None:
        """Record that a broker runs, and where; it leads only partitions without another leader."""
        self.broker_ids.add(node.node_id)
        self.nodes[node.node_id] = node
        self.elect(now)

    def fence(self, node_id: int, now: float) -> None:
        """Record that a broker has stopped, and elect other leaders where possible."""
        if self.nodes.pop(node_id, None) is not None:
            for topic in self.topic_index:
                for partition in topic.partitions:
                    if node_id in partition.leadership.isr:
                        partition.stopped[node_id] = partition.end_offset(node_id)
            self.elect(now)

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the broker that leads a partition, -1 for none.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._find_leadership(topic_partition).leader_id

    def move_leader(self, topic_partition: TopicPartition, node_id: int, now: float) -> None:
        """Make another in-sync replica the leader of a partition, internal topics included.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, or with INVALID_REPLICA_ASSIGNMENT if
        the broker has no in-sync replica.
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

    def elect_unclean_leader(
        self, topic_partition: TopicPartition, end_offset: int, node_id: int
    ) -> None:
        """Make a replica the leader whose log ends at `end_offset`: later records are lost.

        Raises RefusedError as `PartitionLog.truncate_to`, with UNKNOWN_TOPIC_OR_PARTITION, or with
        INVALID_REPLICA_ASSIGNMENT if the broker is not a running replica.
        """
        partition = self.partition(topic_partition)
        if node_id not in partition.replicas or node_id not in self.nodes:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic_partition}: broker {node_id} is not one of the running replicas",
            )
        self.logs.truncate(topic_partition, end_offset)
        partition.leadership.elect_uncleanly(node_id, self.nodes)
        self._leader_moved(partition)

    def elect_preferred_leader(self, topic_partition: TopicPartition, now: float) -> None:
        """Make the first replica of a partition its leader.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED if it is the leader
        already, or PREFERRED_LEADER_NOT_AVAILABLE if it is not in sync.
        """
        leadership = self._find_leadership(topic_partition)
        preferred = leadership.replicas[0] if leadership.replicas else NO_LEADER
        if leadership.leader_id == preferred != NO_LEADER:
            raise _not_needed()
        if preferred not in leadership.isr:
            raise RefusedError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                "The preferred leader was not available.",
            )
        self.move_leader(topic_partition, preferred, now)

    def elect_any_leader(self, topic_partition: TopicPartition) -> None:
        """Make a running replica the leader of a partition without a leader.

        It was not in sync, so the records that it lacks are lost: those since its broker stopped.
        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED if there is a
        leader, or ELIGIBLE_LEADERS_NOT_AVAILABLE if no replica is running.
        """
        leadership = self._find_leadership(topic_partition)
        if leadership.leader_id != NO_LEADER:
            raise _not_needed()
        running = [replica for replica in leadership.replicas if replica in self.nodes]
        if not running or coordinates(topic_partition):
            raise RefusedError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                "Eligible topic partition leaders are not available.",
            )
        partition = self.partition(topic_partition)
        # One that was never in sync has nothing.
        start, end = partition.log.log_start_offset, partition.log.high_watermark
        end_offset = min(max(partition.stopped.get(running[0], start), start), end)
        self.elect_unclean_leader(topic_partition, end_offset, running[0])

    def stop_replication(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Make a follower lag: records that are appended from now on do not reach it.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, or with INVALID_REPLICA_ASSIGNMENT if
        the broker is not a follower.
        """
        partition = self.partition(topic_partition)
        if node_id not in partition.replicas or node_id == partition.leader_id:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic_partition}: broker {node_id} is not a follower",
            )
        partition.lagging[node_id] = partition.end_offset(node_id)

    def resume_replication(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Make a follower catch up. Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION."""
        self.partition(topic_partition).lagging.pop(node_id, None)
        self.changed(topic_partition)

    def _find_leadership(self, topic_partition: TopicPartition) -> Leadership:
        if coordinates(topic_partition):
            return self._coordinators.all(topic_partition.topic)[topic_partition.partition]
        return self.partition(topic_partition).leadership

    def elect(self, now: float) -> None:
        """Elect a running leader for every partition that needs one and can have one."""
        if self.controller_id not in {NO_CONTROLLER, self._last_controller_id}:
            self._last_controller_id = self.controller_id
            self._controller_epoch += 1
        self.metadata_offset += 1
        for topic in self.topic_index:
            for partition in topic.partitions:
                if partition.leadership.update(self.nodes, topic.config.min_insync_replicas):
                    self._leader_moved(partition)
        for name, index in self._coordinators.elect():
            self._coordinator_moved(name, index, now)

    def replace_leadership(self, partition: Partition, leadership: Leadership) -> None:
        """Set the leadership of a partition whose replicas were reassigned."""
        has_moved = leadership.leader_epoch != partition.leader_epoch
        partition.leadership = leadership
        if has_moved:
            self._leader_moved(partition)

    def _leader_moved(self, partition: Partition) -> None:
        partition.log.begin_leader_epoch(partition.leader_epoch)
        partition.lagging.pop(partition.leader_id, None)
        self.changed(partition.topic_partition)

    def _coordinator_moved(self, topic: str, index: int, now: float) -> None:
        if topic == GROUP_METADATA_TOPIC:
            self.groups.moved(index, now)

    # Coordinators.

    def group_coordinator(self, group_id: str) -> int:
        """Return the broker that coordinates a group, -1 while there is none."""
        return self._coordinators.of(GROUP_METADATA_TOPIC, group_id).leader_id

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, -1 while there is none."""
        return self._coordinators.of(TRANSACTION_STATE_TOPIC, transactional_id).leader_id

    def check_group_coordinator(self, node_id: int, group_id: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker coordinates the group."""
        self._coordinators.check(GROUP_METADATA_TOPIC, group_id, node_id)

    def check_transaction_coordinator(self, node_id: int, transactional_id: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker coordinates the id."""
        self._coordinators.check(TRANSACTION_STATE_TOPIC, transactional_id, node_id)

    def prepare_coordinators(self, topic: str, now: float) -> None:
        """Create the partitions of an internal topic, if that is needed to look them up."""

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
        if self.transaction_coordinator(transactional_id) == NO_LEADER:
            return Verification(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
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

    def coordinator_epoch(self, transactional_id: str) -> int:
        """Return the leader epoch of the partition that a transactional id maps to."""
        return self._coordinators.of(TRANSACTION_STATE_TOPIC, transactional_id).leader_epoch

    # Changes, markers and producer ids.

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

    def changed(self, watched: Hashable) -> None:
        """Record a change that requests may wait for, such as a partition that has grown."""
        self._changed.add(watched)

    def take_changed(self) -> set[Hashable]:
        """Return what has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def write_marker(self, topic_partition: TopicPartition, marker: TransactionMarker) -> None:
        """Write a transaction marker; a partition deleted in the meantime needs none."""
        if topic_partition.topic == GROUP_METADATA_TOPIC:
            self.groups.offsets.append_marker(topic_partition.partition, marker)
        elif self.has(topic_partition):
            partition = self.partition(topic_partition)
            if partition.leader_id == NO_LEADER:
                raise RefusedError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader"
                )
            partition.append_marker(marker, self.timers.now)
            self.changed(topic_partition)

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


def _not_needed() -> RefusedError:
    return RefusedError(
        ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    )
