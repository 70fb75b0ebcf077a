"""ConsumerGroupHeartbeat 0-1: membership in a group of the new consumer protocol (KIP-848).

A member joins with epoch 0, leaves with -1, and announces with -2 that a static member will return.
INVALID_REQUEST means a missing or contradictory field, UNSUPPORTED_ASSIGNOR an unknown assignor,
INVALID_REGULAR_EXPRESSION a subscription that RE2/J would reject. FENCED_MEMBER_EPOCH and
UNKNOWN_MEMBER_ID mean that the member must give up its partitions and rejoin, FENCED_INSTANCE_ID
that another member has its group instance id, and UNRELEASED_INSTANCE_ID that another one still has
it. A group whose members use the classic protocol gets GROUP_ID_NOT_FOUND; see `consumer_groups`.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.groups.classic_group import RequestSender
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@handles(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Return the member's epoch, and its assignment if that has changed."""
    if request.group_id:
        context.cluster.check_group_coordinator(context.node_id, request.group_id)
    sender = RequestSender(
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        version=context.version,
    )
    return context.cluster.groups.consumer_groups.heartbeat(request, sender, context.now)
