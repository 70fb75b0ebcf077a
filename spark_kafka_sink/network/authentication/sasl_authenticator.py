"""The SASL authentication of a connection, and its session (KIP-43, KIP-152, KIP-368).

`SaslAuthenticator` is one authentication. `SaslSession` begins and repeats it; its connection
decides when (`reauthentication`). The first authentication and every later one work the same way.
Errors name the broker, the mechanism and the user, and never show a secret, even if the broker
quotes one.
"""

from __future__ import annotations

import asyncio
import math
import random
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from spark_kafka_sink.errors import AuthenticationError, IllegalStateError, KafkaError, NetworkError
from spark_kafka_sink.network.daemon_thread import in_daemon_thread
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from spark_kafka_sink.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_sink.security.redaction import hide, quoted
from spark_kafka_sink.security.sasl import SaslClient, no_common_mechanism

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT

#: The longest message of a broker that an error quotes, in characters.
_LONGEST_REASON: Final = 2_000
#: The share of a session's lifetime after which it is renewed, and the most that is added to it at
#: random (SaslClientAuthenticator.ReauthInfo).
RENEWAL_SHARE: Final = 0.85
RENEWAL_JITTER: Final = 0.10
#: The fewest seconds from the end of an authentication to the beginning of the next.
MIN_INTERVAL: Final = 1.0
_THREAD: Final = "kafka-sasl"

SaslRequest: TypeAlias = SaslHandshakeRequest | SaslAuthenticateRequest
SaslResponse: TypeAlias = SaslHandshakeResponse | SaslAuthenticateResponse


class AuthenticationState(Enum):
    """The state of an authentication."""

    INITIAL = auto()
    #: The handshake was sent.
    NEGOTIATING = auto()
    #: A message of the mechanism was sent.
    EXCHANGING = auto()
    COMPLETE = auto()
    FAILED = auto()


_S = AuthenticationState

TRANSITIONS: Final[Mapping[AuthenticationState, frozenset[AuthenticationState]]] = {
    _S.INITIAL: frozenset({_S.NEGOTIATING}),
    _S.NEGOTIATING: frozenset({_S.EXCHANGING, _S.FAILED}),
    _S.EXCHANGING: frozenset({_S.EXCHANGING, _S.COMPLETE, _S.FAILED}),
    _S.COMPLETE: frozenset(),
    _S.FAILED: frozenset(),
}


class SaslAuthenticator:
    """One SASL authentication: the next request, and the meaning of each response.

        handshake  names the mechanism; the broker accepts it, or lists the ones it supports
        token      carries the mechanism's messages in both directions until both sides are done

    Every authentication needs a new instance. Does no I/O: the owner of the connection sends each
    request and passes in the response.
    """

    def __init__(self, client: SaslClient, node: Node, *, is_renewal: bool = False) -> None:
        """Create the authenticator; `begin` returns the first request.

        `is_renewal` says that the connection has authenticated before.
        """
        self._is_renewal = is_renewal
        self._client = client
        self._node = node
        self._state = _S.INITIAL
        #: Seconds until the broker requires reauthentication; None if it never does.
        self.session_lifetime: float | None = None

    @property
    def state(self) -> AuthenticationState:
        """The current state."""
        return self._state

    def _move(self, target: AuthenticationState) -> None:
        if target not in TRANSITIONS[self._state]:
            raise IllegalStateError(
                f"{self._node}: an authentication does not go from {self._state.name} to "
                f"{target.name}"
            )
        self._state = target

    def begin(self) -> SaslHandshakeRequest:
        """Return the first request."""
        self._move(_S.NEGOTIATING)
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def receive(self, response: SaslResponse) -> SaslAuthenticateRequest | None:
        """Handle the response to the last request; return the next request, or None when done.

        Raises AuthenticationError for a permanent failure, NetworkError for a transient one.
        """
        try:
            match self._state, response:
                case _S.NEGOTIATING, SaslHandshakeResponse():
                    return self._receive_handshake(response)
                case _S.EXCHANGING, SaslAuthenticateResponse():
                    return self._receive_token(response)
        except KafkaError:
            self._move(_S.FAILED)
            raise
        raise IllegalStateError(f"{self._node}: unexpected response in state {self._state.name}")

    def _receive_handshake(self, response: SaslHandshakeResponse) -> SaslAuthenticateRequest:
        match response.error_code:
            case ErrorCode.NONE:
                self._move(_S.EXCHANGING)
                return SaslAuthenticateRequest(auth_bytes=self._client.initial_response())
            case ErrorCode.UNSUPPORTED_SASL_MECHANISM:
                refusal = no_common_mechanism(self._client.mechanism, response.mechanisms)
                raise AuthenticationError(f"{self._node}: {self._hide(str(refusal))}")
            case ErrorCode.ILLEGAL_SASL_STATE if self._is_renewal:
                # The broker does use SASL, but has renewed this session less than a second ago.
                raise self._not_renewed(response.error_code)
            case ErrorCode.ILLEGAL_SASL_STATE:
                raise AuthenticationError(
                    f"{self._node}: this listener does not use SASL: set security.protocol to "
                    "PLAINTEXT or SSL, or use the port of a SASL listener"
                )
            case code:
                raise self._passing(code, None)

    def _receive_token(self, response: SaslAuthenticateResponse) -> SaslAuthenticateRequest | None:
        if response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise self._failed(response.error_message or "the broker gave no reason")
        if response.error_code:
            raise self._passing(response.error_code, response.error_message)
        if response.session_lifetime_ms > 0:
            self.session_lifetime = response.session_lifetime_ms / 1000
        answer = None
        if not self._client.is_complete or response.auth_bytes:
            try:
                answer = self._client.evaluate_challenge(response.auth_bytes)
            except AuthenticationError as error:
                raise self._failed(str(error)) from None
        if answer is not None:
            self._move(_S.EXCHANGING)
            return SaslAuthenticateRequest(auth_bytes=answer)
        if not self._client.is_complete:
            raise self._failed("the broker ended the exchange before it was complete")
        self._move(_S.COMPLETE)
        return None

    def _not_renewed(self, code: int) -> NetworkError:
        expiry = self._client.expiry
        refusal = broker_error(code, f"{self._who()}: the session could not be renewed")
        return NetworkError(
            f"{refusal}; {'' if expiry is None else f'{expiry}, and '}the client connects again"
        )

    def _failed(self, reason: str) -> AuthenticationError | NetworkError:
        told = self._client.failure
        if told is not None and told not in reason:
            reason = f"{reason.rstrip('.')} ({told})"
        failed = f"{self._who()} failed: {self._hide(reason).rstrip('.')}"
        advice = hide(self._client.advice, self._client.hidden)
        expiry = self._client.expiry
        if expiry is not None and expiry.explains_refusal:
            return NetworkError(f"{failed}; {expiry}, and the next one is tried. {advice}")
        return AuthenticationError(f"{failed}. {advice}")

    def _passing(self, code: int, message: str | None) -> NetworkError:
        refusal = broker_error(code, f"{self._who()} is not possible now")
        detail = f": {self._hide(message)}" if message else ""
        return NetworkError(f"{refusal}{detail}")

    def _who(self) -> str:
        client = self._client
        user = hide(repr(client.user), client.hidden)
        return f"{self._node}: {client.mechanism} authentication of user {user}"

    def _hide(self, text: str) -> str:
        """Return a broker's text for an error: printable, cut short and without secrets."""
        return quoted(text, (self._client.secret, *self._client.hidden), _LONGEST_REASON)


class Ask(Protocol):
    """A function that sends a request of an authentication, ahead of the held ones.

    Brokers accept no other requests during an authentication.
    """

    def __call__(self, request: ApiRequest[ResponseT], /) -> Awaitable[ResponseT]:
        """Send a request and return its response."""


class SaslSession:
    """The SASL session of one connection: how it was authenticated, and until when (KIP-368).

    A session is due for renewal when most of its lifetime has passed. A session of a token ends
    with the token: while no new token comes, it is renewed again and again with the same one, whose
    remaining lifetime shrinks, but at most once a second, because brokers refuse more
    (KafkaChannel.maybeBeginServerReauthentication).
    """

    def __init__(
        self,
        node: Node,
        new_client: Callable[[Node], Awaitable[SaslClient]],
        ask: Ask,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._new_client = new_client
        self._ask = ask
        self._clock = clock
        self._renew_at = math.inf
        self._may_renew_at = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether the session is due for renewal."""
        return self._clock() >= self._renew_at

    async def authenticate(self, client: SaslClient) -> None:
        """Authenticate; raises AuthenticationError, or NetworkError if it may succeed later."""
        await self._authenticate(SaslAuthenticator(client, self._node))

    async def renew(self) -> None:
        """Authenticate again, with a new client, when brokers allow it; see `authenticate`."""
        # Before the client is created: the wait may outlast its token.
        await asyncio.sleep(self._may_renew_at - self._clock())
        client = await self._new_client(self._node)
        await self._authenticate(SaslAuthenticator(client, self._node, is_renewal=True))

    async def _authenticate(self, authenticator: SaslAuthenticator) -> None:
        request: SaslRequest | None = authenticator.begin()
        while request is not None:
            response: SaslResponse = await self._ask(request)
            # A broker may demand a second of work (SCRAM's iterations), which must not block other
            # connections.
            answered = await in_daemon_thread(_THREAD, authenticator.receive, response)
            request = answered.get()
        now, lifetime = self._clock(), authenticator.session_lifetime
        share = RENEWAL_SHARE + RENEWAL_JITTER * random.random()
        self._may_renew_at = now + MIN_INTERVAL
        self._renew_at = (
            math.inf
            if lifetime is None
            # At its end at the latest: brokers accept no request after that but a renewal.
            else min(max(now + lifetime * share, self._may_renew_at), now + lifetime)
        )
