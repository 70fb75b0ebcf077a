"""CreateAcls: adds access control lists (ACLs) to resources (KIP-140).

Version 1 adds the type of resource patterns (KIP-290), 2 is flexible, 3 adds users as resources
(KIP-373).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class AclCreation:
    """An ACL to create."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    resource_pattern_type: int = field(INT8, versions="1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@message
class CreateAclsRequest(ApiRequest["CreateAclsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.CREATE_ACLS
    versions = VersionRange(1, 3)

    creations: tuple[AclCreation, ...] = field(array(AclCreation))


@message
class AclCreationResult:
    """The result for one ACL."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@message
class CreateAclsResponse(ApiResponse, request=CreateAclsRequest):
    """A response with one result per ACL, in the order of the request."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[AclCreationResult, ...] = field(array(AclCreationResult))
