"""ListGroups 0-5: lists the consumer groups that this broker coordinates.

The filters by state (4+) and type (5+) ignore case. The type is "Classic", or "Consumer" for groups
of the new consumer protocol (KIP-848).
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_FIRST_VERSION_WITH_STATES = 4
_FIRST_VERSION_WITH_TYPES = 5


@handles(ListGroupsRequest)
def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Return the groups that match the filters."""
    states = {state.strip().lower() for state in request.states_filter}
    types = {group_type.strip().lower() for group_type in request.types_filter}
    groups = [
        group
        for group in context.cluster.groups.all()
        if context.cluster.group_coordinator(group.group_id) == context.node_id
        and (not states or group.state.lower() in states)
        and (not types or group.group_type.lower() in types)
    ]
    return ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=tuple(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=str(group.state)
                if context.version >= _FIRST_VERSION_WITH_STATES
                else "",
                group_type=group.group_type if context.version >= _FIRST_VERSION_WITH_TYPES else "",
            )
            for group in groups
        ),
    )
