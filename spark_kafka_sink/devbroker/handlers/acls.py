"""Access control lists (ACLs): DescribeAcls, CreateAcls and DeleteAcls.

Without an authorizer there are no ACLs, and the requests get SECURITY_DISABLED. A request with the
code of UNKNOWN, which no client sends, closes the connection, as in Kafka; any other number that
the broker does not know is an invalid value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import Acl, AclFilter, Authorizer
from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError, RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import create_acls as created
from spark_kafka_sink.protocol.messages import delete_acls as deleted
from spark_kafka_sink.protocol.messages import describe_acls as described

if TYPE_CHECKING:
    from collections.abc import Collection


def _authorizer(context: RequestContext) -> Authorizer:
    authorizer = context.cluster.authorizer
    if authorizer is None:
        raise RefusedError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return authorizer


def _refuse_unknown(codes: Collection[int]) -> None:
    if 0 in codes:
        raise CloseConnectionError("the request has an ACL with an UNKNOWN code")


def _filter(
    requested: described.DescribeAclsRequest | deleted.DeleteAclsFilter,
) -> AclFilter:
    _refuse_unknown(
        (
            requested.resource_type_filter,
            requested.pattern_type_filter,
            requested.operation,
            requested.permission_type,
        )
    )
    return AclFilter(
        resource_type=ResourceType(requested.resource_type_filter),
        name=requested.resource_name_filter,
        pattern_type=ResourcePatternType(requested.pattern_type_filter),
        principal=requested.principal_filter,
        host=requested.host_filter,
        operation=AclOperation(requested.operation),
        permission_type=AclPermissionType(requested.permission_type),
    )


@handles(described.DescribeAclsRequest)
def describe_acls(
    context: RequestContext, request: described.DescribeAclsRequest
) -> described.DescribeAclsResponse:
    """Return the ACLs that match a filter, by resource (DescribeAcls 1-3)."""
    authorizer = _authorizer(context)
    acl_filter = _filter(request)
    resources: dict[tuple[ResourceType, str, ResourcePatternType], list[Acl]] = {}
    for acl in authorizer.acls:
        if acl_filter.matches(acl):
            key = (acl.resource_type, acl.name, acl.pattern_type)
            resources.setdefault(key, []).append(acl)
    return described.DescribeAclsResponse(
        resources=tuple(
            described.DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=tuple(
                    described.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission_type,
                    )
                    for acl in acls
                ),
            )
            for (resource_type, name, pattern_type), acls in resources.items()
        )
    )


@handles(created.CreateAclsRequest)
def create_acls(
    context: RequestContext, request: created.CreateAclsRequest
) -> created.CreateAclsResponse:
    """Create ACLs, each by itself; one that exists already is not an error (CreateAcls 1-3).

    An invalid one gets INVALID_REQUEST. All others are written to disk at once; if that fails, none
    is created and each gets KAFKA_STORAGE_ERROR.
    """
    authorizer = _authorizer(context)
    for creation in request.creations:
        _refuse_unknown(
            (
                creation.resource_type,
                creation.resource_pattern_type,
                creation.operation,
                creation.permission_type,
            )
        )
    acls = [_acl(creation) for creation in request.creations]
    problems: dict[Acl, RefusedError] = {}
    for acl in dict.fromkeys(acls):
        try:
            acl.check()
        except RefusedError as refused:
            problems[acl] = refused
    new = [acl for acl in acls if acl not in problems]
    try:
        context.cluster.change_acls((*authorizer.acls, *new))
    except RefusedError as refused:
        problems |= dict.fromkeys(new, refused)
    return created.CreateAclsResponse(
        results=tuple(
            context.failed(created.AclCreationResult, problems[acl])
            if acl in problems
            else created.AclCreationResult()
            for acl in acls
        )
    )


def _acl(creation: created.AclCreation) -> Acl:
    return Acl(
        resource_type=ResourceType(creation.resource_type),
        name=creation.resource_name,
        pattern_type=ResourcePatternType(creation.resource_pattern_type),
        principal=creation.principal,
        host=creation.host,
        operation=AclOperation(creation.operation),
        permission_type=AclPermissionType(creation.permission_type),
    )


@handles(deleted.DeleteAclsRequest)
def delete_acls(
    context: RequestContext, request: deleted.DeleteAclsRequest
) -> deleted.DeleteAclsResponse:
    """Delete the ACLs that match filters, and return them (DeleteAcls 1-3).

    A filter with a code that the broker does not know gets INVALID_REQUEST. The ACLs of all filters
    are deleted with one write to disk; if that fails, none is deleted and each filter gets
    KAFKA_STORAGE_ERROR.
    """
    authorizer = _authorizer(context)
    filters = [_filter(requested) for requested in request.filters]
    # A filter that is repeated matches the same ACLs again, as in Kafka, but is sought only once.
    matches = {
        acl_filter: [acl for acl in authorizer.acls if acl_filter.matches(acl)]
        for acl_filter in filters
    }
    doomed = {acl for acls in matches.values() for acl in acls}
    if doomed:
        context.cluster.change_acls([acl for acl in authorizer.acls if acl not in doomed])

    def result(acl_filter: AclFilter) -> deleted.DeleteAclsFilterResult:
        if acl_filter.is_unknown:
            refused = RefusedError(ErrorCode.INVALID_REQUEST, "Unknown filter.")
            return context.failed(deleted.DeleteAclsFilterResult, refused)
        return deleted.DeleteAclsFilterResult(
            matching_acls=tuple(
                deleted.DeleteAclsMatchingAcl(
                    resource_type=acl.resource_type,
                    resource_name=acl.name,
                    pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in matches[acl_filter]
            )
        )

    return deleted.DeleteAclsResponse(filter_results=tuple(map(result, filters)))
