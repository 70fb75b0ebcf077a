"""ACLs on the resources of a broker that enforces them, for tests that revoke rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from tests.support.kafka.real_kafka import KafkaCluster

ANYBODY = "User:ANONYMOUS"
_SECONDS = 120


class Rights:
    """The rights of anonymous users on resources that have an owner."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self._admin = kafka.admin
        self._made: list[AclBinding] = []

    def only(
        self, kind: ResourceType, name: str, *allowed: AclOperation, prefixed: bool = False
    ) -> None:
        """Restrict anonymous users to the operations `allowed` on a resource, from now on."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        users = [("User:owner", AclOperation.ALL), *((ANYBODY, operation) for operation in allowed)]
        made = [
            AclBinding(kind, name, pattern, user, "*", operation, AclPermissionType.ALLOW)
            for user, operation in users
        ]
        for future in self._admin.create_acls(made).values():
            future.result(_SECONDS)
        self._made += made
        # The controller has them, but the broker that enforces them may not have read them yet.
        every = AclBindingFilter(
            kind, name, pattern, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        wait_until(
            lambda: set(made) <= set(self._admin.describe_acls(every).result(_SECONDS)),
            seconds=_SECONDS,
            what=f"the ACLs of {name}",
        )

    def give_back(self) -> None:
        """Delete the ACLs, so that all users may do everything again."""
        filters = {
            AclBindingFilter(
                made.restype,
                made.name,
                made.resource_pattern_type,
                None,
                None,
                AclOperation.ANY,
                AclPermissionType.ANY,
            )
            for made in self._made
        }
        if filters:
            for future in self._admin.delete_acls(list(filters)).values():
                future.result(_SECONDS)
