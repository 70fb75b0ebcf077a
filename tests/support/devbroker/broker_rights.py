"""The rights of anonymous clients of an embedded broker that enforces ACLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.authorizer import ANONYMOUS, CLUSTER_NAME, Acl
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def guarded_broker(*topics: str) -> AbstractContextManager[DevBroker]:
    """Return a broker on which clients may do only what they are allowed by `allow`."""
    return DevBroker(topics=dict.fromkeys(topics, 2), authorizer=True)


def allow(broker: DevBroker, *rights: tuple[str, str, str]) -> None:
    """Set the rights of anonymous clients: each an operation, a type and a name."""
    acls = [allowed(*right) for right in rights]
    broker.call(lambda inner: inner.cluster.change_acls(acls))


def allowed(
    operation: str, resource_type: str, name: str = CLUSTER_NAME, *, principal: str = ANONYMOUS
) -> Acl:
    """Return an ACL that allows an operation."""
    return Acl(
        ResourceType[resource_type],
        name,
        ResourcePatternType.LITERAL,
        principal,
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )
