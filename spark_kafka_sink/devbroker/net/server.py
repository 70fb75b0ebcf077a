"""The brokers on an event loop.

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
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.net.acceptor import AcceptedConnection, Acceptor, OpenListener
from spark_kafka_sink.devbroker.net.connection import Connection
from spark_kafka_sink.devbroker.net.dispatcher import Dispatcher
from spark_kafka_sink.devbroker.net.faults import Faults
from spark_kafka_sink.devbroker.net.listener import MAX_PORT, Listener, check_listeners
from spark_kafka_sink.devbroker.net.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.model import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from spark_kafka_sink.devbroker.broker import Broker
    from spark_kafka_sink.devbroker.brokers.clusters import SingleBroker
    from spark_kafka_sink.devbroker.brokers.replicated_cluster import ReplicatedCluster
    from spark_kafka_sink.devbroker.net.control import ControlServer

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_THREAD_TIMEOUT_SECONDS = 30.0


class _Protocol(Connection, asyncio.BufferedProtocol):
    """A connection that an event loop can serve."""


class Server(Acceptor):
    """A listening broker on the event loop of its dispatcher."""

    def __init__(self, broker: Broker, dispatcher: Dispatcher, faults: Faults) -> None:
        super().__init__(dispatcher.loop, broker.settings.connection_limits)
        self.broker = broker
        self.dispatcher = dispatcher
        self.faults = faults

    def start(self, listeners: Sequence[Listener]) -> list[int]:
        """Start to listen; return the listeners' ports. Raises as `open`."""
        ports = self.open(listeners)
        self.broker.fetch_sessions.clear()
        for listener, port in zip(listeners, ports, strict=True):
            host = listener.advertised_host
            if host is None:
                host = socket.gethostname() if listener.host in _WILDCARDS else listener.host
            advertised_port = listener.advertised_port or port
            self.broker.advertise(host, advertised_port, listener=listener.name)
            if listener is listeners[0]:
                self.broker.advertise(host, advertised_port)
        self.accept()
        return ports

    def connect(self, opened: OpenListener, connection_id: int, host: str) -> AcceptedConnection:
        """Return the connection of a new client."""
        authenticator = None
        if opened.listener.sasl is not None and opened.credentials is not None:
            authenticator = SaslAuthenticator(
                opened.listener.sasl, opened.credentials, self.broker, name=str(connection_id)
            )
        return _Protocol(self, connection_id, opened.listener, authenticator, host)


class ClusterServer:
    """The brokers of one cluster, each with its own ports."""

    def __init__(
        self,
        cluster: SingleBroker | ReplicatedCluster,
        *,
        faults: Faults | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Create a server for the brokers of a cluster; `clock` returns seconds since 1970."""
        #: The brokers, and what tests look at and change.
        self.cluster = cluster
        #: Starts what listens beside the brokers, on their loop, while they run.
        self.companion: Callable[[asyncio.AbstractEventLoop], Acceptor] | None = None
        self._started_companion: Acceptor | None = None
        self._brokers: dict[int, Broker] = {broker.node_id: broker for broker in cluster.brokers}
        self.faults = faults or Faults()
        #: Returns seconds since 1970.
        self.clock = clock or time.time
        #: By broker, with their ports, which a broker keeps when it stops.
        self.listeners: dict[int, tuple[Listener, ...]] = {}
        self._servers: dict[int, Server] = {}
        self._dispatcher: Dispatcher | None = None

    @property
    def node_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return list(self._brokers)

    @property
    def states(self) -> dict[int, str]:
        """Whether each broker is running, paused or stopped, by id."""
        return {node_id: self._state(node_id) for node_id in self._brokers}

    def _state(self, node_id: int) -> str:
        server = self._servers.get(self.broker(node_id).node_id)
        if server is None:
            return "stopped"
        return "paused" if server.is_paused else "running"

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
            self.cluster.start(list(self._brokers), self.clock())
            if self.companion is not None:
                self._started_companion = self.companion(loop)
        except BaseException:
            await self.close()
            raise

    def start_broker(self, node_id: int) -> None:
        """Start a stopped broker on its previous ports. Raises OSError, KafkaError."""
        if self.broker(node_id).node_id in self._servers:
            raise KafkaError(f"broker {node_id} is already running")
        self._start_broker(node_id)
        self.cluster.start([node_id], self.clock())
        self.changed()

    def _start_broker(self, node_id: int) -> None:
        server = Server(self.broker(node_id), self._running(), self.faults)
        listeners = self.listeners[node_id]
        ports = server.start(listeners)
        self.listeners[node_id] = tuple(
            replace(listener, port=port) for listener, port in zip(listeners, ports, strict=True)
        )
        self._servers[node_id] = server

    async def stop_broker(self, node_id: int) -> bool:
        """Move a broker's leadership to others, then close its connections and ports.

        Return whether the controller has approved it. If not, the broker stops anyway, as Kafka's
        does, and others lead once its session has ended. Raises KafkaError if it is not running,
        and OSError.
        """
        if self._state(node_id) == "paused":
            raise KafkaError(f"broker {node_id} is paused: resume or kill it")
        server = self._servers.pop(node_id, None)
        if server is None:
            raise KafkaError(f"broker {node_id} is not running")
        is_approved = self.cluster.begin_stop(node_id, self.clock())
        if not is_approved:
            logger.warning(
                "broker %d stops without the controller's approval, which did not come in time: "
                "others lead its partitions once its session has ended",
                node_id,
            )
        self._running().handled()
        await server.close()
        self.cluster.stop_broker(node_id, self.clock())
        self.changed()
        return is_approved

    async def kill_broker(self, node_id: int) -> None:
        """End a broker without notice, with its connections and ports.

        Raises KafkaError if it is not running, or the only one.
        """
        if self._state(node_id) == "stopped":
            raise KafkaError(f"broker {node_id} is not running")
        self.cluster.kill_broker(node_id, self.clock())
        self.changed()
        await self._servers.pop(node_id).close()

    def pause_broker(self, node_id: int) -> None:
        """Make a broker do nothing until `resume_broker`; its connections remain open.

        Raises KafkaError if it is not running, or the only one.
        """
        if self._state(node_id) != "running":
            raise KafkaError(f"broker {node_id} is {self._state(node_id)}, not running")
        self.cluster.pause_broker(node_id, self.clock())
        self._servers[node_id].pause()
        self.changed()

    async def resume_broker(self, node_id: int) -> None:
        """Continue a broker that is paused, first with what clients have sent to it.

        Raises KafkaError if it is not paused.
        """
        if self._state(node_id) != "paused":
            raise KafkaError(f"broker {node_id} is {self._state(node_id)}, not paused")
        self._servers[node_id].resume()
        # What clients have sent is read in the next turn of the loop, after this task's.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.cluster.resume_broker(node_id, self.clock())
        self.changed()

    def wipe_broker(self, node_id: int) -> None:
        """Delete what a stopped broker has stored. Raises KafkaError, OSError."""
        if self.broker(node_id).node_id in self._servers:
            raise KafkaError(f"broker {node_id} is running: stop or kill it first")
        self.cluster.wipe_broker(node_id)

    async def close(self) -> None:
        """Close all ports.

        In memory the brokers still count as running, so that no leader changes. A data directory is
        closed, and the next `start` loads it again.
        """
        servers, self._servers = self._servers, {}
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher = None
        companion, self._started_companion = self._started_companion, None
        for acceptor in (*servers.values(), companion):
            if acceptor is not None:
                await acceptor.close()
        self.cluster.close(self.clock())

    def changed(self) -> None:
        """Dispatch changes that were made to the cluster other than by requests."""
        self._running().handled()

    def _running(self) -> Dispatcher:
        if self._dispatcher is None:
            raise KafkaError("the cluster is not running")
        return self._dispatcher


def run_until_signal(
    server: ClusterServer, on_listening: Callable[[], None], control: ControlServer
) -> None:
    """Listen until SIGINT or SIGTERM; call `on_listening` once clients can connect.

    `control` takes commands in the meantime. Raises as `ClusterServer.start`.
    """

    def listen() -> None:
        try:
            control.open()
        except OSError as error:
            logger.warning("there is no control socket: %s", error)
        on_listening()

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await _serve(server, listen, stop)
        finally:
            await control.close()

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
