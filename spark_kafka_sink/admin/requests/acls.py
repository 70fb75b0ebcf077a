"""Requests about access control lists (ACLs), which any broker answers or forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, error_in, raise_for_code
from spark_kafka_sink.admin.item_requests import ItemRequest
from spark_kafka_sink.admin.values import (
    AclBinding,
    AclBindingFilter,
)
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.messages import create_acls, delete_acls, describe_acls

if TYPE_CHECKING:
    from spark_kafka_sink.errors import KafkaError


def describe_acls_call(acl_filter: AclBindingFilter) -> Call[describe_acls.DescribeAclsResponse]:
    """Build the call that lists the ACLs that match a filter."""
    request = describe_acls.DescribeAclsRequest(**_filter_fields(acl_filter))
    return Call(AnyBroker(), request, "DescribeAcls", lambda answer: (answer.error_code,))


def described_acls(response: describe_acls.DescribeAclsResponse) -> list[AclBinding]:
    """Return the ACLs in a response; raises BrokerError."""
    raise_for_code(response.error_code, "DescribeAcls", response.error_message)
    return [_binding(resource, acl) for resource in response.resources for acl in resource.acls]


def creating_acls() -> ItemRequest[AclBinding, create_acls.CreateAclsResponse, None]:
    """Describe the request that creates ACLs."""
    return ItemRequest.of(
        "CreateAcls",
        lambda bindings, _: create_acls.CreateAclsRequest(
            creations=tuple(map(_creation, bindings))
        ),
        lambda response, bindings: (
            (binding, error_in(result.error_code, "CreateAcls", result.error_message))
            # A response that is too short leaves the rest without a result, which is an error.
            for binding, result in zip(bindings, response.results, strict=False)
        ),
    )


def _creation(binding: AclBinding) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        resource_pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission_type,
    )


def deleting_acls() -> ItemRequest[
    AclBindingFilter, delete_acls.DeleteAclsResponse, tuple[AclBinding, ...]
]:
    """Describe the request that deletes the ACLs that match filters."""
    return ItemRequest.of(
        "DeleteAcls",
        lambda filters, _: delete_acls.DeleteAclsRequest(
            filters=tuple(
                delete_acls.DeleteAclsFilter(**_filter_fields(acl_filter)) for acl_filter in filters
            )
        ),
        lambda response, filters: zip(
            filters, map(_deleted, response.filter_results), strict=False
        ),
    )


def _deleted(result: delete_acls.DeleteAclsFilterResult) -> tuple[AclBinding, ...] | KafkaError:
    if error := error_in(result.error_code, "DeleteAcls", result.error_message):
        return error
    bindings = []
    for acl in result.matching_acls:
        binding = _binding(acl, acl)
        if error := error_in(acl.error_code, f"DeleteAcls of {binding}", acl.error_message):
            return error
        bindings.append(binding)
    return tuple(bindings)


def _binding(
    resource: describe_acls.DescribeAclsResource | delete_acls.DeleteAclsMatchingAcl,
    acl: describe_acls.AclDescription | delete_acls.DeleteAclsMatchingAcl,
) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType(resource.resource_type),
        name=resource.resource_name,
        pattern_type=ResourcePatternType(resource.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=AclOperation(acl.operation),
        permission_type=AclPermissionType(acl.permission_type),
    )


def _filter_fields(acl_filter: AclBindingFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": acl_filter.resource_type,
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": acl_filter.pattern_type,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission_type,
    }
