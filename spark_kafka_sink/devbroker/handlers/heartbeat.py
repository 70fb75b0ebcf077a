"""Heartbeat 0-4: keeps a member's session in a consumer group alive.

REBALANCE_IN_PROGRESS means that the member must rejoin, UNKNOWN_MEMBER_ID and ILLEGAL_GENERATION
that it is no longer in the group, FENCED_INSTANCE_ID that another member has its group instance id.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest)
def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the member's session."""
    if request.group_id:
        context.cluster.check_group_coordinator(context.node_id, request.group_id)
    context.cluster.groups.classic_groups.heartbeat(request, context.now)
    return HeartbeatResponse(error_code=ErrorCode.NONE)
