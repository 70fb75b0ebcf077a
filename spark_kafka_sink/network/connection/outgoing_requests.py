"""The requests of one connection that the socket has not yet accepted in full, in order.

When a peer stops reading, the socket's buffer fills up, and further requests wait here. Does no I/O
and reads no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator


class OutgoingRequest(NamedTuple):
    """A request that waits for the socket."""

    #: The bytes that the socket has not yet accepted.
    buffers: deque[memoryview]
    #: What the caller waits for: the response, or the sending if the broker does not answer.
    outcome: asyncio.Future[Any]
    has_response: bool


class OutgoingRequests:
    """The requests that wait for the socket, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[OutgoingRequest] = deque()
        self._waiting_since = 0.0
        #: The number of requests that the broker will not answer.
        self.without_response = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[OutgoingRequest]:
        return iter(self._requests)

    def add(self, request: OutgoingRequest, now: float) -> None:
        """Append a request, or the unsent rest of one."""
        if not self._requests:
            self._waiting_since = now
        self._requests.append(request)
        self.without_response += not request.has_response

    @property
    def first(self) -> OutgoingRequest:
        """The oldest request."""
        return self._requests[0]

    def pop(self) -> OutgoingRequest:
        """Remove and return the oldest request, after the socket has accepted its last byte."""
        request = self._requests.popleft()
        self.without_response -= not request.has_response
        return request

    def holds(self, outcome: asyncio.Future[Any]) -> bool:
        """Return whether the request with this outcome still waits for the socket."""
        return any(request.outcome is outcome for request in self._requests)

    def stalls_at(self, taken_at: float, timeout: float) -> float | None:
        """Return when the peer is considered gone, unless its socket accepts bytes by then.

        `taken_at` is when the socket last accepted any bytes. Returns None if nothing is waiting
        for it.
        """
        return max(self._waiting_since, taken_at) + timeout if self._requests else None

    def clear(self) -> list[OutgoingRequest]:
        """Remove and return all requests."""
        requests = list(self._requests)
        self._requests.clear()
        self.without_response = 0
        return requests
