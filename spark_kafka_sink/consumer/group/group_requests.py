"""The requests of a member of a classic group: its steps, the messages, and rules for answers.

The steps are those of `ClassicMembership`; each builder makes the request of one step, for the
version in which it is sent. Fields that an old version lacks are dropped, with one exception: a
group.instance.id (KIP-345) that the broker does not know is an UnsupportedVersionError, because
the member would be a dynamic one without it. The embedded consumer protocol is opaque here:
subscriptions, metadata of members and assignments are bytes.

The rules are those of the response handlers of Java's AbstractCoordinator, with one difference: a
code that is not in a table is retried if Kafka calls it retriable, where Java raises it. Any other
code is an error of the user's call, except for Heartbeat, which is always tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.errors import ConfigError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafka_sink.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponseMember
    from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupResponse

NO_GENERATION_ID: Final = -1
#: The member id with which a new member joins.
UNKNOWN_MEMBER_ID: Final = ""
#: Brokers refuse a longer reason to join or to leave (JoinGroupRequest.maybeTruncateReason).
_LONGEST_REASON: Final = 255


class LeaveOperation(Enum):
    """The effect of closing on the membership (CloseOptions.GroupMembershipOperation)."""

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
    members: tuple[JoinGroupResponseMember, ...]
    #: The group keeps its assignment, because a static member has returned (KIP-814): the leader
    #: sends none, and computes one only to observe the metadata.
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


#: The first version of each request that has a group.instance.id (KIP-345).
STATIC_MEMBERS_FROM: Final[Mapping[ApiKey, int]] = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
}
#: The first LeaveGroup version with a list of members.
LEAVE_MEMBERS_VERSION: Final = 3


def join_request(
    step: JoinGroup,
    settings: GroupSettings,
    protocols: Sequence[tuple[str, bytes]],
    version: int,
) -> JoinGroupRequest:
    """Build JoinGroup.

    `protocols` are the names of the assignors, in order of preference, each with the subscription
    in the embedded consumer protocol. Raises UnsupportedVersionError for a group.instance.id that
    the version lacks.
    """
    check_instance_id(ApiKey.JOIN_GROUP, version, settings.group_instance_id)
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=_milliseconds(settings.session_timeout),
        rebalance_timeout_ms=_milliseconds(settings.rebalance_timeout),
        member_id=step.generation.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=settings.protocol_type,
        protocols=tuple(
            JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
        ),
        reason=truncate_reason(step.reason),
    )


def sync_request(step: SyncGroup, settings: GroupSettings, version: int) -> SyncGroupRequest:
    """Build SyncGroup; raises UnsupportedVersionError as `join_request` does."""
    check_instance_id(ApiKey.SYNC_GROUP, version, settings.group_instance_id)
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=step.generation.generation_id,
        member_id=step.generation.member_id,
        group_instance_id=settings.group_instance_id,
        protocol_type=settings.protocol_type,
        protocol_name=step.generation.protocol,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in step.assignments.items()
        ),
    )


def heartbeat_request(step: Heartbeat, settings: GroupSettings, version: int) -> HeartbeatRequest:
    """Build Heartbeat; raises UnsupportedVersionError as `join_request` does."""
    check_instance_id(ApiKey.HEARTBEAT, version, settings.group_instance_id)
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=step.generation.generation_id,
        member_id=step.generation.member_id,
        group_instance_id=settings.group_instance_id,
    )


def leave_request(step: LeaveGroup, settings: GroupSettings, version: int) -> LeaveGroupRequest:
    """Build LeaveGroup, which names the member by its id alone, also a static one.

    Source: AbstractCoordinator.maybeLeaveGroup.
    """
    if version < LEAVE_MEMBERS_VERSION:
        return LeaveGroupRequest(group_id=settings.group_id, member_id=step.member_id)
    member = MemberIdentity(member_id=step.member_id, reason=truncate_reason(step.reason))
    return LeaveGroupRequest(group_id=settings.group_id, members=(member,))


def read_leave(response: LeaveGroupResponse) -> int:
    """Return the error code of the request, or else that of the member."""
    codes = (response.error_code, *(member.error_code for member in response.members))
    return next((code for code in codes if code), 0)


def check_instance_id(api_key: ApiKey, version: int, group_instance_id: str | None) -> None:
    """Raise UnsupportedVersionError for a group.instance.id that a version cannot carry."""
    if group_instance_id is not None and version < STATIC_MEMBERS_FROM[api_key]:
        raise UnsupportedVersionError(
            f"group.instance.id {group_instance_id!r} cannot be used: the group's coordinator does "
            f"not support static members ({api_key.name} version {version}), which require Apache "
            "Kafka 2.3 or later. Upgrade the brokers, or unset group.instance.id"
        )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


class GroupAction(Enum):
    """The reaction to the answer to a group request."""

    #: There is no error.
    DONE = auto()
    #: Resend after the back-off.
    RETRY = auto()
    #: Find the coordinator, then repeat the request that the old one has refused.
    FIND_COORDINATOR = auto()
    #: Join again at once.
    REJOIN = auto()
    #: Join again at once, without the generation but with the member id.
    REJOIN_AS_MEMBER = auto()
    #: Join again at once, as a new member.
    REJOIN_AS_NEW = auto()
    #: Join again at once, with the member id from the answer (KIP-394).
    TAKE_MEMBER_ID = auto()
    #: Forget the generation and the member id; the next `poll` raises the error.
    FENCED = auto()
    #: The next `poll` raises the error.
    FATAL = auto()


_E = ErrorCode
_A = GroupAction

GROUP_RULES: Mapping[ApiKey, Mapping[int, GroupAction]] = {
    ApiKey.FIND_COORDINATOR: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_NOT_AVAILABLE: _A.RETRY,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
        _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
        _E.INVALID_GROUP_ID: _A.FATAL,
    },
    ApiKey.JOIN_GROUP: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
        _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
        _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
        _E.MEMBER_ID_REQUIRED: _A.TAKE_MEMBER_ID,
        # The coordinator could not replicate the group's state in time.
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.FENCED_INSTANCE_ID: _A.FATAL,
        _E.INCONSISTENT_GROUP_PROTOCOL: _A.FATAL,
        _E.INVALID_SESSION_TIMEOUT: _A.FATAL,
        _E.INVALID_GROUP_ID: _A.FATAL,
        _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
        _E.GROUP_MAX_SIZE_REACHED: _A.FATAL,
        _E.UNSUPPORTED_VERSION: _A.FATAL,
    },
    ApiKey.SYNC_GROUP: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
        _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.ILLEGAL_GENERATION: _A.REJOIN_AS_MEMBER,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
        _E.FENCED_INSTANCE_ID: _A.FATAL,
        _E.INCONSISTENT_GROUP_PROTOCOL: _A.FATAL,
        _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
    },
    ApiKey.HEARTBEAT: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
        _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.ILLEGAL_GENERATION: _A.REJOIN_AS_MEMBER,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
        _E.FENCED_INSTANCE_ID: _A.FENCED,
        # The member keeps its place if the right is granted before the session ends.
        _E.GROUP_AUTHORIZATION_FAILED: _A.RETRY,
    },
}

#: The advice to the user in a fatal error.
GROUP_ADVICE: Mapping[int, str] = {
    _E.FENCED_INSTANCE_ID: "Give each consumer of the group a group.instance.id of its own",
    _E.INCONSISTENT_GROUP_PROTOCOL: "Use the group.protocol of the group's other members, and an "
    "assignor that all of them have (partition.assignment.strategy)",
    _E.INVALID_SESSION_TIMEOUT: "Set session.timeout.ms between group.min.session.timeout.ms and "
    "group.max.session.timeout.ms of the brokers",
    _E.INVALID_GROUP_ID: "Set group.id to a name that is not empty",
    _E.GROUP_AUTHORIZATION_FAILED: "Grant this user READ on the group",
    _E.GROUP_MAX_SIZE_REACHED: "Start fewer consumers, or raise group.max.size of the brokers",
    _E.UNSUPPORTED_VERSION: "Upgrade the brokers, or unset group.instance.id",
}


def group_action(api_key: ApiKey, code: int) -> GroupAction:
    """Return the action for the error code of an answer to `api_key`, a key of GROUP_RULES."""
    action = GROUP_RULES[api_key].get(code)
    if action is not None:
        return action
    if is_retriable(code) or api_key is ApiKey.HEARTBEAT:
        return GroupAction.RETRY
    return GroupAction.FATAL
