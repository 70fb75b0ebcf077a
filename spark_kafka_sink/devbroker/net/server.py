"""The brokers' sockets: the one module here that uses asyncio.

`Server` listens for one broker and tracks its connections. `ClusterServer` has a server for each
broker of a cluster, all on one event loop, so that no two things happen at once; `dispatcher` wakes
waiting connections. `run_until_signal` runs it on a loop in the main thread, `ServerThread` on a
thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.net.connection import Connection
from spark_kafka_sink.devbroker.net.dispatcher import Dispatcher
from spark_kafka_sink.devbroker.net.faults import Faults
from spark_kafka_sink.devbroker.net.listener import MAX_PORT, Listener, check_listeners
from spark_kafka_sink.devbroker.net.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.devbroker.net.sasl_servers import Credentials
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.model import host_and_port
from spark_kafka_sink.security.tls import ClientAuth, tls_server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Sequence

    from spark_kafka_sink.devbroker.broker import Broker
    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_THREAD_TIMEOUT_SECONDS = 30.0
_BACKLOG = 128
_ACCEPT_RETRY_SECONDS = 1.0
_TLS_SHUTDOWN_SECONDS = 5.0


class _Protocol(Connection, asyncio.BufferedProtocol):
    """A connection that an event loop can serve."""


@dataclass(frozen=True, slots=True)
class _OpenListener:
    """A listener with its open resources."""

    listener: Listener
    socket: socket.socket
    tls: ssl.SSLContext | None
    credentials: Credentials | None


class Server:
    """A listening broker on the event loop of its dispatcher."""

    def __init__(self, broker: Broker, dispatcher: Dispatcher, faults: Faults) -> None:
        self.broker = broker
        self.dispatcher = dispatcher
        self.faults = faults
        self._connections: set[Connection] = set()
        #: Set while there is no connection.
        self._drained = asyncio.Event()
        self._drained.set()
        self._open: list[_OpenListener] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._next_connection_id = 1
        #: Connections by the client's address, TLS handshakes included.
        self._clients: Counter[str] = Counter()
        self._limits = broker.settings.connection_limits

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""
        return self.dispatcher.loop

    def start(self, listeners: Sequence[Listener]) -> list[int]:
        """Start to listen; return the listeners' ports.

        Key stores are read now, so that stopping and starting picks up renewed ones. Raises
        OSError, and ConfigError for key stores that cannot be read.
        """
        try:
            for listener in listeners:
                self._open.append(_open(listener))
        except BaseException:
            self._close_listeners()
            raise
        self.broker.fetch_sessions.clear()
        ports = [int(opened.socket.getsockname()[1]) for opened in self._open]
        for listener, port in zip(listeners, ports, strict=True):
            host = listener.advertised_host
            if host is None:
                host = socket.gethostname() if listener.host in _WILDCARDS else listener.host
            advertised_port = listener.advertised_port or port
            self.broker.advertise(host, advertised_port, listener=listener.name)
            if listener is listeners[0]:
                self.broker.advertise(host, advertised_port)
        for opened in self._open:
            self._listen(opened)
        return ports

    async def close(self) -> None:
        """Stop listening, abort every connection, and wait until all are closed."""
        self._close_listeners()
        await asyncio.sleep(0)  # A task that has not begun would leave its socket open.
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        await self._drained.wait()

    def _close_listeners(self) -> None:
        open_listeners, self._open = self._open, []
        for opened in open_listeners:
            self.loop.remove_reader(opened.socket)
            opened.socket.close()

    def _listen(self, opened: _OpenListener) -> None:
        if opened in self._open:
            self.loop.add_reader(opened.socket, self._accept, opened)

    def _accept(self, opened: _OpenListener) -> None:
        """Accept a waiting client.

        Not done with asyncio's own server, which loses a client that it has just accepted if the
        server is closed a moment later.
        """
        if opened not in self._open:
            return
        try:
            client, address = opened.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client has left already.
        except OSError:
            logger.exception("cannot accept a connection; retrying soon")
            self.loop.remove_reader(opened.socket)
            self.loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen, opened)
            return
        host = str(address[0])
        if not self._admit(host):
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self._attach(client, host, opened))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def _admit(self, host: str) -> bool:
        """Count a new client; return False if a limit is reached."""
        limits = self._limits
        if (
            self._clients.total() >= limits.max_connections
            or self._clients[host] >= limits.max_connections_per_ip
        ):
            logger.info("closing a connection from %s: there are too many", host)
            return False
        self._clients[host] += 1
        return True

    def _release(self, host: str) -> None:
        self._clients[host] -= 1
        if not self._clients[host]:
            del self._clients[host]

    async def _attach(self, client: socket.socket, host: str, opened: _OpenListener) -> None:
        connection_id = self._next_connection_id
        self._next_connection_id += 1
        authenticator = None
        if opened.listener.sasl is not None and opened.credentials is not None:
            authenticator = SaslAuthenticator(
                opened.listener.sasl, opened.credentials, self.broker, name=str(connection_id)
            )
        connection = _Protocol(self, connection_id, opened.listener, authenticator, host)
        with_tls = opened.tls is not None
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=opened.tls,
                ssl_handshake_timeout=self._limits.authentication_timeout_ms / 1000
                if with_tls
                else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS if with_tls else None,
            )
        except OSError as error:
            self._release(host)
            logger.info("connection %d: the TLS handshake failed: %s", connection_id, error)

    def connected(self, connection: Connection) -> None:
        """Add a connection."""
        self._connections.add(connection)
        self._drained.clear()

    def disconnected(self, connection: Connection) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        self._release(connection.client_host)
        if not self._connections:
            self._drained.set()


def _open(listener: Listener) -> _OpenListener:
    """Open a listener's socket and read its key stores. Raises OSError, ConfigError."""
    context = None
    if listener.tls is not None:
        stores = {
            name: Path(location).read_bytes()
            for name, location in (
                ("keystore", listener.tls.keystore_location),
                ("truststore", listener.tls.truststore_location),
            )
            if location is not None
        }
        try:
            context = tls_server_context(listener.tls, ClientAuth(listener.client_auth), **stores)
        except ValueError as error:
            raise ConfigError(f"listener {listener.name}: {error}") from None
    sasl = listener.sasl
    credentials = (
        None if sasl is None else Credentials(sasl.users, iterations=sasl.scram_iterations)
    )
    family, _, _, _, address = socket.getaddrinfo(
        listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    opened = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    opened.setblocking(False)
    return _OpenListener(listener, opened, context, credentials)


class ClusterServer:
    """The brokers of one cluster, each with its own ports."""

    def __init__(
        self,
        brokers: Sequence[Broker],
        *,
        faults: Faults | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Create a server for brokers that share a cluster; `clock` returns seconds since 1970."""
        self._brokers = {broker.node_id: broker for broker in brokers}
        self.faults = faults or Faults()
        #: Returns seconds since 1970.
        self.clock = clock or time.time
        #: By broker, with their ports, which a broker keeps when it stops.
        self.listeners: dict[int, tuple[Listener, ...]] = {}
        self._servers: dict[int, Server] = {}
        self._dispatcher: Dispatcher | None = None

    @property
    def cluster(self) -> ClusterState:
        """The state that the brokers share."""
        return next(iter(self._brokers.values())).cluster

    @property
    def node_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return list(self._brokers)

    @property
    def running_ids(self) -> list[int]:
        """The ids of the brokers that listen."""
        return list(self._servers)

    def addresses(self, listener: str) -> dict[int, str]:
        """Return the address of a listener, host:port, at each broker; stopped brokers included.

        Raises ConfigError if there is no listener with this name.
        """
        addresses = {
            node_id: host_and_port(broker_listener.host, broker_listener.port)
            for node_id, listeners in self.listeners.items()
            for broker_listener in listeners
            if broker_listener.name == listener
        }
        if not addresses:
            known = [
                broker_listener.name for broker_listener in next(iter(self.listeners.values()))
            ]
            raise ConfigError(
                f"listener {listener} does not exist; the listeners are {', '.join(known)}"
            )
        return addresses

    def bootstrap_servers(self, listener: str) -> str:
        """Return the addresses of a listener in the format of bootstrap.servers.

        Raises ConfigError if there is no listener with this name.
        """
        return ",".join(self.addresses(listener).values())

    def broker(self, node_id: int) -> Broker:
        """Return a broker. Raises KafkaError if there is none with this id."""
        if node_id not in self._brokers:
            raise KafkaError(f"broker {node_id} does not exist; the brokers are {self.node_ids}")
        return self._brokers[node_id]

    def lay_out(self, listeners: Sequence[Listener]) -> None:
        """Assign these listeners to every broker: their ports to the first, the next to the others.

        Port 0 means any free port. Raises ConfigError for listeners that conflict.
        """
        check_listeners(listeners)
        if len(self._brokers) > 1 and any(listener.advertised_port for listener in listeners):
            raise ConfigError("several brokers cannot share one advertised_port: remove it")
        last = (len(self._brokers) - 1) * len(listeners)
        for listener in listeners:
            if listener.port < 0:
                raise ConfigError(f"port {listener.port}: the lowest is 0, for any free port")
            if listener.port and listener.port + last > MAX_PORT:
                others = f", and the last broker's would be {listener.port + last}" if last else ""
                raise ConfigError(f"port {listener.port}: the highest is {MAX_PORT}{others}")
        for number, node_id in enumerate(self._brokers):
            self.listeners[node_id] = tuple(
                replace(
                    listener, port=listener.port + number * len(listeners) if listener.port else 0
                )
                for listener in listeners
            )

    async def start(self) -> None:
        """Start all brokers, after `lay_out`. Raises OSError, ConfigError."""
        self.cluster.open(self.clock())
        loop = asyncio.get_running_loop()
        self._dispatcher = Dispatcher(self.cluster, loop, self.clock, time.thread_time)
        try:
            for node_id in self._brokers:
                self._start_broker(node_id)
            # Only once all of them run: otherwise the first would lead every stored partition.
            self.cluster.elect(self.clock())
        except BaseException:
            await self.close()
            raise

    def start_broker(self, node_id: int) -> None:
        """Start a stopped broker on its previous ports. Raises OSError, KafkaError."""
        if self.broker(node_id).node_id in self._servers:
            raise KafkaError(f"broker {node_id} is already running")
        self._start_broker(node_id)
        self.cluster.elect(self.clock())
        self.changed()

    def _start_broker(self, node_id: int) -> None:
        server = Server(self.broker(node_id), self._running(), self.faults)
        listeners = self.listeners[node_id]
        ports = server.start(listeners)
        self.listeners[node_id] = tuple(
            replace(listener, port=port) for listener, port in zip(listeners, ports, strict=True)
        )
        self._servers[node_id] = server

    async def stop_broker(self, node_id: int) -> None:
        """Move a broker's leadership to others, then close its connections and ports.

        Raises KafkaError if it is not running.
        """
        server = self._servers.pop(self.broker(node_id).node_id, None)
        if server is None:
            raise KafkaError(f"broker {node_id} is not running")
        self.cluster.fence(node_id, self.clock())
        self._running().handled()
        await server.close()

    async def close(self) -> None:
        """Close all ports.

        In memory the brokers still count as running, so that no leader changes. A data directory is
        closed, and the next `start` loads it again.
        """
        servers, self._servers = self._servers, {}
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher = None
        for server in servers.values():
            await server.close()
        self.cluster.close(self.clock())

    def changed(self) -> None:
        """Dispatch changes that were made to the cluster other than by requests."""
        self._running().handled()

    def _running(self) -> Dispatcher:
        if self._dispatcher is None:
            raise KafkaError("the cluster is not running")
        return self._dispatcher


def run_until_signal(server: ClusterServer, on_listening: Callable[[], None]) -> None:
    """Listen until SIGINT or SIGTERM; call `on_listening` once clients can connect.

    Raises as `ClusterServer.start`.
    """

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await _serve(server, on_listening, stop)

    asyncio.run(serve())


async def _serve(
    server: ClusterServer, on_listening: Callable[[], None], stop: asyncio.Event
) -> None:
    await server.start()
    try:
        on_listening()
        await stop.wait()
    finally:
        await server.close()


class ServerThread:
    """A cluster's brokers on their own thread."""

    def __init__(self, server: ClusterServer) -> None:
        self._server = server
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._thread is not None

    def start(self, on_listening: Callable[[], None]) -> None:
        """Start to listen; return when clients can connect.

        Raises OSError, or KafkaError if it is already running.
        """
        if self._thread is not None:
            raise KafkaError("the broker is already running")
        started: Future[None] = Future()

        def listening() -> None:
            on_listening()
            started.set_result(None)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            await _serve(self._server, listening, self._stop)

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

        thread = threading.Thread(target=run, name="devbroker", daemon=True)
        thread.start()
        try:
            started.result(_THREAD_TIMEOUT_SECONDS)
        except BaseException:
            thread.join(_THREAD_TIMEOUT_SECONDS)
            raise
        self._thread = thread

    def stop(self) -> None:
        """Close all connections and ports; do nothing if already stopped.

        Raises KafkaTimeoutError if the thread does not end.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._event_loop().call_soon_threadsafe(self._stop.set)
        thread.join(_THREAD_TIMEOUT_SECONDS)
        if thread.is_alive():
            raise KafkaTimeoutError("the broker's thread did not stop in time")

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the thread; return its result. Raises KafkaError if not running."""

        async def run() -> T:
            return function()

        return self.wait_for(run)

    def wait_for(self, function: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run a coroutine on the thread; return its result. Raises KafkaError if not running."""
        if self._thread is None:
            raise KafkaError("the broker is not running")
        future = asyncio.run_coroutine_threadsafe(function(), self._event_loop())
        return future.result(_THREAD_TIMEOUT_SECONDS)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise KafkaError("the broker is not running")
        return self._loop
