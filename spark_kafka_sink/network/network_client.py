"""The connections to the nodes of one cluster, and the questions that any node can answer.

Lives on one event loop. A connection is opened when somebody needs it, never twice at once, and
never before its back-off allows. Bootstrap addresses stand in as nodes with negative ids until the
cluster has named its own, and again when none of those can be reached (KIP-899, KIP-1102).
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.errors import (
    DecodeError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.broker_connection import BrokerConnection
from spark_kafka_sink.network.cluster_connection_states import ClusterConnectionStates
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata, TopicMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import broker_error, error_name, is_retriable
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.config.producer_config import ProducerConfig

#: The first version of Metadata that tells what a client may do with a topic (KIP-430).
TOPIC_RIGHTS_VERSION = 8


class NetworkClient:
    """Sends requests to nodes by their id; keeps the metadata."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        on_change: Callable[[], None] = lambda: None,
        include_topic_authorized_operations: bool = False,
    ) -> None:
        """Open nothing yet. `on_change` is called when a node or the metadata may have changed."""
        self._config = config
        self._on_change = on_change
        self._include_operations = include_topic_authorized_operations
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random()
        self._bootstrap_nodes = [
            Node(-1 - index, host, port)
            for index, (host, port) in enumerate(config.bootstrap_servers)
        ]
        self._connections: dict[int, BrokerConnection] = {}
        self._connecting: dict[int, asyncio.Task[BrokerConnection]] = {}
        self._metadata_update: asyncio.Task[None] | None = None
        self._last_error: Exception | None = None
        self._states = ClusterConnectionStates(
            reconnect_backoff=self._backoff(
                config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
            ),
            setup_timeout=self._backoff(
                config.socket_connection_setup_timeout_ms,
                config.socket_connection_setup_timeout_max_ms,
            ),
        )
        self.metadata = Metadata(
            refresh_backoff=self._backoff(config.retry_backoff_ms, config.retry_backoff_max_ms),
            max_age=config.metadata_max_age_ms / 1000,
        )

    def _backoff(self, initial_ms: int, maximum_ms: int) -> ExponentialBackoff:
        return ExponentialBackoff(initial_ms / 1000, maximum_ms / 1000, self._rng)

    # --- connections

    def ready_connection(self, node: Node) -> BrokerConnection | None:
        """Give the node's connection if it can take a request now; else begin to open it."""
        now = self._loop.time()
        connection = self._connections.get(node.node_id)
        if connection is not None and connection.node != node:
            # The broker came back under another address.
            connection.close()
        if self._states.is_sendable(node.node_id, now):
            connection = self._connections[node.node_id]
            limit = self._config.max_in_flight_requests_per_connection
            return connection if connection.in_flight_count < limit else None
        if self._states.can_connect(node.node_id, now):
            self._start_connecting(node)
        return None

    def ready_at(self, node: Node) -> float:
        """When it makes sense to ask for the node's connection again."""
        return self._states.ready_at(node.node_id)

    @property
    def last_error(self) -> Exception | None:
        """What went wrong last with any connection or metadata question."""
        return self._last_error

    def throttle(self, node: Node, seconds: float) -> None:
        """Leave a node alone for as long as it asked for (KIP-219)."""
        self._states.throttle(node.node_id, self._loop.time() + seconds)

    def _start_connecting(self, node: Node) -> asyncio.Task[BrokerConnection]:
        setup_timeout = self._states.connecting(node.node_id)
        task = self._loop.create_task(self._open(node, setup_timeout))
        # Nobody may be waiting for this attempt; its error is kept in `last_error`.
        task.add_done_callback(_retrieve_exception)
        self._connecting[node.node_id] = task
        return task

    async def _open(self, node: Node, setup_timeout: float) -> BrokerConnection:
        try:
            connection = await BrokerConnection.open(
                node,
                client_id=self._config.client_id,
                setup_timeout=setup_timeout,
                request_timeout=self._config.request_timeout_ms / 1000,
            )
        except BaseException as error:
            self._states.disconnected(node.node_id, self._loop.time())
            if isinstance(error, KafkaError):
                self._last_error = error
                # The leader may have moved with the broker's address, or away from it.
                self.metadata.request_update()
            raise
        finally:
            del self._connecting[node.node_id]
            self._on_change()
        self._states.ready(node.node_id)
        self._connections[node.node_id] = connection
        connection.set_on_close(lambda error: self._on_connection_closed(node, error))
        return connection

    def _on_connection_closed(self, node: Node, error: NetworkError) -> None:
        self._last_error = error
        del self._connections[node.node_id]
        self._states.disconnected(node.node_id, self._loop.time())
        self.metadata.request_update()
        self._on_change()

    def _candidates(self) -> list[Node]:
        nodes = list(self.metadata.snapshot.nodes.values())
        self._rng.shuffle(nodes)
        bootstrap = list(self._bootstrap_nodes)
        self._rng.shuffle(bootstrap)
        return nodes + bootstrap

    async def least_loaded_connection(self, deadline: float) -> BrokerConnection:
        """Give a connection to any node, opening one if need be.

        Raises NetworkError, with the addresses tried and the last cause, when none is up by the
        deadline; UnsupportedVersionError when a broker is too old to talk to.
        """
        while True:
            now = self._loop.time()
            ready = [
                connection
                for node_id, connection in self._connections.items()
                if self._states.is_sendable(node_id, now)
            ]
            if ready:
                return min(ready, key=lambda connection: connection.in_flight_count)
            if now >= deadline:
                raise self._unreachable()
            await self._connect_to_any(now, deadline)

    async def _connect_to_any(self, now: float, deadline: float) -> None:
        candidates = self._candidates()
        idle = next((n for n in candidates if self._states.can_connect(n.node_id, now)), None)
        if idle is not None:
            attempts: set[asyncio.Task[Any]] = {self._start_connecting(idle)}
        else:
            attempts = set(self._connecting.values())
        if attempts:
            done, _ = await asyncio.wait(
                attempts,
                timeout=max(deadline - now, 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                if isinstance(attempt.exception(), UnsupportedVersionError):
                    attempt.result()
            return
        retry_at = min(self._states.ready_at(node.node_id) for node in candidates)
        await asyncio.sleep(max(min(retry_at, deadline) - now, 0))

    def _unreachable(self) -> NetworkError:
        servers = ", ".join(f"{host}:{port}" for host, port in self._config.bootstrap_servers)
        error = NetworkError(
            f"no broker answered through {servers} (bootstrap.servers); "
            f"last cause: {self._last_error}. Check the addresses, that the brokers run, and that "
            "this machine may connect to them"
        )
        error.__cause__ = self._last_error
        return error

    # --- metadata

    @property
    def is_updating_metadata(self) -> bool:
        """Whether a metadata question is under way."""
        return self._metadata_update is not None

    async def update_metadata(self, deadline: float) -> None:
        """Ask any node for the metadata; join a question that is already under way.

        Raises NetworkError when no node answers by the deadline, DecodeError for a wrong answer.
        """
        if self._metadata_update is None:
            self._metadata_update = self._loop.create_task(self._update_metadata(deadline))
            # Nobody may be waiting for it any more; its error is kept in `last_error`.
            self._metadata_update.add_done_callback(_retrieve_exception)
        # Ours is not the only wait for it: it goes on when ours ends.
        question = self._metadata_update
        await asyncio.wait({question}, timeout=max(deadline - self._loop.time(), 0))
        if not question.done():
            raise self._unreachable()
        question.result()

    async def _update_metadata(self, deadline: float) -> None:
        try:
            connection = await self.least_loaded_connection(deadline)
            request = MetadataRequest(
                topics=tuple(MetadataRequestTopic(name=topic) for topic in self.metadata.topics),
                allow_auto_topic_creation=True,
                include_topic_authorized_operations=self._include_operations
                and connection.api_versions.version_for(ApiKey.METADATA) >= TOPIC_RIGHTS_VERSION,
            )
            response = await connection.send(request)
            self.metadata.update(response, self._loop.time())
        except (NetworkError, DecodeError) as error:
            self._last_error = error
            self.metadata.failed(self._loop.time())
            raise
        finally:
            self._metadata_update = None
            self._on_change()

    async def wait_for_topics(self, topics: Iterable[str], deadline: float) -> None:
        """Wait until the partitions of all these topics are known.

        Raises BrokerError at once where a broker refuses a topic for good (no right, bad name),
        KafkaTimeoutError with the last answer where it is not known by the deadline (as the Java
        producer's max.block.ms), NetworkError where nobody answers.
        """
        wanted = list(topics)
        for topic in wanted:
            self.metadata.add_topic(topic)
        while missing := [topic for topic in wanted if not self._is_known(topic)]:
            now = self._loop.time()
            if now >= deadline:
                raise self._topic_timeout(missing[0])
            pause = min(self.metadata.next_update_at(), deadline) - now
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            try:
                await self.update_metadata(deadline)
            except (NetworkError, DecodeError):
                # What a broker did say of the topic tells more than that none answered just now.
                answered = missing[0] in self.metadata.snapshot.topics
                if self._loop.time() >= deadline and not answered:
                    raise

    def _is_known(self, topic: str) -> bool:
        known = self.metadata.snapshot.topics.get(topic)
        if known is None:
            return False
        if known.error_code and not is_retriable(known.error_code):
            raise broker_error(known.error_code, f"topic {topic!r}")
        return bool(known.partitions)

    def _topic_timeout(self, topic: str) -> KafkaTimeoutError:
        known: TopicMetadata | None = self.metadata.snapshot.topics.get(topic)
        last = (
            f"last cause: {self._last_error}"
            if known is None
            else (f"the broker's last answer: {error_name(known.error_code)}")
        )
        return KafkaTimeoutError(
            f"topic {topic!r} is not known to the cluster; {last}. Create the topic, "
            "or check its name and that auto.create.topics.enable is what you expect"
        )

    async def close(self) -> None:
        """Close every connection and wait until their tasks have ended."""
        connecting = list(self._connecting.values())
        if self._metadata_update is not None:
            connecting.append(self._metadata_update)  # type: ignore[arg-type]
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Have the loop not take the task's error for one that nobody has seen."""
    if not task.cancelled():
        task.exception()
