"""One client's connection: its requests, handled in order.

- Requests are handled one after the other and answered in that order, as in Kafka: while one
  waits (a Fetch for data, a fault that delays), those behind it wait too.
- However many requests a client has sent at once, a turn of the event loop handles only one of
  them, or as many as fit in a few milliseconds: other clients are served in between. If a request
  took long, or the client has not authenticated, the next one waits in a `Lane`.
- Frames are received in place. Their size is limited by socket.request.max.bytes, more tightly
  for requests other than Produce, and so is the number of elements. Bytes that are not a request
  close the connection.
- Responses send the log's own buffers, and only as fast as the client reads them; until then no
  further request is read. If others do not read theirs, large responses wait (`UnreadAnswers`).
- A client that has closed its side still receives the responses that are ready; a request that
  waits is abandoned.
- Until a client of a SASL listener has authenticated, its requests go to its authenticator and must
  be small. A client that fails is informed after a delay, and then the connection is closed.
- Faults are decided in one place, `Connection._decide`, before the broker handles the request.
  `_act` replaces the handling, `_answer` changes the response.
- While the broker is paused, nothing is read, handled or sent. What would have been done in this
  time is done when it is resumed.

`server` plugs connections into the event loop.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from spark_kafka_sink.devbroker.base.authorizer import ANONYMOUS
from spark_kafka_sink.devbroker.base.broker_settings import Patience
from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
    PartitionFault,
)
from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.net import faults
from spark_kafka_sink.devbroker.net.acceptor import AcceptedConnection
from spark_kafka_sink.devbroker.net.dispatcher import LONG_SECONDS, ROOM, Lane
from spark_kafka_sink.devbroker.net.frame_receiver import FrameReceiver
from spark_kafka_sink.devbroker.net.sasl_authenticator import AuthenticationFailedError
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.security.subject_name import subject_name
from spark_kafka_sink.security.tls import ClientAuth

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable

    from spark_kafka_sink.devbroker.net.listener import Listener
    from spark_kafka_sink.devbroker.net.sasl_authenticator import SaslAuthenticator
    from spark_kafka_sink.devbroker.net.server import Server
    from spark_kafka_sink.protocol.primitives import Buffer
    from spark_kafka_sink.protocol.registry import RequestHeader
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

logger = logging.getLogger(__name__)
#: Logs one line for each request; see `--log-requests`.
request_logger = logging.getLogger("spark_kafka_sink.devbroker.requests")

#: Buffers of a response smaller than this are joined before they are sent.
_JOIN_BELOW_BYTES = 256 * 1024
#: No further request of a connection is handled in the same turn of the event loop after this time.
TURN_SECONDS = 0.005
#: After this time a request that waits for room checks again whether a client has stalled.
_ROOM_CHECK_SECONDS = 1.0
#: Requests that never wait for room: their responses are small, and members of groups and connected
#: producers should not suffer from consumers that do not read.
_SMALL_RESPONSES = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.API_VERSIONS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.HEARTBEAT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
#: How long a rejected client has to read the reason.
_LINGER_SECONDS = 0.1


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that has not been answered yet."""

    header: RequestHeader
    request: AnyRequest
    #: When it arrived, by the clock of the loop; see `Connection._arrived`.
    began: float
    #: The bytes of the request.
    size: int
    #: What a fault does to the response.
    action: faults.Action | None = None
    #: The response, if only the time to send it has not come yet.
    response: ApiResponse | None = None
    watched: frozenset[Hashable] = frozenset()
    kept: object = None
    timer: asyncio.TimerHandle | None = None


class Connection(AcceptedConnection):
    """One client's connection; implements asyncio's BufferedProtocol."""

    max_pending_write_bytes = 4 * 1024 * 1024

    def __init__(
        self,
        server: Server,
        connection_id: int,
        listener: Listener,
        authenticator: SaslAuthenticator | None,
        client_host: str,
    ) -> None:
        patience = Patience(
            server.broker.settings.connection_limits,
            server.loop.time(),
            authenticates=authenticator is not None,
        )
        super().__init__(server, f"connection {connection_id}", client_host, patience)
        self._server = server
        self._id = connection_id
        self._listener = listener
        self._authenticator = authenticator
        self._receiver = FrameReceiver(
            self._max_frame_bytes, server.broker.settings.control_request_max_bytes
        )
        self._waiting: _Waiting | None = None
        self._outgoing: deque[Buffer] = deque()
        self._write_paused = False
        self._read_paused = False
        self._muted = False
        #: Whether the next request waits for a turn of the event loop, or of a lane.
        self._awaits_turn = False
        self._last_took_long = False
        #: The principal that follows from the client's certificate, if it has one.
        self._certified = ANONYMOUS
        self._eof = False
        self._closing = False
        #: Whether the broker is paused, and has missed a call of `wake` since.
        self._is_paused = False
        self._missed_wake = False
        #: Ends a period in which the connection is muted.
        self._unmute: asyncio.TimerHandle | None = None

    @property
    def _principal(self) -> str:
        """Who the client is: its user or, without SASL, the subject of its certificate."""
        if self._authenticator is not None:
            return f"User:{self._authenticator.user}"
        return self._certified

    @property
    def _max_frame_bytes(self) -> int:
        most = self._server.broker.settings.socket_request_max_bytes
        if self._authenticator is None or self._authenticator.is_complete:
            return most
        sasl = self._listener.sasl
        return most if sasl is None else min(most, sasl.max_receive_bytes)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to read from the client, whose TLS handshake is complete."""
        super().connection_made(transport)
        if self._listener.client_auth is not ClientAuth.NONE:
            certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if certificate is not None:
                self._guarded(lambda: self._certify(certificate))

    def _certify(self, certificate: bytes) -> None:
        self._certified = f"User:{subject_name(certificate)}"

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection and abandon the request that waits."""
        self._stop_waiting()
        if self._unmute is not None:
            self._unmute.cancel()
        self._outgoing.clear()
        # Without a transport, nothing of it is unread.
        self._transport = None
        if self._server.dispatcher.unread_answers.remove(self):
            self._server.dispatcher.made_room()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer for the next bytes."""
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the requests that are now complete."""
        self._receiver.received(nbytes)
        self._patience.active(self._server.loop.time())
        self._advance()

    def eof_received(self) -> bool:
        """Send what is ready, then close: the client has closed its side."""
        self._eof = True
        self._advance()
        # TLS does not support half-closed connections.
        return self._listener.tls is None

    def pause_writing(self) -> None:
        """Hold back responses: the client does not read them."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Resume responses, and then requests."""
        self._write_paused = False
        self._patience.active(self._server.loop.time())
        self._advance()

    # Called by the server and the budget of unread responses.

    @property
    def unread_bytes(self) -> int:
        """The bytes in memory that wait until the client reads them."""
        if self._transport is None:
            return 0
        own = sum(len(buffer) for buffer in self._outgoing if not _is_of_log(buffer))
        return self._transport.get_write_buffer_size() + own

    def wake(self) -> None:
        """Retry the waiting request: what it watches has changed, or its time is up."""
        waiting = self._waiting
        if waiting is None:
            return
        if self._is_paused:
            self._missed_wake = True
            return
        self._stop_waiting()
        if waiting.response is None:
            self._guarded(lambda: self._handle(waiting))
        else:
            self._send(waiting.header, waiting.response)
        self._advance()

    def pause(self) -> None:
        """Read, handle and send nothing until `resume`."""
        self._is_paused = True
        if self._transport is not None and not self._read_paused:
            self._transport.pause_reading()
            self._read_paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self._is_paused = False
        missed, self._missed_wake = self._missed_wake, False
        if missed:
            self.wake()
        self._advance()

    @property
    def _is_working(self) -> bool:
        return self._waiting is not None or self._awaits_turn or self._is_paused

    # Requests.

    def _advance(self, *, has_turn: bool = False) -> None:
        """Write what is possible now, and handle the next request, or wait for a turn to do so."""
        if self._is_paused:
            return
        self._guarded(lambda: self._handle_frames(has_turn=has_turn))
        if self._transport is None:
            return
        busy = self._waiting is not None or self._write_paused or self._muted or self._awaits_turn
        # If a client sends more while it waits, reading pauses; otherwise reading continues, so
        # that a disconnect is noticed.
        pause = busy and self._receiver.is_partial
        if pause and not self._read_paused:
            self._transport.pause_reading()
        elif self._read_paused and not pause and not self._eof:
            self._transport.resume_reading()
        self._read_paused = pause
        if pause or not self._receiver.is_partial:
            self._patience.request_ended()
        else:
            self._patience.request_began(self._server.loop.time())
            self._watch()
        if self._eof and not self._write_paused and not self._awaits_turn:
            self._close()

    def _handle_frames(self, *, has_turn: bool) -> None:
        self._flush()
        cpu_clock = self._server.dispatcher.cpu_clock
        began = turn_began = cpu_clock()
        has_turn = has_turn or self._lane() is None
        while self._may_handle:
            if not has_turn and self._receiver.has_frame:
                self._await_turn()
                return
            frame = self._receiver.next_frame()
            if frame is None:
                return
            self._patience.request_ended()
            self._handle_frame(frame)
            ended = cpu_clock()
            self._last_took_long = ended - began > LONG_SECONDS
            has_turn = ended - turn_began < TURN_SECONDS and self._lane() is None
            began = ended

    @property
    def _may_handle(self) -> bool:
        """Whether nothing keeps the next request from being handled."""
        # TLS has no half-closed connections: what a client sent before it left (acks=0) still
        # takes effect after the connection is closed.
        is_open = self._eof or (self._transport is not None and not self._transport.is_closing())
        return (
            is_open
            and not self._closing
            and self._waiting is None
            and not self._write_paused
            and not self._muted
            and not self._awaits_turn
            and not self._is_paused
        )

    def _lane(self) -> Lane | None:
        """Return the lane in which the next request has to wait, if any."""
        if self._authenticator is not None and not self._authenticator.is_complete:
            return self._server.dispatcher.unauthenticated_lane
        return self._server.dispatcher.slow_lane if self._last_took_long else None

    def _await_turn(self) -> None:
        self._awaits_turn = True
        lane = self._lane()
        if lane is None:
            self._server.loop.call_soon(self._take_turn)
        else:
            lane.enter(self._take_turn)

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._advance(has_turn=True)

    def _handle_frame(self, frame: memoryview) -> None:
        now = self._server.dispatcher.clock()
        if self._authenticator is not None and self._authenticator.takes(frame, now):
            self._authenticate(self._authenticator, frame, now)
            return
        header, request = self._server.broker.decode_request(frame)
        waiting = _Waiting(header, request, self._server.loop.time(), len(frame))
        if request_logger.isEnabledFor(logging.INFO):
            self._log(header)
        waiting.action = self._decide(waiting, now)
        self._act(waiting)

    def _authenticate(
        self, authenticator: SaslAuthenticator, frame: memoryview, now: float
    ) -> None:
        try:
            answer = authenticator.receive(frame, now)
        except AuthenticationFailedError as failed:
            logger.info("%s failed to authenticate: %s", self._name, failed)
            self._refuse(failed.answer)
        else:
            self._server.dispatcher.handled()
            self._receiver.max_frame_bytes = self._max_frame_bytes
            if authenticator.is_complete:
                self._patience.authenticated()
            self._outgoing.extend(answer)
            self._flush()

    def _refuse(self, answer: list[Buffer]) -> None:
        """Respond after a delay and close a moment later; handle nothing more until then.

        Clients may ignore a response that arrives together with the end of the connection.
        """
        self._muted = True
        sasl = self._listener.sasl
        delay = 0.0 if sasl is None else sasl.failed_authentication_delay_ms / 1000

        loop = self._server.dispatcher.loop

        def answer_and_linger() -> None:
            self._outgoing.extend(answer)
            self._flush()
            self._unmute = loop.call_later(_LINGER_SECONDS, self._close)

        self._unmute = loop.call_later(delay, answer_and_linger if answer else self._close)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a step of the connection's work; close the connection if it fails."""
        try:
            work()
        except (CloseConnectionError, DecodeError) as error:
            logger.info("closing %s: %s", self._name, error)
            self._close()
        except Exception:
            logger.exception("closing %s", self._name)
            self._close()

    def _handle(self, waiting: _Waiting) -> None:
        """Pass the request to the broker; send its response, or wait."""
        unread_answers = self._server.dispatcher.unread_answers
        if waiting.header.request_api_key not in _SMALL_RESPONSES and not unread_answers.has_room(
            self._server.loop.time()
        ):
            self._wait(waiting, _ROOM_CHECK_SECONDS, frozenset({ROOM}))
            return
        broker = self._server.broker
        now = self._server.dispatcher.clock()
        action = waiting.action
        try:
            outcome = broker.handle(
                waiting.header,
                waiting.request,
                now,
                arrived=self._arrived(waiting, now),
                kept=waiting.kept,
                client_host=self.client_host,
                principal=self._principal,
                listener=self._listener.name,
                fault=action if isinstance(action, PartitionFault) else None,
                throttled=isinstance(action, faults.Throttle),
            )
        finally:
            self._server.dispatcher.handled()
        if isinstance(outcome, Delayed):
            waiting.kept = outcome.kept
            self._wait(waiting, outcome.until - now, outcome.watched)
        else:
            self._answer(waiting, self._throttled(waiting, outcome, now))

    def _throttled(
        self, waiting: _Waiting, outcome: ApiResponse | None, now: float
    ) -> ApiResponse | None:
        """Stop reading from a client that exceeds a quota, and tell it for how long."""
        if isinstance(waiting.action, faults.Throttle):
            return outcome
        if waiting.header.request_api_key == ApiKey.PRODUCE:
            seconds = self._server.broker.record_produced(
                waiting.header, self._principal, waiting.size, now
            )
            if seconds > 0 and outcome is not None:
                throttle_time_ms = math.ceil(seconds * 1000)
                outcome = replace(cast("Any", outcome), throttle_time_ms=throttle_time_ms)
        elif isinstance(outcome, FetchResponse):
            seconds = outcome.throttle_time_ms / 1000
        else:
            return outcome
        if seconds > 0:
            self._mute_for(seconds)
        return outcome

    def _arrived(self, waiting: _Waiting, now: float) -> float:
        """Return when a request arrived, in seconds since 1970, if it is `now` that late.

        The broker's clock may leap or stand still, and a client waits for real.
        """
        return now - (self._server.loop.time() - waiting.began)

    def _log(self, header: RequestHeader) -> None:
        request_logger.info(
            "broker %d, connection %d: %s %d from %r, correlation id %d",
            self._server.broker.node_id,
            self._id,
            ApiKey(header.request_api_key).name,
            header.request_api_version,
            header.client_id,
            header.correlation_id,
        )

    def _decide(self, waiting: _Waiting, now: float) -> faults.Action | None:
        """Return the action that the fault hooks choose, if any."""
        return self._server.faults.decide(
            waiting.request,
            waiting.header,
            now,
            self._server.broker.node_id,
            self._id,
        )

    def _act(self, waiting: _Waiting) -> None:
        """Handle the request, unless a fault prevents or delays it."""
        match waiting.action:
            case faults.Delay(seconds=seconds, handled=False):
                waiting.action = None
                self._wait(waiting, seconds, frozenset())
            case (
                faults.AnswerError(handled=False)
                | faults.CloseConnection(False)
                | faults.NeverAnswer(False)
            ):
                self._answer(waiting, None)
            case _:
                self._handle(waiting)

    def _answer(self, waiting: _Waiting, response: ApiResponse | None) -> None:
        """Respond to a request, unless a fault changes that; None means no response."""
        match waiting.action:
            case None:
                if response is not None:
                    self._send(waiting.header, response)
            case faults.AnswerError(error_code=error_code):
                self._send(
                    waiting.header,
                    self._server.broker.error_response(
                        waiting.header,
                        waiting.request,
                        error_code,
                        self._arrived(waiting, self._server.dispatcher.clock()),
                    ),
                )
            case faults.CloseConnection():
                raise CloseConnectionError("a fault was injected")
            case faults.NeverAnswer():
                self._muted = True
            case action if response is not None:
                self._respond_faultily(action, waiting, response)

    def _respond_faultily(
        self, action: faults.Action, waiting: _Waiting, response: ApiResponse
    ) -> None:
        match action:
            case faults.Delay(seconds=seconds):
                waiting.response = response
                self._wait(waiting, seconds, frozenset())
            case faults.Throttle(seconds=seconds):
                self._mute_for(seconds)
                if hasattr(response, "throttle_time_ms"):
                    throttle_time_ms = round(seconds * 1000)
                    response = replace(cast("Any", response), throttle_time_ms=throttle_time_ms)
                self._send(waiting.header, response)
            case faults.AlterResponse(alter=alter):
                self._send(waiting.header, alter(response))
            case faults.Corrupt(alter=alter, close=close):
                frame = b"".join(self._server.broker.encode_response(waiting.header, response))
                self._outgoing.append(alter(frame))
                self._flush()
                if close:
                    raise CloseConnectionError("a fault was injected")
            case PartitionError() | OmitPartitions() | AlterRecords():
                # They changed what the handler did, which made this response.
                self._send(waiting.header, response)
            case _:
                raise TypeError(f"{action!r} does nothing to a response")

    def _mute_for(self, seconds: float) -> None:
        def resume() -> None:
            self._muted = False
            self._advance()

        self._muted = True
        self._unmute = self._server.dispatcher.loop.call_later(seconds, resume)

    def _wait(self, waiting: _Waiting, seconds: float, watched: frozenset[Hashable]) -> None:
        if self._transport is None:
            return
        waiting.watched = watched
        waiting.timer = self._server.dispatcher.loop.call_later(max(0.0, seconds), self.wake)
        self._waiting = waiting
        self._server.dispatcher.watch(self, watched)

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if waiting.timer is not None:
                waiting.timer.cancel()
            self._server.dispatcher.unwatch(self, waiting.watched)

    # Responses.

    def _send(self, header: RequestHeader, response: ApiResponse) -> None:
        self._outgoing.extend(self._server.broker.encode_response(header, response))
        self._flush()

    def _flush(self) -> None:
        """Write as much as the client reads: large buffers as they are, small ones joined."""
        if self._eof and self._listener.tls is not None:
            self._outgoing.clear()
        while self._outgoing and self._transport is not None and not self._write_paused:
            joined: list[Buffer] = []
            size = 0
            while self._outgoing and size + len(self._outgoing[0]) <= _JOIN_BELOW_BYTES:
                size += len(self._outgoing[0])
                joined.append(self._outgoing.popleft())
            self._transport.write(b"".join(joined) if joined else self._outgoing.popleft())
        dispatcher = self._server.dispatcher
        if dispatcher.unread_answers.update(self, self._server.loop.time()):
            dispatcher.made_room()

    def _close(self) -> None:
        """Close once everything written has been sent."""
        self._closing = True
        self._stop_waiting()
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.close()


def _is_of_log(buffer: Buffer) -> bool:
    """Return whether a buffer takes no memory of its own: a log in memory keeps frames received."""
    return isinstance(buffer, memoryview) and isinstance(buffer.obj, bytearray)
