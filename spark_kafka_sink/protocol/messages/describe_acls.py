"""DescribeAcls: the access control lists (ACLs) that match a filter (KIP-140).

Version 1 adds the type of resource patterns (KIP-290), 2 is flexible, 3 adds users as resources
(KIP-373).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DescribeAclsRequest(ApiRequest["DescribeAclsResponse"]):
    """A request to any broker; null texts match all values, as does ANY in the numbers."""

    api_key = ApiKey.DESCRIBE_ACLS
    versions = VersionRange(1, 3)

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, versions="1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@message
class AclDescription:
    """An ACL of one resource pattern."""

    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@message
class DescribeAclsResource:
    """A resource pattern with its ACLs."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, versions="1+", default=3)
    acls: tuple[AclDescription, ...] = field(array(AclDescription))


@message
class DescribeAclsResponse(ApiResponse, request=DescribeAclsRequest):
    """A response with the matching ACLs, by resource pattern."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    resources: tuple[DescribeAclsResource, ...] = field(array(DescribeAclsResource))
