"""DescribeGroups 0-6: describes consumer groups, their members and assignments.

A group that does not exist is Dead, from version 6 on with GROUP_ID_NOT_FOUND (KIP-1043). Only
stable groups have member metadata and assignments. A group of the new consumer protocol (KIP-848)
gets the same answer as one that does not exist: ConsumerGroupDescribe describes it. There is no
authorizer, so all operations are authorized.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import GroupState
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.devbroker.handlers.metadata import operations
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS

_FIRST_VERSION_WITH_OPERATIONS = 3
_FIRST_VERSION_WITH_MESSAGES = 6
#: Read, delete, describe, describe configs and alter configs.
ALL_GROUP_OPERATIONS = operations(3, 6, 8, 10, 11)


@handles(DescribeGroupsRequest)
def describe_groups(
    context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each group."""
    allowed = UNKNOWN_OPERATIONS
    if request.include_authorized_operations and context.version >= _FIRST_VERSION_WITH_OPERATIONS:
        allowed = ALL_GROUP_OPERATIONS
    # Drop duplicates: a small request that repeats a group would get a huge response.
    group_ids = dict.fromkeys(request.groups)
    return DescribeGroupsResponse(
        groups=tuple(_describe(context, group_id, allowed) for group_id in group_ids)
    )


def _describe(context: RequestContext, group_id: str, allowed: int) -> DescribedGroup:
    try:
        context.cluster.check_group_coordinator(context.node_id, group_id)
    except RefusedError as refused:
        # The field for messages came with version 6.
        message = refused.message if context.version >= _FIRST_VERSION_WITH_MESSAGES else None
        return _group(group_id, error_code=refused.error_code, message=message)
    group = context.cluster.groups.find_classic(group_id)
    if group is None:
        # GROUP_ID_NOT_FOUND came with the field for messages.
        known = context.version >= _FIRST_VERSION_WITH_MESSAGES
        return _group(
            group_id,
            state=str(GroupState.DEAD),
            allowed=allowed,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.NONE,
            message=f"Group {group_id} not found." if known else None,
        )
    is_stable = group.state is GroupState.STABLE
    protocol = (group.protocol_name or "") if is_stable else ""
    return _group(
        group_id,
        state=str(group.state),
        protocol_type=group.protocol_type or "",
        protocol=protocol,
        allowed=allowed,
        members=tuple(
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ),
    )


def _group(
    group_id: str,
    *,
    state: str = "",
    protocol_type: str = "",
    protocol: str = "",
    members: tuple[DescribedGroupMember, ...] = (),
    allowed: int = UNKNOWN_OPERATIONS,
    error_code: ErrorCode = ErrorCode.NONE,
    message: str | None = None,
) -> DescribedGroup:
    return DescribedGroup(
        error_code=error_code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol,
        members=members,
        authorized_operations=allowed,
    )
