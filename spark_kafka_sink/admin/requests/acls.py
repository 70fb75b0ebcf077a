"""Requests about access control lists (ACLs), which any broker answers or forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, refusal
from spark_kafka_sink.admin.item_requests import ItemRequest
from spark_kafka_sink.admin.values import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from spark_kafka_sink.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from spark_kafka_sink.protocol.messages.describe_acls import DescribeAclsRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_kafka_sink.admin.cluster_calls import Destination
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.protocol.messages.create_acls import CreateAclsResponse
    from spark_kafka_sink.protocol.messages.delete_acls import (
        DeleteAclsFilterResult,
        DeleteAclsMatchingAcl,
        DeleteAclsResponse,
    )
    from spark_kafka_sink.protocol.messages.describe_acls import (
        AclDescription,
        DescribeAclsResource,
        DescribeAclsResponse,
    )


def describe_acls_call(acl_filter: AclBindingFilter) -> Call[DescribeAclsResponse]:
    """Build the call that lists the ACLs that match a filter."""
    request = DescribeAclsRequest(**_filter_fields(acl_filter))
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.error_code,),
        what="DescribeAcls",
    )


def described_acls(response: DescribeAclsResponse) -> list[AclBinding]:
    """Return the ACLs in a response; raises BrokerError."""
    if response.error_code:
        raise refusal(response.error_code, "DescribeAcls", response.error_message)
    return [_binding(resource, acl) for resource in response.resources for acl in resource.acls]


def creating_acls() -> ItemRequest[AclBinding, CreateAclsResponse, None]:
    """Describe the request that creates ACLs."""

    def build(
        destination: Destination, bindings: Sequence[AclBinding], _seconds: float
    ) -> Call[CreateAclsResponse]:
        request = CreateAclsRequest(
            creations=tuple(
                AclCreation(
                    resource_type=binding.resource_type,
                    resource_name=binding.name,
                    resource_pattern_type=binding.pattern_type,
                    principal=binding.principal,
                    host=binding.host,
                    operation=binding.operation,
                    permission_type=binding.permission_type,
                )
                for binding in bindings
            )
        )
        return Call(destination=destination, build=lambda _: (request, None), what="CreateAcls")

    def read(
        response: CreateAclsResponse, bindings: Sequence[AclBinding]
    ) -> Iterator[tuple[AclBinding, KafkaError | None]]:
        # A response that is too short leaves the rest without a result, which is an error.
        for binding, result in zip(bindings, response.results, strict=False):
            code = result.error_code
            yield binding, refusal(code, "CreateAcls", result.error_message) if code else None

    return ItemRequest(what="CreateAcls", build=build, read=read)


def deleting_acls() -> ItemRequest[AclBindingFilter, DeleteAclsResponse, tuple[AclBinding, ...]]:
    """Describe the request that deletes the ACLs that match filters."""

    def build(
        destination: Destination, filters: Sequence[AclBindingFilter], _seconds: float
    ) -> Call[DeleteAclsResponse]:
        request = DeleteAclsRequest(
            filters=tuple(DeleteAclsFilter(**_filter_fields(acl_filter)) for acl_filter in filters)
        )
        return Call(destination=destination, build=lambda _: (request, None), what="DeleteAcls")

    def read(
        response: DeleteAclsResponse, filters: Sequence[AclBindingFilter]
    ) -> Iterator[tuple[AclBindingFilter, tuple[AclBinding, ...] | KafkaError]]:
        for acl_filter, result in zip(filters, response.filter_results, strict=False):
            yield acl_filter, _deleted(result)

    return ItemRequest(what="DeleteAcls", build=build, read=read)


def _deleted(result: DeleteAclsFilterResult) -> tuple[AclBinding, ...] | KafkaError:
    if result.error_code:
        return refusal(result.error_code, "DeleteAcls", result.error_message)
    bindings = []
    for acl in result.matching_acls:
        binding = _binding(acl, acl)
        if acl.error_code:
            return refusal(acl.error_code, f"DeleteAcls of {binding}", acl.error_message)
        bindings.append(binding)
    return tuple(bindings)


def _binding(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl,
    acl: AclDescription | DeleteAclsMatchingAcl,
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
