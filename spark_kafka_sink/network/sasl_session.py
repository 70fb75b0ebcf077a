"""A connection's session: by whom it is authenticated, and until when (KIP-368).

As in Java a session is renewed by whoever sends next after most of its time has passed: a
connection that nobody uses is left alone. Brokers take nothing but the authentication while it
lasts, so what is to be sent meanwhile is held back, and goes out behind it in its order; answers to
what was sent before still come.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.network.daemon_thread import in_daemon_thread
from spark_kafka_sink.network.sasl_authenticator import SaslAuthenticator

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.security.sasl import SaslClient

_THREAD: Final = "kafka-sasl"
#: After which share of a session it is renewed, and how much of it chance adds
#: (SaslClientAuthenticator.ReauthInfo).
RENEWAL_SHARE: Final = 0.85
RENEWAL_JITTER: Final = 0.10


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that waits for the end of an authentication."""

    request: Any
    version: int
    #: What the caller waits for.
    outcome: asyncio.Future[Any]
    has_response: bool
    #: When it was held back, by the loop's clock.
    since: float


class SaslSession:
    """See the module."""

    def __init__(
        self,
        node: Node,
        new_client: Callable[[Node], Awaitable[SaslClient]],
        ask: Callable[[Any], Awaitable[Any]],
        clock: Callable[[], float],
    ) -> None:
        """`ask` sends a request of the authentication, past all that is held, for its answer."""
        self._node = node
        self._new_client = new_client
        self._ask = ask
        self._clock = clock
        self._renew_at = math.inf
        #: Whether an authentication is under way.
        self.is_renewing = False
        self.held: deque[HeldRequest] = deque()

    @property
    def is_due(self) -> bool:
        """Whether it is time to authenticate again."""
        return self._clock() >= self._renew_at

    def held_until(self, timeout: float) -> float | None:
        """Return when the oldest request has been held for `timeout` seconds; None without one."""
        return self.held[0].since + timeout if self.held else None

    async def authenticate(self, client: SaslClient) -> None:
        """Authenticate; raises AuthenticationError, or NetworkError where it may succeed later."""
        authenticator = SaslAuthenticator(client, self._node)
        request: Any = authenticator.begin()
        while request is not None:
            response = await self._ask(request)
            # A broker may ask for a second's work (SCRAM's iterations), and other connections
            # must not wait for it.
            answered = await in_daemon_thread(_THREAD, authenticator.receive, response)
            request = answered.get()
        lifetime = authenticator.session_lifetime
        share = RENEWAL_SHARE + RENEWAL_JITTER * random.random()
        self._renew_at = math.inf if lifetime is None else self._clock() + lifetime * share

    async def renew(self) -> None:
        """Authenticate again; see `authenticate`. What is held afterwards is the caller's."""
        await self.authenticate(await self._new_client(self._node))
        self.is_renewing = False
