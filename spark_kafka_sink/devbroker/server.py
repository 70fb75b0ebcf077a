"""The broker's sockets: the one module here that uses asyncio.

- Requests of a connection are handled one after the other and answered in that order, as Kafka
  does: while one waits (a Fetch for data, a fault that delays), those behind it wait too.
- Frames are received in place and bounded by socket.request.max.bytes. Bytes that are no request
  close the connection.
- Answers are written as they lie in the log, and only as fast as the client takes them; meanwhile
  nothing more is read from it.
- A client that has closed its side still gets the answers that are ready; what waits is given up.
- Faults are decided in one place, `_Connection._decide`, before the broker sees the request.

`Server` lives on an event loop; `DevBroker` runs one on a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.faults import (
    Action,
    AnswerError,
    CloseConnection,
    Decide,
    Delay,
    FaultHook,
    Faults,
    NeverAnswer,
)
from spark_kafka_sink.devbroker.frame_receiver import FrameReceiver
from spark_kafka_sink.devbroker.handlers.handler import BrokerSettings, Delayed
from spark_kafka_sink.devbroker.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.topic_config import TopicConfig
from spark_kafka_sink.errors import DecodeError, KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.protocol.api_keys import ApiKey
    from spark_kafka_sink.protocol.headers import RequestHeader
    from spark_kafka_sink.protocol.primitives import Buffer
    from spark_kafka_sink.protocol.schema import ApiMessage

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
#: Buffers of an answer smaller than this are joined before they are sent.
_JOIN_BELOW_BYTES = 256 * 1024
_MAX_PENDING_WRITE_BYTES = 4 * 1024 * 1024
_THREAD_TIMEOUT_SECONDS = 30.0
_BACKLOG = 128
_ACCEPT_RETRY_SECONDS = 1.0


class _Waiting:
    """A request that has not been answered yet."""

    __slots__ = ("arrived", "header", "partitions", "request", "timer")

    def __init__(self, header: RequestHeader, request: ApiMessage, arrived: float) -> None:
        self.header = header
        self.request = request
        self.arrived = arrived
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.timer: asyncio.TimerHandle | None = None


class _Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: Server, connection_id: int) -> None:
        self._server = server
        self._id = connection_id
        self._receiver = FrameReceiver(server.broker.settings.socket_request_max_bytes)
        self._transport: asyncio.Transport | None = None
        self._waiting: _Waiting | None = None
        self._outgoing: deque[Buffer] = deque()
        self._write_paused = False
        self._read_paused = False
        self._muted = False
        self._eof = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to listen to the client."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"not a stream: {transport!r}")
        transport.set_write_buffer_limits(high=_MAX_PENDING_WRITE_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client, and what it still waits for."""
        if exc is not None:
            logger.debug("connection %d: %s", self._id, exc)
        self._stop_waiting()
        self._outgoing.clear()
        self._transport = None
        self._server.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Say where the next bytes go."""
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the requests that are now complete."""
        self._receiver.received(nbytes)
        self._advance()

    def eof_received(self) -> bool:
        """Send what is ready, then close: the client has closed its side."""
        self._eof = True
        self._advance()
        return True

    def pause_writing(self) -> None:
        """Hold back answers: the client does not take them."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Go on with answers, and then with requests."""
        self._write_paused = False
        self._advance()

    # What the server calls.

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def wake(self) -> None:
        """Look again at the request that waits: a partition has grown, or its time is up."""
        waiting = self._waiting
        if waiting is None:
            return
        self._stop_waiting()
        self._guarded(lambda: self._handle(waiting))
        self._advance()

    # The way of a request.

    def _advance(self) -> None:
        """Write and handle all that can be, in order."""
        self._guarded(self._handle_frames)
        if self._transport is None:
            return
        busy = self._waiting is not None or self._write_paused or self._muted
        # A client that has more to say while it waits is kept waiting with it; one that is silent
        # is listened to, so that its leaving is seen.
        pause = busy and self._receiver.is_partial
        if pause and not self._read_paused:
            self._transport.pause_reading()
        elif self._read_paused and not pause and not self._eof:
            self._transport.resume_reading()
        self._read_paused = pause
        if self._eof and not self._write_paused:
            self._close()

    def _handle_frames(self) -> None:
        self._flush()
        while (
            self._transport is not None
            and not self._transport.is_closing()
            and self._waiting is None
            and not self._write_paused
            and not self._muted
        ):
            frame = self._receiver.next_frame()
            if frame is None:
                return
            now = self._server.clock()
            header, request = self._server.broker.decode_request(frame)
            waiting = _Waiting(header, request, now)
            action = self._decide(waiting)
            if action is None:
                self._handle(waiting)
            else:
                self._act(waiting, action)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do a step of the connection's work; what cannot be answered closes it."""
        try:
            work()
        except (CloseConnectionError, DecodeError) as error:
            logger.info("closing connection %d: %s", self._id, error)
            self._close()
        except Exception:
            logger.exception("closing connection %d", self._id)
            self._close()

    def _handle(self, waiting: _Waiting) -> None:
        """Let the broker answer, or wait with it."""
        broker = self._server.broker
        now = self._server.clock()
        try:
            outcome = broker.handle(waiting.header, waiting.request, now, arrived=waiting.arrived)
        finally:
            self._server.wake_waiting(broker.take_appended())
        if isinstance(outcome, Delayed):
            self._wait(waiting, outcome.until - now, outcome.partitions)
        elif outcome is not None:
            self._send(waiting.header, outcome)

    def _decide(self, waiting: _Waiting) -> Action | None:
        """Ask the fault hooks."""
        return self._server.faults.decide(
            waiting.request, waiting.header, waiting.arrived, self._id
        )

    def _act(self, waiting: _Waiting, action: Action) -> None:
        """Do what a fault says, in the place of the broker."""
        if isinstance(action, Delay):
            self._wait(waiting, action.seconds, frozenset())
            return
        if action.handled:
            broker = self._server.broker
            broker.handle(waiting.header, waiting.request, self._server.clock())
            self._server.wake_waiting(broker.take_appended())
        if isinstance(action, AnswerError):
            self._send(
                waiting.header,
                self._server.broker.error_response(
                    waiting.header, waiting.request, action.error_code, waiting.arrived
                ),
            )
        elif isinstance(action, CloseConnection):
            raise CloseConnectionError("a fault was asked for")
        elif isinstance(action, NeverAnswer):
            self._muted = True

    def _wait(
        self, waiting: _Waiting, seconds: float, partitions: frozenset[TopicPartition]
    ) -> None:
        waiting.partitions = partitions
        waiting.timer = self._server.loop.call_later(max(0.0, seconds), self.wake)
        self._waiting = waiting
        self._server.watch(self, partitions)

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if waiting.timer is not None:
                waiting.timer.cancel()
            self._server.unwatch(self, waiting.partitions)

    # The way of an answer.

    def _send(self, header: RequestHeader, response: ApiMessage) -> None:
        self._outgoing.extend(self._server.broker.encode_response(header, response))
        self._flush()

    def _flush(self) -> None:
        """Write what the client takes: large buffers as they are, small ones joined."""
        while self._outgoing and self._transport is not None and not self._write_paused:
            joined: list[Buffer] = []
            size = 0
            while self._outgoing and size + len(self._outgoing[0]) <= _JOIN_BELOW_BYTES:
                size += len(self._outgoing[0])
                joined.append(self._outgoing.popleft())
            self._transport.write(b"".join(joined) if joined else self._outgoing.popleft())

    def _close(self) -> None:
        """Close after what has been written is sent."""
        self._stop_waiting()
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.close()


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
        self._connections: set[_Connection] = set()
        #: Set while there is no connection; belongs to the event loop of `start`.
        self._drained = asyncio.Event()
        self._watching: dict[TopicPartition, set[_Connection]] = {}
        self._to_wake: set[_Connection] = set()
        self._listener: socket.socket | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self._next_connection_id = 1
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
        task = self.loop.create_task(self._attach(client))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _attach(self, client: socket.socket) -> None:
        connection = _Connection(self, self._next_connection_id)
        self._next_connection_id += 1
        await self.loop.connect_accepted_socket(lambda: connection, client)

    def connected(self, connection: _Connection) -> None:
        """Take note of a client."""
        self._connections.add(connection)
        self._drained.clear()

    def disconnected(self, connection: _Connection) -> None:
        """Forget a client."""
        self._connections.discard(connection)
        if not self._connections:
            self._drained.set()

    def watch(self, connection: _Connection, partitions: Iterable[TopicPartition]) -> None:
        """Wake a connection when one of the partitions grows."""
        for partition in partitions:
            self._watching.setdefault(partition, set()).add(connection)

    def unwatch(self, connection: _Connection, partitions: Iterable[TopicPartition]) -> None:
        """Take `watch` back, and what it has led to."""
        self._to_wake.discard(connection)
        for partition in partitions:
            watching = self._watching.get(partition)
            if watching is not None:
                watching.discard(connection)
                if not watching:
                    del self._watching[partition]

    def wake_waiting(self, appended: Iterable[TopicPartition]) -> None:
        """Wake the connections that watch what was appended to, once this step is done."""
        for partition in appended:
            for connection in self._watching.get(partition, ()):
                if not self._to_wake:
                    self.loop.call_soon(self._wake)
                self._to_wake.add(connection)

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
            broker.cluster.create_topic(name, partitions=partitions, config=config)

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
