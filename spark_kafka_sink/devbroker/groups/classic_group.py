"""A consumer group of the classic protocol: its members, generation and state.

The counterpart of Kafka's ClassicGroup and ClassicGroupMember. It makes the decisions that need
only the group itself: who leads, which protocol all members share, whether all have joined. The
coordinator adds and removes members. Only `transition_to` changes the state; a transition that is
not in the table raises IllegalTransitionError.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_kafka_sink.devbroker.base.refusal import IllegalTransitionError, RefusedError
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import (
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
)
from spark_kafka_sink.protocol.primitives import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.devbroker.base.timers import Timer
    from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponse
    from spark_kafka_sink.protocol.messages.sync_group import SyncGroupResponse

#: The protocol type of consumers, whose metadata is a subscription.
CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(StrEnum):
    """The state of a group (ClassicGroupState), with its name in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


#: The states that may follow each state.
TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


T = TypeVar("T")


class Parked(Generic[T]):
    """The response to a request that may have to wait for other members.

    The request watches this object until the response is set.
    """

    __slots__ = ("response",)

    def __init__(self, response: T | None = None) -> None:
        #: None while the request waits.
        self.response = response


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSender:
    """The sender of a JoinGroup or ConsumerGroupHeartbeat request."""

    client_id: str
    client_host: str
    #: The version of the request.
    version: int
    #: Whether the client may describe a topic.
    sees_topic: Callable[[str], bool] = lambda _: True


def subscribed_topics(metadata: bytes) -> tuple[str, ...]:
    """Return the topics of a consumer's subscription, of any version. Raises DecodeError."""
    reader = Reader(metadata)
    if reader.read_int16() < 0:
        raise DecodeError("a subscription has a negative version")
    count = reader.read_int32()
    if not 0 <= count <= reader.remaining:
        raise DecodeError(f"a subscription of {len(metadata)} bytes claims {count} topics")
    return tuple(reader.read_text(reader.read_int16()) for _ in range(count))


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member of a group."""

    member_id: str
    #: The name of a static member (KIP-345).
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    #: In order of preference.
    protocols: tuple[JoinGroupRequestProtocol, ...]
    assignment: bytes = b""
    #: Whether the member has not received a generation yet.
    is_new: bool = True
    awaiting_join: Parked[JoinGroupResponse] | None = None
    awaiting_sync: Parked[SyncGroupResponse] | None = None
    #: Expires the member's session.
    timer: Timer | None = None

    @property
    def protocol_names(self) -> list[str]:
        """The protocols that the member supports, in order of preference."""
        return [protocol.name for protocol in self.protocols]

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether the coordinator owes the member a response, so that its session cannot expire.

        A new member can expire even then: it does not know its id yet and will join again.
        """
        return not self.is_new and (
            self.awaiting_join is not None or self.awaiting_sync is not None
        )

    def metadata(self, protocol_name: str) -> bytes:
        """Return the metadata that the member sent for one of its protocols."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """A consumer group."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    #: By member id, in the order in which they joined.
    members: dict[str, Member] = field(default_factory=dict)
    #: Member ids by group.instance.id.
    static_members: dict[str, str] = field(default_factory=dict)
    #: Ids that were assigned but not used yet, with the timers that expire them.
    pending_members: dict[str, Timer] = field(default_factory=dict)
    #: Members that received the generation but have not sent SyncGroup yet.
    pending_sync: set[str] = field(default_factory=set)
    #: Whether a member joined during the initial rebalance delay.
    new_member_added: bool = False
    join_timer: Timer | None = None
    sync_timer: Timer | None = None

    group_type = "Classic"

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state is GroupState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin."""
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for members: the longest timeout of any member."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def awaiting_join(self) -> int:
        """The number of members that wait for the next generation."""
        return sum(member.awaiting_join is not None for member in self.members.values())

    @property
    def all_have_joined(self) -> bool:
        """Whether all members, including pending ones, have joined."""
        return not self.pending_members and all(
            member.awaiting_join is not None for member in self.members.values()
        )

    def transition_to(self, state: GroupState) -> None:
        """Change the state. Raises IllegalTransitionError."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(
                f"group {self.group_id} cannot go from {self.state} to {state}"
            )
        self.previous_state, self.state = self.state, state

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        pending = self.pending_members.pop(member.member_id, None)
        if pending is not None:
            pending.cancel()

    def remove(self, member_id: str) -> None:
        """Remove a member, if it exists."""
        member = self.members.pop(member_id, None)
        if member is not None:
            if member.timer is not None:
                member.timer.cancel()
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        pending = self.pending_members.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        self.pending_sync.discard(member_id)

    def replace_static_member(self, instance_id: str, new_id: str) -> tuple[Member, Member]:
        """Replace a returning static member by one with a new id; return the old and the new."""
        old_id = self.static_members[instance_id]
        old = self.members[old_id]
        new = replace(old, member_id=new_id, awaiting_join=None, awaiting_sync=None, timer=None)
        # In the same position: the order of members decides who leads next.
        self.members = {
            (new_id if key == old_id else key): (new if key == old_id else member)
            for key, member in self.members.items()
        }
        self.static_members[instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old.timer is not None:
            old.timer.cancel()
        return old, new

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member with this id.

        Raises RefusedError with UNKNOWN_MEMBER_ID, or with FENCED_INSTANCE_ID if the instance id
        belongs to another member (ClassicGroup.validateMember).
        """
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is not None and known != member_id:
                raise RefusedError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"instance {instance_id} of group {self.group_id} has member id {known}, "
                    f"not {member_id}",
                )
            if known is None:
                member_id = ""
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no member {member_id!r}"
            )
        return member

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics to which members subscribe; None if that is not known.

        Members without a protocol in common yet, or with metadata that is not a subscription, may
        subscribe to any topic; those of another protocol type subscribe to none
        (ClassicGroup.computeSubscribedTopics, isSubscribedToTopic).
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in subscribed_topics(member.metadata(self.protocol_name))
            )
        except DecodeError:
            return None

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, *, transactional: bool
    ) -> None:
        """Check that a client may commit offsets.

        Members of the current generation may, and clients without a generation while the group is
        empty. In a transaction the state of the group does not matter, and clients that do not
        identify themselves may, too. Raises RefusedError with UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, ILLEGAL_GENERATION or REBALANCE_IN_PROGRESS
        (ClassicGroup.validateOffsetCommit).
        """
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return
        if generation_id >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation_id != self.generation_id:
                raise RefusedError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"group {self.group_id} has generation {self.generation_id}, "
                    f"not {generation_id}",
                )
        elif not transactional and self.state is not GroupState.EMPTY:
            raise RefusedError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self.group_id} has members, and only they may commit offsets",
            )
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise RefusedError(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} is rebalancing"
            )

    def supports(self, protocol_type: str, protocols: Sequence[JoinGroupRequestProtocol]) -> bool:
        """Return whether a client with these protocols could be a member."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        shared = self._shared_protocols()
        return protocol_type == self.protocol_type and any(p.name in shared for p in protocols)

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all of them support."""
        shared = self._shared_protocols()
        votes = Counter(
            next(name for name in member.protocol_names if name in shared)
            for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Elect a leader that has joined, unless the current one has; return False if none has."""
        joined = [m.member_id for m in self.members.values() if m.awaiting_join is not None]
        if self.leader_id not in self.members or not joined:
            return False
        if self.leader_id not in joined:
            self.leader_id = joined[0]
        return True

    def begin_generation(self) -> None:
        """Start the next generation with the current members."""
        self.generation_id += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY)

    def described_members(self) -> tuple[JoinGroupResponseMember, ...]:
        """Return the description of all members that the leader receives."""
        return tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name or ""),
            )
            for member in self.members.values()
        )

    def _shared_protocols(self) -> set[str]:
        names = [set(member.protocol_names) for member in self.members.values()]
        return set.intersection(*names) if names else set()
