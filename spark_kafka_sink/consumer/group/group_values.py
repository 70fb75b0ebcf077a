"""The values of group membership: what a member has to do next, and what its group answered.

The embedded consumer protocol is opaque here: subscriptions, metadata of members and assignments
are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff

NO_GENERATION_ID: Final = -1
#: The member id with which a new member joins.
UNKNOWN_MEMBER_ID: Final = ""
#: Brokers refuse a longer reason to join or to leave (JoinGroupRequest.maybeTruncateReason).
_LONGEST_REASON: Final = 255


class LeaveOperation(Enum):
    """What closing a consumer means for its membership (CloseOptions.GroupMembershipOperation)."""

    #: A dynamic member leaves, a static one stays until its session times out.
    DEFAULT = auto()
    LEAVE_GROUP = auto()
    REMAIN_IN_GROUP = auto()


class Generation(NamedTuple):
    """A member's part in one generation of its group (AbstractCoordinator.Generation)."""

    generation_id: int = NO_GENERATION_ID
    #: Empty until the coordinator has assigned one.
    member_id: str = UNKNOWN_MEMBER_ID
    #: The name of the assignor that all members support; None outside of a generation.
    protocol: str | None = None

    @property
    def is_reset(self) -> bool:
        """Whether the member is in no generation; it may still have a member id."""
        return self.generation_id == NO_GENERATION_ID and self.protocol is None


NO_GENERATION: Final = Generation()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a member of a classic group (GroupRebalanceConfig).

    Times are seconds. Raise ConfigError if a heartbeat is not due within the session timeout.
    """

    group_id: str
    #: group.instance.id; None for a dynamic member.
    group_instance_id: str | None = None
    session_timeout: float
    #: max.poll.interval.ms
    rebalance_timeout: float
    heartbeat_interval: float
    request_timeout: float
    #: retry.backoff.ms and retry.backoff.max.ms
    backoff: ExponentialBackoff
    protocol_type: str = "consumer"

    def __post_init__(self) -> None:
        """Check the two settings that depend on each other."""
        if self.heartbeat_interval >= self.session_timeout:
            raise ConfigError(
                "heartbeat.interval.ms must be less than session.timeout.ms, or every session "
                "ends before its first heartbeat: set it to a third of session.timeout.ms"
            )


class Member(NamedTuple):
    """A member of the group, as the coordinator describes it to the group's leader."""

    member_id: str
    group_instance_id: str | None
    #: Its subscription, in the embedded consumer protocol.
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """What a JoinGroup response says (JoinGroupResponseData)."""

    error_code: int = 0
    generation_id: int = NO_GENERATION_ID
    member_id: str = UNKNOWN_MEMBER_ID
    protocol: str | None = None
    #: None from brokers that do not send it.
    protocol_type: str | None = None
    #: The member id of the group's leader.
    leader: str = ""
    #: All members, for the leader; empty for the others.
    members: tuple[Member, ...] = ()
    #: The leader is to send no assignment, because a static member has returned (KIP-814).
    skip_assignment: bool = False


class FindCoordinator(NamedTuple):
    """Ask any broker for the group's coordinator."""

    #: Tells this step from earlier ones of the same kind.
    number: int


class PrepareJoin(NamedTuple):
    """Commit offsets and revoke partitions before the group is joined (onJoinPrepare)."""

    number: int
    #: The generation that ends.
    generation: Generation


class JoinGroup(NamedTuple):
    """Send JoinGroup, with the subscription."""

    number: int
    #: The generation at the time of sending; its member id is sent.
    generation: Generation
    #: Why the member joins, for the coordinator's log (KIP-800).
    reason: str
    #: Seconds until the request times out, which exceed the time that a rebalance may take.
    timeout: float


class PerformAssignment(NamedTuple):
    """Compute the assignment of all members, as their leader."""

    number: int
    generation: Generation
    members: tuple[Member, ...]
    #: The group keeps its assignment; what is computed serves to observe the metadata.
    skip_assignment: bool


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Send SyncGroup, with the assignments if this member is the leader."""

    number: int
    generation: Generation
    #: By member id.
    assignments: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))


class CompleteJoin(NamedTuple):
    """Apply the assignment, and call on_partitions_assigned (onJoinComplete)."""

    number: int
    generation: Generation
    assignment: bytes


class Heartbeat(NamedTuple):
    """Send Heartbeat."""

    number: int
    generation: Generation


class LeaveGroup(NamedTuple):
    """Send LeaveGroup; whatever the answer is, the member has left."""

    member_id: str
    reason: str


class Wait(NamedTuple):
    """Do nothing until `until`, in seconds on the caller's clock, or until an event."""

    until: float


Step: TypeAlias = (
    FindCoordinator
    | PrepareJoin
    | JoinGroup
    | PerformAssignment
    | SyncGroup
    | CompleteJoin
    | Heartbeat
    | LeaveGroup
    | Wait
)


def truncate_reason(reason: str) -> str:
    """Return a reason that is short enough for brokers."""
    return reason[:_LONGEST_REASON]
