"""DeleteAcls: deletes the access control lists (ACLs) that match filters (KIP-140).

Version 1 adds the type of resource patterns (KIP-290), 2 is flexible, 3 adds users as resources
(KIP-373).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DeleteAclsFilter:
    """A filter; null texts match all values, as does ANY in the numbers."""

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, versions="1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@message
class DeleteAclsRequest(ApiRequest["DeleteAclsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.DELETE_ACLS
    versions = VersionRange(1, 3)

    filters: tuple[DeleteAclsFilter, ...] = field(array(DeleteAclsFilter))


@message
class DeleteAclsMatchingAcl:
    """An ACL that matched, which was deleted unless it has an error."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, versions="1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@message
class DeleteAclsFilterResult:
    """The result for one filter."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = field(array(DeleteAclsMatchingAcl))


@message
class DeleteAclsResponse(ApiResponse, request=DeleteAclsRequest):
    """A response with one result per filter, in the order of the request."""

    throttle_time_ms: int = field(INT32, default=0)
    filter_results: tuple[DeleteAclsFilterResult, ...] = field(array(DeleteAclsFilterResult))
