"""The SASL session of a connection: how it was authenticated, and until when (KIP-368).

As in Java, a session is renewed by the first request after most of its lifetime has passed; an idle
connection is left alone. During an authentication, brokers accept no other requests. Requests are
therefore held back and sent after it in their order, while responses to earlier requests still
arrive.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_kafka_sink.network.authentication.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.network.base.daemon_thread import in_daemon_thread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.authentication.sasl_authenticator import (
        SaslRequest,
        SaslResponse,
    )
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiRequest, ResponseT
    from spark_kafka_sink.security.sasl import SaslClient

_THREAD: Final = "kafka-sasl"
#: The share of a session's lifetime after which it is renewed, and the most that is added to it at
#: random (SaslClientAuthenticator.ReauthInfo).
RENEWAL_SHARE: Final = 0.85
RENEWAL_JITTER: Final = 0.10


class Ask(Protocol):
    """A function that sends a request ahead of the held ones."""

    def __call__(self, request: ApiRequest[ResponseT], /) -> Awaitable[ResponseT]:
        """Send a request and return its response."""


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that is held back until an authentication ends."""

    request: AnyRequest
    version: int
    #: The future that the caller waits for.
    outcome: asyncio.Future[Any]
    has_response: bool
    #: When it was held back, by the loop's clock.
    since: float


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
        #: Whether the session is being renewed.
        self.is_renewing = False
        self.held: deque[HeldRequest] = deque()

    @property
    def is_due(self) -> bool:
        """Whether the session is due for renewal."""
        return self._clock() >= self._renew_at

    def held_until(self, timeout: float) -> float | None:
        """Return when the oldest request has been held for `timeout` seconds; None without one."""
        return self.held[0].since + timeout if self.held else None

    async def authenticate(self, client: SaslClient) -> None:
        """Authenticate; raises AuthenticationError, or NetworkError if it may succeed later."""
        authenticator = SaslAuthenticator(client, self._node)
        request: SaslRequest | None = authenticator.begin()
        while request is not None:
            response: SaslResponse = await self._ask(request)
            # A broker may demand a second of work (SCRAM's iterations), which must not block other
            # connections.
            answered = await in_daemon_thread(_THREAD, authenticator.receive, response)
            request = answered.get()
        lifetime = authenticator.session_lifetime
        share = RENEWAL_SHARE + RENEWAL_JITTER * random.random()
        self._renew_at = math.inf if lifetime is None else self._clock() + lifetime * share

    async def renew(self) -> None:
        """Authenticate again; see `authenticate`. The caller sends the held requests afterwards."""
        await self.authenticate(await self._new_client(self._node))
        self.is_renewing = False
