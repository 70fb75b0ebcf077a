"""The Schema Registry's sockets: its connections, on the event loop of the brokers.

- Requests of a connection are handled one after the other, one in each turn of the event loop.
- Heads and bodies are limited (`http_message`), and so is the time that a request takes to arrive,
  and that a connection is idle, as with a broker. While a response waits, nothing more is read.
- A listener with SASL asks for basic authentication, with the users and passwords of its settings.
  A client that fails gets the response after a delay, and then the connection is closed.
- Faults are decided in one place, `_RegistryConnection._handle`, before the request is handled.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.broker_settings import Patience
from spark_kafka_sink.devbroker.net.acceptor import AcceptedConnection, Acceptor, OpenListener
from spark_kafka_sink.devbroker.net.faults import CloseConnection, Delay, NeverAnswer
from spark_kafka_sink.devbroker.registry.http_message import (
    CONTINUE,
    MalformedRequestError,
    RequestReceiver,
    encode_response,
)
from spark_kafka_sink.devbroker.registry.registry_faults import AnswerStatus, RegistryFaults
from spark_kafka_sink.devbroker.registry.rest_api import error_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.base.broker_settings import ConnectionLimits
    from spark_kafka_sink.devbroker.registry.registry_faults import RegistryAction
    from spark_kafka_sink.devbroker.registry.rest_api import RestApi, RestRequest, RestResponse

logger = logging.getLogger(__name__)

#: How long a client has to read why its request is refused, before the connection is closed.
_LINGER_SECONDS: Final = 0.1
_CHALLENGE: Final = 'Basic realm="schema-registry", charset="UTF-8"'


class RegistryServer(Acceptor):
    """A listening registry."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        api: RestApi,
        faults: RegistryFaults,
    ) -> None:
        super().__init__(loop, limits)
        self.limits = limits
        self.api = api
        self.faults = faults

    def connect(self, opened: OpenListener, connection_id: int, host: str) -> AcceptedConnection:
        """Return the connection of a new client."""
        return _RegistryConnection(self, opened, connection_id, host)


class _RegistryConnection(AcceptedConnection, asyncio.Protocol):
    """One client's connection."""

    max_pending_write_bytes = 1024 * 1024

    def __init__(
        self, server: RegistryServer, opened: OpenListener, connection_id: int, client_host: str
    ) -> None:
        patience = Patience(server.limits, server.loop.time(), authenticates=False)
        name = f"registry connection {connection_id}"
        super().__init__(server, name, client_host, patience)
        self._server = server
        self._opened = opened
        self._id = connection_id
        self._receiver = RequestReceiver()
        #: Runs what a fault, or a failed authentication, delays.
        self._delayed: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None
        self._write_paused = False
        self._muted = False
        self._closing = False
        self._eof = False

    # Called by asyncio.

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection and abandon the request that waits."""
        for handle in (self._delayed, self._turn):
            if handle is not None:
                handle.cancel()
        self._delayed = self._turn = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle the request that is now complete, if any."""
        if self._closing:
            return
        self._receiver.receive(data)
        self._patience.active(self._server.loop.time())
        self._advance()

    def eof_received(self) -> bool:
        """Send what is ready, then close: the client has closed its side."""
        self._eof = True
        self._advance()
        # TLS does not support half-closed connections.
        return self._opened.tls is None and not self._closing

    def pause_writing(self) -> None:
        """Hold back responses: the client does not read them."""
        self._write_paused = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        """Resume responses, and then requests."""
        self._write_paused = False
        self._patience.active(self._server.loop.time())
        self._advance()

    # Requests.

    @property
    def _is_busy(self) -> bool:
        """Whether no further request is handled yet."""
        return (
            self._delayed is not None or self._turn is not None or self._write_paused or self._muted
        )

    def _advance(self) -> None:
        """Handle the next request, if it is complete and nothing keeps it from being handled."""
        if not self._is_busy and not self._closing:
            try:
                self._handle_next()
            except MalformedRequestError as error:
                logger.info("closing %s: %s", self._name, error)
                # The client may still be sending, and would lose the response to a reset.
                self._send(error_response(error.status, error.message), closes=True, lingers=True)
            except Exception:
                logger.exception("closing %s", self._name)
                self.abort()
        self._pause_or_resume()

    def _handle_next(self) -> None:
        request = self._receiver.next_request()
        head = self._receiver.head if request is None else request
        if head is not None and not self._is_authenticated(head):
            # Without waiting for the body, which may be large.
            self._refuse(head)
            return
        if self._receiver.take_continue() and self._transport is not None:
            self._transport.write(CONTINUE)
        if request is not None:
            self._patience.request_ended()
            self._handle(request)
        elif self._eof:
            self._close()
        has_more = self._receiver.is_partial or self._eof
        if request is not None and has_more and self._transport is not None:
            # Other clients are served in between.
            self._turn = self._server.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._advance()

    def _pause_or_resume(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._closing:
            return
        if self._is_busy:
            # What has arrived of the next request waits, and that is not the client's fault.
            self._patience.request_ended()
            self._transport.pause_reading()
            return
        if not self._eof:
            self._transport.resume_reading()
        if self._receiver.is_partial:
            self._patience.request_began(self._server.loop.time())
        else:
            self._patience.request_ended()
        self._watch()

    def _handle(self, request: RestRequest) -> None:
        action = self._server.faults.decide(request, self._id)
        match action:
            case Delay(seconds=seconds, handled=False):
                self._later(seconds, lambda: self._answer(request, None))
            case _:
                self._answer(request, action)

    def _answer(self, request: RestRequest, action: RegistryAction | None) -> None:
        """Handle a request, unless a fault prevents that, and respond, unless one changes that."""
        response = None
        if action is None or action.handled:
            response = self._server.api.handle(request)
        match action:
            case None if response is not None:
                self._respond(request, response)
            case AnswerStatus():
                error_code = action.status if action.error_code is None else action.error_code
                failed = error_response(error_code, action.text, status=action.status)
                self._respond(request, failed)
            case Delay(seconds=seconds) if response is not None:
                answered = response
                self._later(seconds, lambda: self._respond(request, answered))
            case CloseConnection():
                self.abort()
            case NeverAnswer():
                self._muted = True

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._delayed = None
            work()
            self._advance()

        self._delayed = self._server.loop.call_later(seconds, run)

    def _respond(self, request: RestRequest, response: RestResponse) -> None:
        is_head = request.method == "HEAD"
        self._send(response, closes=not self._receiver.keeps_alive, without_body=is_head)

    def _send(
        self,
        response: RestResponse,
        *,
        closes: bool,
        lingers: bool = False,
        without_body: bool = False,
        challenge: str = "",
    ) -> None:
        if self._transport is None:
            return
        self._transport.write(
            encode_response(response, closes=closes, without_body=without_body, challenge=challenge)
        )
        if lingers:
            self._closing = True
            if not self._eof:
                self._transport.resume_reading()
            self._delayed = self._server.loop.call_later(_LINGER_SECONDS, self._close)
        elif closes:
            self._close()

    def _close(self) -> None:
        """Close once everything written has been sent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # Authentication.

    def _is_authenticated(self, request: RestRequest) -> bool:
        credentials = self._opened.credentials
        if credentials is None:
            return True
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            text = base64.b64decode(encoded.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return False
        user, separator, password = text.partition(":")
        return bool(separator) and credentials.has_password(user, password)

    def _refuse(self, request: RestRequest) -> None:
        """Respond after a delay to a client that has not authenticated, and close."""
        logger.info("%s failed to authenticate", self._name)
        sasl = self._opened.listener.sasl
        delay = 0.0 if sasl is None else sasl.failed_authentication_delay_ms / 1000
        response = error_response(HTTPStatus.UNAUTHORIZED, "Unauthorized")
        without_body = request.method == "HEAD"
        self._later(
            delay,
            lambda: self._send(
                response,
                closes=True,
                lingers=True,
                without_body=without_body,
                challenge=_CHALLENGE,
            ),
        )

    # Limits.

    @property
    def _is_working(self) -> bool:
        return self._delayed is not None or self._turn is not None
