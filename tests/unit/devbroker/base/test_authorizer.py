"""Decisions from ACLs, compared with those of Kafka's StandardAuthorizer."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.authorizer import Acl, Authorizer, Client
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.acl_cases import ANSWERS, CASES, case

ALICE = Client("User:alice", "127.0.0.1")
READ_A = Acl(
    ResourceType.TOPIC,
    "a",
    ResourcePatternType.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def allows(*acls, operation=AclOperation.READ, name="a", client=ALICE, **settings):
    authorizer = Authorizer(**settings)
    authorizer.replace(acls)
    return authorizer.allows(client, operation, ResourceType.TOPIC, name)


def test_each_decision_is_that_of_kafka():
    """Of thousands of decisions about generated ACLs, each is the one of StandardAuthorizer."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines()
    assert CASES == len(lines)
    differences = [
        (number, question, expected)
        for number, line in enumerate(lines)
        for question, expected, actual in zip(
            case(number).questions, line.split(" "), case(number).answers(), strict=True
        )
        if expected != (actual or "-")
    ]
    assert [] == differences


def test_denying_takes_precedence():
    """An ACL that denies wins, whatever else allows the operation."""
    everyone = READ_A._replace(name="*", principal="User:*", permission_type=AclPermissionType.DENY)

    assert allows(READ_A)
    assert not allows(READ_A, everyone)


def test_a_denied_write_does_not_deny_describing():
    """Allowing an operation implies others; denying it does not."""
    denied = READ_A._replace(operation=AclOperation.WRITE, permission_type=AclPermissionType.DENY)

    assert allows(READ_A, denied, operation=AclOperation.DESCRIBE)


def test_an_acl_about_another_operation_closes_an_open_resource():
    """Everyone may use a resource without ACLs, and not one that has any."""
    other = READ_A._replace(principal="User:bob")

    assert allows(allow_everyone_if_no_acl_found=True)
    assert not allows(other, allow_everyone_if_no_acl_found=True)


def test_a_super_user_needs_no_acl():
    """A super user may do what an ACL denies."""
    denied = READ_A._replace(permission_type=AclPermissionType.DENY)

    assert allows(denied, super_users=("User:alice",))


def test_a_super_user_has_a_type():
    """A super user without its type could never match, and is refused."""
    with pytest.raises(ConfigError, match="'alice' must have its type, such as User:alice"):
        Authorizer(("alice",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"resource_type": ResourceType.CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": ResourcePatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"permission_type": AclPermissionType.ANY}, "Invalid permissionType ANY"),
        ({"principal": "alice"}, "Could not parse principal from `alice` .*"),
    ],
)
def test_an_invalid_acl_is_refused(changes, message):
    """An ACL that could never apply is refused with Kafka's message."""
    with pytest.raises(RefusedError, match=f"^{message}$") as raised:
        READ_A._replace(**changes).check()

    assert ErrorCode.INVALID_REQUEST is raised.value.error_code
