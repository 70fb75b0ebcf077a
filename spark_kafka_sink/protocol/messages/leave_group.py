"""LeaveGroup: removes members from a consumer group.

Version 3 accepts several members, including static ones (KIP-345), 4 is flexible, 5 accepts a
reason (KIP-800).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class MemberIdentity:
    """A member to remove."""

    member_id: str = field(STRING, versions="3+")
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    reason: str | None = field(STRING, versions="5+", nullable="5+", ignorable=True, default=None)


@message
class LeaveGroupRequest(ApiRequest["LeaveGroupResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.LEAVE_GROUP
    versions = VersionRange(0, 5)

    group_id: str = field(STRING)
    member_id: str = field(STRING, versions="0-2", default="")
    members: tuple[MemberIdentity, ...] = field(array(MemberIdentity), versions="3+", default=())


@message
class MemberResponse:
    """The result for one member."""

    member_id: str = field(STRING, versions="3+")
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+")
    error_code: int = field(INT16, versions="3+", default=0)


@message
class LeaveGroupResponse(ApiResponse, request=LeaveGroupRequest):
    """A response with one result per member from version 3 on."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
    members: tuple[MemberResponse, ...] = field(array(MemberResponse), versions="3+", default=())
