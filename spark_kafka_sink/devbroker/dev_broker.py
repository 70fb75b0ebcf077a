"""The embedded broker, or a cluster of them, as tests, notebooks and demos use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.broker import brokers_of, usual_replication_factor
from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.committed_records import committed_records
from spark_kafka_sink.devbroker.connection_limits import ConnectionLimits
from spark_kafka_sink.devbroker.listener import LOOPBACK, Listener
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.server import ClusterServer, ServerThread
from spark_kafka_sink.devbroker.topic_config import TopicConfig
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from spark_kafka_sink.devbroker.broker import Broker
    from spark_kafka_sink.devbroker.faults import Action, Decide, FaultHook
    from spark_kafka_sink.protocol.api_keys import ApiKey
    from spark_kafka_sink.record.decode import Record

T = TypeVar("T")


class DevBroker:
    """Brokers of one cluster on a thread of their own.

        with DevBroker(topics={"orders": 3}) as broker:
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    Topics and records live in memory as long as the object, or in `data_dir`: `stop` and `start`
    are a restart that loses nothing, on the same ports.

    With `brokers=3` there are three, with ids 1 to 3, each on a port of its own. They share one log
    for each partition: leaders, epochs and replicas in sync are as in Kafka, and move as brokers
    stop and start, but records are not replicated, and none is lost.
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
        auto_create_topics: bool = True,
        num_partitions: int = 1,
        default_replication_factor: int | None = None,
        max_message_bytes: int = TopicConfig().max_message_bytes,
        log_append_time: bool = False,
        validate_records: bool = False,
        transaction_version: int = 2,
        transaction_max_timeout_ms: int = BrokerSettings().transaction_max_timeout_ms,
        transaction_abort_interval_ms: int = BrokerSettings().transaction_abort_interval_ms,
        transaction_marker_delay_ms: int = 0,
        producer_id_expiration_ms: int = BrokerSettings().producer_id_expiration_ms,
        producer_id_expiration_check_interval_ms: int = (
            BrokerSettings().producer_id_expiration_check_interval_ms
        ),
        group_initial_rebalance_delay_ms: int = 0,
        group_min_session_timeout_ms: int = BrokerSettings().group_min_session_timeout_ms,
        connection_limits: ConnectionLimits | None = None,
        socket_request_max_bytes: int = BrokerSettings().socket_request_max_bytes,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Set up brokers that listen from `start` on.

        `topics` are created with so many partitions each, on three brokers where there are as many.
        Port 0 is any free one; of several brokers each has the next. `listeners` are for
        connections with TLS or SASL; host and port are then theirs. With `data_dir` topics and
        records lie in that directory, in Kafka's file format, and outlive the process: those of
        `topics` that are there already stay as they are. The settings are those of
        `BrokerSettings` and `TopicConfig`; `clock` gives seconds since 1970. Raises ConfigError.
        """
        if brokers < 1:
            raise ConfigError(f"a cluster cannot have {brokers} brokers")
        self._topics = dict(topics or {})
        settings = BrokerSettings(
            auto_create_topics=auto_create_topics,
            num_partitions=num_partitions,
            default_replication_factor=default_replication_factor
            or usual_replication_factor(brokers),
            topic_defaults=TopicConfig(
                max_message_bytes=max_message_bytes, log_append_time=log_append_time
            ),
            validate_records=validate_records,
            transaction_version=transaction_version,
            transaction_max_timeout_ms=transaction_max_timeout_ms,
            transaction_abort_interval_ms=transaction_abort_interval_ms,
            transaction_marker_delay_ms=transaction_marker_delay_ms,
            producer_id_expiration_ms=producer_id_expiration_ms,
            producer_id_expiration_check_interval_ms=producer_id_expiration_check_interval_ms,
            group_initial_rebalance_delay_ms=group_initial_rebalance_delay_ms,
            group_min_session_timeout_ms=group_min_session_timeout_ms,
            connection_limits=connection_limits or ConnectionLimits(),
            socket_request_max_bytes=socket_request_max_bytes,
        )
        self._server = ClusterServer(
            brokers_of(settings, brokers, data_dir=None if data_dir is None else Path(data_dir)),
            clock=clock,
        )
        if listeners is None:
            listeners = (Listener(host=host, port=port),)
        self._server.lay_out(listeners)
        self._first_listener = listeners[0].name
        self._thread = ServerThread(self._server)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def start(self, node_id: int | None = None) -> None:
        """Listen; return when clients can connect. Raises OSError, or KafkaError if started.

        With `node_id` only the broker of that id, which was stopped: it comes back to its port, is
        in sync at once, and leads again what nobody else could lead.
        """
        if node_id is None:
            self._thread.start(self._create_topics)
        else:
            self._thread.call(lambda: self._server.start_broker(node_id))

    def stop(self, node_id: int | None = None) -> None:
        """Close every connection and the ports; does nothing if that has been done.

        With `node_id` only the broker of that id: as in an orderly shutdown of Kafka's others lead
        and coordinate in its place before its connections end. Raises KafkaError if it has stopped.
        """
        if node_id is None:
            self._thread.stop()
        else:
            self._thread.wait_for(lambda: self._server.stop_broker(node_id))

    @property
    def port(self) -> int:
        """Port of the first broker's first listener."""
        return self._server.listeners[1][0].port

    @property
    def addresses(self) -> dict[int, str]:
        """The address of each broker, host:port, by its id; also of those that are stopped."""
        return self._server.addresses(self._first_listener)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for clients, host:port, of the first listener; separated by commas."""
        return self._server.bootstrap_servers(self._first_listener)

    def address(self, listener: str) -> str:
        """Give a listener's address, or addresses; by default it is called by its protocol."""
        return self._server.bootstrap_servers(listener)

    @property
    def topic_names(self) -> list[str]:
        """Topics that exist."""
        return self.call(lambda broker: [topic.name for topic in broker.cluster.topics])

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; `configs` are Kafka's topic settings. Raises RefusedError."""

        def create(broker: Broker) -> None:
            config = broker.settings.topic_defaults.with_values(configs or {})
            broker.cluster.create_topic(
                name,
                partitions=partitions,
                config=config,
                overrides=configs,
                replication_factor=replication_factor,
            )

        self.call(create)

    def records(self, topic: str) -> dict[int, list[Record]]:
        """Return what consumers would read of a topic now: records by partition, in their order.

        Only what is committed: neither open transactions nor aborted ones. Raises RefusedError if
        there is no such topic.
        """

        def read(broker: Broker) -> dict[int, list[Record]]:
            found = broker.cluster.topic(topic)
            if found is None:
                raise RefusedError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}"
                )
            return {p.index: list(committed_records(p.log)) for p in found.partitions}

        return self.call(read)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the broker that leads a partition, -1 for none. Raises RefusedError."""
        return self.call(lambda broker: broker.cluster.leader(TopicPartition(topic, partition)))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another replica lead a partition, in a new leader epoch.

        The partitions of `__consumer_offsets` and `__transaction_state` (50 each) are coordinators.
        Raises RefusedError if the broker keeps no replica that is in sync.
        """
        self.call(
            lambda broker: broker.cluster.move_leader(
                TopicPartition(topic, partition), node_id, self._server.clock()
            )
        )

    def on(self, api_key: ApiKey, fault: Decide | Action, *, times: int | None = None) -> FaultHook:
        """Set a fault hook; see `faults`."""
        return self._server.faults.on(api_key, fault, times=times)

    def call(self, function: Callable[[Broker], T]) -> T:
        """Call a function with the first broker on the server's thread; give its result.

        The way to look at logs, or to change the cluster, while clients are at work. Raises
        KafkaError if the broker does not run.
        """

        def run() -> T:
            try:
                return function(self._server.broker(1))
            finally:
                self._server.changed()

        return self._thread.call(run)

    def _create_topics(self) -> None:
        topics, self._topics = self._topics, {}
        cluster = self._server.cluster
        for name, partitions in topics.items():
            if cluster.topic(name) is None or not cluster.logs.is_durable:
                cluster.create_topic(
                    name, partitions=partitions, config=cluster.settings.topic_defaults
                )
