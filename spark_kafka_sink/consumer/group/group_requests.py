"""The requests that join a classic group, stay in it and leave it, and their answers.

The steps are those of `ClassicMembership`; each builder makes the request of one step, for the
version in which it is sent. Fields that an old version lacks are dropped, with one exception: a
group.instance.id (KIP-345) that the broker does not know is an UnsupportedVersionError, because
the member would be a dynamic one without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.consumer.group.group_values import JoinAnswer, Member, truncate_reason
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from spark_kafka_sink.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafka_sink.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.consumer.group.group_values import (
        GroupSettings,
        Heartbeat,
        JoinGroup,
        LeaveGroup,
        SyncGroup,
    )
    from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponse
    from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupResponse
    from spark_kafka_sink.protocol.messages.sync_group import SyncGroupResponse

#: The first version of each request that has a group.instance.id (KIP-345).
STATIC_MEMBERS_FROM: Final[Mapping[ApiKey, int]] = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
}
#: The first LeaveGroup version with a list of members.
LEAVE_MEMBERS_VERSION: Final = 3


class SyncAnswer(NamedTuple):
    """What a SyncGroup response says (SyncGroupResponseData)."""

    error_code: int = 0
    #: The member's part, in the embedded consumer protocol; empty with an error.
    assignment: bytes = b""
    #: None from brokers that do not send it, as is `protocol`.
    protocol_type: str | None = None
    protocol: str | None = None


def join_request(
    step: JoinGroup,
    settings: GroupSettings,
    protocols: Sequence[tuple[str, bytes]],
    version: int,
) -> JoinGroupRequest:
    """Build JoinGroup.

    `protocols` are the names of the assignors, in order of preference, each with the subscription
    in the embedded consumer protocol. Raises UnsupportedVersionError for a group.instance.id that
    the version lacks.
    """
    check_instance_id(ApiKey.JOIN_GROUP, version, settings.group_instance_id)
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=_milliseconds(settings.session_timeout),
        rebalance_timeout_ms=_milliseconds(settings.rebalance_timeout),
        member_id=step.generation.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=settings.protocol_type,
        protocols=tuple(
            JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
        ),
        reason=truncate_reason(step.reason),
    )


def read_join(response: JoinGroupResponse) -> JoinAnswer:
    """Convert a response to JoinGroup."""
    return JoinAnswer(
        error_code=response.error_code,
        generation_id=response.generation_id,
        member_id=response.member_id,
        protocol=response.protocol_name,
        protocol_type=response.protocol_type,
        leader=response.leader,
        members=tuple(
            Member(member.member_id, member.group_instance_id, member.metadata)
            for member in response.members
        ),
        skip_assignment=response.skip_assignment,
    )


def sync_request(step: SyncGroup, settings: GroupSettings, version: int) -> SyncGroupRequest:
    """Build SyncGroup; raises UnsupportedVersionError as `join_request` does."""
    check_instance_id(ApiKey.SYNC_GROUP, version, settings.group_instance_id)
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=step.generation.generation_id,
        member_id=step.generation.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=settings.protocol_type,
        protocol_name=step.generation.protocol,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in step.assignments.items()
        ),
    )


def read_sync(response: SyncGroupResponse) -> SyncAnswer:
    """Convert a response to SyncGroup to what `ClassicMembership.sync_answered` takes."""
    return SyncAnswer(
        response.error_code, response.assignment, response.protocol_type, response.protocol_name
    )


def heartbeat_request(step: Heartbeat, settings: GroupSettings, version: int) -> HeartbeatRequest:
    """Build Heartbeat; raises UnsupportedVersionError as `join_request` does."""
    check_instance_id(ApiKey.HEARTBEAT, version, settings.group_instance_id)
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=step.generation.generation_id,
        member_id=step.generation.member_id,
        group_instance_id=settings.group_instance_id,
    )


def leave_request(step: LeaveGroup, settings: GroupSettings, version: int) -> LeaveGroupRequest:
    """Build LeaveGroup, which names the member by its id alone, also a static one.

    Source: AbstractCoordinator.maybeLeaveGroup.
    """
    if version < LEAVE_MEMBERS_VERSION:
        return LeaveGroupRequest(group_id=settings.group_id, member_id=step.member_id)
    member = MemberIdentity(member_id=step.member_id, reason=truncate_reason(step.reason))
    return LeaveGroupRequest(group_id=settings.group_id, members=(member,))


def read_leave(response: LeaveGroupResponse) -> int:
    """Return the error code of the request, or else that of the member."""
    codes = (response.error_code, *(member.error_code for member in response.members))
    return next((code for code in codes if code), 0)


def check_instance_id(api_key: ApiKey, version: int, group_instance_id: str | None) -> None:
    """Raise UnsupportedVersionError for a group.instance.id that a version cannot carry."""
    if group_instance_id is not None and version < STATIC_MEMBERS_FROM[api_key]:
        raise UnsupportedVersionError(
            f"group.instance.id {group_instance_id!r} cannot be used: the group's coordinator does "
            f"not support static members ({api_key.name} version {version}), which require Apache "
            "Kafka 2.3 or later. Upgrade the brokers, or unset group.instance.id"
        )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
