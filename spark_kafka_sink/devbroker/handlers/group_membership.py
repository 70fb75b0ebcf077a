"""The members of groups: the APIs of both group protocols, the classic one and that of KIP-848."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import Parked, RequestSender
from spark_kafka_sink.devbroker.groups.classic_groups import join_error
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from spark_kafka_sink.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

#: Of JoinGroup, SyncGroup and LeaveGroup.
_FIRST_VERSION_WITH_NULL_PROTOCOL = 7
_FIRST_VERSION_WITH_PROTOCOL = 5
_FIRST_VERSION_WITH_MANY_MEMBERS = 3
#: The group has its own timers; this is only how often a request is handled again without cause.
_RECHECK_SECONDS = 3600.0


def _check_coordinator(context: RequestContext, group_id: str) -> None:
    """Raise RefusedError with NOT_COORDINATOR; the group coordinator refuses an empty id."""
    if group_id:
        context.cluster.check_group_coordinator(group_id)


def _sender(context: RequestContext) -> RequestSender:
    return RequestSender(
        client_id=context.client_id,
        client_host=f"/{context.client_host}",
        version=context.version,
        sees_topic=partial(context.allows, AclOperation.DESCRIBE, ResourceType.TOPIC),
    )


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
    """Add a member to a group, and wait for the other members (JoinGroup 0-9).

    The response is sent when the next generation begins, which may take as long as the members'
    rebalance timeouts. From version 4 on, a new member first gets an id with MEMBER_ID_REQUIRED
    (KIP-394). Static members resume their previous membership (KIP-345). See `classic_groups`
    for the requests that are rejected.
    """
    parked = context.kept
    if not isinstance(parked, Parked):
        _check_coordinator(context, request.group_id)
        parked = context.cluster.groups.classic_groups.join(request, _sender(context), context.now)
    response: JoinGroupResponse | None = parked.response
    if response is None:
        return Delayed(context.now + _RECHECK_SECONDS, frozenset({parked}), parked)
    return _in_version(context, response)


def _in_version(context: RequestContext, response: JoinGroupResponse) -> JoinGroupResponse:
    """Set a missing protocol name to what the version requires: an empty string, or null."""
    if response.protocol_name:
        return response
    return replace(
        response,
        protocol_name="" if context.version < _FIRST_VERSION_WITH_NULL_PROTOCOL else None,
    )


@handles(SyncGroupRequest)
def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Delayed:
    """Send each member its part of the group leader's assignment (SyncGroup 0-5).

    From version 5 on, a request without a protocol type and name, or with ones that differ from the
    group's, gets INCONSISTENT_GROUP_PROTOCOL (KIP-559).
    """
    parked = context.kept
    if not isinstance(parked, Parked):
        if context.version >= _FIRST_VERSION_WITH_PROTOCOL and not (
            request.protocol_type is not None and request.protocol_name is not None
        ):
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "protocol type or name is missing"
            )
        _check_coordinator(context, request.group_id)
        parked = context.cluster.groups.classic_groups.sync(request, context.now)
    response: SyncGroupResponse | None = parked.response
    if response is None:
        return Delayed(context.now + _RECHECK_SECONDS, frozenset({parked}), parked)
    return response


@handles(HeartbeatRequest)
def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep a member's session in a group alive (Heartbeat 0-4).

    REBALANCE_IN_PROGRESS means that the member must rejoin, UNKNOWN_MEMBER_ID and
    ILLEGAL_GENERATION that it is no longer in the group, FENCED_INSTANCE_ID that another member has
    its group instance id.
    """
    _check_coordinator(context, request.group_id)
    context.cluster.groups.classic_groups.heartbeat(request, context.now)
    return HeartbeatResponse(error_code=ErrorCode.NONE)


@handles(LeaveGroupRequest)
def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from a group, which then rebalances (LeaveGroup 0-5).

    From version 3 on, a request can remove several members, static ones by their group instance id,
    each with its own result (KIP-345); in a group that does not exist each gets UNKNOWN_MEMBER_ID.
    """
    _check_coordinator(context, request.group_id)
    has_many = context.version >= _FIRST_VERSION_WITH_MANY_MEMBERS
    members = request.members if has_many else (MemberIdentity(member_id=request.member_id),)
    try:
        codes = context.cluster.groups.leave(request.group_id, members, context.now)
    except RefusedError as refused:
        if refused.error_code is not ErrorCode.UNKNOWN_MEMBER_ID:
            raise
        codes = [refused.error_code] * len(members)
    if not has_many:
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


@handles(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Return a member's epoch and, if it has changed, its assignment (ConsumerGroupHeartbeat 0-1).

    A member joins with epoch 0, leaves with -1, and announces with -2 that a static member will
    return. INVALID_REQUEST means a missing or contradictory field, UNSUPPORTED_ASSIGNOR an unknown
    assignor, INVALID_REGULAR_EXPRESSION a subscription that RE2/J would reject. FENCED_MEMBER_EPOCH
    and UNKNOWN_MEMBER_ID mean that the member must give up its partitions and rejoin,
    FENCED_INSTANCE_ID that another member has its group instance id, and UNRELEASED_INSTANCE_ID
    that another one still has it. A group whose members use the classic protocol gets
    GROUP_ID_NOT_FOUND; see `consumer_groups`. A subscription to a topic that the client may not
    describe gets TOPIC_AUTHORIZATION_FAILED, and a regular expression matches none of those.
    """
    for topic in request.subscribed_topic_names or ():
        context.check_right(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    _check_coordinator(context, request.group_id)
    return context.cluster.groups.consumer_groups.heartbeat(request, _sender(context), context.now)
