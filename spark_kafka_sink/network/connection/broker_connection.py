"""A connection to one broker: requests go out, responses come back in the same order.

`send` never waits: it numbers the request, passes its buffers to the socket and returns a future.
What the socket does not accept at once is queued. The transport calls back when bytes have arrived
or can be sent, and each call reads once, so that other connections get their turn. Any failure ends
the whole connection: the peer hangs up, a response is not the expected one, a response does not
arrive within request.timeout.ms, the socket accepts no bytes for that long, or memory runs out.
Every unanswered request then fails with the reason, since a stream has no safe point to resume
from. A connection that is idle for connections.max.idle.ms ends as well.

Only the callers bound the queue: they check `has_unsent`, and send a large request only if no other
request is waiting for the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.errors import DecodeError, KafkaError, NetworkError
from spark_kafka_sink.network.authentication.sasl_authenticator import SaslSession
from spark_kafka_sink.network.connection.connection_errors import (
    GreetedOnlyError,
    SilentPeerError,
    connect_failure,
    looks_like_tls,
    loss_of,
    peer_speaks_tls,
)
from spark_kafka_sink.network.connection.node_api_versions import (
    NodeApiVersions,
    fetch_api_versions,
    fetch_first_api_versions,
)
from spark_kafka_sink.network.connection.reauthentication import PendingRequest, Reauthentication
from spark_kafka_sink.network.connection.transport import Transport, to_send
from spark_kafka_sink.network.timeout_check import TimeoutCheck
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.frame import FrameDecoder
from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS
from spark_kafka_sink.protocol.registry import (
    RequestHeader,
    decode_response,
    encode_request,
    peek_correlation_id,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.network_listener import NetworkListener
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiRequest, ApiResponse, ResponseT
    from spark_kafka_sink.security.sasl import SaslClient


MAX_CORRELATION_ID = 2**31 - 1
#: The size of the length prefix of a frame, in bytes.
FRAME_OVERHEAD = 4
#: The minimum in seconds between two checks of a busy connection, however short its idle time is.
LEAST_IDLE_CHECK: Final = 0.01
#: The reason for closing a connection with unsent records that were given up.
CLOSED_UNSENT = "closed by this client: it gave up records that the broker had not yet read"
#: What is overdue when a request is.
_NO_ANSWER: Final = "no answer"
#: The version of a response from which on a broker responds at once and leaves the pause for a
#: quota to the client (KIP-219, `AbstractResponse.shouldClientThrottle`). In earlier versions the
#: broker delayed its response instead.
_CLIENT_THROTTLES_FROM: Final[Mapping[ApiKey, int]] = MappingProxyType(
    {
        ApiKey.PRODUCE: 6,
        ApiKey.FETCH: 8,
        ApiKey.LIST_OFFSETS: 3,
        ApiKey.METADATA: 6,
        ApiKey.FIND_COORDINATOR: 2,
        ApiKey.API_VERSIONS: 2,
        ApiKey.CREATE_TOPICS: 3,
        ApiKey.INIT_PRODUCER_ID: 1,
        ApiKey.ADD_PARTITIONS_TO_TXN: 1,
        ApiKey.ADD_OFFSETS_TO_TXN: 1,
        ApiKey.END_TXN: 1,
        ApiKey.TXN_OFFSET_COMMIT: 1,
    }
)


def client_throttles(api_key: ApiKey, api_version: int) -> bool:
    """Return whether the client has to pause if a response of this version asks for it."""
    return api_key not in _CLIENT_THROTTLES_FROM or api_version >= _CLIENT_THROTTLES_FROM[api_key]


class ResponseHandlers:
    """The functions that are called with the responses of one connection as soon as they arrive.

    A request need not have one. A done callback of a future runs in the next round of the loop, and
    a handler in the round in which the response arrives.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create it; errors of handlers are reported to `loop`."""
        self._loop = loop
        #: By the future of a request.
        self._handlers: dict[asyncio.Future[Any], Callable[[asyncio.Future[Any]], None]] = {}

    def add(
        self,
        outcome: asyncio.Future[ResponseT],
        on_done: Callable[[asyncio.Future[ResponseT]], None],
    ) -> None:
        """Call `on_done` with this future once: by `answer`, or by the loop if it fails."""
        outcome.add_done_callback(on_done)
        self._handlers[outcome] = on_done

    def answer(self, outcome: asyncio.Future[Any], response: ApiResponse) -> None:
        """Set a future's result, and call its handler now; do nothing if it is already done."""
        on_done = self._handlers.pop(outcome, None)
        if outcome.done():
            return
        if on_done is None:
            outcome.set_result(response)
            return
        outcome.remove_done_callback(on_done)
        outcome.set_result(response)
        try:
            on_done(outcome)
        except Exception as error:  # noqa: BLE001  reported as the error of a done callback would be
            self._loop.call_exception_handler(
                {"message": "the handler of a response failed", "exception": error}
            )

    def clear(self) -> None:
        """Forget all handlers: the loop calls those of futures that fail."""
        self._handlers.clear()


class OutgoingRequest(NamedTuple):
    """A request that waits for the socket."""

    #: The bytes that the socket has not yet accepted.
    buffers: deque[memoryview]
    #: What the caller waits for: the response, or the sending if the broker does not answer.
    outcome: asyncio.Future[Any]
    has_response: bool


class OutgoingRequests:
    """The requests of one connection that the socket has not yet accepted in full, oldest first.

    When a peer stops reading, the socket's buffer fills up, and further requests wait here. Does no
    I/O and reads no clock.
    """

    def __init__(self) -> None:
        self._requests: deque[OutgoingRequest] = deque()
        self._waiting_since = 0.0
        #: The number of requests that the broker will not answer.
        self.without_response = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[OutgoingRequest]:
        return iter(self._requests)

    def add(self, request: OutgoingRequest, now: float) -> None:
        """Append a request, or the unsent rest of one."""
        if not self._requests:
            self._waiting_since = now
        self._requests.append(request)
        self.without_response += not request.has_response

    @property
    def first(self) -> OutgoingRequest:
        """The oldest request."""
        return self._requests[0]

    def pop(self) -> OutgoingRequest:
        """Remove and return the oldest request, after the socket has accepted its last byte."""
        request = self._requests.popleft()
        self.without_response -= not request.has_response
        return request

    def holds(self, outcome: asyncio.Future[Any]) -> bool:
        """Return whether the request with this outcome still waits for the socket."""
        return any(request.outcome is outcome for request in self._requests)

    def stalls_at(self, taken_at: float, timeout: float) -> float | None:
        """Return when the peer is considered gone, unless its socket accepts bytes by then.

        `taken_at` is when the socket last accepted any bytes. Returns None if nothing is waiting
        for it.
        """
        return max(self._waiting_since, taken_at) + timeout if self._requests else None

    def clear(self) -> list[OutgoingRequest]:
        """Remove and return all requests."""
        requests = list(self._requests)
        self._requests.clear()
        self.without_response = 0
        return requests


class ResponseLimits(NamedTuple):
    """The size limits of one response."""

    frame_bytes: int
    #: The number of array elements and tagged fields, in total.
    elements: int


#: For responses until the broker has authenticated and returned its API versions: they are short,
#: and may come from a stranger.
FIRST_RESPONSES: Final = ResponseLimits(frame_bytes=512 * 1024, elements=10_000)
#: No response to a producer's request comes near this; a larger size is a lie or another protocol.
LATER_RESPONSES: Final = ResponseLimits(frame_bytes=128 * 1024 * 1024, elements=MAX_ELEMENTS)


class IncomingFrames:
    """The bytes that one connection has received, as the frames of responses.

    Until the broker has authenticated, frames must be small; see `FIRST_RESPONSES`.
    """

    def __init__(self, node: Node, transport: Transport) -> None:
        """Begin with no data, and with the limits of first responses."""
        self._node = node
        self._transport = transport
        self._decoder = FrameDecoder(FIRST_RESPONSES.frame_bytes)
        #: Returns the next complete frame; see `FrameDecoder.next_frame`.
        self.next_frame = self._decoder.next_frame
        #: The limit of array elements and tagged fields in a response.
        self.max_elements = FIRST_RESPONSES.elements
        #: Whether nothing has been received.
        self.is_first = True

    def allow_large(self) -> None:
        """Accept responses up to the limits of later ones."""
        self._decoder.max_frame_bytes = LATER_RESPONSES.frame_bytes
        self.max_elements = LATER_RESPONSES.elements

    def read(self) -> int | None:
        """Read once; return the number of bytes, None without any, 0 at the stream's end.

        Raises AuthenticationError if the peer speaks TLS on a connection without it.
        """
        decoder = self._decoder
        if room := decoder.room():
            with room:
                count = self._transport.read_into(room)
            decoder.received(count or 0)
            return count
        data = self._transport.read()
        if data:
            if self.is_first and looks_like_tls(data):
                raise peer_speaks_tls(self._node)
            self.is_first = False
            decoder.receive_data(data)
        return None if data is None else len(data)


class InFlightRequest(NamedTuple):
    """A request that is awaiting its response."""

    correlation_id: int
    api_key: ApiKey
    api_version: int
    #: Times by the loop's clock.
    sent_at: float
    deadline: float
    response: asyncio.Future[Any]


class InFlightRequests:
    """The unanswered requests of one connection, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: InFlightRequest) -> None:
        """Append the request just sent."""
        self._requests.append(request)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all requests; None if nothing is in flight."""
        return min((request.deadline for request in self._requests), default=None)

    def next_timeout(self) -> float:
        """Return the seconds that the request with that deadline, which there must be, may take."""
        first = min(self._requests, key=attrgetter("deadline"))
        return first.deadline - first.sent_at

    def complete(self, correlation_id: int) -> InFlightRequest:
        """Remove and return the oldest request; DecodeError if the response is not for it."""
        if not self._requests:
            raise DecodeError(f"a response (correlation id {correlation_id}) without a request")
        expected = self._requests[0].correlation_id
        if expected != correlation_id:
            raise DecodeError(f"a response to request {correlation_id} instead of {expected}")
        return self._requests.popleft()

    def fail_all(self, error: Exception) -> None:
        """Fail every request with the error that ended the connection."""
        while self._requests:
            response = self._requests.popleft().response
            if not response.done():
                response.set_exception(error)


class IdleCheck:
    """A timer that detects that a connection is no longer in use (connections.max.idle.ms).

    It checks one connection when it may have been idle for long enough.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_idle: float | None,
        *,
        last_used: Callable[[], float],
        is_busy: Callable[[], bool],
        on_idle: Callable[[str], None],
    ) -> None:
        """Create the check; `on_idle` is called with a description of the idle time.

        With a `max_idle` of None an idle connection stays open. A connection that `is_busy` is left
        to request.timeout.ms.
        """
        self._loop = loop
        self._max_idle = max_idle
        self._last_used = last_used
        self._is_busy = is_busy
        self._on_idle = on_idle
        self._next_check: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now, and then whenever the connection may have become idle."""
        if self._max_idle is not None:
            self._check(self._max_idle)

    def cancel(self) -> None:
        """Stop checking."""
        if self._next_check is not None:
            self._next_check.cancel()

    def _check(self, max_idle: float) -> None:
        now = self._loop.time()
        idle_at = self._last_used() + max_idle
        if idle_at <= now:
            if not self._is_busy():
                self._on_idle(f"idle for {max_idle:g} s (connections.max.idle.ms)")
                return
            idle_at = now + max(max_idle, LEAST_IDLE_CHECK)
        self._next_check = self._loop.call_at(idle_at, self._check, max_idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The settings that all connections of a client share; times in seconds."""

    client_id: str
    request_timeout: float
    #: connections.max.idle.ms; None to keep idle connections open.
    max_idle: float | None = None


class BrokerConnection:
    """A connection to a broker whose API versions are known. Created by `open`."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        settings: ConnectionSettings,
        *,
        listener: NetworkListener | None = None,
        on_throttle: Callable[[float], None] | None = None,
        on_writable: Callable[[], None] = lambda: None,
    ) -> None:
        """Start moving bytes."""
        self.node = node
        self.api_versions = NodeApiVersions({}, {})
        self._transport = transport
        self._settings = settings
        self._listener = listener
        self._on_throttle = on_throttle
        self._on_writable = on_writable
        self._on_close: Callable[[KafkaError], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._in_flight = InFlightRequests()
        self._frames = IncomingFrames(node, transport)
        self._next_correlation_id = 0
        self._outgoing = OutgoingRequests()
        self._handlers = ResponseHandlers(self._loop)
        self._closed_by: KafkaError | None = None
        #: Whether this client closed the connection on its own, not because of an error.
        self.closed_in_peace = False
        #: Whether no request other than ApiVersions has been answered.
        self._is_only_greeted = True
        self._last_used = self._loop.time()
        self._timeout_check = TimeoutCheck(
            self._loop, self._deadlines, self._time_out, transport.rounds_to_read
        )
        self._idle_check = IdleCheck(
            self._loop,
            settings.max_idle,
            last_used=lambda: self._last_used,
            is_busy=lambda: bool(self.in_flight_count or self._outgoing),
            on_idle=self.close,
        )
        #: None without SASL.
        self._reauthentication: Reauthentication | None = None
        transport.start(self._on_bytes_to_read, self._on_room_to_write)
        self._idle_check.start()

    @classmethod
    async def open(
        cls,
        node: Node,
        settings: ConnectionSettings,
        *,
        connect: Callable[[Node, float], Awaitable[Transport]],
        setup_timeout: float,
        sasl_client: Callable[[Node], Awaitable[SaslClient]] | None = None,
        listener: NetworkListener | None = None,
        on_throttle: Callable[[float], None] | None = None,
        on_writable: Callable[[], None] = lambda: None,
        cluster_id: str | None = None,
    ) -> BrokerConnection:
        """Connect by `connect`, called with node and timeout, and fetch the broker's API versions.

        With `sasl_client`, which begins an exchange, the connection authenticates first. With
        `cluster_id`, the broker is asked whether it is the node of that cluster (KIP-1242).
        `on_throttle` is called with the seconds for which a response asks the client to pause
        (KIP-219); `on_writable` is called when the socket has accepted everything that had to wait
        for it.

        Raises NetworkError (with the address and the cause) if that fails or takes longer than
        `setup_timeout` seconds, UnsupportedVersionError if the broker is too old,
        AuthenticationError if client and broker reject each other.
        """
        connection: BrokerConnection | None = None
        # A token may have to be fetched first, which has its own timeouts.
        client = None if sasl_client is None else await sasl_client(node)
        try:
            async with asyncio.timeout(setup_timeout):
                transport = await connect(node, setup_timeout)
                connection = cls(
                    node,
                    transport,
                    settings,
                    listener=listener,
                    on_throttle=on_throttle,
                    on_writable=on_writable,
                )
                if client is not None and sasl_client is not None:
                    await connection._authenticate(client, sasl_client)
                connection.api_versions = await fetch_api_versions(
                    node, connection._send_version, cluster_id=cluster_id
                )
                connection._frames.allow_large()
                return connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise NetworkError(
                    f"{node}: no connection within {setup_timeout:.1f} s "
                    "(socket.connection.setup.timeout.ms)"
                ) from error
            if isinstance(error, OSError) and not isinstance(error, KafkaError):
                raise connect_failure(node, error) from error
            raise

    async def _authenticate(
        self, client: SaslClient, sasl_client: Callable[[Node], Awaitable[SaslClient]]
    ) -> None:
        self.api_versions = await fetch_first_api_versions(self.node, self._send_version)
        session = SaslSession(self.node, sasl_client, self._ask, self._loop.time)
        await session.authenticate(client)
        self._renew_when_due(session)

    def _renew_when_due(self, session: SaslSession) -> None:
        self._reauthentication = Reauthentication(
            session,
            self.node,
            send=self._enqueue,
            on_renewed=self._on_renewed,
            on_failed=self._fail,
            listener=self._listener,
        )

    def _on_renewed(self) -> None:
        if not self._outgoing:
            self._on_writable()

    async def _ask(self, request: ApiRequest[ResponseT]) -> ResponseT:
        return await self._send_version(request, self._version_for(request, None))

    @property
    def in_flight_count(self) -> int:
        """The number of unanswered requests, and of unsent ones that get no response."""
        held = self._reauthentication.held_count if self._reauthentication is not None else 0
        return len(self._in_flight) + self._outgoing.without_response + held

    @property
    def has_unsent(self) -> bool:
        """Whether any request is waiting for the socket, or for the session to be renewed."""
        renewals = self._reauthentication
        return bool(self._outgoing) or (renewals is not None and renewals.held_count > 0)

    def is_unsent(self, outcome: asyncio.Future[Any]) -> bool:
        """Return whether the socket has not yet accepted all of the request with this outcome."""
        renewals = self._reauthentication
        return self._outgoing.holds(outcome) or (renewals is not None and renewals.holds(outcome))

    def send(
        self,
        request: ApiRequest[ResponseT],
        *,
        max_version: int | None = None,
        timeout: float | None = None,
        on_done: Callable[[asyncio.Future[ResponseT]], None] | None = None,
    ) -> asyncio.Future[ResponseT]:
        """Send a request in the highest common version; the future returns the decoded response.

        `timeout` is in seconds, request.timeout.ms without it: a JoinGroup may take longer.

        `max_version` caps the version if a later one would mean something other than the caller
        intends (KIP-890: Produce 12 itself adds partitions to the transaction). The future fails
        with NetworkError if the connection ends first. `on_done` is called with the future once it
        is done: in the round of the loop in which the response arrives, whereas a done callback
        would run in the next one; after a failure as a done callback, since a caller that is about
        to be told of it must not be called meanwhile.
        """
        version = self._version_for(request, max_version)
        response: asyncio.Future[ResponseT] = self._loop.create_future()
        self._send_or_hold(PendingRequest(request, version, response, timeout=timeout))
        if on_done is not None:
            self._handlers.add(response, on_done)
        return response

    def send_without_response(
        self, request: AnyRequest, *, max_version: int | None = None
    ) -> asyncio.Future[None]:
        """Send a request that the broker does not answer (acks=0); see `send`.

        The future is done when the operating system has accepted the bytes.
        """
        version = self._version_for(request, max_version)
        sent: asyncio.Future[None] = self._loop.create_future()
        self._send_or_hold(PendingRequest(request, version, sent, has_response=False))
        return sent

    def _send_or_hold(self, pending: PendingRequest) -> None:
        renewals = self._reauthentication
        if renewals is None or self._closed_by is not None or not renewals.must_hold():
            self._enqueue(pending)
            return
        now = self._loop.time()
        renewals.hold(pending, now)
        self._timeout_check.check_at(now + self._settings.request_timeout)

    def _version_for(self, request: AnyRequest, max_version: int | None) -> int:
        highest = request.highest_version
        if max_version is not None:
            highest = min(highest, max_version)
        return self.api_versions.version_for(request.api_key, highest)

    def _send_version(
        self, request: ApiRequest[ResponseT], version: int
    ) -> asyncio.Future[ResponseT]:
        response: asyncio.Future[ResponseT] = self._loop.create_future()
        self._enqueue(PendingRequest(request, version, response))
        return response

    def _enqueue(self, pending: PendingRequest) -> None:
        if self._closed_by is not None:
            raise self._closed_by
        try:
            correlation_id = self._next_correlation_id
            self._next_correlation_id = (correlation_id + 1) & MAX_CORRELATION_ID
            header = RequestHeader(
                request_api_key=pending.request.api_key,
                request_api_version=pending.version,
                correlation_id=correlation_id,
                client_id=self._settings.client_id,
            )
            buffers = encode_request(header, pending.request)
        except MemoryError as error:
            # Any other error is caused by the request itself and leaves the connection intact.
            raise self._lose(error, "sending") from error
        try:
            self._begin_to_send(pending, correlation_id, buffers)
        except Exception as error:
            loss = self._lose(error, "sending")
            if pending.outcome.done() and not pending.outcome.cancelled():
                # The caller gets the error from here and may never retrieve it from the future.
                pending.outcome.exception()
            raise loss from error

    def _begin_to_send(
        self,
        pending: PendingRequest,
        correlation_id: int,
        buffers: Sequence[bytes | memoryview],
    ) -> None:
        request, version, outcome, has_response, timeout = pending
        self._last_used = now = self._loop.time()
        deadline = now + (self._settings.request_timeout if timeout is None else timeout)
        if has_response:
            # Before its first byte is sent: the response must find its request.
            self._in_flight.add(
                InFlightRequest(correlation_id, request.api_key, version, now, deadline, outcome)
            )
        is_sent = False
        unsent = to_send(buffers)
        size = sum(map(len, unsent))
        if not self._outgoing:
            # Usually the system accepts everything.
            try:
                is_sent = self._transport.write(unsent)
            except (OSError, KafkaError) as error:
                self._loop.call_soon(self._on_write_error, error)
        if not is_sent:
            self._outgoing.add(OutgoingRequest(unsent, outcome, has_response), now)
        elif not has_response:
            outcome.set_result(None)
        if not is_sent or has_response:
            self._timeout_check.check_at(deadline)
        if self._listener is not None:
            self._listener.request_sent(self.node.node_id, request.api_key, size)

    def _on_write_error(self, error: Exception) -> None:
        if not isinstance(error, KafkaError):
            # The peer may have answered earlier requests before it hung up.
            self._on_bytes_to_read()
        self._lose(error, "sending")

    def _on_room_to_write(self) -> None:
        if not self._outgoing:
            return
        try:
            while self._outgoing:
                if not self._transport.write(self._outgoing.first.buffers):
                    return
                request = self._outgoing.pop()
                if not request.has_response and not request.outcome.done():
                    request.outcome.set_result(None)
        except Exception as error:  # noqa: BLE001  otherwise all requests would hang
            self._lose(error, "sending")
        else:
            self._on_writable()

    def _on_bytes_to_read(self) -> None:
        frames = self._frames
        try:
            received = frames.read()
            if received == 0:
                kind = self._kind_of_loss()
                self._fail(kind(f"{self.node}: the broker closed the connection"), None)
            while received and self._closed_by is None:
                if (frame := frames.next_frame()) is None:
                    break
                self._receive(frame)
        except Exception as error:  # noqa: BLE001  otherwise all requests would hang
            self._lose(error, "reading", self._kind_of_loss())

    def _kind_of_loss(self) -> type[NetworkError]:
        if self._frames.is_first:
            return SilentPeerError
        return GreetedOnlyError if self._in_flight and self._is_only_greeted else NetworkError

    def _receive(self, frame: memoryview) -> None:
        request = self._in_flight.complete(peek_correlation_id(frame))
        if self._outgoing.holds(request.response):
            raise DecodeError(
                f"a response to request {request.correlation_id}, which has not been sent in full"
            )
        self._is_only_greeted &= request.api_key == ApiKey.API_VERSIONS
        try:
            _, response = decode_response(
                request.api_key, request.api_version, frame, max_elements=self._frames.max_elements
            )
        except Exception as error:
            # It is no longer in flight, so it would not fail together with the connection.
            if not request.response.done():
                problem = str(error) or type(error).__name__
                request.response.set_exception(
                    NetworkError(f"{self.node}: {request.api_key.name} response: {problem}")
                )
            raise
        try:
            self._note_response(request, response, len(frame) + FRAME_OVERHEAD)
        finally:
            self._handlers.answer(request.response, response)

    def _note_response(self, request: InFlightRequest, response: ApiResponse, size: int) -> None:
        self._last_used = self._loop.time()
        if self._listener is not None:
            latency = self._last_used - request.sent_at
            self._listener.response_received(self.node.node_id, request.api_key, size, latency)
        if throttle_time_ms := getattr(response, "throttle_time_ms", 0):
            self._throttled(request, throttle_time_ms / 1000)

    def _throttled(self, request: InFlightRequest, seconds: float) -> None:
        if self._listener is not None:
            self._listener.throttled(self.node.node_id, request.api_key, seconds)
        if self._on_throttle is not None and client_throttles(request.api_key, request.api_version):
            self._on_throttle(seconds)

    def _deadlines(self) -> dict[str, float | None]:
        timeout, renewals = self._settings.request_timeout, self._reauthentication
        return {
            "the broker has stopped reading: the socket took no bytes": self._outgoing.stalls_at(
                self._transport.taken_at, timeout
            ),
            "the session was not renewed": renewals.held_until(timeout) if renewals else None,
            _NO_ANSWER: self._in_flight.next_deadline(),
        }

    def _time_out(self, overdue: str) -> None:
        timeout, setting = self._settings.request_timeout, " (request.timeout.ms)"
        if overdue == _NO_ANSWER and (longer := self._in_flight.next_timeout()) > timeout:
            timeout, setting = longer, ""
        self._fail(NetworkError(f"{self.node}: {overdue} within {timeout:g} s{setting}"), None)

    def close(self, reason: str = "closed by this client") -> None:
        """Close the connection; unanswered requests fail. May be called more than once."""
        self.closed_in_peace = self.closed_in_peace or self._closed_by is None
        self._fail(NetworkError(f"{self.node}: the connection was {reason}"), None)

    def drop(self) -> None:
        """Close the socket of a loop that was closed, which calls nothing any more."""
        if self._closed_by is None:
            self._closed_by = NetworkError(f"{self.node}: the event loop was closed")
            # uvloop refuses to forget a socket then.
            with suppress(RuntimeError):
                self._transport.close()

    def _lose(
        self, error: Exception, doing: str, kind: type[NetworkError] = NetworkError
    ) -> KafkaError:
        """End the connection because moving bytes raised an error, and return the reason."""
        loss = loss_of(self.node, error, doing, kind)
        self._fail(loss, error.__cause__ if loss is error else error)
        return loss

    def _fail(self, error: KafkaError, cause: BaseException | None) -> None:
        if self._closed_by is not None:
            return
        error.__cause__ = cause
        self._closed_by = error
        self._timeout_check.cancel()
        self._idle_check.cancel()
        self._transport.close()
        waiting = [request.outcome for request in self._outgoing.clear()]
        if self._reauthentication is not None:
            waiting += self._reauthentication.end()
        self._in_flight.fail_all(error)
        # They refer to this connection and to the bytes of their requests: a cycle.
        self._handlers.clear()
        for outcome in waiting:
            if not outcome.done():
                outcome.set_exception(error)
        if self._on_close is not None:
            self._on_close(error)

    def set_on_close(self, on_close: Callable[[KafkaError], None]) -> None:
        """Set a function to call with the reason when the connection ends, or now if it has."""
        self._on_close = on_close
        if self._closed_by is not None:
            on_close(self._closed_by)
