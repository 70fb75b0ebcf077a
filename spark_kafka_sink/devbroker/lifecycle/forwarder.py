"""The requests of clients that a broker forwards to the controller (Kafka's ForwardingManager).

A client may send a request for the controller to any broker. This one asks the controller in its
place, and again while that is not the controller any more, or cannot be reached. After the request
timeout the client gets an error: the request may have had its effect or not, as in Kafka.

No IO: requests and responses go out as envelopes. Time is an argument, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.metadata.envelope import (
    CONTROLLER,
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingSettings:
    """The times of forwarded requests, with Kafka's names and defaults; in seconds."""

    #: When the client gets an error (request.timeout.ms).
    request_timeout: float = 30.0
    #: How long to wait before the controller is asked again (retry.backoff.ms).
    retry_backoff: float = 0.1


@dataclass(slots=True)
class _Forwarded:
    """A request that has no response yet."""

    envelope: Envelope
    request: ForwardedRequest
    deadline: float
    #: When to send it, while it is not in flight.
    send_at: float


class Forwarder:
    """Asks the controller for clients."""

    def __init__(
        self, node_id: int, numbers: Iterator[int], settings: ForwardingSettings | None = None
    ) -> None:
        """Send requests of this broker, with these correlation ids."""
        self._node_id = node_id
        self._numbers = numbers
        self._settings = settings or ForwardingSettings()
        self._waiting: list[_Forwarded] = []
        self._in_flight: dict[int, _Forwarded] = {}

    @property
    def deadline(self) -> float:
        """When `outgoing` must be called at the latest."""
        return min(
            min((min(each.deadline, each.send_at) for each in self._waiting), default=NEVER),
            min((each.deadline for each in self._in_flight.values()), default=NEVER),
        )

    def forward(self, envelope: Envelope, request: ForwardedRequest, now: float) -> None:
        """Send a client's request, which came in this envelope, to the controller."""
        deadline = now + self._settings.request_timeout
        self._waiting.append(_Forwarded(envelope, request, deadline, send_at=now))

    def handle(
        self, correlation_id: int, response: ForwardedResponse, now: float
    ) -> list[Envelope]:
        """Return the response for the client, or nothing if the controller is asked again."""
        forwarded = self._in_flight.pop(correlation_id, None)
        if forwarded is None:
            return []
        if response.error_code is ErrorCode.NOT_CONTROLLER:
            self._retry(forwarded, now)
            return []
        return [forwarded.envelope.response(response)]

    def fail(self, correlation_id: int, now: float) -> None:
        """Handle that a request could not be sent, or its connection was closed."""
        forwarded = self._in_flight.pop(correlation_id, None)
        if forwarded is not None:
            self._retry(forwarded, now)

    def _retry(self, forwarded: _Forwarded, now: float) -> None:
        forwarded.send_at = now + self._settings.retry_backoff
        self._waiting.append(forwarded)

    def controller_changed(self, now: float) -> None:
        """Send what waits to the new controller at once."""
        for each in self._waiting:
            each.send_at = now

    def outgoing(self, now: float) -> list[Envelope]:
        """Return the requests to send now, and the responses whose time is up."""
        outgoing: list[Envelope] = []
        for number, each in list(self._in_flight.items()):
            if now >= each.deadline:
                del self._in_flight[number]
                outgoing.append(_timed_out(each))
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if now >= each.deadline:
                outgoing.append(_timed_out(each))
            elif now < each.send_at:
                self._waiting.append(each)
            else:
                number = next(self._numbers)
                self._in_flight[number] = each
                outgoing.append(Envelope(self._node_id, CONTROLLER, number, each.request))
        return outgoing


def _timed_out(forwarded: _Forwarded) -> Envelope:
    response = ForwardedResponse(response=None, error_code=ErrorCode.REQUEST_TIMED_OUT)
    return forwarded.envelope.response(response)
