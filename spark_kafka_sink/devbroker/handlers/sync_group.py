"""SyncGroup 0-5: receives the assignment from the group leader and distributes it to the members.

From version 5 on, a request without a protocol type and name, or with ones that differ from the
group's, gets INCONSISTENT_GROUP_PROTOCOL (KIP-559).
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import Parked
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.devbroker.handlers.join_group import RECHECK_SECONDS
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


@handles(SyncGroupRequest)
def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Delayed:
    """Return the member's assignment, or `Delayed` until the leader has sent it."""
    parked = context.kept
    if not isinstance(parked, Parked):
        if context.version >= _FIRST_VERSION_WITH_PROTOCOL and not (
            request.protocol_type is not None and request.protocol_name is not None
        ):
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "protocol type or name is missing"
            )
        if request.group_id:
            context.cluster.check_group_coordinator(context.node_id, request.group_id)
        parked = context.cluster.groups.classic_groups.sync(request, context.now)
    response: SyncGroupResponse | None = parked.response
    if response is None:
        return Delayed(context.now + RECHECK_SECONDS, frozenset({parked}), parked)
    return response
