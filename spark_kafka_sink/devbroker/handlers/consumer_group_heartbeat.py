"""ConsumerGroupHeartbeat 0-1: membership in a group of the new consumer protocol (KIP-848).

A member joins with epoch 0, leaves with -1, and announces with -2 that a static member will return.
INVALID_REQUEST means a missing or contradictory field, UNSUPPORTED_ASSIGNOR an unknown assignor,
INVALID_REGULAR_EXPRESSION a subscription that RE2/J would reject. FENCED_MEMBER_EPOCH and
UNKNOWN_MEMBER_ID mean that the member must give up its partitions and rejoin, FENCED_INSTANCE_ID
that another member has its group instance id, and UNRELEASED_INSTANCE_ID that another one still has
it. A group whose members use the classic protocol gets GROUP_ID_NOT_FOUND; see `consumer_groups`.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.groups.consumer_groups import HeartbeatSender
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.error_codes import ErrorCode


class ConsumerGroupHeartbeatHandler(
    Handler[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse]
):
    """The handler that keeps members in their groups and assigns partitions to them."""

    api_key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    versions = ConsumerGroupHeartbeatRequest.versions

    def handle(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Return the member's epoch, and its assignment if that has changed."""
        if request.group_id:
            context.cluster.check_group_coordinator(context.node_id, request.group_id)
        sender = HeartbeatSender(
            client_id=context.client_id,
            client_host=f"/{context.client_host}",
            version=context.version,
        )
        return context.cluster.groups.consumer_groups.heartbeat(request, sender, context.now)

    def error_response(
        self,
        context: RequestContext,
        request: ConsumerGroupHeartbeatRequest,
        error_code: ErrorCode,
        message: str,
    ) -> ConsumerGroupHeartbeatResponse:
        """Return a response with the error."""
        return ConsumerGroupHeartbeatResponse(error_code=error_code, error_message=message)
