"""Heartbeat 0-4: a member of a consumer group is alive.

REBALANCE_IN_PROGRESS tells it to join again, UNKNOWN_MEMBER_ID and ILLEGAL_GENERATION that it is
out, FENCED_INSTANCE_ID that another one has its static name.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


class HeartbeatHandler(Handler[HeartbeatRequest, HeartbeatResponse]):
    """Prolongs sessions."""

    api_key = ApiKey.HEARTBEAT
    versions = HeartbeatRequest.versions

    def handle(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Prolong the member's session."""
        if request.group_id:
            context.cluster.check_group_coordinator(context.node_id, request.group_id)
        context.cluster.groups.heartbeat(request, context.now)
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    def error_response(
        self,
        context: RequestContext,
        request: HeartbeatRequest,
        error_code: ErrorCode,
        message: str,
    ) -> HeartbeatResponse:
        """Answer with the error."""
        return HeartbeatResponse(error_code=error_code)
