"""The requests of one connection that are awaiting responses, in the order they were sent."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.errors import DecodeError

if TYPE_CHECKING:
    import asyncio

    from spark_kafka_sink.protocol.api_keys import ApiKey


class InFlightRequest(NamedTuple):
    """A request that is awaiting its response."""

    correlation_id: int
    api_key: ApiKey
    api_version: int
    #: Times by the loop's clock.
    sent_at: float
    deadline: float
    response: asyncio.Future[Any]


class InFlightRequests:
    """The unanswered requests of one connection, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: InFlightRequest) -> None:
        """Append the request just sent."""
        self._requests.append(request)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all requests; None if nothing is in flight."""
        return min((request.deadline for request in self._requests), default=None)

    def next_timeout(self) -> float:
        """Return the seconds that the request with that deadline, which there must be, may take."""
        first = min(self._requests, key=attrgetter("deadline"))
        return first.deadline - first.sent_at

    def complete(self, correlation_id: int) -> InFlightRequest:
        """Remove and return the oldest request; DecodeError if the response is not for it."""
        if not self._requests:
            raise DecodeError(f"a response (correlation id {correlation_id}) without a request")
        expected = self._requests[0].correlation_id
        if expected != correlation_id:
            raise DecodeError(f"a response to request {correlation_id} instead of {expected}")
        return self._requests.popleft()

    def fail_all(self, error: Exception) -> None:
        """Fail every request with the error that ended the connection."""
        while self._requests:
            response = self._requests.popleft().response
            if not response.done():
                response.set_exception(error)
