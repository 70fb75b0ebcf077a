"""The requests of one connection whose bytes the socket has not taken yet, in their order.

A peer that stops reading fills the socket's buffer, and from then on requests wait here. Touches no
socket and reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request that waits for the socket."""

    #: What the socket has not taken of it.
    buffers: Sequence[bytes | memoryview]
    #: What the caller waits for: the answer, or the sending where the broker does not answer.
    outcome: asyncio.Future[Any]
    has_response: bool


class OutgoingRequests:
    """The requests that wait for the socket, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[OutgoingRequest] = deque()
        self._waiting_since = 0.0
        #: How many of them the broker will not answer.
        self.without_response = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[OutgoingRequest]:
        return iter(self._requests)

    def add(self, request: OutgoingRequest, now: float) -> None:
        """Append a request, or what is left of it."""
        if not self._requests:
            self._waiting_since = now
        self._requests.append(request)
        self.without_response += not request.has_response

    @property
    def first(self) -> OutgoingRequest:
        """Return the oldest request."""
        return self._requests[0]

    def pop(self) -> OutgoingRequest:
        """Remove and return the oldest request, whose last byte the socket has taken."""
        request = self._requests.popleft()
        self.without_response -= not request.has_response
        return request

    def holds(self, outcome: asyncio.Future[Any]) -> bool:
        """Return whether the request with this outcome still waits for the socket."""
        return any(request.outcome is outcome for request in self._requests)

    def stalls_at(self, taken_at: float, timeout: float) -> float | None:
        """Return when the peer counts as gone, if its socket takes nothing until then.

        `taken_at` is when the socket last took any bytes. None where nothing waits for it.
        """
        return max(self._waiting_since, taken_at) + timeout if self._requests else None

    def clear(self) -> list[OutgoingRequest]:
        """Remove and return all of them."""
        requests = list(self._requests)
        self._requests.clear()
        self.without_response = 0
        return requests
