"""DescribeGroups: the members of consumer groups, and the partitions assigned to each member.

Version 3 can return the client's authorized operations, 4 adds static members (KIP-345), 5 is
flexible, 6 returns an error for a group that does not exist (KIP-1043).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DescribeGroupsRequest(ApiRequest["DescribeGroupsResponse"]):
    """A request to the groups' coordinator."""

    api_key = ApiKey.DESCRIBE_GROUPS
    versions = VersionRange(0, 6)

    groups: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL, versions="3+", default=False)


@message
class DescribedGroupMember:
    """A member of a group."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(
        STRING, versions="4+", nullable="4+", ignorable=True, default=None
    )
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


@message
class DescribedGroup:
    """A group."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, versions="6+", nullable="6+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: tuple[DescribedGroupMember, ...] = field(array(DescribedGroupMember))
    #: One bit per AclOperation; the minimum int32 if they were not requested.
    authorized_operations: int = field(INT32, versions="3+", default=-2147483648)


@message
class DescribeGroupsResponse(ApiResponse, request=DescribeGroupsRequest):
    """A response with one description per group."""

    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))
