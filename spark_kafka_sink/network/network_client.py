"""The connections to the nodes of one cluster.

Lives on one event loop. A connection is opened when it is needed, never twice at once, and never
before its back-off allows. Bootstrap addresses stand in as nodes with negative ids until the
cluster's own nodes are known, and again after a rebootstrap. A request that any node can answer
goes to the least loaded one. `MetadataUpdater` is responsible for the metadata.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.display import printable
from spark_kafka_sink.errors import (
    AuthenticationError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import Node, host_and_port
from spark_kafka_sink.network.authentication.connection_security import ConnectionSecurity
from spark_kafka_sink.network.cluster_connection_states import (
    ClusterConnectionStates,
    ConnectionState,
    UnreachedNodes,
)
from spark_kafka_sink.network.connection.broker_connection import (
    CLOSED_UNSENT,
    BrokerConnection,
    ConnectionSettings,
)
from spark_kafka_sink.network.connection.connection_errors import (
    AbsentPeerError,
    GreetedOnlyError,
    MisroutedError,
    SilentPeerError,
)
from spark_kafka_sink.network.connection.dialer import Dialer, refuse_if_sasl_is_required
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.connection.transport import SocketOptions, Transport
from spark_kafka_sink.network.exponential_backoff import NEVER, ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.network.timeout_check import done_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.network.connection.network_listener import NetworkListener

logger = logging.getLogger(__name__)

#: Permanent errors: every further attempt would meet them again.
REFUSALS: Final = (AuthenticationError, ConfigError, IllegalStateError)
#: The most connections that a client sets up at a time. Without a limit, a cluster that advertises
#: thousands of hosts makes it open as many sockets at once. Further attempts wait in their order;
#: the time for setting up a connection begins with its turn.
MAX_ATTEMPTS: Final = 64


class Availability(Enum):
    """The availability of a node, best first."""

    #: Connected, with room for a request.
    READY = auto()
    #: A connection attempt is under way: wait for it before trying any other node.
    CONNECTING = auto()
    #: Not connected, and an attempt may begin now.
    CAN_CONNECT = auto()
    #: Connected, but with max.in.flight requests already; they would be answered first.
    SATURATED = auto()
    #: Connected, but throttled by the broker for a while (KIP-219).
    THROTTLED = auto()


@dataclass(frozen=True, slots=True)
class LeastLoadedNode:
    """The chosen node, and its availability."""

    node: Node
    availability: Availability


def least_loaded_node(
    nodes: Iterable[Node],
    states: ClusterConnectionStates,
    in_flight: Callable[[int], int],
    *,
    max_in_flight: int,
    now: float,
) -> LeastLoadedNode | None:
    """Return the node for a request that any node can answer (NetworkClient.leastLoadedNode).

    It is the one with the best availability, then the lowest load; the first of equals. Of the
    nodes without a connection, the one tried least recently takes precedence. Returns None if all
    are disconnected and none may be tried yet. Does no I/O.
    """
    best: tuple[int, float] | None = None
    chosen: LeastLoadedNode | None = None
    for node in nodes:
        count = in_flight(node.node_id)
        availability = _availability(node.node_id, states, count < max_in_flight, now)
        if availability is None:
            continue
        load = (
            states.last_attempt_at(node.node_id)
            if availability is Availability.CAN_CONNECT
            else float(count)
        )
        rank = (availability.value, load)
        if best is None or rank < best:
            best, chosen = rank, LeastLoadedNode(node, availability)
    return chosen


class BootstrapNodes:
    """The nodes to start from: those of bootstrap.servers.

    With client.dns.lookup=resolve_canonical_bootstrap_servers_only, each address of a server
    becomes a node under its canonical name. That is the name in a certificate or a Kerberos
    principal if the configured server is an alias for all of them (KIP-235).
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], *, resolver: HostResolver, canonical: bool
    ) -> None:
        """Create the nodes without looking up any name."""
        self._servers = servers
        self._resolver = resolver
        self._canonical = canonical
        self._is_resolved = not canonical
        self.nodes = self._numbered(servers)

    @staticmethod
    def _numbered(servers: Sequence[tuple[str, int]]) -> tuple[Node, ...]:
        return tuple(Node(-1 - index, host, port) for index, (host, port) in enumerate(servers))

    async def resolve_once(self, deadline: float) -> None:
        """Look up the canonical names, if they are needed and not known yet.

        A server whose name is not found by the deadline remains as configured: connecting to it
        will show why. The next call looks it up again.
        """
        if self._is_resolved:
            return
        try:
            async with asyncio.timeout_at(deadline):
                resolved = await asyncio.gather(
                    *(self._resolve(*server) for server in self._servers)
                )
        except TimeoutError:
            return
        self._is_resolved = all(is_found for _, is_found in resolved)
        self.nodes = self._numbered(
            list(dict.fromkeys(server for servers, _ in resolved for server in servers))
        )

    async def _resolve(self, host: str, port: int) -> tuple[list[tuple[str, int]], bool]:
        """Return the servers that a server stands for, and whether its name was found."""
        try:
            names = await self._resolver.canonical_names(host)
        except OSError:
            return [(host, port)], False
        return [(name, port) for name in names or [host]], True

    def forget(self) -> None:
        """Look up the names again next time, since their addresses may have changed."""
        self._is_resolved = not self._canonical


class NetworkClient:
    """The connections of a client to the nodes of a cluster, and its metadata."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        on_change: Callable[[], None] = lambda: None,
        include_topic_authorized_operations: bool = False,
        listener: NetworkListener | None = None,
        resolver: HostResolver | None = None,
        warns: bool = True,
    ) -> None:
        """Create the client without opening a connection.

        `on_change` is called when a node or the metadata may have changed. With `warns` an address
        that is probably wrong is logged (`UnreachedNodes`). Raises ConfigError for TLS and SASL
        settings that contradict each other.
        """
        self._config = config
        self._on_change = on_change
        self._listener = listener
        self._warns = warns
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random()
        resolver = resolver or HostResolver()
        self._bootstrap = BootstrapNodes(
            config.bootstrap_servers,
            resolver=resolver,
            canonical=config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only",
        )
        self._security = ConnectionSecurity(
            config.security, time.time, [host for host, _ in config.bootstrap_servers]
        )
        self._dialer = Dialer(
            resolver,
            SocketOptions(
                send_buffer_bytes=config.send_buffer_bytes,
                receive_buffer_bytes=config.receive_buffer_bytes,
            ),
            self._security.tls,
        )
        self._connection_settings = ConnectionSettings(
            client_id=config.client_id,
            request_timeout=config.request_timeout_ms / 1000,
            max_idle=_seconds_or_none(config.connections_max_idle_ms),
        )
        self._connections: dict[int, BrokerConnection] = {}
        self._connecting: dict[int, asyncio.Task[BrokerConnection]] = {}
        self._turns = asyncio.Semaphore(MAX_ATTEMPTS)
        #: The last error of any connection or metadata request: the cause when time runs out.
        self.last_error: Exception | None = None
        self._refusals: dict[int, KafkaError] = {}
        self._unreached = UnreachedNodes()
        self._connect_errors: dict[int, KafkaError] = {}
        #: Nodes that hung up on a client without SASL; the next connection checks whether they
        #: require it.
        self._may_require_sasl: set[int] = set()
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
            max_idle=config.metadata_max_idle_ms / 1000,
        )
        self._metadata_updater = MetadataUpdater(
            config,
            self,
            on_change=on_change,
            include_topic_authorized_operations=include_topic_authorized_operations,
        )

    def _backoff(self, initial_ms: int, maximum_ms: int) -> ExponentialBackoff:
        return ExponentialBackoff(initial_ms / 1000, maximum_ms / 1000, self._rng)

    # --- one node

    def ready_connection(self, node: Node) -> BrokerConnection | None:
        """Return the node's connection if it can take a request now; otherwise start opening it.

        As in Java, it takes none while an earlier one waits for the socket, so that a peer that has
        stopped reading is passed at most one request.
        """
        now = self._loop.time()
        connection = self._connections.get(node.node_id)
        if connection is not None and connection.node != node:
            connection.close("closed by this client: the broker's address has changed")
        if self._states.is_sendable(node.node_id, now):
            connection = self._connections[node.node_id]
            limit = self._config.max_in_flight_requests_per_connection
            has_room = connection.in_flight_count < limit and not connection.has_unsent
            return connection if has_room else None
        if self._states.can_connect(node.node_id, now):
            self._start_connecting(node, now)
        return None

    def is_connected(self, node: Node) -> bool:
        """Return whether there is a connection to the node, even one that takes no request now."""
        return node.node_id in self._connections

    def ready_at(self, node: Node) -> float:
        """Return the earliest time to connect to the node or send to it."""
        return self._states.ready_at(node.node_id)

    def throttled_until(self, node: Node) -> float:
        """Return until when, by the loop's clock, the node is throttled; in the past if it is not.

        Requests for such a node wait because the broker demands it, so they should not expire
        meanwhile.
        """
        return self._states.throttled_until(node.node_id)

    def throttle(self, node: Node, seconds: float) -> None:
        """Stop sending to a node for as long as it requested (KIP-219).

        Responses that request this are handled automatically.
        """
        self._states.throttle(node.node_id, self._loop.time() + seconds)
        self._on_change()

    @property
    def refusal(self) -> KafkaError | None:
        """A permanent error of the last attempt to connect to some node; None without one.

        An AuthenticationError, a ConfigError about something that a connection needs, or an
        IllegalStateError.
        """
        return next(iter(self._refusals.values()), None)

    @property
    def finds_nobody(self) -> bool:
        """Whether nothing listens at any known node: connections refused, names without address."""
        nodes = self.metadata.snapshot.nodes.values() or self._bootstrap.nodes
        return all(self._unreached.absence(node) is not None for node in nodes)

    def never_reached(self, node: Node) -> KafkaError | None:
        """Return why the address that a broker advertises is probably wrong; see `UnreachedNodes`.

        None if it was reached before, or if it is too soon to say.
        """
        return self._unreached.never_reached(node)

    @property
    def isolation(self) -> KafkaError | None:
        """Why no broker can be reached at its address, although one answers; None if one can."""
        # This is asked often, and almost always there is nothing to look at.
        if not self._unreached or not self._connections:
            return None
        error = None
        for node in self.metadata.snapshot.nodes.values():
            error = self.never_reached(node)
            if error is None:
                return None
        return error

    def dial_all(self) -> None:
        """Begin to connect to all known nodes; see `isolation`."""
        for node in self.metadata.snapshot.nodes.values():
            self.ready_connection(node)

    def refusal_of(self, node: Node) -> KafkaError | None:
        """Return a permanent error of the last attempt to connect to a node; see `refusal`."""
        return self._refusals.get(node.node_id)

    def cause(self, node: Node | None = None) -> Exception | None:
        """Return why a request could not be sent to a node, or to one that is not known.

        An address where nothing listens says more than the last error of any connection.
        """
        why = self.isolation if node is None else self._unreached.absence(node)
        return why or self.last_error

    def connect_error(self, node: Node | None) -> KafkaError | None:
        """Return the error of the last attempt to connect to a node; None if it succeeded.

        With None for a node that is not known, as after a rebootstrap, that of the last attempt to
        connect to any node, if there is no connection.
        """
        if node is not None:
            return self._connect_errors.get(node.node_id)
        return None if self._connections else next(reversed(self._connect_errors.values()), None)

    @property
    def requests_in_flight(self) -> int:
        """The number of requests that are awaiting a response, on all connections."""
        return sum(connection.in_flight_count for connection in list(self._connections.values()))

    @property
    def connection_count(self) -> int:
        """The number of connections that are ready for requests."""
        return len(self._connections)

    def _start_connecting(self, node: Node, now: float) -> asyncio.Task[BrokerConnection]:
        setup_timeout = self._states.connecting(node.node_id, now)
        self._refusals.pop(node.node_id, None)
        task = self._loop.create_task(self._open_in_turn(node, setup_timeout))
        # Not within the task: a task that is cancelled before it starts would never run it.
        task.add_done_callback(lambda _: self._on_attempt_done(node, task))
        self._connecting[node.node_id] = task
        return task

    async def _dial(self, node: Node, timeout: float) -> Transport:  # noqa: ASYNC109  see Dialer
        transport = await self._dialer.connect(node, timeout)
        # Somebody is there, who may need longer to answer.
        self._unreached.reached(node)
        return transport

    async def _open_in_turn(self, node: Node, setup_timeout: float) -> BrokerConnection:
        async with self._turns:
            try:
                return await self._open(node, setup_timeout)
            except KafkaError:
                raise
            except Exception as error:
                # What the machine lacks, such as descriptors, it may have later. Anything else is
                # a defect, which every further attempt would meet.
                lacking = isinstance(error, (OSError, MemoryError))
                kind = NetworkError if lacking else IllegalStateError
                # Any other text may quote a secret.
                text = f": {printable(str(error))}" if isinstance(error, OSError) else ""
                raise kind(
                    f"the client could not connect to {node}: {type(error).__name__}{text}"
                ) from error

    async def _open(self, node: Node, setup_timeout: float) -> BrokerConnection:
        try:
            connection = await BrokerConnection.open(
                node,
                self._connection_settings,
                connect=self._dial,
                setup_timeout=setup_timeout,
                sasl_client=self._security.sasl_client,
                listener=self._listener,
                on_throttle=lambda seconds: self.throttle(node, seconds),
                on_writable=self._on_change,
                cluster_id=self._cluster_of(node),
            )
        except SilentPeerError as error:
            reason = await self._dialer.why_silent(node, setup_timeout)
            raise reason or error from None
        if node.node_id in self._may_require_sasl:
            self._may_require_sasl.remove(node.node_id)
            await refuse_if_sasl_is_required(connection, setup_timeout)
        return connection

    def _cluster_of(self, node: Node) -> str | None:
        """Return the cluster that a node is known to belong to, if it is to be checked."""
        known = node.node_id >= 0 and self._metadata_updater.recovery.is_enabled
        return (
            self.metadata.snapshot.cluster_id
            if known and self._config.metadata_cluster_check_enable
            else None
        )

    def _on_attempt_done(self, node: Node, attempt: asyncio.Task[BrokerConnection]) -> None:
        del self._connecting[node.node_id]
        error = None if attempt.cancelled() else attempt.exception()
        if error is None and not attempt.cancelled():
            self._on_connected(attempt.result())
        else:
            self._states.disconnected(node.node_id, self._loop.time())
            if self._listener is not None:
                if isinstance(error, AuthenticationError):
                    self._listener.authentication_failed(node.node_id)
                self._listener.connection_failed(node.node_id)
            if isinstance(error, KafkaError):
                self._connect_errors.pop(node.node_id, None)
                self._connect_errors[node.node_id] = error
                self._note_failure(node, error)
                # The broker's address may have changed, or its partitions may have other leaders
                # now.
                self.metadata.request_update()
            if isinstance(error, MisroutedError):
                logger.info("%s", error)
                self.rebootstrap()
        self._on_change()

    def _note_failure(self, node: Node, error: KafkaError) -> None:
        self.last_error = error
        if not isinstance(error, AbsentPeerError):
            self._unreached.failed(node)
        elif self._unreached.absent(node, error, self._loop.time()):
            self._warn(node, error)
        if isinstance(error, GreetedOnlyError) and not self._config.security.uses_sasl:
            self._may_require_sasl.add(node.node_id)
        if isinstance(error, REFUSALS):
            self._refusals[node.node_id] = error

    def _warn(self, node: Node, error: KafkaError) -> None:
        # A wrong bootstrap address matters only if no other answers, and then calls fail.
        if self._warns and node.node_id >= 0:
            logger.warning("%s. Client %r has never reached it", error, self._config.client_id)

    def _on_connected(self, connection: BrokerConnection) -> None:
        node_id = connection.node.node_id
        self._states.ready(node_id)
        self._connect_errors.pop(node_id, None)
        self._connections[node_id] = connection
        if self._listener is not None:
            if self._config.security.uses_tls or self._config.security.uses_sasl:
                self._listener.authenticated(node_id)
            self._listener.connected(node_id)
        connection.set_on_close(lambda error: self._on_connection_closed(connection, error))

    def _on_connection_closed(self, connection: BrokerConnection, error: KafkaError) -> None:
        node_id = connection.node.node_id
        del self._connections[node_id]
        self._states.disconnected(node_id, self._loop.time())
        if self._listener is not None:
            self._listener.disconnected(node_id)
        if not connection.closed_in_peace:
            self._note_failure(connection.node, error)
            self.metadata.request_update()
        self._on_change()

    def disconnect(self, node: Node, reason: str) -> None:
        """Close the connection to a node, if there is one; its requests in flight fail."""
        connection = self._connections.get(node.node_id)
        if connection is not None:
            connection.close(f"closed by this client: {reason}")

    def close_unsent(self) -> None:
        """Close the connections with requests that the socket has not accepted in full.

        Records that were reported as failed must not be sent afterwards.
        """
        for connection in list(self._connections.values()):
            if connection.has_unsent:
                connection.close(CLOSED_UNSENT)

    # --- any node

    def least_loaded_node(self, now: float) -> LeastLoadedNode | None:
        """Return a node for a request that any node can answer; None if none is available now."""
        nodes = list(self.metadata.snapshot.nodes.values())
        if not nodes:
            nodes = list(self._bootstrap.nodes)
        self._rng.shuffle(nodes)
        # A connection to a bootstrap address leads to the same cluster, so it can serve as well.
        nodes += [
            connection.node
            for node_id, connection in self._connections.items()
            if node_id < 0 and connection.node not in nodes
        ]
        return least_loaded_node(
            nodes,
            self._states,
            self._in_flight_count,
            max_in_flight=self._config.max_in_flight_requests_per_connection,
            now=now,
        )

    def _in_flight_count(self, node_id: int) -> int:
        connection = self._connections.get(node_id)
        if connection is None:
            return 0
        if connection.has_unsent:
            # It may have stopped reading, so other nodes take precedence.
            limit = self._config.max_in_flight_requests_per_connection
            return max(connection.in_flight_count, limit)
        return connection.in_flight_count

    async def least_loaded_connection(self, deadline: float) -> BrokerConnection:
        """Return a connection to any node, opening one if necessary.

        Raises NetworkError, with the addresses tried and the last cause, if none is open by the
        deadline; UnsupportedVersionError if a broker is too old, AuthenticationError if client and
        broker reject each other, ConfigError if a file named in the settings cannot be used.
        """
        while True:
            await self._bootstrap.resolve_once(deadline)
            now = self._loop.time()
            if self._rebootstrap_due_at() <= now:
                self.rebootstrap()
            least_loaded = self.least_loaded_node(now)
            if least_loaded is None and self._maybe_rebootstrap():
                continue
            if least_loaded is not None and least_loaded.availability in {
                Availability.READY,
                Availability.SATURATED,
            }:
                return self._connections[least_loaded.node.node_id]
            if now >= deadline:
                raise self.unreachable()
            await self._wait_for_node(least_loaded, now, deadline)

    async def _wait_for_node(
        self, least_loaded: LeastLoadedNode | None, now: float, deadline: float
    ) -> None:
        until = min(deadline, self._rebootstrap_due_at())
        if least_loaded is None or least_loaded.availability is Availability.THROTTLED:
            known = self.metadata.snapshot.nodes.values() or self._bootstrap.nodes
            nodes = known if least_loaded is None else (least_loaded.node,)
            retry_at = min(self._states.ready_at(node.node_id) for node in nodes)
            await asyncio.sleep(max(min(retry_at, until) - now, 0))
            return
        attempt = self._connecting.get(least_loaded.node.node_id)
        if attempt is None:
            attempt = self._start_connecting(least_loaded.node, now)
        if await done_by(attempt, until) and not attempt.cancelled():
            error = attempt.exception()
            if isinstance(error, (UnsupportedVersionError, *REFUSALS)):
                raise error

    def _rebootstrap_due_at(self) -> float:
        # As long as only bootstrap addresses are known, there is nothing to forget.
        known = self.metadata.snapshot.nodes
        return self._metadata_updater.recovery.due_at() if known else NEVER

    def _maybe_rebootstrap(self) -> bool:
        """Rebuild the client from bootstrap.servers if allowed; return whether it was (KIP-899)."""
        if self.metadata.snapshot.nodes and self._metadata_updater.recovery.is_enabled:
            self.rebootstrap()
            return True
        return False

    def rebootstrap(self) -> None:
        """Forget the known nodes and start again from bootstrap.servers (KIP-899, KIP-1102).

        All connections are closed, since their peers may belong to another cluster.
        """
        for connection in list(self._connections.values()):
            connection.close("closed by this client, to reconnect through bootstrap.servers")
        for task in list(self._connecting.values()):
            task.cancel()
        self._bootstrap.forget()
        self.metadata.rebootstrap()
        self._metadata_updater.recovery.rebootstrapped(self._loop.time())
        self._on_change()

    def unreachable(self) -> NetworkError:
        """Return the error for a timeout without a response, with its last cause."""
        servers = ", ".join(host_and_port(*address) for address in self._config.bootstrap_servers)
        cause = str(self.last_error or "no connection attempt has finished yet")
        if self._security.awaits_token:
            cause = f"{cause}; logins are waiting for a token (OAUTHBEARER)"
        error = NetworkError(
            f"no broker answered through {servers} (bootstrap.servers); "
            f"last cause: {cause}. Check the addresses, that the brokers are running, "
            "and that this machine can reach them"
        )
        error.__cause__ = self.last_error
        return error

    # --- metadata

    @property
    def is_updating_metadata(self) -> bool:
        """Whether a metadata request is under way."""
        return self._metadata_updater.is_updating

    async def update_metadata(self, deadline: float) -> None:
        """Request metadata from any node; see `MetadataUpdater.update`."""
        await self._metadata_updater.update(deadline)

    async def refresh_metadata(self, deadline: float) -> None:
        """Request metadata for all topics; see `MetadataUpdater.refresh`."""
        await self._metadata_updater.refresh(deadline)

    async def wait_for_topics(
        self,
        topics: Iterable[str],
        deadline: float,
        *,
        partition: int | None = None,
        limit: str = "max.block.ms",
        since: float | None = None,
    ) -> None:
        """Wait until topics are known; see `MetadataUpdater.wait_for_topics`."""
        await self._metadata_updater.wait_for_topics(
            topics, deadline, partition=partition, limit=limit, since=since
        )

    async def close(self) -> None:
        """Close every connection and wait until their tasks have ended."""
        tasks: list[asyncio.Task[Any]] = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await self._metadata_updater.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.close()
        await self._security.close()

    def drop(self) -> None:
        """Close every socket of a loop that was closed before the client."""
        for connection in self._connections.values():
            connection.drop()


def _availability(
    node_id: int,
    states: ClusterConnectionStates,
    has_room: bool,  # noqa: FBT001 - one of the two things that decide
    now: float,
) -> Availability | None:
    state = states.state(node_id)
    if state is ConnectionState.READY:
        if not states.is_sendable(node_id, now):
            return Availability.THROTTLED
        return Availability.READY if has_room else Availability.SATURATED
    if state is ConnectionState.CONNECTING:
        return Availability.CONNECTING
    return Availability.CAN_CONNECT if states.can_connect(node_id, now) else None


def _seconds_or_none(milliseconds: int) -> float | None:
    """Convert milliseconds to seconds; None for a negative value, which disables a limit."""
    return milliseconds / 1000 if milliseconds >= 0 else None
