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
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.connection import Connection
from spark_kafka_sink.devbroker.faults import Action, Decide, FaultHook, Faults
from spark_kafka_sink.devbroker.topic_config import TopicConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from spark_kafka_sink.protocol.api_keys import ApiKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_THREAD_TIMEOUT_SECONDS = 30.0
_BACKLOG = 128
_ACCEPT_RETRY_SECONDS = 1.0


class _Protocol(Connection, asyncio.BufferedProtocol):
    """A connection that an event loop serves."""


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
        self._listener: socket.socket | None = None
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

    async def start(
        self, *, host: str = LOOPBACK, port: int = 0, advertised_host: str | None = None
    ) -> int:
        """Listen, and return the port; port 0 is any free one. Raises OSError.

        Clients are told to come to `advertised_host`: by default `host`, or this machine's name
        where `host` stands for every address.
        """
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._drained.set()
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._listen()
        self._schedule_tick(self.broker.cluster.timers.next_deadline)
        port = int(self._listener.getsockname()[1])
        if advertised_host is None:
            advertised_host = socket.gethostname() if host in _WILDCARDS else host
        self.broker.advertise(advertised_host, port)
        return port

    async def close(self) -> None:
        """Stop listening, end every connection, and wait until they are gone."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self.loop.remove_reader(listener)
        listener.close()
        await asyncio.gather(*self._accepting)
        for connection in list(self._connections):
            connection.abort()
        await self._drained.wait()

    def _listen(self) -> None:
        if self._listener is not None:
            self.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take a client that waits at the door.

        Not left to asyncio's own server, which loses a client that it has accepted when it is
        closed a moment later.
        """
        if self._listener is None:
            return
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client has left already.
        except OSError:
            logger.exception("cannot accept a client; trying again in a while")
            self.loop.remove_reader(self._listener)
            self.loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self._attach(client))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _attach(self, client: socket.socket) -> None:
        connection = _Protocol(self, self._next_connection_id)
        self._next_connection_id += 1
        await self.loop.connect_accepted_socket(lambda: connection, client)

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


def run_until_signal(
    server: Server,
    *,
    host: str,
    port: int,
    advertised_host: str | None,
    on_listening: Callable[[int], None],
) -> None:
    """Listen until SIGINT or SIGTERM; `on_listening` is told the port. Raises OSError."""

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        actual_port = await server.start(host=host, port=port, advertised_host=advertised_host)
        try:
            on_listening(actual_port)
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

        `topics` are created with so many partitions each. Port 0 is any free one. The settings are
        those of `BrokerSettings` and `TopicConfig`; `clock` gives seconds since 1970.
        """
        self._topics = dict(topics or {})
        self._host = host
        self._port = port
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
        self._started: Future[int] = Future()
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
            self._port = self._started.result(_THREAD_TIMEOUT_SECONDS)
        except BaseException:
            thread.join(_THREAD_TIMEOUT_SECONDS)
            raise
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
        """Port that the broker listens on."""
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, host:port."""
        return f"{self._host}:{self._port}"

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
        port = await self._server.start(host=self._host, port=self._port)
        topics, self._topics = self._topics, {}
        try:
            broker = self._server.broker
            for name, partitions in topics.items():
                broker.cluster.create_topic(
                    name, partitions=partitions, config=broker.settings.topic_defaults
                )
            self._started.set_result(port)
            await self._stop.wait()
        finally:
            await self._server.close()
