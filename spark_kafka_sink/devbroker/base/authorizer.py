"""Decides who may do what: access control lists (ACLs), with the rules of StandardAuthorizer.

- Super users may do everything.
- An ACL applies to a resource of its type if it is LITERAL and has the resource's name or `*`, or
  if it is PREFIXED and the name begins with its own.
- Of the ACLs that apply, those of the client's principal, or of `User:*`, from its address count if
  they are for the operation. One that denies takes precedence over all that allow.
- To allow READ, WRITE, DELETE or ALTER allows DESCRIBE, and to allow ALTER_CONFIGS allows
  DESCRIBE_CONFIGS. To deny one of them denies nothing else.
- If no ACL counts, the operation is denied. With `allow_everyone_if_no_acl_found`, everyone may use
  a resource to which no ACL applies at all.

Values only: a cluster stores the ACLs, and handlers ask for each right that a request needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: The principal of a client that has not authenticated.
ANONYMOUS: Final = "User:ANONYMOUS"
#: The name of the only resource of the type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"
#: The brokers of the cluster, which may do everything: no client has a principal of this type.
BROKERS: Final = "Broker:cluster"
_WILDCARD: Final = "*"
_EVERYONE: Final = "User:*"
#: A name that no ACL has; see `Authorizer.may_use_any`.
_ANY_NAME: Final = "hardcode"

#: The operations on a resource of each type (AclEntry.supportedOperations).
OPERATIONS: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        ResourceType.GROUP: (
            AclOperation.READ,
            AclOperation.DELETE,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            AclOperation.CREATE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
        ),
    }
)

#: The operations that imply one when they are allowed, itself included.
_IMPLIED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = MappingProxyType(
    {
        AclOperation.DESCRIBE: frozenset(
            {
                AclOperation.DESCRIBE,
                AclOperation.READ,
                AclOperation.WRITE,
                AclOperation.DELETE,
                AclOperation.ALTER,
            }
        ),
        AclOperation.DESCRIBE_CONFIGS: frozenset(
            {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
        ),
    }
)

#: The error for a missing right on a resource of each type, with Kafka's message.
_ERRORS: Final[Mapping[ResourceType, tuple[ErrorCode, str]]] = MappingProxyType(
    {
        ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
        ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
        ResourceType.CLUSTER: (
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "Cluster authorization failed.",
        ),
        ResourceType.TRANSACTIONAL_ID: (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Transactional Id authorization failed.",
        ),
    }
)


def not_authorized(resource_type: ResourceType) -> RefusedError:
    """Return the error for a missing right on a resource of this type."""
    return RefusedError(*_ERRORS[resource_type])


class Client(NamedTuple):
    """Who sent a request, and from where."""

    #: Such as `User:alice`.
    principal: str = ANONYMOUS
    #: The address; empty if unknown.
    host: str = ""


class Acl(NamedTuple):
    """One access control list, as clients create it."""

    resource_type: ResourceType
    name: str
    pattern_type: ResourcePatternType
    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType

    def check(self) -> None:
        """Raise RefusedError with INVALID_REQUEST, as AclApis and AclControlManager do."""
        if self.resource_type is ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        elif not self.name:
            problem = "Invalid empty resource name"
        elif self.resource_type <= ResourceType.ANY:
            problem = f"Invalid resourceType {self.resource_type.name}"
        elif self.pattern_type < ResourcePatternType.LITERAL:
            problem = f"Invalid patternType {self.pattern_type.name}"
        elif self.operation <= AclOperation.ANY:
            problem = f"Invalid operation {self.operation.name}"
        elif self.permission_type <= AclPermissionType.ANY:
            problem = f"Invalid permissionType {self.permission_type.name}"
        elif ":" not in self.principal:
            problem = (
                f"Could not parse principal from `{self.principal}` (no colon is present "
                "separating the principal type from the principal name)"
            )
        else:
            return
        raise RefusedError(ErrorCode.INVALID_REQUEST, problem)

    def is_of(self, client: Client) -> bool:
        """Return whether the client's principal and address match."""
        return self.principal in {client.principal, _EVERYONE} and self.host in {
            client.host,
            _WILDCARD,
        }

    def is_for(self, operation: AclOperation) -> bool:
        """Return whether the ACL allows or denies the operation."""
        if self.operation in {AclOperation.ALL, operation}:
            return True
        return self.permission_type is AclPermissionType.ALLOW and self.operation in (
            _IMPLIED_BY.get(operation, ())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A condition on ACLs; None and ANY match everything."""

    resource_type: ResourceType
    name: str | None
    pattern_type: ResourcePatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: AclPermissionType

    @property
    def is_unknown(self) -> bool:
        """Whether one of the codes is unknown: such a filter matches nothing."""
        codes = (self.resource_type, self.pattern_type, self.operation, self.permission_type)
        return 0 in codes

    def matches(self, acl: Acl) -> bool:
        """Return whether an ACL meets the condition (AclBindingFilter.matches)."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self._matches_pattern(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {AclOperation.ANY, acl.operation}
            and self.permission_type in {AclPermissionType.ANY, acl.permission_type}
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is ResourcePatternType.MATCH and self.name is not None:
            if acl.pattern_type is ResourcePatternType.PREFIXED:
                return self.name.startswith(acl.name)
            return acl.name in {self.name, _WILDCARD}
        any_type = {ResourcePatternType.ANY, ResourcePatternType.MATCH, acl.pattern_type}
        return self.pattern_type in any_type and self.name in {None, acl.name}


class Authorizer:
    """The ACLs of a cluster, and the decisions that follow from them."""

    def __init__(
        self,
        super_users: Iterable[str] = (),
        *,
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        """Start without ACLs. Raises ConfigError for a super user without a type."""
        self._super_users = frozenset(super_users)
        for user in self._super_users:
            if ":" not in user:
                raise ConfigError(f"super_users: {user!r} must have its type, such as User:{user}")
        self._is_open = allow_everyone_if_no_acl_found
        self._acls: dict[Acl, None] = {}
        #: By type and name, and by type and prefix.
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefixed: dict[ResourceType, dict[str, list[Acl]]] = {}

    @property
    def acls(self) -> tuple[Acl, ...]:
        """All ACLs, in the order in which they were created."""
        return tuple(self._acls)

    def replace(self, acls: Iterable[Acl]) -> None:
        """Replace all ACLs."""
        self._acls = dict.fromkeys(acls)
        self._literal.clear()
        self._prefixed.clear()
        for acl in self._acls:
            if acl.pattern_type is ResourcePatternType.PREFIXED:
                prefixes = self._prefixed.setdefault(acl.resource_type, {})
                prefixes.setdefault(acl.name, []).append(acl)
            else:
                self._literal.setdefault((acl.resource_type, acl.name), []).append(acl)

    def allows(
        self, client: Client, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether a client may do something with a resource."""
        if client.principal in self._super_users or client.principal == BROKERS:
            return True
        acls = list(self._that_apply(resource_type, name))
        effects = {
            acl.permission_type for acl in acls if acl.is_of(client) and acl.is_for(operation)
        }
        if effects:
            return AclPermissionType.DENY not in effects
        return self._is_open and not acls

    def may_use_any(
        self, client: Client, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether there may be a resource that the client may use (KIP-679).

        As Authorizer.authorizeByResourceType: without implied operations, and an ACL counts as
        denied if a denied prefix covers it.
        """
        if self.allows(client, operation, resource_type, _ANY_NAME):
            return True
        allowed: set[tuple[ResourcePatternType, str]] = set()
        denied: set[tuple[ResourcePatternType, str]] = set()
        for acl in self._acls:
            if (
                acl.resource_type is resource_type
                and acl.is_of(client)
                and acl.operation in {operation, AclOperation.ALL}
            ):
                allows = acl.permission_type is AclPermissionType.ALLOW
                (allowed if allows else denied).add((acl.pattern_type, acl.name))
        every = (ResourcePatternType.LITERAL, _WILDCARD)
        if every in denied:
            return False
        if every in allowed:
            return True
        return any(pattern not in denied and not _covers(denied, pattern[1]) for pattern in allowed)

    def _that_apply(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource_type, name), ())
        if name != _WILDCARD:
            yield from self._literal.get((resource_type, _WILDCARD), ())
        for prefix, acls in self._prefixed.get(resource_type, {}).items():
            if name.startswith(prefix):
                yield from acls


def _covers(denied: set[tuple[ResourcePatternType, str]], name: str) -> bool:
    return any(
        pattern_type is ResourcePatternType.PREFIXED and name.startswith(prefix)
        for pattern_type, prefix in denied
    )
