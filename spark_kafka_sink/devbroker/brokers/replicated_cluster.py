"""Several brokers in one process that replicate, with the tests' view of them.

Each has its own logs, in memory or in its own directory (`brokers/<id>`), metadata, replicas,
coordinators and controller (`BrokerNode`), and its handlers (`ReplicatedBroker`). ACLs, users,
quotas and schemas are stored once for all.

No sockets and no clock: the owner calls `run_due` when `next_deadline` is over. What needs nothing
but messages and short waits (the start of a broker, and its orderly end) does not wait for the
clock: `_hurry` moves the time of the brokers ahead by some milliseconds.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.base.topic_names import coordinates
from spark_kafka_sink.devbroker.brokers.replicated_broker import ReplicatedBroker
from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
from spark_kafka_sink.devbroker.cluster.cluster_store import ClusterStore
from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.devbroker.lifecycle.broker_cluster import BrokerCluster
from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import (
    BrokerIdentity,
    BrokerState,
    LifecycleSettings,
)
from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode, NodeSettings
from spark_kafka_sink.devbroker.log.data_directory import DataDirectory, MetaProperties
from spark_kafka_sink.devbroker.metadata.envelope import ForwardedRequest
from spark_kafka_sink.devbroker.metadata.metadata_fetcher import MetadataFetchSettings
from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.elect_leaders import PREFERRED, ElectLeadersRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
    from pathlib import Path

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.log.data_directory import StoredCluster
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.metadata.envelope import ForwardedResponse
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.protocol.messages.broker_registration import Listener
    from spark_kafka_sink.protocol.schema import AnyRequest

#: More time than brokers need for anything that is due.
_MARGIN: Final = 1.0
#: Kafka's default of replica.fetch.wait.max.ms, in seconds.
_FETCH_WAIT: Final = ReplicationSettings().replica_fetch_wait_max
_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """The times of the replication, in seconds.

    Each depends on a setting. What must happen several times within it happens as often as in
    Kafka, or more often if the setting is short.
    """

    #: How long a controller keeps its lease without a majority.
    lease: float
    lifecycle: LifecycleSettings
    metadata: MetadataFetchSettings
    #: After which time a follower is out of sync.
    lag: float

    @classmethod
    def of(cls, settings: BrokerSettings) -> _Times:
        """Return the times by the settings of brokers."""
        session_timeout = settings.broker_session_timeout_ms / 1000
        lease = settings.controller_quorum_fetch_timeout_ms / 1000
        usual = MetadataFetchSettings()
        return cls(
            lease=lease,
            lifecycle=LifecycleSettings(
                session_timeout=session_timeout,
                heartbeat_interval=min(
                    settings.broker_heartbeat_interval_ms / 1000, session_timeout / 3
                ),
            ),
            metadata=MetadataFetchSettings(
                max_wait=min(usual.max_wait, lease / 4),
                request_timeout=min(usual.request_timeout, lease),
            ),
            lag=settings.replica_lag_time_max_ms / 1000,
        )


class _InOrder(random.Random):
    """Chooses the first of everything, so that replicas are always placed in the same way."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return the lowest number."""
        del step
        return 0 if stop is None else start

    def shuffle(self, x: Any) -> None:
        """Leave the order as it is."""


class ReplicatedCluster:
    """The brokers of a cluster that replicates."""

    def __init__(
        self, settings: BrokerSettings, node_ids: Sequence[int], *, data_dir: Path | None = None
    ) -> None:
        """Create brokers that do not run yet. Raises ConfigError."""
        self.settings = settings
        self.node_ids = tuple(node_ids)
        self._path = data_dir
        self._store = ClusterStore(settings)
        self._now = 0.0
        #: The replicas that lag because a test wants it.
        self._paused: set[tuple[TopicIdPartition, int]] = set()
        self._times = _Times.of(settings)
        self._quorum = MetadataQuorum(lease=self._times.lease)
        self._cluster = BrokerCluster(self._quorum)
        self._logs: dict[int, BrokerLogs] = {}
        if data_dir is None:
            self._logs = {node_id: self._new_logs(node_id) for node_id in self.node_ids}
        self.brokers = [
            ReplicatedBroker(node_id, settings, self._collect, self._advertise)
            for node_id in self.node_ids
        ]
        self._by_id = {broker.node_id: broker for broker in self.brokers}

    def _new_logs(self, node_id: int) -> BrokerLogs:
        data = self._store.data
        return BrokerLogs(
            self.settings,
            MetaProperties(self._store.stored.cluster_id, node_id),
            path=None if data is None else data.broker_path(node_id),
        )

    @property
    def data(self) -> DataDirectory | None:
        """The directory of the cluster, while it is open."""
        return self._store.data

    @property
    def is_durable(self) -> bool:
        """Whether records survive the process."""
        return self._path is not None

    @property
    def running(self) -> list[int]:
        """The brokers whose processes run and are not paused."""
        return list(self._cluster.awake)

    # Storage.

    def open(self, now: float) -> None:
        """Open the data directory, if there is one. Raises OSError, ConfigError."""
        # In the past, so that the brokers have the time in which the sessions of killed ones end.
        session_timeout = self._times.lifecycle.session_timeout
        self._now = max(self._now, now - session_timeout - self._times.lease - _MARGIN)
        if self._path is None:
            return
        data = DataDirectory(self._path)
        try:
            stored = data.read_cluster()
            if stored is None:
                data.write_cluster(self._store.stored)
            else:
                _check_replicated(data, stored)
                self._store.load(stored)
            self._store.data = data
            self._quorum = MetadataQuorum(lease=self._times.lease, store=data.metadata_log())
            self._cluster = BrokerCluster(self._quorum)
            self._logs = {node_id: self._new_logs(node_id) for node_id in self.node_ids}
        except BaseException:
            self._store.data = None
            data.close()
            raise

    def close(self, now: float) -> None:
        """End all brokers in order, and close the data directory. Raises OSError."""
        for node_id in self._cluster.nodes.keys() - self._cluster.awake:
            self.resume_broker(node_id, now)
        for node_id in self.running:
            self.begin_stop(node_id, now)
            self.stop_broker(node_id, now)
        data, self._store.data = self._store.data, None
        if data is not None:
            data.close()

    # Processes.

    def start(self, node_ids: Collection[int], now: float) -> None:
        """Start brokers that do not run, once their listeners have addresses.

        Raises OSError, ConfigError.
        """
        for node_id in node_ids:
            self._start(node_id, now)
        self._hurry(lambda: all(map(self._is_ready, node_ids)), now)
        self._hurry(lambda: all(map(self._is_in_sync, node_ids)), now)
        if len(node_ids) == len(self.node_ids):
            # Otherwise the first one to start would lead all that was stored.
            election = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
            self._cluster.forward(
                self.node_ids[0], ForwardedRequest(request=election, version=2), _ignore, self._now
            )
        self._time(now)

    def _start(self, node_id: int, now: float) -> None:
        self._paused = {each for each in self._paused if each[1] != node_id}
        logs, broker = self._logs[node_id], self._by_id[node_id]
        logs.start(now)
        racks = self.settings.racks
        identity = BrokerIdentity(
            node_id=node_id,
            cluster_id=self._store.stored.cluster_id,
            incarnation_id=uuid.uuid4(),
            previous_epoch=logs.previous_epoch,
            rack=(racks[self.node_ids.index(node_id)] or None) if racks else None,
            listeners=broker.listeners,
        )
        settings = self.settings
        node = BrokerNode(
            identity,
            self.node_ids,
            logs,
            self._quorum,
            new_uuid=uuid.uuid4,
            rng=_InOrder(),
            settings=NodeSettings(
                controller=ControllerSettings(
                    broker_session_timeout=self._times.lifecycle.session_timeout,
                    restarts_at_once=True,
                    num_partitions=settings.num_partitions,
                    default_replication_factor=settings.default_replication_factor,
                    topic_defaults=settings.topic_defaults,
                ),
                lifecycle=self._times.lifecycle,
                metadata=self._times.metadata,
                replication=ReplicationSettings(
                    replica_lag_time_max=self._times.lag,
                    replica_fetch_wait_max=min(_FETCH_WAIT, self._times.lag / 2),
                    serves_consumers=settings.rack_aware_replica_selector,
                    interrupts_fetches=True,
                ),
                topic_defaults=settings.topic_defaults,
            ),
        )
        view = BrokerView(
            settings, self._store, logs, node, partial(self._cluster.forward, node_id)
        )
        broker.start(node, view, logs)
        self._cluster.start(node, self._now)

    def _is_ready(self, node_id: int) -> bool:
        node = self._cluster.nodes[node_id]
        return node.lifecycle.state is BrokerState.RUNNING and all(
            each.image.is_active(node_id) for each in self._cluster.awake.values()
        )

    def _is_in_sync(self, node_id: int) -> bool:
        """Return whether a broker is in sync wherever it has a replica and there is a leader."""
        return all(
            node_id in each.isr
            for each in self._cluster.nodes[node_id].image.partitions()
            if node_id in each.replicas
            and each.leader in self._cluster.awake
            and (each.id, node_id) not in self._paused
        )

    def begin_stop(self, node_id: int, now: float) -> bool:
        """Make other brokers lead and coordinate instead of one (controlled shutdown).

        Return whether the controller has approved that it stops. As Kafka's, it waits for longer
        than a session: the controller may have to find out first that another broker was killed.
        """
        node = self._cluster.nodes[node_id]
        self._cluster.shut_down(node_id, self._time(now))
        self._hurry(lambda: node.may_stop, now, most=self._times.lifecycle.session_timeout)
        return node.may_stop

    def stop_broker(self, node_id: int, now: float) -> None:
        """End the process of a broker in order. Raises OSError."""
        node = self._cluster.nodes[node_id]
        self._cluster.stop(node_id, self._time(now))
        self._by_id[node_id].stop()
        self._logs[node_id].close(node.lifecycle.epoch, now)
        if self.running:
            self._hurry(self._has_controller, now)

    def kill_broker(self, node_id: int, now: float) -> None:
        """End the process of a broker at once; its logs remain as they are."""
        self._cluster.kill(node_id, self._time(now))
        self._by_id[node_id].stop()
        self._logs[node_id].abandon()

    def pause_broker(self, node_id: int, now: float) -> None:
        """Make the process of a broker do nothing until `resume_broker`."""
        self._time(now)
        self._cluster.pause(node_id)

    def resume_broker(self, node_id: int, now: float) -> None:
        """Continue the process of a broker, with the next `run_due`."""
        self._cluster.resume(node_id, self._time(now))

    def wipe_broker(self, node_id: int) -> None:
        """Delete the logs of a broker that does not run. Raises OSError."""
        if self._store.data is not None:
            self._store.data.delete_broker(node_id)
        self._logs[node_id] = self._new_logs(node_id)

    def _has_controller(self) -> bool:
        nodes = self._cluster.awake
        return any(node.controller.controller.is_active for node in nodes.values()) and all(
            node.controller_id in nodes for node in nodes.values()
        )

    # Time and messages.

    @property
    def next_deadline(self) -> float | None:
        """When `run_due` must be called, in seconds since 1970; None for never."""
        brokers = map(self._by_id.__getitem__, self.running)
        due = min([self._cluster.deadline, *(broker.deadline for broker in brokers)])
        return None if due == NEVER else due

    def run_due(self, now: float) -> None:
        """Do what is due by `now`."""
        for node_id in self.running:
            self._by_id[node_id].tick(now)
        self._cluster.tick(self._time(now))
        for node_id in self.running:
            self._collect(node_id, now)

    def take_changed(self) -> set[Hashable]:
        """Return what has changed at any broker since the last call."""
        changed: set[Hashable] = set()
        for broker in self.brokers:
            changed |= broker.take_changed()
        return changed

    def _time(self, now: float) -> float:
        """Return the time of the brokers, which never goes back.

        Do what was due before it, step by step: after a pause of the process, a broker for which
        time has jumped would take the others for dead.
        """
        while self._now < (due := self._cluster.deadline) <= now:
            self._now = due
            self._cluster.tick(due)
        self._now = max(self._now, now)
        return self._now

    def _collect(self, node_id: int, now: float) -> None:
        if node_id in self._cluster.awake:
            self._cluster.collect(node_id, self._time(now))

    def _advertise(self, node_id: int, listeners: tuple[Listener, ...]) -> None:
        self._cluster.advertise(node_id, listeners, self._now)

    def _hurry(self, is_done: Callable[[], bool], now: float, most: float = 0.0) -> None:
        """Move the time of the brokers ahead until something is done.

        It may take `most` seconds, and in addition what a new controller needs.
        """
        end = max(self._now, now) + most + self._times.lease + _MARGIN
        while not is_done():
            due = max(self._now, self._cluster.deadline)
            if due > end:
                return
            self._now = due
            self._cluster.tick(due)

    def cut(self, first: int, second: int) -> None:
        """Drop all messages between two brokers from now on."""
        self._cluster.cut(first, second)

    def heal(self) -> None:
        """Make all links between brokers work again."""
        self._cluster.heal()

    # What tests look at and change.

    @property
    def _view(self) -> BrokerView:
        """The cluster as the controller's broker knows it, or any that runs."""
        running = self.running
        if not running:
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is running")
        controller = self._quorum.controller_id
        cluster = self._by_id[controller if controller in running else running[0]].cluster
        if not isinstance(cluster, BrokerView):
            raise TypeError("a running broker has no view of the cluster")
        return cluster

    @property
    def topics(self) -> list[Topic]:
        """All topics of clients, sorted by name."""
        return [topic for topic in self._view.topics if not topic.is_internal]

    def topic(self, name: str) -> Topic | None:
        """Return the topic with this name, or None."""
        return self._view.topic(name)

    def existing_topic(self, name: str) -> Topic:
        """Return the topic with this name, or raise RefusedError: UNKNOWN_TOPIC_OR_PARTITION."""
        return self._view.existing_topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        overrides: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
    ) -> None:
        """Create a topic. Raises RefusedError."""
        configs = tuple(
            CreatableTopicConfig(name=key, value=value) for key, value in (overrides or {}).items()
        )
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=_DEFAULT if replication_factor is None else replication_factor,
            assignments=(),
            configs=configs,
        )
        (result,) = self._ask(CreateTopicsRequest(topics=(topic,))).topics
        _check(result)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic. Raises RefusedError."""
        state = DeleteTopicState(name=None, topic_id=topic.topic_id)
        (result,) = self._ask(DeleteTopicsRequest(topics=(state,), timeout_ms=0)).responses
        _check(result)

    def _ask(self, request: AnyRequest) -> Any:
        """Return the controller's response, which comes at once if there is one."""
        answers: list[ForwardedResponse | None] = []
        forwarded = ForwardedRequest(request=request, version=request.versions.max)
        self._hurry(self._has_controller, self._now)
        self._cluster.forward(self.running[0], forwarded, answers.append, self._now)
        if not answers or answers[0] is None or answers[0].response is None:
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "the controller has not responded")
        return answers[0].response

    def _key(self, topic_partition: TopicPartition) -> TopicIdPartition:
        """Return the id of a partition; those of coordinators are created if needed."""
        view = self._view
        if coordinates(topic_partition):
            view.prepare_coordinators(topic_partition.topic, self._now)
        view.partition(topic_partition)
        return TopicIdPartition(
            view.existing_topic(topic_partition.topic).topic_id, topic_partition.partition
        )

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the broker that leads a partition, -1 for none.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._key(topic_partition)
        return self._view.leader(topic_partition)

    def isr(self, topic_partition: TopicPartition) -> list[int]:
        """Return the in-sync replicas of a partition, in ascending order. Raises RefusedError."""
        self._key(topic_partition)
        return sorted(self._view.partition(topic_partition).leadership.isr)

    def end_offsets(self, topic_partition: TopicPartition) -> dict[int, int]:
        """Return where the log of each running replica ends, by broker. Raises RefusedError."""
        key = self._key(topic_partition)
        logs = {
            node_id: self._cluster.nodes[node_id].replicas.log(key)
            for node_id in sorted(self._cluster.nodes)
        }
        return {node_id: log.log_end_offset for node_id, log in logs.items() if log is not None}

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return the log of the leader, or else of any running replica. Raises RefusedError."""
        key = self._key(topic_partition)
        leader = self._view.leader(topic_partition)
        for node_id in (leader, *self._view.partition(topic_partition).replicas):
            node = self._cluster.nodes.get(node_id)
            log = None if node is None else node.replicas.log(key)
            if log is not None:
                return log
        raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no replica")

    def move_leader(self, topic_partition: TopicPartition, node_id: int, now: float) -> None:
        """Make another in-sync replica the leader. Raises RefusedError as `Controller.lead`."""
        key, now = self._key(topic_partition), self._time(now)
        self._cluster.control(lambda controller: controller.lead(key, node_id, now), now)

    def elect_unclean_leader(
        self, topic_partition: TopicPartition, end_offset: int, node_id: int
    ) -> None:
        """Make a replica the leader whose log ends at `end_offset`: later records are lost.

        Raises RefusedError as `PartitionLog.truncate_to` and `Controller.lead`.
        """
        key, now = self._key(topic_partition), self._now
        node = self._cluster.nodes.get(node_id)
        log = None if node is None else node.replicas.log(key)
        if log is None:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic_partition}: broker {node_id} is not one of the running replicas",
            )
        self._logs[node_id].manager.truncate(topic_partition, end_offset)
        self._cluster.control(
            lambda controller: controller.lead(key, node_id, now, uncleanly=True), now
        )
        self._hurry(lambda: len(self._view.partition(topic_partition).leadership.isr) > 1, now)

    def stop_replication(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Make a follower lag: it fetches no more records, and leaves the ISR at once.

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, or with INVALID_REPLICA_ASSIGNMENT if
        the broker is not a running follower.
        """
        key, leader = self._key(topic_partition), self.leader(topic_partition)
        node = self._cluster.nodes.get(node_id)
        if node is None or node.replicas.log(key) is None or node_id == leader:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic_partition}: broker {node_id} is not a follower",
            )
        node.replicas.pause(key)
        self._paused.add((key, node_id))
        if leader in self._cluster.nodes:
            self._cluster.nodes[leader].replicas.drop_from_isr(key, node_id)
            self._collect(leader, self._now)

    def resume_replication(self, topic_partition: TopicPartition, node_id: int) -> None:
        """Make a follower catch up. Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION."""
        key = self._key(topic_partition)
        self._paused.discard((key, node_id))
        node = self._cluster.nodes.get(node_id)
        if node is not None:
            node.replicas.resume(key)
            self._collect(node_id, self._now)
            self._hurry(lambda: self._is_in_sync(node_id), self._now)

    def compact(self, topic_partition: TopicPartition, now: float) -> None:
        """Compact the log of each replica now. Raises RefusedError."""
        self._key(topic_partition)
        for node_id in self.running:
            manager = self._logs[node_id].manager
            if topic_partition in manager.partitions:
                manager.compact(topic_partition, now)


def _check_replicated(data: DataDirectory, stored: StoredCluster) -> None:
    """Raise ConfigError if the directory is that of a single broker."""
    if stored.topics or not data.has_brokers:
        raise ConfigError(
            f"{data.path} belongs to a single broker: start one, or use another directory"
        )


def _ignore(_: ForwardedResponse | None) -> None:
    """Do nothing about the outcome of a request."""


def _check(result: Any) -> None:
    if result.error_code != ErrorCode.NONE:
        code = ErrorCode(result.error_code)
        raise RefusedError(code, result.error_message or code.name)
