"""A consumer group of the new protocol (KIP-848): its members, epochs and assignments.

The counterpart of Kafka's ConsumerGroup, ConsumerGroupMember and Assignment. The group's epoch
rises when its members, their subscriptions or their topics change; the coordinator then computes a
new target assignment, whose epoch is that of the group. Each member moves from its current
assignment to its target on its own (`reconcile`), and its epoch follows.

Members are immutable, and a group is changed by changing a copy: whatever fails halfway, such as
writing the change to disk, changes nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import JOIN_GROUP_MEMBER_EPOCH

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Mapping

    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.cluster.topic_changes import Topics
    from spark_kafka_sink.devbroker.groups.consumer_groups import RegexResolution

DEFAULT_ASSIGNOR = "uniform"
#: The first version of OffsetCommit in which a member can send its epoch.
_FIRST_COMMIT_VERSION = 9


class TopicIdPartition(NamedTuple):
    """A partition of a topic, given by its id."""

    topic_id: uuid.UUID
    partition: int


class ConsumerGroupState(StrEnum):
    """The state of a group, with its name in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(IntEnum):
    """The state of a member, with its number in records."""

    STABLE = 0
    #: The member must revoke partitions before it can move to the next epoch.
    UNREVOKED_PARTITIONS = 1
    #: The member waits for partitions that other members have not revoked yet.
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member of a group."""

    member_id: str
    member_epoch: int = JOIN_GROUP_MEMBER_EPOCH
    #: Accepted as well, since the response with the current epoch may have been lost.
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    #: The name of a static member (KIP-345).
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] = frozenset()
    #: Empty if there is none.
    subscribed_topic_regex: str = ""
    server_assignor: str | None = None
    #: The partitions that the member may use, each with the epoch in which it was assigned.
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    #: The partitions that it must revoke, with the same epochs.
    pending_revocation: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def owned(self) -> dict[TopicIdPartition, int]:
        """The partitions that no other member may use yet."""
        return {**self.assigned, **self.pending_revocation}

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has its target assignment of an epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def check_epoch(self, epoch: int, owned: Collection[TopicIdPartition] | None) -> None:
        """Raise RefusedError with FENCED_MEMBER_EPOCH for an epoch that is not the member's.

        The previous epoch is accepted with owned partitions that are all assigned. To join again is
        always allowed.
        """
        if epoch in {self.member_epoch, JOIN_GROUP_MEMBER_EPOCH}:
            return
        is_previous = epoch == self.previous_member_epoch and epoch < self.member_epoch
        if not is_previous or owned is None or not self.assigned.keys() >= set(owned):
            kind = "greater" if epoch > self.member_epoch else "smaller"
            raise RefusedError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a {kind} member epoch ({epoch}) than the one known "
                f"by the group coordinator ({self.member_epoch}). The member must abandon all its "
                "partitions and rejoin.",
            )

    def has_stale_epoch(self, epoch: int, partition: TopicIdPartition) -> bool:
        """Return whether an epoch is too old to commit an offset of a partition (KIP-1251)."""
        if epoch == self.member_epoch:
            return False
        assigned_in = self.owned.get(partition)
        return assigned_in is None or epoch < assigned_in


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched when it was resolved."""

    topics: frozenset[str]
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A consumer group."""

    group_id: str
    #: The first one that members see is 2: joining raises it.
    group_epoch: int = 1
    #: Identifies the subscribed topics with their partitions; a change needs a new epoch.
    metadata_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    #: By member id.
    target: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    #: The group epoch of the target assignment.
    assignment_epoch: int = 0
    assignment_timestamp_ms: int = 0
    resolved_regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    #: All topics that existed when the regular expressions were last resolved.
    known_topics: frozenset[str] = frozenset()
    #: Set while the regular expressions are being resolved. Not stored.
    resolution: RegexResolution | None = None

    protocol_type = "consumer"
    group_type = "Consumer"

    def copy(self) -> ConsumerGroup:
        """Return a copy, whose changes do not change this group."""
        return replace(
            self,
            members=dict(self.members),
            target=dict(self.target),
            resolved_regexes=dict(self.resolved_regexes),
        )

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def state(self) -> ConsumerGroupState:
        """The state."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(m.is_reconciled_to(self.assignment_epoch) for m in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer."""
        preferred = Counter(m.server_assignor for m in self.members.values() if m.server_assignor)
        # Kafka's hash codes prefer `uniform` to `range` if both have as many members.
        return max(
            sorted(preferred, reverse=True), key=preferred.__getitem__, default=DEFAULT_ASSIGNOR
        )

    @property
    def regexes(self) -> frozenset[str]:
        """The regular expressions to which members subscribe."""
        return frozenset(
            m.subscribed_topic_regex for m in self.members.values() if m.subscribed_topic_regex
        )

    @property
    def last_resolved_ms(self) -> int | None:
        """When the regular expressions were last resolved; None if none ever was."""
        return max(
            (resolved.timestamp_ms for resolved in self.resolved_regexes.values()), default=None
        )

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with a group instance id, or None."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def member(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """Return the member with an id; a static one, if there is a group instance id.

        Raises RefusedError with UNKNOWN_MEMBER_ID, or with FENCED_INSTANCE_ID if the static member
        has another id.
        """
        if instance_id is None:
            member = self.members.get(member_id)
            unknown = f"Member {member_id} is not a member of group {self.group_id}."
        else:
            member = self.static_member(instance_id)
            unknown = f"Instance id {instance_id} is unknown."
        if member is None:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, unknown)
        if member.member_id != member_id:
            raise RefusedError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        return member

    def remove(self, member_id: str) -> None:
        """Remove a member with its assignments and unneeded regular expressions."""
        self.members.pop(member_id, None)
        self.target.pop(member_id, None)
        self.forget_regexes()

    def forget_regexes(self) -> None:
        """Remove the regular expressions to which no member subscribes any more."""
        for regex in self.resolved_regexes.keys() - self.regexes:
            del self.resolved_regexes[regex]

    def owners(self, *, except_for: str) -> set[TopicIdPartition]:
        """Return the partitions of all members but one."""
        return {
            partition
            for member in self.members.values()
            if member.member_id != except_for
            for partition in member.owned
        }

    def matching_topics(self, regex: str) -> frozenset[str]:
        """Return the topics that matched a regular expression when it was last resolved."""
        resolved = self.resolved_regexes.get(regex)
        return frozenset() if resolved is None else resolved.topics

    def subscriptions(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of the topics to which a member subscribes, existing or not."""
        return member.subscribed_topic_names | self.matching_topics(member.subscribed_topic_regex)

    def subscribed_topics(self, member: ConsumerMember, topics: Topics) -> dict[uuid.UUID, Topic]:
        """Return the existing topics to which a member subscribes, by id."""
        found = (topics.find(name) for name in self.subscriptions(member))
        return {topic.topic_id: topic for topic in found if topic is not None}

    def compute_subscribed_topics(self) -> frozenset[str]:
        """Return the names of the topics to which members subscribe, existing or not."""
        return frozenset().union(*map(self.subscriptions, self.members.values()))

    def compute_metadata_hash(self, topics: Topics) -> int:
        """Return a hash of the subscribed topics, their ids and their numbers of partitions.

        Kafka's hash has the same purpose but other values, with which it would replace these.
        """
        metadata = {
            topic.name: (str(topic.topic_id), len(topic.partitions))
            for member in self.members.values()
            for topic in self.subscribed_topics(member, topics).values()
        }
        if not metadata:
            return 0
        digest = hashlib.sha256(repr(sorted(metadata.items())).encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def check_offset_commit(
        self, member_id: str, epoch: int, instance_id: str | None, *, version: int | None
    ) -> ConsumerMember | None:
        """Return the member that commits, whose epoch is still to be compared for each partition.

        None means that anyone may commit: the group has no members, or the commit belongs to a
        transaction (it has no `version`) and names none. Raises RefusedError with
        UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, or STALE_MEMBER_EPOCH for an epoch from the future.
        """
        if epoch < 0 and not self.members:
            return None
        if version is None and epoch < 0 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        if version is not None and version < _FIRST_COMMIT_VERSION:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group "
                "protocol",
            )
        if epoch > member.member_epoch:
            raise RefusedError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"Received member epoch {epoch} is newer than current member epoch "
                f"{member.member_epoch}.",
            )
        return member

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check that a client may fetch offsets: anyone without a member id and epoch may.

        Raises RefusedError with UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH.
        """
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.member_epoch:
            raise RefusedError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"The received member epoch {epoch} does not match the expected member epoch "
                f"{member.member_epoch}.",
            )


def reconcile(
    member: ConsumerMember,
    target: Collection[TopicIdPartition],
    target_epoch: int,
    *,
    subscribed: Collection[uuid.UUID],
    subscription_changed: bool,
    taken: Collection[TopicIdPartition],
    owned: Collection[TopicIdPartition] | None,
) -> ConsumerMember:
    """Return a member in its next state, or as it is if it can make no progress.

    A member first revokes the partitions that it is to lose, and confirms this by no longer listing
    them among the partitions that it owns. Then it moves to the epoch of the target assignment and
    receives its new partitions, except for those that another member has not revoked yet: it
    receives them with a later heartbeat (CurrentAssignmentBuilder).

    `subscribed` are the ids of the topics to which it subscribes, `taken` the partitions of other
    members, and `owned` those that it says it owns, None if that did not change.
    """
    if member.is_reconciled_to(target_epoch) and not subscription_changed:
        return member
    waits = member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(
        owned, member.pending_revocation
    )
    if waits or member.is_reconciled_to(target_epoch):
        return _without_unsubscribed(member, subscribed, owned) if subscription_changed else member
    subscribed_target = {partition for partition in target if partition.topic_id in subscribed}
    return _next_assignment(member, subscribed_target, target_epoch, taken, owned)


def _owns_any(
    owned: Collection[TopicIdPartition] | None, revoked: Collection[TopicIdPartition]
) -> bool:
    """Return whether a member still owns revoked partitions; it does until it says otherwise."""
    return owned is None or not set(revoked).isdisjoint(owned)


def _without_unsubscribed(
    member: ConsumerMember,
    subscribed: Collection[uuid.UUID],
    owned: Collection[TopicIdPartition] | None,
) -> ConsumerMember:
    """Return a member without the partitions of topics to which it no longer subscribes."""
    assigned = {p: epoch for p, epoch in member.assigned.items() if p.topic_id in subscribed}
    if len(assigned) == len(member.assigned):
        return member
    removed = {p: epoch for p, epoch in member.assigned.items() if p not in assigned}
    pending = {**member.pending_revocation, **removed}
    if not _owns_any(owned, pending):
        return replace(member, assigned=assigned, previous_member_epoch=member.member_epoch)
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_member_epoch=member.member_epoch,
        assigned=assigned,
        pending_revocation=pending,
    )


def _next_assignment(
    member: ConsumerMember,
    target: set[TopicIdPartition],
    target_epoch: int,
    taken: Collection[TopicIdPartition],
    owned: Collection[TopicIdPartition] | None,
) -> ConsumerMember:
    kept = {p: epoch for p, epoch in member.assigned.items() if p in target}
    revoked = {p: epoch for p, epoch in member.assigned.items() if p not in target}
    if revoked and _owns_any(owned, revoked):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
            pending_revocation=revoked,
        )
    missing = target - kept.keys()
    unreleased = missing.intersection(taken)
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        member_epoch=target_epoch,
        previous_member_epoch=member.member_epoch,
        assigned=kept | dict.fromkeys(missing - unreleased, target_epoch),
        pending_revocation={},
    )
