"""Access control lists (ACLs): who may do what with which resources."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self

from spark_kafka_sink.offset_arguments import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Code(IntEnum):
    """A code whose value 0 is UNKNOWN, for codes of newer brokers."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if isinstance(value, int):
            return cls(0)
        if not isinstance(value, str):
            # Enum raises ValueError.
            return None
        raise ValueError(_not_a_code(value, cls.__name__, list(cls.__members__)))


def _not_a_code(text: str, kind: str, names: Sequence[str]) -> str:
    name = text.upper()
    if name in names:
        return f"{text!r} is a name of {kind}, not a code: write {kind}.{name} or {kind}[{name!r}]"
    return f"{text!r} is no {kind}: write {kind}.NAME with one of the names {', '.join(names)}"


class ResourceType(_Code):
    """The type of a resource that ACLs protect.

    >>> ResourceType.TOPIC.name
    'TOPIC'
    """

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class ResourcePatternType(_Code):
    """How the name in an ACL matches resources (KIP-290).

    LITERAL is the name itself, or all resources if it is `*`; PREFIXED are all names that begin
    with it. In a filter, MATCH finds the ACLs that apply to a resource of that name.

    >>> ResourcePatternType.PREFIXED.name
    'PREFIXED'
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Code):
    """What an ACL allows or denies.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     topics = admin.describe_topics(["orders"], include_authorized_operations=True)
    >>> AclOperation.WRITE in topics["orders"].authorized_operations
    True
    """

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(_Code):
    """Whether an ACL allows or denies; DENY takes precedence.

    >>> AclPermissionType.ALLOW.name
    'ALLOW'
    """

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """An access control list (ACL) of a resource. Raises TypeError for values of a wrong type.

    >>> acl = AclBinding(
    ...     resource_type=ResourceType.TOPIC,
    ...     name="orders",
    ...     principal="User:alice",
    ...     operation=AclOperation.READ,
    ... )
    >>> print(acl)
    User:alice from *: ALLOW READ of TOPIC 'orders' (LITERAL)
    """

    #: The type of the resource.
    resource_type: ResourceType
    #: The name of the resource, or the beginning of names: see `pattern_type`.
    name: str
    #: How the name matches resources.
    pattern_type: ResourcePatternType = ResourcePatternType.LITERAL
    #: Such as `User:alice`; `User:*` is every user.
    principal: str
    #: The address of the client; `*` is every address.
    host: str = "*"
    #: What is allowed or denied.
    operation: AclOperation
    #: Whether it is allowed or denied.
    permission_type: AclPermissionType = AclPermissionType.ALLOW

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value that cannot be sent."""
        _check_codes(self)
        for name in _TEXTS:
            text_of(getattr(self, name), f"the {name} of an AclBinding")

    def __str__(self) -> str:
        """Return the ACL as a sentence, for errors."""
        return (
            f"{self.principal} from {self.host}: {self.permission_type.name} "
            f"{self.operation.name} of {self.resource_type.name} {self.name!r} "
            f"({self.pattern_type.name})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBindingFilter:
    """A condition on ACLs; without arguments, all ACLs match.

    Raises TypeError for values of a wrong type.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     try:
    ...         admin.describe_acls(AclBindingFilter(principal="User:alice"))
    ...     except BrokerError as error:  # the embedded broker has no authorizer
    ...         error.name
    'SECURITY_DISABLED'
    """

    #: ANY matches every type.
    resource_type: ResourceType = ResourceType.ANY
    #: None matches every name.
    name: str | None = None
    #: ANY matches every type; MATCH those that apply to a resource of the name.
    pattern_type: ResourcePatternType = ResourcePatternType.ANY
    #: None matches every principal.
    principal: str | None = None
    #: None matches every host.
    host: str | None = None
    #: ANY matches every operation.
    operation: AclOperation = AclOperation.ANY
    #: ANY matches both.
    permission_type: AclPermissionType = AclPermissionType.ANY

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value that cannot be sent."""
        _check_codes(self)
        for name in _TEXTS:
            if getattr(self, name) is not None:
                text_of(getattr(self, name), f"the {name} of an AclBindingFilter")


_TEXTS: Final = ("name", "principal", "host")
_CODES: Final[dict[str, type[_Code]]] = {
    "resource_type": ResourceType,
    "pattern_type": ResourcePatternType,
    "operation": AclOperation,
    "permission_type": AclPermissionType,
}


def _check_codes(acl: AclBinding | AclBindingFilter) -> None:
    """Raise TypeError for a text or a number in place of a code."""
    for name, kind in _CODES.items():
        value = getattr(acl, name)
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} must be of the type {kind.__name__}, such as {kind.__name__}."
                f"{kind(3).name}, not {value!r}"
            )


#: The bits of authorized operations if they were not requested.
_NOT_REQUESTED = -(2**31)


def authorized_operations(bits: int) -> frozenset[AclOperation] | None:
    """Return the operations of a bit field; None if they were not requested."""
    if bits == _NOT_REQUESTED:
        return None
    return frozenset(it for it in AclOperation if it > AclOperation.ALL and bits & (1 << it))
