"""The embedded broker, or a cluster of them, for tests, notebooks and demos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from spark_kafka_sink import display
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings, SettingChanges
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import unsupported, with_server_configs
from spark_kafka_sink.devbroker.brokers.clusters import cluster_of, usual_replication_factor
from spark_kafka_sink.devbroker.log.partition_log import committed_records
from spark_kafka_sink.devbroker.net.listener import LOOPBACK, Listener
from spark_kafka_sink.devbroker.net.server import ClusterServer, ServerThread
from spark_kafka_sink.devbroker.registry.schema_registry import SchemaRegistry
from spark_kafka_sink.devbroker.topic_records import TopicRecords
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from spark_kafka_sink.devbroker.brokers.clusters import SingleBroker
    from spark_kafka_sink.devbroker.brokers.replicated_cluster import ReplicatedCluster
    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.net.faults import Action, Decide, FaultHook
    from spark_kafka_sink.protocol.api_keys import ApiKey

T = TypeVar("T")


class DevBroker:
    """The brokers of one cluster, running on their own thread.

    >>> with DevBroker(topics={"orders": 3}) as broker:
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book", partition=1).result(timeout=30)
    ...     [record.value for record in broker.records("orders")[1]]
    [b'a book']

    Topics, records and schemas live as long as the object, or in `data_dir`: `stop` followed by
    `start` restarts the brokers on the same ports, without losing anything.

    With `brokers=3` there are three brokers, with ids 1 to 3, each on its own port and with its own
    logs. They replicate as Kafka's do: followers fetch from leaders, consumers see what all in-sync
    replicas have, and a controller that the brokers elect decides which of them lead.
    """

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        brokers: int = 1,
        host: str = LOOPBACK,
        port: int = 0,
        listeners: Sequence[Listener] | None = None,
        data_dir: str | Path | None = None,
        schema_registry: bool | Listener = False,
        settings: BrokerSettings | None = None,
        configs: Mapping[str, str] | None = None,
        max_message_bytes: int | None = None,
        log_append_time: bool | None = None,
        clock: Callable[[], float] | None = None,
        **changes: Unpack[SettingChanges],
    ) -> None:
        """Create brokers that listen once `start` is called.

        `topics` maps topics to create to their numbers of partitions; those that `data_dir` already
        contains are not changed. `brokers` is the number of brokers. Port 0 means any free port;
        with several brokers each one uses the next port. `listeners` configure TLS or SASL, and
        replace `host` and `port`. With `data_dir`, topics and records are stored in that directory,
        in Kafka's file format, and survive the process.

        With `schema_registry` there is a Schema Registry on any free port of `host`, whose schemas
        live as long as the records. A `Listener` sets its address, TLS, and SASL with the mechanism
        PLAIN, which is its basic authentication.

        `settings` apply to each broker; `configs` have Kafka's names and notation, such as
        {"min.insync.replicas": "2"}; `changes` are fields of `BrokerSettings` by name, and take
        precedence over `settings` unless they are None. `max_message_bytes` (in bytes) and
        `log_append_time` change the defaults of new topics. `clock` returns seconds since 1970; the
        time limits of groups, transactions and logins pass by it, too, and not at all if it stands
        still.
        Topics have `default_replication_factor` replicas: in `settings` that is 1 unless set, as in
        Kafka; without `settings` it is three, or the number of brokers if that is smaller.

        Raises ConfigError for contradictory values, and TypeError for an unknown keyword.
        """
        if brokers < 1:
            raise ConfigError(f"brokers must be at least 1, not {brokers}")
        self._topics = dict(topics or {})
        configs = dict(configs or {})
        if settings is None:
            settings = BrokerSettings(default_replication_factor=usual_replication_factor(brokers))
        given = {name: value for name, value in changes.items() if value is not None}
        settings = replace(settings, **given)  # type: ignore[arg-type]  # SettingChanges has them
        topic_defaults = settings.topic_defaults
        if max_message_bytes is not None:
            topic_defaults = replace(topic_defaults, max_message_bytes=max_message_bytes)
        if log_append_time is not None:
            topic_defaults = replace(topic_defaults, log_append_time=log_append_time)
        settings = replace(settings, topic_defaults=topic_defaults)
        unknown = unsupported(configs)
        if unknown:
            raise ConfigError(f"configs: the broker does not have {', '.join(unknown)}")
        settings = with_server_configs(settings, configs)
        self._first_node_id = settings.node_id
        self._server = ClusterServer(
            cluster_of(settings, brokers, data_dir=None if data_dir is None else Path(data_dir)),
            clock=clock,
        )
        if listeners is None:
            listeners = (Listener(host=host, port=port),)
        self._server.lay_out(listeners)
        self._first_listener = listeners[0].name
        self._schema_registry: SchemaRegistry | None = None
        if schema_registry is not False:
            if schema_registry is True:
                schema_registry = Listener(host=host)
            self._schema_registry = SchemaRegistry(
                schema_registry,
                settings.connection_limits,
                lambda: self._server.cluster.data,
            )
            self._server.companion = self._schema_registry.serve
        self._thread = ServerThread(self._server)

    def __enter__(self) -> Self:
        """Start the brokers."""
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the brokers; raise AssertionError if an expected fault was never injected."""
        self.stop()
        if exc is None:
            self._server.faults.check()
            if self._schema_registry is not None:
                self._schema_registry.check()

    def start(self, node_id: int | None = None) -> Self:
        """Start to listen; return the object itself when clients can connect.

        With `node_id` restart only that broker: it returns to its port, is in sync when this
        returns, and leads only partitions without another leader. Raises OSError, or KafkaError if
        it is already running.
        """
        if node_id is None:
            self._thread.start(self._create_topics)
        else:
            self._thread.call(lambda: self._server.start_broker(node_id))
        return self

    def stop(self, node_id: int | None = None) -> None:
        """Close all connections and ports; do nothing if already stopped.

        With `node_id` stop only that broker: as in a controlled shutdown of Kafka, other brokers
        lead and coordinate in its place before its connections close. If it cannot reach the
        controller, it stops with a warning in the log, and others lead once its session has ended.
        Raises KafkaError if it is already stopped, or paused.
        """
        if node_id is None:
            self._thread.stop()
        else:
            self._thread.wait_for(lambda: self._server.stop_broker(node_id))

    def kill(self, node_id: int) -> None:
        """End one of several brokers without notice, as SIGKILL does; `start` starts it again.

        The others notice when its session has ended (`broker_session_timeout_ms`, 9 seconds as in
        Kafka), and so does a new process of broker `node_id` that is started before that. Raises
        KafkaError if it is not running, or the only broker.
        """
        self._thread.wait_for(lambda: self._server.kill_broker(node_id))

    def pause(self, node_id: int) -> None:
        """Make one of several brokers do nothing until `resume`, as SIGSTOP does.

        Its connections remain open, and clients and other brokers wait for its responses. When its
        session has ended, as after `kill`, others lead in its place. Raises KafkaError if broker
        `node_id` is not running, or the only broker.
        """
        self._do(lambda: self._server.pause_broker(node_id))

    def resume(self, node_id: int) -> None:
        """Continue a paused broker where it was.

        It handles what clients have sent in the meantime and, if others lead now, does not know it
        yet: a write with acks=1 that waited for it may be confirmed and then lost. Raises
        KafkaError if broker `node_id` is not paused.
        """
        self._thread.wait_for(lambda: self._server.resume_broker(node_id))

    def wipe(self, node_id: int) -> None:
        """Delete the logs of a broker that was stopped or killed, as the loss of its disk does.

        When it starts again it fetches everything from the leaders; what only it had is lost.
        Raises KafkaError if broker `node_id` is running, or the only broker.
        """
        self._do(lambda: self._server.wipe_broker(node_id))

    def cut(self, first: int, second: int) -> None:
        """Drop all messages between two brokers until `heal`; clients still reach both.

        A leader without its followers takes writes with `acks=1`, which are lost with it. `first`
        and `second` are the ids of the brokers. Raises KafkaError if there is only one broker.
        """
        cluster = self._server.cluster
        self._do(lambda: cluster.cut(first, second))

    def heal(self) -> None:
        """Make all links between brokers work again. Raises KafkaError if there is only one."""
        self._do(self._server.cluster.heal)

    @property
    def port(self) -> int:
        """The port of the first broker's first listener."""
        return self._server.listeners[self._first_node_id][0].port

    @property
    def addresses(self) -> dict[int, str]:
        """The address of each broker, host:port, by id; stopped brokers included."""
        return self._server.addresses(self._first_listener)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the first listener, host:port, separated by commas."""
        return self._server.bootstrap_servers(self._first_listener)

    def address(self, listener: str) -> str:
        """Return the addresses of a listener; its default name is its security protocol."""
        return self._server.bootstrap_servers(listener)

    @property
    def schema_registry(self) -> SchemaRegistry:
        """The Schema Registry. Raises ConfigError if there is none."""
        if self._schema_registry is None:
            raise ConfigError(
                "there is no Schema Registry: write DevBroker(schema_registry=True), or with the "
                "fixture start_devbroker(schema_registry=True)"
            )
        return self._schema_registry

    @property
    def schema_registry_url(self) -> str:
        """The address of the Schema Registry, http://host:port. Raises ConfigError likewise."""
        return self.schema_registry.url

    @property
    def topic_names(self) -> list[str]:
        """The topics that exist."""
        cluster = self._server.cluster
        return self._do(lambda: [topic.name for topic in cluster.topics])

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; `configs` are Kafka's topic settings.

        `partitions` is the number of partitions. `replication_factor` is the number of replicas of
        each; the default is `default_replication_factor` of the settings. Raises RefusedError if
        the topic `name` is invalid or already exists, or if Kafka rejects a setting.
        """
        cluster = self._server.cluster
        self._do(
            lambda: cluster.create_topic(
                name,
                partitions=partitions,
                overrides=configs,
                replication_factor=replication_factor,
            )
        )

    def records(self, topic: str) -> TopicRecords:
        """Return what consumers would read from a topic now: records by partition, in offset order.

        The result is a dict of lists, with `to_arrow` and `to_pandas`. Only committed records are
        returned, none of open or aborted transactions. Raises RefusedError if there is no such
        topic.
        """
        cluster = self._server.cluster

        def read() -> TopicRecords:
            partitions = cluster.existing_topic(topic).partitions
            logs = {p.index: cluster.log(TopicPartition(topic, p.index)) for p in partitions}
            records = {index: list(committed_records(log)) for index, log in logs.items()}
            return TopicRecords(topic, records)

        return self._do(read)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the broker that leads a partition of a topic; -1 if none does.

        Raises RefusedError if there is no such partition.
        """
        cluster = self._server.cluster
        return self._do(lambda: cluster.leader(TopicPartition(topic, partition)))

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """Return the in-sync replicas of a partition of a topic: ids of brokers, ascending.

        Raises RefusedError if there is no such partition.
        """
        cluster = self._server.cluster
        return self._do(lambda: cluster.isr(TopicPartition(topic, partition)))

    def end_offsets(self, topic: str, partition: int = 0) -> dict[int, int]:
        """Return where each replica of a partition of a topic ends, by the ids of the brokers.

        That is the offset of the next record, whether or not the others have the last one, too
        (log end offset). Brokers that do not run are left out. Raises RefusedError if there is no
        such partition.
        """
        cluster = self._server.cluster
        return self._do(lambda: cluster.end_offsets(TopicPartition(topic, partition)))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make broker `node_id` the leader of a partition of a topic, in a new leader epoch.

        For `__consumer_offsets` and `__transaction_state` (50 partitions each) this moves the
        coordinator. Raises RefusedError if the broker has no in-sync replica.
        """
        cluster = self._server.cluster
        self._do(
            lambda: cluster.move_leader(
                TopicPartition(topic, partition), node_id, self._server.clock()
            )
        )

    def elect_unclean_leader(
        self, topic: str, partition: int, end_offset: int, *, node_id: int | None = None
    ) -> None:
        """Make a replica the leader that lacks the records of a partition from `end_offset` on.

        They are lost, as in Kafka with `unclean.leader.election.enable`, and the partition is in a
        new leader epoch. The batch that holds `end_offset` is lost as a whole. `topic` and
        `partition` name the partition. `node_id` is the broker; by default it is the leader, as
        after a restart from a damaged disk. Raises RefusedError if it is not a running replica, or
        if `end_offset` is not between the log's start and end.
        """
        cluster = self._server.cluster

        def elect() -> None:
            topic_partition = TopicPartition(topic, partition)
            leader = cluster.leader(topic_partition) if node_id is None else node_id
            cluster.elect_unclean_leader(topic_partition, end_offset, leader)

        self._do(elect)

    def stop_replication(self, topic: str, partition: int, node_id: int) -> None:
        """Make a follower lag behind its leader: no more records of a partition reach it.

        It is not in sync any more, without the wait of `replica.lag.time.max.ms`. Consumers that
        fetch from it get no new records, or OFFSET_OUT_OF_RANGE for an offset that it does not
        have. It fetches again after `resume_replication`, and when its broker or the leader
        changes. `topic` and `partition` name the partition.
        Raises RefusedError if the broker `node_id` is not a follower.
        """
        topic_partition = TopicPartition(topic, partition)
        self._do(lambda: self._server.cluster.stop_replication(topic_partition, node_id))

    def resume_replication(self, topic: str, partition: int, node_id: int) -> None:
        """Make a follower catch up with its leader.

        `topic` and `partition` name the partition, and `node_id` the broker. Raises RefusedError if
        there is no such partition.
        """
        topic_partition = TopicPartition(topic, partition)
        self._do(lambda: self._server.cluster.resume_replication(topic_partition, node_id))

    def compact(self, topic: str) -> None:
        """Compact a topic now: only the last record of each key remains, at its offset.

        A record without a value is removed, too, by a later call than the first one that finds it,
        after the `delete.retention.ms` of the topic. Records of open transactions and all later
        ones remain. The `cleanup.policy` of `topic` does not matter. Raises RefusedError if there
        is no such topic.
        """
        cluster = self._server.cluster

        def compact() -> None:
            for partition in cluster.existing_topic(topic).partitions:
                topic_partition = TopicPartition(topic, partition.index)
                cluster.compact(topic_partition, self._server.clock())

        self._do(compact)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records; one that is created later gets another topic id.

        Raises RefusedError if there is no topic `name`.
        """
        cluster = self._server.cluster
        self._do(lambda: cluster.delete_topic(cluster.existing_topic(name)))

    def on(
        self,
        api: ApiKey | str,
        fault: Decide | Action,
        *,
        times: int | None = None,
        expect: bool = False,
    ) -> FaultHook:
        """Inject a fault into requests of an API; return a hook that counts its actions.

        `api` is an `ApiKey`, or its name, such as "produce". `fault` is an action, such as
        `CloseConnection()`, or a function of the request and its `FaultContext` that returns an
        action, or None to handle the request as usual. `times` limits the number of actions. With
        `expect`, a hook that has never acted raises AssertionError at the end of the `with` block
        (or of the test, with the pytest fixtures), and in `remove`. Raises ConfigError for
        arguments with which the hook could never act.
        """
        return self._server.faults.on(api, fault, times=times, expect=expect)

    def call(self, function: Callable[[Any], T]) -> T:
        """Call `function` with a broker on the server's thread; return its result.

        The broker is the first one, or if that is stopped, the first that runs. Use it to inspect
        logs or change the cluster while clients are active. The attributes of the broker are not
        part of the API, and may change between versions. Raises KafkaError if the broker is not
        running.
        """

        def call() -> T:
            states = self._server.states
            running = [node_id for node_id, state in states.items() if state == "running"]
            return function(self._server.broker(min(running, default=self._first_node_id)))

        return self._do(call)

    def __repr__(self) -> str:
        """Show the addresses and whether clients can connect, without asking the brokers."""
        state = "running" if self._thread.is_running else "stopped"
        addresses = display.listed(list(self.addresses.values()), most=3)
        return f"<DevBroker at {addresses}, {state}>"

    def _repr_html_(self) -> str:
        """Show the brokers and the topics."""
        title = repr(self).strip("<>")
        if not self._thread.is_running:
            return display.block(title)

        cluster = self._server.cluster

        def overview() -> tuple[int, list[tuple[object, ...]]]:
            topics = cluster.topics if "running" in self._server.states.values() else []
            return len(topics), [_overview(cluster, topic) for topic in topics[: display.MAX_ROWS]]

        count, rows = self._do(overview)
        states = self._thread.call(lambda: self._server.states)
        brokers = [
            (str(node_id), address, states[node_id]) for node_id, address in self.addresses.items()
        ]
        return display.block(
            title,
            display.table(("broker", "address", "state"), brokers, count=len(brokers)),
            display.table(
                ("topic", "partitions", "offsets in the log", "end offsets"),
                rows,
                count=count,
                things=("topic", "topics"),
                bars=2,
            ),
        )

    def _do(self, function: Callable[[], T]) -> T:
        """Call a function on the server's thread, and tell clients what it has changed."""

        def run() -> T:
            try:
                return function()
            finally:
                self._server.changed()

        return self._thread.call(run)

    def _create_topics(self) -> None:
        topics, self._topics = self._topics, {}
        cluster = self._server.cluster
        for name, partitions in topics.items():
            if cluster.topic(name) is None or not cluster.is_durable:
                cluster.create_topic(name, partitions=partitions)


def _overview(cluster: SingleBroker | ReplicatedCluster, topic: Topic) -> tuple[object, ...]:
    """Return a topic's name, and its numbers of partitions and offsets, and where they end.

    A partition without a replica that runs ends at "?".
    """
    logs: list[PartitionLog | None] = []
    for partition in topic.partitions:
        try:
            logs.append(cluster.log(partition.topic_partition))
        except RefusedError:
            logs.append(None)
    return (
        topic.name,
        len(logs),
        sum(log.log_end_offset - log.log_start_offset for log in logs if log is not None),
        display.listed(["?" if log is None else str(log.log_end_offset) for log in logs], most=8),
    )
