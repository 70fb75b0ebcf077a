"""A real Apache Kafka for the tests, provided in the first of these ways that works.

1. `KAFKA_BOOTSTRAP_SERVERS`: an existing cluster. Only for tests that neither stop its brokers
   nor depend on its settings.
2. Docker, through testcontainers, if a daemon answers quickly.
3. Java processes, from the jars that Maven fetches.

If none works, the message of KafkaUnavailableError has the reason for each. Topics are created,
and leaders looked up, with an independent client, confluent-kafka.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.support.kafka.kafka_docker import DockerNodes
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4, ONLY_KAFKA
from tests.support.kafka.kafka_process import wait_for_answer
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError
from tests.support.kafka.process_nodes import ProcessNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

T = TypeVar("T")

_READY_SECONDS = 120
_ADMIN_SECONDS = 120
_POLL_SECONDS = 0.1
#: The errors of a partition whose leader has changed or restarted.
_NEW_LEADER = frozenset(
    {
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
#: The version of a given cluster in the names of tests.
GIVEN = "given"


class Broker(Protocol):
    """A node of a cluster that the tests started."""

    node_id: int
    address: str
    #: The address for a proxy, if the node was started with a proxy before it.
    proxied_address: str | None
    #: The addresses of its secured listeners, by their names.
    secured_addresses: Mapping[str, str]

    @property
    def process_id(self) -> int | None:
        """The id of its process, if that is a running child of the test run."""

    @property
    def is_running(self) -> bool:
        """Whether its process is running."""

    def start(self) -> None:
        """Start or restart the broker; does not wait until it is ready."""

    def stop(self) -> None:
        """Stop the broker cleanly."""

    def kill(self) -> None:
        """Kill the broker, as a crash would."""

    def freeze(self) -> None:
        """Freeze the broker, with its connections open, until it is thawed."""

    def thaw(self) -> None:
        """Resume the broker after a freeze."""

    def log_tail(self) -> str:
        """Return the last lines of its log."""


class Nodes(Protocol):
    """The nodes of a cluster, of any kind."""

    @property
    def nodes(self) -> Sequence[Broker]:
        """All nodes, by ascending id."""

    def close(self) -> None:
        """Stop the nodes and remove their data."""


class KafkaCluster:
    """A running cluster of one or more nodes.

    `brokers` is empty if the cluster was given by its address. A context manager: leaving it stops
    the brokers.
    """

    def __init__(self, version: str, bootstrap_servers: str, nodes: Nodes | None = None) -> None:
        """Connect to a cluster whose nodes have been started; see `wait_until_ready`."""
        self.version = version
        self.bootstrap_servers = bootstrap_servers
        self._nodes = nodes
        self.brokers: Sequence[Broker] = nodes.nodes if nodes else ()
        #: Quiet, since librdkafka logs every refused connection to a broker that is still starting.
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def __enter__(self) -> Self:
        """Return the cluster itself."""
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the brokers."""
        self.close()

    def close(self) -> None:
        """Stop the brokers that were started for this cluster and remove their data."""
        if self._nodes is not None:
            self._nodes.close()

    def broker(self, node_id: int) -> Broker:
        """Return the broker with an id."""
        return next(broker for broker in self.brokers if broker.node_id == node_id)

    def wait_until_ready(self) -> None:
        """Wait until every broker answers and every broker's metadata lists all brokers.

        Raises KafkaFailedError, with the end of the log, if a broker exits or does not answer in
        time, and TimeoutError if the brokers do not find each other in time.
        """
        for broker in self.brokers:
            wait_for_answer(broker, _READY_SECONDS)
        expected = {broker.node_id for broker in self.brokers}
        wait_until(
            lambda: expected <= self._known_brokers(),
            seconds=_READY_SECONDS,
            what=f"brokers {sorted(expected)} to know each other",
        )

    def create_topic(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        replication_factor: int | None = None,
        config: dict[str, str] | None = None,
        wait: bool = True,
    ) -> str:
        """Create a topic, by default with a new name, and wait until its leaders serve it.

        By default each partition has up to three replicas. Without `wait`, a broker may for some
        moments be listed as a partition's leader and still reject writes to it.
        """
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor or max(1, min(3, len(self.brokers))),
            config=config or {},
        )
        error = self._ask_for(topic)
        if error is not None and error.code() == KafkaError._DESTROY_BROKER:
            # librdkafka drops the connection of a bootstrap address once it knows the broker there,
            # and with it, rarely, a request that has just been sent.
            error = self._ask_for(topic)
            if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                error = None
        if error is not None:
            raise KafkaException(error)
        if wait:
            self._wait_until_served(name, partitions)
        return name

    def _ask_for(self, topic: NewTopic) -> KafkaError | None:
        """Request a topic, and return the error."""
        asked = self.admin.create_topics([topic], request_timeout=_ADMIN_SECONDS)
        try:
            asked[topic.topic].result()
        except KafkaException as error:
            return error.args[0]
        return None

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase a topic's partition count, and wait until every leader serves its partition."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
        self._wait_until_served(topic, partitions)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; topics that do not exist are ignored."""
        names = list(names)
        if names:
            for deleted in self.admin.delete_topics(names).values():
                with suppress(KafkaException):
                    deleted.result()

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 if it does not exist."""
        return len(self.admin.list_topics(topic, timeout=_ADMIN_SECONDS).topics[topic].partitions)

    def wait_for_markers(self, topic: str) -> None:
        """Wait until the markers of a topic's ended transactions are written.

        Kafka responds to EndTxn before it writes them, and a consumer reads only up to the first
        open transaction.
        """
        wait_until(
            lambda: (
                self.end_offsets(topic)
                == self.end_offsets(topic, isolation_level=IsolationLevel.READ_COMMITTED)
            ),
            seconds=_ADMIN_SECONDS,
            what=f"transaction markers in {topic}",
        )

    def end_offsets(
        self, topic: str, *, isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[int, int]:
        """Return each partition's end; a leader that has just restarted is retried.

        The end is the high watermark, or with READ_COMMITTED the first open transaction.
        """
        count = self.partition_count(topic)
        asked = {TopicPartition(topic, i): OffsetSpec.latest() for i in range(count)}

        def ask() -> dict[int, int]:
            answers = self.admin.list_offsets(
                asked, isolation_level=isolation_level, request_timeout=_ADMIN_SECONDS
            )
            return {place.partition: it.result().offset for place, it in answers.items()}

        # librdkafka's list_offsets does not retry after it saw an older leader epoch.
        return ask_until_answered(ask, _NEW_LEADER)

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """Return the current leader of a partition."""
        return self.broker(self._leaders(topic)[partition])

    def wait_until_in_sync(self, topic: str) -> None:
        """Wait until all brokers report the same leaders for a topic, and all replicas in sync.

        A leader that was frozen or unreachable does not learn at once that it no longer leads.
        """
        wait_until(
            lambda: self._is_in_sync(topic),
            seconds=_READY_SECONDS,
            what=f"replicas of {topic} to catch up",
        )

    def settle(self, topic: str) -> None:
        """Wait until all brokers are ready, and all replicas of a topic are in sync."""
        self.wait_until_ready()
        self.wait_until_in_sync(topic)

    def _is_in_sync(self, topic: str) -> bool:
        pictures: list[dict[int, tuple[int, bool]]] = []
        for admin in self._admins():
            try:
                described = admin.list_topics(topic, timeout=5).topics[topic]
            except KafkaException:
                return False
            pictures.append(
                {
                    index: (partition.leader, sorted(partition.isrs) == sorted(partition.replicas))
                    for index, partition in described.partitions.items()
                }
            )
        partitions = pictures[0].values()
        return (
            all(picture == pictures[0] for picture in pictures)
            and len(partitions) > 0
            and all(in_sync for _, in_sync in partitions)
        )

    def _admins(self) -> Iterator[AdminClient]:
        """Yield a client for each broker that requests metadata from that broker first."""
        for address in self.bootstrap_servers.split(","):
            yield AdminClient({"bootstrap.servers": address, "log_level": 0})

    def _known_brokers(self) -> set[int]:
        """Return the brokers that are listed by every broker."""
        known: list[set[int]] = []
        for admin in self._admins():
            try:
                known.append(set(admin.list_topics(timeout=5).brokers))
            except KafkaException:
                return set()
        return set.intersection(*known)

    def _wait_until_served(self, topic: str, partitions: int) -> None:
        wait_until(
            lambda: self._serves(topic, partitions),
            seconds=_ADMIN_SECONDS,
            what=f"leaders of {topic}",
        )

    def _serves(self, topic: str, partitions: int) -> bool:
        # This goes first, since it also clears the client's cached error of an unknown topic.
        # A broker may still know a deleted topic of this name with another number of partitions.
        if len(self._leaders(topic)) != partitions:
            return False
        asked = {TopicPartition(topic, i): OffsetSpec.earliest() for i in range(partitions)}
        try:
            for offset in self.admin.list_offsets(asked, request_timeout=5).values():
                offset.result()
        except KafkaException:
            return False
        return True

    def _leaders(self, topic: str) -> dict[int, int]:
        metadata = self.admin.list_topics(topic, timeout=_ADMIN_SECONDS).topics[topic]
        return {i: p.leader for i, p in metadata.partitions.items() if p.leader >= 0}


def start_kafka(
    version: str,
    *,
    nodes: int = 1,
    overrides: dict[str, str] | None = None,
    java_options: Sequence[str] = ("-Xmx512m",),
    proxies: Sequence[str] = (),
    secured: Mapping[str, str] = MappingProxyType({}),
    ways: Sequence[Callable[..., Nodes]] = (DockerNodes, ProcessNodes),
) -> KafkaCluster:
    """Start a new cluster, with Docker or from Maven's files, and wait until it is ready.

    `overrides` are server properties in addition to the tests' own. `proxies` are the addresses,
    one for each node, that brokers advertise to clients of their `proxied_address`. `secured` are
    the protocols of further listeners, by name; see `secured_addresses`. `ways` can exclude Docker
    if a broker needs files of this machine. Raises KafkaUnavailableError.
    """
    reasons = []
    for way in ways:
        started: Nodes | None = None
        try:
            started = way(
                version,
                nodes,
                overrides=overrides or {},
                java_options=list(java_options),
                proxies=proxies,
                secured=secured,
            )
            for node in started.nodes:
                node.start()
            addresses = ",".join(node.address for node in started.nodes)
            cluster = KafkaCluster(version, addresses, started)
            cluster.wait_until_ready()
        except BaseException as error:
            if started is not None:
                started.close()
            if not isinstance(error, KafkaUnavailableError):
                raise
            reasons.append(str(error))
        else:
            return cluster
    raise KafkaUnavailableError(f"no Apache Kafka {version}: " + "; ".join(reasons))


def tested_versions() -> list[str]:
    """Return the versions on which tests run: the newest and the oldest, or a given one."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        return [GIVEN]
    return [ONLY_KAFKA] if ONLY_KAFKA else [KAFKA_4, KAFKA_3]


def given_kafka() -> KafkaCluster | None:
    """Return the cluster that KAFKA_BOOTSTRAP_SERVERS names, or None.

    Raises KafkaUnavailableError if no broker answers there.
    """
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if not servers:
        return None
    cluster = KafkaCluster(GIVEN, servers)
    try:
        cluster.admin.list_topics(timeout=_ADMIN_SECONDS)
    except KafkaException as error:
        raise KafkaUnavailableError(f"KAFKA_BOOTSTRAP_SERVERS={servers}: {error}") from error
    return cluster


def ask_until_answered(ask: Callable[[], T], passing: Container[int]) -> T:
    """Return librdkafka's answer to a question, asked again after each error that will pass.

    `passing` are the codes of these errors, which librdkafka does not retry itself. Raises
    KafkaException for another error, or for the last one after two minutes.
    """
    deadline = time.monotonic() + _ADMIN_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Wait until a condition holds; raises TimeoutError that names `what` was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {seconds} s waiting for {what}")
        time.sleep(_POLL_SECONDS)
