"""The controller of a broker as a step of its event loop: messages in, messages out.

Every broker runs one, active or on standby. It answers requests of brokers, and those of clients
that brokers forward. A fetch of metadata that has everything waits here until there is more, or its
time is up: so each change reaches all brokers at once, and a broker without news asks seldom (as
with Raft's Fetch requests). When this controller is replaced or resigns, those that wait learn it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.metadata.envelope import (
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.devbroker.metadata.quorum import FetchMetadataRequest
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from spark_kafka_sink.protocol.messages.alter_partition import AlterPartitionRequest
from spark_kafka_sink.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from spark_kafka_sink.protocol.messages.broker_registration import BrokerRegistrationRequest

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.controller.controller import Controller

#: The requests of brokers to the controller.
_OF_BROKERS: Final = (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)


class _WaitingFetch(NamedTuple):
    """A fetch of metadata for which there is nothing yet."""

    envelope: Envelope
    request: FetchMetadataRequest
    deadline: float


class ControllerHost:
    """Runs the controller of one broker."""

    def __init__(self, controller: Controller) -> None:
        """Run this controller, which is on standby."""
        self.controller = controller
        self._waiting: list[_WaitingFetch] = []

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest."""
        fetches = min((each.deadline for each in self._waiting), default=NEVER)
        return min(self.controller.deadline, fetches)

    def tick(self, now: float) -> list[Envelope]:
        """Do what is due; return what to send."""
        if now >= self.controller.deadline:
            self.controller.tick(now)
        return self._answer_fetches(now)

    def handle(self, envelope: Envelope, now: float) -> list[Envelope] | None:
        """Handle a request; return what to send, or None if it is not one for a controller."""
        controller = self.controller
        outgoing: list[Envelope] = []
        match envelope.message:
            case FetchMetadataRequest() as request:
                controller.note_fetch(request, now)
                self._waiting.append(_WaitingFetch(envelope, request, now + request.max_wait))
            case ForwardedRequest() as request:
                outgoing.append(envelope.response(self._forwarded(request, now)))
            case request if isinstance(request, _OF_BROKERS):
                outgoing.append(envelope.response(controller.handle(request, now)))
            case _:
                return None
        return outgoing + self._answer_fetches(now)

    def _forwarded(self, forwarded: ForwardedRequest, now: float) -> ForwardedResponse:
        try:
            response = self.controller.handle(forwarded.request, now, forwarded.version)
        except RefusedError as refused:
            return ForwardedResponse(response=None, error_code=refused.error_code)
        if not self.controller.is_active:
            return ForwardedResponse(response=None, error_code=ErrorCode.NOT_CONTROLLER)
        return ForwardedResponse(response=response)

    def resign(self, now: float) -> list[Envelope]:
        """End the lease, because this broker shuts down, so that another takes over at once."""
        self.controller.resign(now)
        return self._answer_fetches(now)

    def _answer_fetches(self, now: float) -> list[Envelope]:
        """Respond to the fetches that need not wait any more."""
        controller = self.controller
        outgoing: list[Envelope] = []
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            request = each.request
            has_more = controller.image.offset >= request.offset
            if has_more or now >= each.deadline or not controller.is_active:
                outgoing.append(each.envelope.response(controller.read_metadata(request)))
            else:
                self._waiting.append(each)
        return outgoing
