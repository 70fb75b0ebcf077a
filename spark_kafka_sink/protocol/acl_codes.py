"""The codes in access control lists (ACLs): resources, patterns, operations and permissions."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class AclCode(IntEnum):
    """A code whose value 0 is UNKNOWN, for codes of newer brokers."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if isinstance(value, int):
            return cls(0)
        if not isinstance(value, str):
            # Enum raises ValueError.
            return None
        raise ValueError(_not_a_code(value, cls.__name__, list(cls.__members__)))


class ResourceType(AclCode):
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


class ResourcePatternType(AclCode):
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


class AclOperation(AclCode):
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


class AclPermissionType(AclCode):
    """Whether an ACL allows or denies; DENY takes precedence.

    >>> AclPermissionType.ALLOW.name
    'ALLOW'
    """

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def _not_a_code(text: str, kind: str, names: Sequence[str]) -> str:
    name = text.upper()
    if name in names:
        return f"{text!r} is a name of {kind}, not a code: write {kind}.{name} or {kind}[{name!r}]"
    return f"{text!r} is no {kind}: write {kind}.NAME with one of the names {', '.join(names)}"
