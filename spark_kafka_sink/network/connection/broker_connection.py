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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import DecodeError, KafkaError, NetworkError
from spark_kafka_sink.network.authentication.sasl_session import SaslSession
from spark_kafka_sink.network.base.timeout_check import TimeoutCheck
from spark_kafka_sink.network.connection.idle_check import IdleCheck
from spark_kafka_sink.network.connection.in_flight_requests import InFlightRequest, InFlightRequests
from spark_kafka_sink.network.connection.incoming_frames import IncomingFrames
from spark_kafka_sink.network.connection.node_api_versions import (
    NodeApiVersions,
    fetch_api_versions,
    fetch_first_api_versions,
)
from spark_kafka_sink.network.connection.outgoing_requests import OutgoingRequest, OutgoingRequests
from spark_kafka_sink.network.connection.reauthentication import HeldRequest, Reauthentication
from spark_kafka_sink.network.connection.response_handlers import ResponseHandlers
from spark_kafka_sink.network.connection.throttle_versions import client_throttles
from spark_kafka_sink.network.transport.connection_errors import (
    GreetedOnlyError,
    SilentPeerError,
    connect_failure,
    loss_of,
)
from spark_kafka_sink.network.transport.transport import to_send
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.registry import decode_response, encode_request, peek_correlation_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.network_listener import NetworkListener
    from spark_kafka_sink.network.transport.transport import Transport
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiRequest, ApiResponse, ResponseT
    from spark_kafka_sink.security.sasl import SaslClient

MAX_CORRELATION_ID = 2**31 - 1
#: The size of the length prefix of a frame, in bytes.
FRAME_OVERHEAD = 4
#: The reason for closing a connection with unsent records that were given up.
CLOSED_UNSENT = "closed by this client: it gave up records that the broker had not yet read"
#: What is overdue when a request is.
_NO_ANSWER: Final = "no answer"


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
        self._closed_in_peace = False
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
    ) -> BrokerConnection:
        """Connect by `connect`, called with node and timeout, and fetch the broker's API versions.

        With `sasl_client`, which begins an exchange, the connection authenticates first.
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
                connection.api_versions = await fetch_api_versions(node, connection._send_version)
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
            send=self._send_held,
            on_renewed=self._on_renewed,
            on_failed=self._fail,
            listener=self._listener,
        )

    def _send_held(self, held: HeldRequest) -> None:
        self._enqueue(
            held.request,
            held.version,
            held.outcome,
            has_response=held.has_response,
            timeout=held.timeout,
        )

    def _on_renewed(self) -> None:
        if not self._outgoing:
            self._on_writable()

    async def _ask(self, request: ApiRequest[ResponseT]) -> ResponseT:
        return await self._send_version(request, self._version_for(request, None))

    @property
    def closed_in_peace(self) -> bool:
        """Whether this client closed the connection on its own, not because of an error."""
        return self._closed_in_peace

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
        self._send_or_hold(request, version, response, has_response=True, timeout=timeout)
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
        self._send_or_hold(request, version, sent, has_response=False)
        return sent

    def _send_or_hold(
        self,
        request: AnyRequest,
        version: int,
        outcome: asyncio.Future[Any],
        *,
        has_response: bool,
        timeout: float | None = None,
    ) -> None:
        renewals = self._reauthentication
        if renewals is None or self._closed_by is not None or not renewals.must_hold():
            self._enqueue(request, version, outcome, has_response=has_response, timeout=timeout)
            return
        now = self._loop.time()
        renewals.hold(HeldRequest(request, version, outcome, has_response, now, timeout))
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
        self._enqueue(request, version, response, has_response=True)
        return response

    def _take_correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & MAX_CORRELATION_ID
        return correlation_id

    def _enqueue(
        self,
        request: AnyRequest,
        version: int,
        outcome: asyncio.Future[Any],
        *,
        has_response: bool,
        timeout: float | None = None,
    ) -> None:
        if self._closed_by is not None:
            raise self._closed_by
        try:
            header = RequestHeader(
                request_api_key=request.api_key,
                request_api_version=version,
                correlation_id=self._take_correlation_id(),
                client_id=self._settings.client_id,
            )
            buffers = encode_request(header, request)
        except MemoryError as error:
            # Any other error is caused by the request itself and leaves the connection intact.
            raise self._lose(error, "sending") from error
        try:
            self._begin_to_send(
                request.api_key,
                header,
                buffers,
                outcome,
                has_response=has_response,
                timeout=self._settings.request_timeout if timeout is None else timeout,
            )
        except Exception as error:
            loss = self._lose(error, "sending")
            if outcome.done() and not outcome.cancelled():
                # The caller gets the error from here and may never retrieve it from the future.
                outcome.exception()
            raise loss from error

    def _begin_to_send(
        self,
        api_key: ApiKey,
        header: RequestHeader,
        buffers: Sequence[bytes | memoryview],
        outcome: asyncio.Future[Any],
        *,
        has_response: bool,
        timeout: float,
    ) -> None:
        self._last_used = now = self._loop.time()
        deadline = now + timeout
        if has_response:
            # Before its first byte is sent: the response must find its request.
            self._in_flight.add(
                InFlightRequest(
                    header.correlation_id,
                    api_key,
                    header.request_api_version,
                    now,
                    deadline,
                    outcome,
                )
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
            self._listener.request_sent(self.node.node_id, api_key, size)

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
        self._closed_in_peace = self._closed_in_peace or self._closed_by is None
        self._fail(NetworkError(f"{self.node}: the connection was {reason}"), None)

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
