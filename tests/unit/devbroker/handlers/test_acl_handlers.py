"""The APIs of access control lists (ACLs), on a broker without an authorizer."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from spark_kafka_sink.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from spark_kafka_sink.protocol.messages.describe_acls import DescribeAclsRequest
from tests.support.devbroker.broker_requests import ask, broker_with

DISABLED = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
ANY = 1
EVERYTHING = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


@pytest.fixture
def broker():
    return broker_with({"t": 1})


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_cannot_be_listed(broker, version):
    """DescribeAcls is refused as a whole, with Kafka's message."""
    answer = ask(broker, DescribeAclsRequest(**EVERYTHING), version)

    assert (*DISABLED, ()) == (answer.error_code, answer.error_message, answer.resources)


@pytest.mark.parametrize("version", range(1, 4))
def test_no_acl_is_created(broker, version):
    """CreateAcls refuses each ACL."""
    creation = AclCreation(
        resource_type=2,
        resource_name="t",
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )

    answer = ask(broker, CreateAclsRequest(creations=(creation, creation)), version)

    assert [DISABLED] * 2 == [(it.error_code, it.error_message) for it in answer.results]


@pytest.mark.parametrize("version", range(1, 4))
def test_no_acl_is_deleted(broker, version):
    """DeleteAcls refuses each filter."""
    request = DeleteAclsRequest(filters=(DeleteAclsFilter(**EVERYTHING),) * 2)

    answer = ask(broker, request, version)

    assert [(*DISABLED, ())] * 2 == [
        (it.error_code, it.error_message, it.matching_acls) for it in answer.filter_results
    ]
