"""Responses of the group coordinator that are used in more than one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponse
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, Member

_NO_GENERATION = -1


def join_error(member_id: str, error_code: ErrorCode) -> JoinGroupResponse:
    """Return a JoinGroup response with an error."""
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=_NO_GENERATION,
        protocol_name="",
        leader="",
        member_id=member_id,
        members=(),
    )


def sync_error(error_code: ErrorCode) -> SyncGroupResponse:
    """Return a SyncGroup response with an error."""
    return SyncGroupResponse(error_code=error_code, assignment=b"")


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """Return a SyncGroup response with the member's part of the assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
