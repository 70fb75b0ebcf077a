"""The broker's sockets: the one module here that uses asyncio.

`Server` listens and knows its connections: which wait for what, so that a change wakes them, and
only them. It runs the broker's timers when they are due; without any it sleeps. It lives on an
event loop; `run_until_signal` gives it one for a process, `DevBroker` one on a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.connection import Connection
from spark_kafka_sink.devbroker.faults import Action, Decide, FaultHook, Faults
from spark_kafka_sink.devbroker.listener import LOOPBACK, Listener, check_listeners
from spark_kafka_sink.devbroker.sasl.credentials import Credentials
from spark_kafka_sink.devbroker.sasl.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.devbroker.topic_config import TopicConfig
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.security.tls import tls_server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from spark_kafka_sink.protocol.api_keys import ApiKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_THREAD_TIMEOUT_SECONDS = 30.0
_BACKLOG = 128
_ACCEPT_RETRY_SECONDS = 1.0
_TLS_HANDSHAKE_SECONDS = 30.0
_TLS_SHUTDOWN_SECONDS = 5.0


class _Protocol(Connection, asyncio.BufferedProtocol):
    """A connection that an event loop serves."""


@dataclass(frozen=True, slots=True)
class _OpenListener:
    """A listener, and what it needs while it is open."""

    listener: Listener
    socket: socket.socket
    tls: ssl.SSLContext | None
    credentials: Credentials | None


class Server:
    """A broker that listens."""

    def __init__(
        self,
        broker: Broker,
        *,
        faults: Faults | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve `broker`; `clock` gives seconds since 1970."""
        self.broker = broker
        self.faults = faults or Faults()
        self.clock = clock
        self._connections: set[Connection] = set()
        #: Set while there is no connection; belongs to the event loop of `start`.
        self._drained = asyncio.Event()
        self._watching: dict[Hashable, set[Connection]] = {}
        self._to_wake: set[Connection] = set()
        self._open: list[_OpenListener] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._next_connection_id = 1
        self._tick: asyncio.TimerHandle | None = None
        self._tick_deadline = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the server was started on."""
        if self._loop is None:
            raise KafkaError("the server has not been started")
        return self._loop

    async def start(self, listeners: Sequence[Listener] = (Listener(),)) -> list[int]:
        """Listen, and return the listeners' ports.

        Key stores are read now, so a start after a stop takes renewed ones. Raises OSError, and
        ConfigError for listeners that cannot be.
        """
        check_listeners(listeners)
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._drained.set()
        try:
            self._open.extend(_open(listener) for listener in listeners)
        except BaseException:
            await self.close()
            raise
        ports = [int(opened.socket.getsockname()[1]) for opened in self._open]
        for listener, port in zip(listeners, ports, strict=True):
            host = listener.advertised_host
            if host is None:
                host = socket.gethostname() if listener.host in _WILDCARDS else listener.host
            self.broker.advertise(host, port, listener=listener.name)
            if listener is listeners[0]:
                self.broker.advertise(host, port)
        for opened in self._open:
            self._listen(opened)
        self._schedule_tick(self.broker.cluster.timers.next_deadline)
        return ports

    async def close(self) -> None:
        """Stop listening, end every connection, and wait until they are gone."""
        opened, self._open = self._open, []
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        for each in opened:
            self.loop.remove_reader(each.socket)
            each.socket.close()
        await asyncio.sleep(0)  # A task that has not begun would leave its socket open.
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        await self._drained.wait()

    def _listen(self, opened: _OpenListener) -> None:
        if opened in self._open:
            self.loop.add_reader(opened.socket, self._accept, opened)

    def _accept(self, opened: _OpenListener) -> None:
        """Take a client that waits at the door.

        Not left to asyncio's own server, which loses a client that it has accepted when it is
        closed a moment later.
        """
        if opened not in self._open:
            return
        try:
            client, _ = opened.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client has left already.
        except OSError:
            logger.exception("cannot accept a client; trying again in a while")
            self.loop.remove_reader(opened.socket)
            self.loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen, opened)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self._attach(client, opened))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _attach(self, client: socket.socket, opened: _OpenListener) -> None:
        connection_id = self._next_connection_id
        self._next_connection_id += 1
        authenticator = None
        if opened.listener.sasl is not None and opened.credentials is not None:
            authenticator = SaslAuthenticator(
                opened.listener.sasl, opened.credentials, self.broker, name=str(connection_id)
            )
        connection = _Protocol(self, connection_id, opened.listener, authenticator)
        with_tls = opened.tls is not None
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=opened.tls,
                ssl_handshake_timeout=_TLS_HANDSHAKE_SECONDS if with_tls else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS if with_tls else None,
            )
        except OSError as error:
            logger.info("connection %d: no TLS handshake: %s", connection_id, error)

    def connected(self, connection: Connection) -> None:
        """Take note of a client."""
        self._connections.add(connection)
        self._drained.clear()

    def disconnected(self, connection: Connection) -> None:
        """Forget a client."""
        self._connections.discard(connection)
        if not self._connections:
            self._drained.set()

    def watch(self, connection: Connection, watched: Iterable[Hashable]) -> None:
        """Wake a connection when one of these changes."""
        for key in watched:
            self._watching.setdefault(key, set()).add(connection)

    def unwatch(self, connection: Connection, watched: Iterable[Hashable]) -> None:
        """Take `watch` back, and what it has led to."""
        self._to_wake.discard(connection)
        for key in watched:
            watching = self._watching.get(key)
            if watching is not None:
                watching.discard(connection)
                if not watching:
                    del self._watching[key]

    def handled(self) -> None:
        """See to what a request has led to: who waits for it, and what is to be done later."""
        for key in self.broker.take_changed():
            for connection in self._watching.get(key, ()):
                if not self._to_wake:
                    self.loop.call_soon(self._wake)
                self._to_wake.add(connection)
        self._schedule_tick(self.broker.cluster.timers.next_deadline)

    def _schedule_tick(self, deadline: float | None) -> None:
        """Let the broker's timers run when the next of them is due."""
        if deadline is None or (self._tick is not None and self._tick_deadline <= deadline):
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_deadline = deadline
        self._tick = self.loop.call_later(max(0.0, deadline - self.clock()), self._run_timers)

    def _run_timers(self) -> None:
        self._tick = None
        try:
            self.broker.tick(self.clock())
        except Exception:
            logger.exception("a timer of the broker failed")
        self.handled()

    def _wake(self) -> None:
        to_wake, self._to_wake = self._to_wake, set()
        for connection in to_wake:
            connection.wake()


def _open(listener: Listener) -> _OpenListener:
    """Open a listener's socket; read its stores. Raises OSError, ConfigError."""
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
            context = tls_server_context(listener.tls, listener.client_auth, **stores)
        except ValueError as error:
            raise ConfigError(f"the listener {listener.name}: {error}") from None
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


def run_until_signal(
    server: Server, listeners: Sequence[Listener], on_listening: Callable[[list[int]], None]
) -> None:
    """Listen until SIGINT or SIGTERM; `on_listening` is told the ports. Raises as `start`."""

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        ports = await server.start(listeners)
        try:
            on_listening(ports)
            await stop.wait()
        finally:
            await server.close()

    asyncio.run(serve())


class DevBroker:
    """A broker on a thread of its own, for tests, notebooks and demos.

        with DevBroker(topics={"orders": 3}) as broker:
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    Topics and records live in memory as long as the object: `stop` and `start` are a restart that
    loses nothing, on the same port.
    """

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        listeners: Sequence[Listener] | None = None,
        auto_create_topics: bool = True,
        num_partitions: int = 1,
        max_message_bytes: int = TopicConfig().max_message_bytes,
        log_append_time: bool = False,
        validate_records: bool = False,
        transaction_version: int = 2,
        transaction_max_timeout_ms: int = BrokerSettings().transaction_max_timeout_ms,
        transaction_abort_interval_ms: int = BrokerSettings().transaction_abort_interval_ms,
        transaction_marker_delay_ms: int = 0,
        group_initial_rebalance_delay_ms: int = 0,
        group_min_session_timeout_ms: int = BrokerSettings().group_min_session_timeout_ms,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set up a broker that listens from `start` on.

        `topics` are created with so many partitions each. Port 0 is any free one. `listeners` are
        for connections with TLS or SASL; host and port are then theirs. The settings are
        those of `BrokerSettings` and `TopicConfig`; `clock` gives seconds since 1970.
        """
        self._topics = dict(topics or {})
        if listeners is None:
            listeners = (Listener(host=host, port=port),)
        check_listeners(listeners)
        self._listeners = tuple(listeners)
        settings = BrokerSettings(
            auto_create_topics=auto_create_topics,
            num_partitions=num_partitions,
            topic_defaults=TopicConfig(
                max_message_bytes=max_message_bytes, log_append_time=log_append_time
            ),
            validate_records=validate_records,
            transaction_version=transaction_version,
            transaction_max_timeout_ms=transaction_max_timeout_ms,
            transaction_abort_interval_ms=transaction_abort_interval_ms,
            transaction_marker_delay_ms=transaction_marker_delay_ms,
            group_initial_rebalance_delay_ms=group_initial_rebalance_delay_ms,
            group_min_session_timeout_ms=group_min_session_timeout_ms,
        )
        self._server = Server(Broker(settings=settings), clock=clock)
        self._thread: threading.Thread | None = None
        self._started: Future[list[int]] = Future()
        self._stop: asyncio.Event | None = None

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

    def start(self) -> None:
        """Listen; return when clients can connect. Raises OSError, or KafkaError if started."""
        if self._thread is not None:
            raise KafkaError("the broker is running")
        self._started = Future()
        thread = threading.Thread(target=self._run, name="devbroker", daemon=True)
        thread.start()
        try:
            ports = self._started.result(_THREAD_TIMEOUT_SECONDS)
        except BaseException:
            thread.join(_THREAD_TIMEOUT_SECONDS)
            raise
        self._listeners = tuple(
            replace(listener, port=port)
            for listener, port in zip(self._listeners, ports, strict=True)
        )
        self._thread = thread

    def stop(self) -> None:
        """Close every connection and the port; does nothing if that has been done."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        stop = self._stop
        if stop is not None:
            self._server.loop.call_soon_threadsafe(stop.set)
        thread.join(_THREAD_TIMEOUT_SECONDS)
        if thread.is_alive():
            raise KafkaTimeoutError("the broker's thread did not end")

    @property
    def port(self) -> int:
        """Port of the first listener."""
        return self._listeners[0].port

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, host:port, of the first listener."""
        return self.address(self._listeners[0].name)

    def address(self, listener: str) -> str:
        """Give the address of a listener, host:port; by default it is called by its protocol."""
        for each in self._listeners:
            if each.name == listener:
                return f"{each.host}:{each.port}"
        raise ConfigError(
            f"there is no listener {listener}, only "
            f"{', '.join(each.name for each in self._listeners)}"
        )

    @property
    def topic_names(self) -> list[str]:
        """Topics that exist."""
        return self.call(lambda broker: [topic.name for topic in broker.cluster.topics])

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; `configs` are Kafka's topic settings. Raises RefusedError."""

        def create(broker: Broker) -> None:
            config = broker.settings.topic_defaults.with_values(configs or {})
            broker.cluster.create_topic(
                name, partitions=partitions, config=config, overrides=configs
            )

        self.call(create)

    def on(self, api_key: ApiKey, fault: Decide | Action, *, times: int | None = None) -> FaultHook:
        """Set a fault hook; see `faults`."""
        return self._server.faults.on(api_key, fault, times=times)

    def call(self, function: Callable[[Broker], T]) -> T:
        """Call a function with the broker on the server's thread; give its result.

        The way to look at logs, or to change the cluster, while clients are at work. Raises
        KafkaError if the broker does not run.
        """
        if self._thread is None:
            raise KafkaError("the broker is not running")
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function(self._server.broker))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                result.set_exception(error)

        self._server.loop.call_soon_threadsafe(run)
        return result.result(_THREAD_TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        ports = await self._server.start(self._listeners)
        topics, self._topics = self._topics, {}
        try:
            broker = self._server.broker
            for name, partitions in topics.items():
                broker.cluster.create_topic(
                    name, partitions=partitions, config=broker.settings.topic_defaults
                )
            self._started.set_result(ports)
            await self._stop.wait()
        finally:
            await self._server.close()
