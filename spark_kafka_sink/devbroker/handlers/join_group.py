"""JoinGroup 0-9: adds a member to a consumer group and waits for the other members.

The response is sent when the next generation begins, which may take as long as the members'
rebalance timeouts. From version 4 on, a new member first gets an id with MEMBER_ID_REQUIRED
(KIP-394). Static members resume their previous membership (KIP-345). See `classic_groups` for
the requests that are rejected.
"""

from __future__ import annotations

from dataclasses import replace

from spark_kafka_sink.devbroker.groups.classic_group import Parked, RequestSender
from spark_kafka_sink.devbroker.groups.classic_groups import join_error
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

_FIRST_VERSION_WITHOUT_PROTOCOL = 7
#: The group has its own timers; this is only how often a request is handled again without cause.
RECHECK_SECONDS = 3600.0


def _error_response(
    context: RequestContext,
    request: JoinGroupRequest,
    error_code: ErrorCode,
    _message: str,
) -> JoinGroupResponse:
    """Return a response with the error: the member has not joined."""
    is_out = error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    return _in_version(context, join_error("" if is_out else request.member_id, error_code))


@handles(JoinGroupRequest, error_response=_error_response)
def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Delayed:
    """Add the member, and return `Delayed` until the next generation begins."""
    parked = context.kept
    if not isinstance(parked, Parked):
        if request.group_id:
            context.cluster.check_group_coordinator(context.node_id, request.group_id)
        parked = context.cluster.groups.classic_groups.join(
            request,
            RequestSender(
                client_id=context.client_id,
                client_host=f"/{context.client_host}",
                version=context.version,
            ),
            context.now,
        )
    response: JoinGroupResponse | None = parked.response
    if response is None:
        return Delayed(context.now + RECHECK_SECONDS, frozenset({parked}), parked)
    return _in_version(context, response)


def _in_version(context: RequestContext, response: JoinGroupResponse) -> JoinGroupResponse:
    """Set a missing protocol name to what the version requires: an empty string, or null."""
    if response.protocol_name:
        return response
    return replace(
        response,
        protocol_name="" if context.version < _FIRST_VERSION_WITHOUT_PROTOCOL else None,
    )
