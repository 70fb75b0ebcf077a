"""Renewing the SASL session of a connection in use, and the requests that wait for it (KIP-368)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.authentication.sasl_authenticator import SaslSession
    from spark_kafka_sink.network.connection.network_listener import NetworkListener
    from spark_kafka_sink.protocol.schema import AnyRequest


class PendingRequest(NamedTuple):
    """A request to send: at once, or when an authentication has ended."""

    request: AnyRequest
    version: int
    #: What the caller waits for: the response, or the sending if the broker does not answer.
    outcome: asyncio.Future[Any]
    has_response: bool = True
    #: Seconds for its answer; None for request.timeout.ms.
    timeout: float | None = None


class Reauthentication:
    """The renewals of one connection's session, and the requests held back during each (KIP-368).

    As in Java, a session is renewed by the first request after most of its lifetime has passed; an
    idle connection is left alone. During an authentication, brokers accept no other requests. So
    requests are held back and sent after it in their order, while responses to earlier requests
    still arrive.
    """

    def __init__(
        self,
        session: SaslSession,
        node: Node,
        *,
        send: Callable[[PendingRequest], None],
        on_renewed: Callable[[], None],
        on_failed: Callable[[KafkaError, BaseException | None], None],
        listener: NetworkListener | None = None,
    ) -> None:
        """Create it for an authenticated session.

        After a renewal, each held request is passed to `send`, and then `on_renewed` is called.
        After a failure, `on_failed` is called with the error that ends the connection, and its
        cause: it must call `end`.
        """
        self._session = session
        self._node = node
        self._send = send
        self._on_renewed = on_renewed
        self._on_failed = on_failed
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._renewal: asyncio.Task[None] | None = None
        self._is_renewing = False
        #: With the time at which each was held back, by the loop's clock.
        self._held: deque[tuple[float, PendingRequest]] = deque()

    @property
    def held_count(self) -> int:
        """The number of held requests."""
        return len(self._held)

    def must_hold(self) -> bool:
        """Return whether requests must wait for a renewal, which is started when it is due."""
        if not self._is_renewing and self._session.is_due:
            self._is_renewing = True
            self._renewal = self._loop.create_task(self._renew())
        return self._is_renewing

    def hold(self, request: PendingRequest, now: float) -> None:
        """Hold back a request until the renewal ends."""
        self._held.append((now, request))

    def holds(self, outcome: asyncio.Future[Any]) -> bool:
        """Return whether the request with this outcome is held back."""
        return any(held.outcome is outcome for _, held in self._held)

    def held_until(self, timeout: float) -> float | None:
        """Return when the oldest request has been held for `timeout` seconds; None without one."""
        return self._held[0][0] + timeout if self._held else None

    def end(self) -> list[asyncio.Future[Any]]:
        """End the renewal with its connection; return the outcomes of the held requests."""
        # The task that found the error ends by itself.
        if self._renewal is not None and self._renewal is not asyncio.current_task():
            self._renewal.cancel()
        outcomes = [held.outcome for _, held in self._held]
        self._held.clear()
        return outcomes

    async def _renew(self) -> None:
        began_at = self._loop.time()
        try:
            await self._session.renew()
            self._is_renewing = False
            if self._listener is not None:
                self._listener.reauthenticated(self._node.node_id, self._loop.time() - began_at)
            while self._held:
                self._send(self._held[0][1])
                self._held.popleft()
            self._on_renewed()
        except KafkaError as error:
            if self._listener is not None and isinstance(error, AuthenticationError):
                self._listener.reauthentication_failed(self._node.node_id)
            self._on_failed(error, None)
        except Exception as error:  # noqa: BLE001  held requests must not wait forever
            # The error of a token function may contain anything, so it is not quoted.
            failure = f"{self._node}: the session was not renewed: {type(error).__name__}"
            self._on_failed(NetworkError(failure), error)
