"""SyncGroup: the group leader sends the assignment, and every member receives its own part.

Version 3 adds static members (KIP-345), 4 is flexible, 5 adds the protocol's name (KIP-559).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class SyncGroupRequestAssignment:
    """The assignment of one member."""

    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


@message
class SyncGroupRequest(ApiRequest["SyncGroupResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.SYNC_GROUP
    versions = VersionRange(0, 5)

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    protocol_type: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    protocol_name: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    #: Empty except from the leader.
    assignments: tuple[SyncGroupRequestAssignment, ...] = field(array(SyncGroupRequestAssignment))


@message
class SyncGroupResponse(ApiResponse, request=SyncGroupRequest):
    """A response with the member's assignment."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    error_code: int = field(INT16, default=0)
    protocol_type: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    protocol_name: str | None = field(
        STRING, versions="5+", nullable="5+", ignorable=True, default=None
    )
    assignment: bytes = field(BYTES)
