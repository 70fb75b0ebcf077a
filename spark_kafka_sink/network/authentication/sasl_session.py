"""The SASL session of a connection: how it was authenticated, and until when (KIP-368).

A session is due for renewal when most of its lifetime has passed. A session of a token ends with
the token: while no new token comes, it is renewed again and again with the same one, whose
remaining lifetime shrinks, but at most once a second, because brokers refuse more
(KafkaChannel.maybeBeginServerReauthentication).

`Ask` sends the requests of an authentication, during which brokers accept no other requests.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.network.authentication.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.network.base.daemon_thread import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.authentication.sasl_authenticator import (
        SaslRequest,
        SaslResponse,
    )
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT
    from spark_kafka_sink.security.sasl import SaslClient

_THREAD: Final = "kafka-sasl"
#: The share of a session's lifetime after which it is renewed, and the most that is added to it at
#: random (SaslClientAuthenticator.ReauthInfo).
RENEWAL_SHARE: Final = 0.85
RENEWAL_JITTER: Final = 0.10
#: The fewest seconds from the end of an authentication to the beginning of the next.
MIN_INTERVAL: Final = 1.0


class Ask(Protocol):
    """A function that sends a request ahead of the held ones."""

    def __call__(self, request: ApiRequest[ResponseT], /) -> Awaitable[ResponseT]:
        """Send a request and return its response."""


class SaslSession:
    """The SASL session of one connection."""

    def __init__(
        self,
        node: Node,
        new_client: Callable[[Node], Awaitable[SaslClient]],
        ask: Ask,
        clock: Callable[[], float],
    ) -> None:
        """Set how to authenticate."""
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
