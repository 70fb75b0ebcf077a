"""LeaveGroup 0-5: removes members from a consumer group, which then rebalances.

From version 3 on, a request can remove several members, static ones by their group instance id,
each with its own result (KIP-345); in a group that does not exist each gets UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

_FIRST_VERSION_WITH_MANY_MEMBERS = 3


@handles(LeaveGroupRequest)
def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove each member from the group."""
    if request.group_id:
        context.cluster.check_group_coordinator(context.node_id, request.group_id)
    members = _members(context, request)
    try:
        codes = context.cluster.groups.leave(request.group_id, members, context.now)
    except RefusedError as refused:
        if refused.error_code is not ErrorCode.UNKNOWN_MEMBER_ID:
            raise
        codes = [refused.error_code] * len(members)
    if context.version < _FIRST_VERSION_WITH_MANY_MEMBERS:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=code,
            )
            for member, code in zip(members, codes, strict=True)
        ),
    )


def _members(context: RequestContext, request: LeaveGroupRequest) -> tuple[MemberIdentity, ...]:
    if context.version < _FIRST_VERSION_WITH_MANY_MEMBERS:
        return (MemberIdentity(member_id=request.member_id),)
    return request.members
