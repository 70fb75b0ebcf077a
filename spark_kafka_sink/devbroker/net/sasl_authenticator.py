"""The authentication of a connection with SASL, as in Kafka's SaslServerAuthenticator.

- The client sends ApiVersions (optional) and SaslHandshake, then the mechanism's messages: in
  SaslAuthenticate requests, or after a SaslHandshake of version 0 without any header, each with its
  size in front.
- A request that the state does not accept (`EXPECTED`) fails the authentication. A malformed
  request closes the connection at once.
- A failure is reported to the client after a delay (connection.failed.authentication.delay.ms),
  and then the connection is closed: `AuthenticationFailedError` carries the response, if any.
- A session that expires (KIP-368) is extended by another SaslHandshake with the same mechanism and
  user, at most once a second. After it has expired, the next request closes the connection.

Bytes in, bytes out: this module has no socket and no clock.
"""

from __future__ import annotations

import logging
import math
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.net.sasl_servers import (
    OAuthBearerServer,
    PlainServer,
    SaslAuthenticationError,
    SaslRefusedError,
    ScramServer,
)
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.frame import encode_frame
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from spark_kafka_sink.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_sink.protocol.registry import RequestHeader, decode_request_header
from spark_kafka_sink.security.sasl import SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.broker import Broker
    from spark_kafka_sink.devbroker.net.listener import SaslSettings
    from spark_kafka_sink.devbroker.net.sasl_servers import Credentials, SaslServer
    from spark_kafka_sink.protocol.primitives import Buffer

logger = logging.getLogger(__name__)


_FIRST_VERSION_WITH_HEADERS = 1
_MIN_REAUTHENTICATION_INTERVAL = 1.0
#: What an answer can hold; a token may claim to last longer.
_LONGEST_LIFETIME_MS = 2**63 - 1
_FIRST: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE})


class SaslState(StrEnum):
    """A state of a connection's authentication, under its name in SaslServerAuthenticator."""

    INITIAL_REQUEST = "INITIAL_REQUEST"
    HANDSHAKE_OR_VERSIONS_REQUEST = "HANDSHAKE_OR_VERSIONS_REQUEST"
    HANDSHAKE_REQUEST = "HANDSHAKE_REQUEST"
    AUTHENTICATE = "AUTHENTICATE"
    COMPLETE = "COMPLETE"
    REAUTH_PROCESS_HANDSHAKE = "REAUTH_PROCESS_HANDSHAKE"
    REAUTH_BAD_MECHANISM = "REAUTH_BAD_MECHANISM"
    FAILED = "FAILED"


#: The states that may follow each state.
TRANSITIONS: Final[Mapping[SaslState, frozenset[SaslState]]] = MappingProxyType(
    {
        SaslState.INITIAL_REQUEST: frozenset(
            {SaslState.HANDSHAKE_OR_VERSIONS_REQUEST, SaslState.FAILED}
        ),
        SaslState.HANDSHAKE_OR_VERSIONS_REQUEST: frozenset(
            {SaslState.HANDSHAKE_REQUEST, SaslState.AUTHENTICATE, SaslState.FAILED}
        ),
        SaslState.HANDSHAKE_REQUEST: frozenset({SaslState.AUTHENTICATE, SaslState.FAILED}),
        SaslState.AUTHENTICATE: frozenset({SaslState.COMPLETE, SaslState.FAILED}),
        SaslState.COMPLETE: frozenset({SaslState.REAUTH_PROCESS_HANDSHAKE}),
        SaslState.REAUTH_PROCESS_HANDSHAKE: frozenset(
            {SaslState.AUTHENTICATE, SaslState.REAUTH_BAD_MECHANISM, SaslState.FAILED}
        ),
        SaslState.REAUTH_BAD_MECHANISM: frozenset({SaslState.FAILED}),
        SaslState.FAILED: frozenset(),
    }
)


#: The requests that each state accepts. After a SaslHandshake of version 0, the client's messages
#: come without any header instead of in SaslAuthenticate requests.
EXPECTED: Final[Mapping[SaslState, frozenset[ApiKey]]] = MappingProxyType(
    {
        SaslState.INITIAL_REQUEST: _FIRST,
        SaslState.HANDSHAKE_OR_VERSIONS_REQUEST: _FIRST,
        SaslState.HANDSHAKE_REQUEST: frozenset({ApiKey.SASL_HANDSHAKE}),
        SaslState.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
        SaslState.COMPLETE: frozenset(),
        SaslState.REAUTH_PROCESS_HANDSHAKE: frozenset({ApiKey.SASL_HANDSHAKE}),
        SaslState.REAUTH_BAD_MECHANISM: frozenset(),
        SaslState.FAILED: frozenset(),
    }
)


class AuthenticationFailedError(KafkaError):
    """The authentication has failed: send `answer` (may be empty) and close the connection."""

    def __init__(self, reason: str, answer: list[Buffer]) -> None:
        """Create the error with the client's response; the reason is for the log."""
        super().__init__(reason)
        self.answer = answer


class SaslAuthenticator:
    """The authentication of one connection, including re-authentication."""

    def __init__(
        self, settings: SaslSettings, credentials: Credentials, broker: Broker, *, name: str
    ) -> None:
        """Create the authenticator of a connection; `name` is the connection's in the log.

        `broker` decodes requests, encodes responses and handles ApiVersions.
        """
        self.state = SaslState.INITIAL_REQUEST
        #: The authenticated user; None until the client has authenticated.
        self.user: str | None = None
        #: When the client must have re-authenticated, in seconds since 1970; None for never.
        self.session_expires_at: float | None = None
        self._settings = settings
        self._credentials = credentials
        self._broker = broker
        self._name = name
        self._mechanism: SaslMechanism | None = None
        self._server: SaslServer | None = None
        self._has_headers = False
        self._reauthenticated_at = -math.inf

    @property
    def is_complete(self) -> bool:
        """Whether the client has authenticated."""
        return self.state is SaslState.COMPLETE

    def takes(self, frame: memoryview, now: float) -> bool:
        """Return whether `receive` must handle a request, not the broker.

        A SaslHandshake in a session that expires begins a re-authentication. Raises
        CloseConnectionError if the session has expired.
        """
        if not self.is_complete:
            return True
        if self.session_expires_at is None:
            return False
        if (
            int.from_bytes(frame[:2]) == ApiKey.SASL_HANDSHAKE
            and now - self._reauthenticated_at >= _MIN_REAUTHENTICATION_INTERVAL
        ):
            self._reauthenticated_at = now
            self._move(SaslState.REAUTH_PROCESS_HANDSHAKE)
            return True
        if now > self.session_expires_at:
            raise CloseConnectionError(
                "the session has expired and the client did not re-authenticate"
            )
        return False

    def receive(self, frame: memoryview, now: float) -> list[Buffer]:
        """Handle a request for which `takes` has returned True; return the response.

        Raises AuthenticationFailedError, and DecodeError or CloseConnectionError for a malformed
        request.
        """
        try:
            if self.state is SaslState.REAUTH_BAD_MECHANISM:
                raise AuthenticationFailedError("the client changed the mechanism", [])
            if self.state is SaslState.AUTHENTICATE:
                return self._authenticate(frame, now)
            return self._negotiate(frame, now)
        except KafkaError:
            self._move(SaslState.FAILED)
            raise

    def _negotiate(self, frame: memoryview, now: float) -> list[Buffer]:
        header, _ = decode_request_header(frame)
        if self.state is SaslState.INITIAL_REQUEST:
            self._move(SaslState.HANDSHAKE_OR_VERSIONS_REQUEST)
        self._check_expected(header)
        header, request = self._broker.decode_request(frame)
        if isinstance(request, ApiVersionsRequest):
            response = cast("ApiVersionsResponse", self._broker.handle(header, request, now))
            if response.error_code == ErrorCode.NONE:
                self._move(SaslState.HANDSHAKE_REQUEST)
            return self._broker.encode_response(header, response)
        return self._handshake(header, cast("SaslHandshakeRequest", request))

    def _check_expected(self, header: RequestHeader) -> None:
        # Before the body is decoded: unauthenticated clients must not reach the other decoders.
        api_key = ApiKey(header.request_api_key)
        if api_key not in EXPECTED[self.state]:
            raise AuthenticationFailedError(
                f"{api_key.name} is not allowed in state {self.state}", []
            )

    def _handshake(self, header: RequestHeader, request: SaslHandshakeRequest) -> list[Buffer]:
        if header.request_api_version >= _FIRST_VERSION_WITH_HEADERS:
            self._has_headers = True
        mechanisms = tuple(self._settings.mechanisms)
        if request.mechanism not in mechanisms:
            response = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms
            )
            raise AuthenticationFailedError(
                f"{request.mechanism[:40]!r} is not an enabled mechanism of this listener",
                self._broker.encode_response(header, response),
            )
        if self._mechanism not in {None, request.mechanism}:
            self._move(SaslState.REAUTH_BAD_MECHANISM)
        else:
            self._mechanism = SaslMechanism(request.mechanism)
            self._server = self._new_server(self._mechanism)
            self._move(SaslState.AUTHENTICATE)
        return self._broker.encode_response(header, SaslHandshakeResponse(mechanisms=mechanisms))

    def _new_server(self, mechanism: SaslMechanism) -> SaslServer:
        if mechanism is SaslMechanism.PLAIN:
            return PlainServer(self._credentials)
        if mechanism is SaslMechanism.OAUTHBEARER:
            return OAuthBearerServer(self._settings.tokens)
        stored = self._broker.cluster.scram_users
        return ScramServer(
            mechanism,
            lambda user: stored.get((user, mechanism)) or self._credentials.scram(mechanism, user),
        )

    def _authenticate(self, frame: memoryview, now: float) -> list[Buffer]:
        if not self._has_headers:
            try:
                return encode_frame([self._evaluate(bytes(frame), now)])
            except SaslRefusedError as refused:
                raise AuthenticationFailedError(str(refused), []) from None
        header, request = self._broker.decode_request(frame)
        if not isinstance(request, SaslAuthenticateRequest):
            error = ErrorCode.ILLEGAL_SASL_STATE
            response = self._broker.error_response(header, request, error, now)
            raise AuthenticationFailedError(
                f"{ApiKey(header.request_api_key).name} is not allowed in state {self.state}",
                self._broker.encode_response(header, response),
            )
        try:
            answer = self._evaluate(bytes(request.auth_bytes), now)
        except SaslRefusedError as refused:
            failure = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=self._error_message(refused),
            )
            raise AuthenticationFailedError(
                str(refused), self._broker.encode_response(header, failure)
            ) from None
        return self._broker.encode_response(
            header,
            SaslAuthenticateResponse(
                error_message="",
                auth_bytes=answer,
                session_lifetime_ms=self._session_lifetime_ms(now),
            ),
        )

    def _error_message(self, refused: SaslRefusedError) -> str:
        if isinstance(refused, SaslAuthenticationError):
            return str(refused)
        kind = "authentication" if self.user is None else "re-authentication"
        return (
            f"Authentication failed during {kind} due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )

    def _evaluate(self, response: bytes, now: float) -> bytes:
        """Return the mechanism's response; complete the authentication if it was the last."""
        server = self._server
        if server is None:
            raise SaslRefusedError("no mechanism was negotiated")
        answer = server.evaluate_response(response, now)
        if not server.is_complete:
            return answer
        if self.user not in {None, server.user}:
            raise SaslAuthenticationError(
                f"Cannot change principals during re-authentication from User.{self.user}: "
                f"User.{server.user}"
            )
        logger.info(
            "connection %s authenticated as user %r with %s%s",
            self._name,
            server.user,
            self._mechanism,
            "" if self.user is None else " again",
        )
        self.user = server.user
        ends = [] if server.expires_at is None else [server.expires_at]
        if self._settings.max_reauth_ms > 0:
            ends.append(now + self._settings.max_reauth_ms / 1000)
        self.session_expires_at = min(ends, default=None)
        self._server = None
        self._move(SaslState.COMPLETE)
        return answer

    def _session_lifetime_ms(self, now: float) -> int:
        """Return the remaining session lifetime; 0 if it does not expire or has not begun."""
        if not self.is_complete or self.session_expires_at is None:
            return 0
        return min(max(0, round((self.session_expires_at - now) * 1000)), _LONGEST_LIFETIME_MS)

    def _move(self, state: SaslState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise CloseConnectionError(f"SASL cannot go from {self.state} to {state}")
        self.state = state
