"""The state of a member of a KIP-848 group, and how it reconciles its assignment.

This is Kafka's ConsumerMembershipManager, without requests; `consumer_membership` sends these, and
states the rules for both. A transition that `TRANSITIONS` does not have is refused and changes
nothing. `GroupMember` changes the assignment in the consumer's SubscriptionState:

- A reconciliation commits (with enable.auto.commit), revokes, assigns, and then acknowledges. It
  completes even if another target assignment arrives meanwhile, which is reconciled afterwards.
- It is abandoned if the member is fenced, leaves or fails. A callback that is running then goes on,
  and only after it is the rest released: one callback runs at a time.
- Partitions are removed as soon as on_partitions_revoked has returned, where Java waits for the
  next assignment. So no partition is reported as revoked, and later as lost.
- A callback that has raised is called again after the next `poll`, as in Java. Partitions whose
  revocation has failed, and that the coordinator then assigns again, are assigned as new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.consumer.group.group_requests import FindCoordinator, LeaveOperation, Wait
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.messages import consumer_group_heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff

_NO_LOCAL_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings of a member of a KIP-848 group; times are seconds."""

    group_id: str
    #: The id that the client has created for itself (KIP-1082), as Kafka's Uuid.toString.
    member_id: str
    #: group.instance.id; None for a dynamic member.
    group_instance_id: str | None = None
    #: client.rack; None if it is empty.
    rack_id: str | None = None
    #: group.remote.assignor; None leaves the choice to the coordinator.
    server_assignor: str | None = None
    #: max.poll.interval.ms, which is also the time that a rebalance may take.
    rebalance_timeout: float
    #: enable.auto.commit
    is_auto_commit: bool = False
    #: retry.backoff.ms and retry.backoff.max.ms
    backoff: ExponentialBackoff


@dataclass(frozen=True, slots=True)
class LocalAssignment:
    """Partitions by topic id, with a number that grows with every target assignment.

    The number makes two assignments differ even if their partitions are the same, so that each one
    is acknowledged.

    Source: AbstractMembershipManager.LocalAssignment.
    """

    local_epoch: int = _NO_LOCAL_EPOCH
    #: The sorted partitions of each topic.
    partitions: Mapping[UUID, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_none(self) -> bool:
        """Whether the member has received no assignment, which is not the same as an empty one."""
        return self.local_epoch == _NO_LOCAL_EPOCH


NO_ASSIGNMENT: Final = LocalAssignment()


class SendHeartbeat(NamedTuple):
    """Send ConsumerGroupHeartbeat to the coordinator.

    A subscription by a regular expression needs version 1. If the coordinator supports no version
    that the request needs, the caller reports UNSUPPORTED_VERSION as the answer.
    """

    #: Tells this step from earlier ones of the same kind.
    number: int
    request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest


class CommitBeforeRevocation(NamedTuple):
    """Commit the positions, because the assignment is about to change (enable.auto.commit)."""

    number: int
    #: When to give up, and to report the commit as done, in seconds on the caller's clock.
    until: float


class Revoke(NamedTuple):
    """Call on_partitions_revoked; the partitions are still assigned."""

    number: int
    partitions: tuple[TopicPartition, ...]


class Assign(NamedTuple):
    """Call on_partitions_assigned with `added`, which may be empty; all are assigned already.

    Added partitions are not fetched before the outcome is reported.
    """

    number: int
    partitions: tuple[TopicPartition, ...]
    added: tuple[TopicPartition, ...]


class Lose(NamedTuple):
    """Call on_partitions_lost: others may own the partitions by now."""

    number: int
    partitions: tuple[TopicPartition, ...]


class RefreshMetadata(NamedTuple):
    """Request new metadata with the names of these topics."""

    topic_ids: frozenset[UUID]


Callback: TypeAlias = Revoke | Assign | Lose
Step: TypeAlias = (
    FindCoordinator
    | SendHeartbeat
    | CommitBeforeRevocation
    | Revoke
    | Assign
    | Lose
    | RefreshMetadata
    | Wait
)


class MemberState(Enum):
    """The states of a member in the protocol of KIP-848 (Kafka's MemberState)."""

    #: It is in no group, and sends no heartbeats.
    UNSUBSCRIBED = auto()
    #: It sends heartbeats with epoch 0 until the coordinator accepts it.
    JOINING = auto()
    #: It has a new target assignment, and is applying it.
    RECONCILING = auto()
    #: It has applied an assignment, which the next heartbeat acknowledges at once.
    ACKNOWLEDGING = auto()
    #: It has applied all assignments.
    STABLE = auto()
    #: The coordinator has removed it: it gives up its partitions, then joins again.
    FENCED = auto()
    #: It is about to leave: its callbacks run, and heartbeats go on.
    PREPARE_LEAVING = auto()
    #: The next heartbeat, at once, is the one with which it leaves.
    LEAVING = auto()
    #: An error has ended the membership for good.
    FATAL = auto()
    #: It left because `poll` was not called in time, and joins again with the next `poll`.
    STALE = auto()


_S = MemberState

#: The states of the protocol of KIP-848 that may follow each state. Staying in a state is no
#: transition, except in RECONCILING, where another target assignment may arrive.
TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    _S.UNSUBSCRIBED: frozenset({_S.JOINING, _S.PREPARE_LEAVING, _S.FATAL}),
    _S.JOINING: frozenset({_S.STABLE, _S.RECONCILING, _S.FENCED, _S.PREPARE_LEAVING, _S.FATAL}),
    _S.RECONCILING: frozenset(
        {
            _S.RECONCILING,
            _S.ACKNOWLEDGING,
            _S.STABLE,
            _S.FENCED,
            _S.PREPARE_LEAVING,
            _S.FATAL,
        }
    ),
    _S.ACKNOWLEDGING: frozenset(
        {_S.STABLE, _S.RECONCILING, _S.FENCED, _S.PREPARE_LEAVING, _S.FATAL}
    ),
    _S.STABLE: frozenset({_S.RECONCILING, _S.FENCED, _S.PREPARE_LEAVING, _S.FATAL}),
    _S.FENCED: frozenset({_S.JOINING, _S.UNSUBSCRIBED}),
    _S.PREPARE_LEAVING: frozenset({_S.LEAVING, _S.UNSUBSCRIBED, _S.FENCED, _S.FATAL}),
    # STALE follows if the member leaves because `poll` was not called in time.
    _S.LEAVING: frozenset({_S.UNSUBSCRIBED, _S.STALE, _S.FENCED, _S.FATAL}),
    _S.FATAL: frozenset(),
    _S.STALE: frozenset({_S.JOINING}),
}
#: The states in which a new target assignment is accepted (MemberState.canHandleNewAssignment).
ACCEPTS_ASSIGNMENT: Final = frozenset({_S.STABLE, _S.JOINING, _S.ACKNOWLEDGING, _S.RECONCILING})
#: The states without heartbeats.
NOT_IN_GROUP: Final = frozenset({_S.UNSUBSCRIBED, _S.FENCED, _S.FATAL, _S.STALE})


_LEAVING: Final = frozenset({_S.PREPARE_LEAVING, _S.LEAVING})


@dataclass(frozen=True, slots=True)
class Resolved:
    """The part of the target assignment whose topics have known names."""

    assignment: LocalAssignment
    #: The same partitions by name, sorted.
    partitions: tuple[TopicPartition, ...]


class TargetAssignment:
    """The target assignment, which a member is to own, and the reconciled one, which it owns.

    Both are by topic id; the names of these topics are kept with them.
    """

    def __init__(self) -> None:
        #: The assignment that the member has reconciled, and owns.
        self.current = NO_ASSIGNMENT
        self._target = NO_ASSIGNMENT
        self._metadata_names: Mapping[UUID, str] = MappingProxyType({})
        #: The names of owned topics, which metadata may no longer have.
        self._owned_names: dict[UUID, str] = {}

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """The topics of the target assignment."""
        return frozenset(self._target.partitions)

    @property
    def unresolved_topic_ids(self) -> frozenset[UUID]:
        """The topics of the target assignment without a known name."""
        return frozenset(
            topic_id for topic_id in self._target.partitions if self._name(topic_id) is None
        )

    @property
    def is_reconciled(self) -> bool:
        """Whether the member owns exactly the target assignment."""
        return self.current == self._target

    def set_target(self, partitions: Mapping[UUID, tuple[int, ...]]) -> None:
        """Replace the target assignment, unless the partitions are the same.

        Source: LocalAssignment.updateWith.
        """
        target = {topic_id: tuple(sorted(numbers)) for topic_id, numbers in partitions.items()}
        if self._target.is_none or target != self._target.partitions:
            self._target = LocalAssignment(self._target.local_epoch + 1, target)

    def set_topic_names(self, names: Mapping[UUID, str]) -> None:
        """Replace the names of topics that the metadata have."""
        self._metadata_names = names

    def resolve(self) -> Resolved:
        """Return the part of the target assignment with known names.

        Source: AbstractMembershipManager.findResolvableAssignmentAndTriggerMetadataUpdate.
        """
        assignment, partitions = {}, []
        for topic_id, numbers in self._target.partitions.items():
            name = self._name(topic_id)
            if name is not None:
                self._owned_names[topic_id] = name
                assignment[topic_id] = numbers
                partitions += [TopicPartition(name, number) for number in numbers]
        return Resolved(
            LocalAssignment(self._target.local_epoch, assignment), tuple(sorted(partitions))
        )

    def forget_names_except(self, topic_ids: Mapping[UUID, object]) -> None:
        """Keep only the names of these topics."""
        self._owned_names = {
            topic_id: name for topic_id, name in self._owned_names.items() if topic_id in topic_ids
        }

    def clear(self) -> None:
        """Forget both assignments."""
        self.current = self._target = NO_ASSIGNMENT
        self._owned_names.clear()

    def _name(self, topic_id: UUID) -> str | None:
        return self._metadata_names.get(topic_id) or self._owned_names.get(topic_id)


@dataclass(slots=True)
class _Reconciliation:
    """The target assignment that is being applied, and the step that it waits for."""

    resolved: Resolved
    added: tuple[TopicPartition, ...]
    revoked: tuple[TopicPartition, ...]
    step: CommitBeforeRevocation | Revoke | Assign | None = None


@dataclass(slots=True)
class _Release:
    """All partitions are being given up."""

    #: Whether the user has ended the subscription, or the coordinator the membership.
    leaves: bool
    #: None while another callback is running.
    step: Revoke | Lose | None = None


class GroupMember:
    """One member: its state, its epoch and its partitions."""

    def __init__(self, settings: MemberSettings, subscriptions: SubscriptionState) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self.state = _S.UNSUBSCRIBED
        #: The epoch that the next heartbeat sends.
        self.epoch = consumer_group_heartbeat.JOIN_GROUP_MEMBER_EPOCH
        self._assignment = TargetAssignment()
        self._reconciliation: _Reconciliation | None = None
        self._release: _Release | None = None
        #: The step to return next, and the callback that is running.
        self._next: CommitBeforeRevocation | Callback | None = None
        self._running: Callback | None = None
        self._steps = 0
        #: Partitions whose on_partitions_revoked has raised.
        self._half_revoked: frozenset[TopicPartition] = frozenset()
        self._waits_for_poll = False
        self._subscription_changed = False
        self._is_poll_expired = False
        #: Whether a stale member joins again once its partitions are released.
        self._rejoins = False
        self._awaits_leave = False
        self._leave_operation = LeaveOperation.DEFAULT

    @property
    def owned(self) -> LocalAssignment:
        """The last assignment that was reconciled."""
        return self._assignment.current

    @property
    def is_in_group(self) -> bool:
        """Whether the member sends heartbeats."""
        return self.state not in NOT_IN_GROUP

    @property
    def is_about_to_leave(self) -> bool:
        """Whether the heartbeat with which the user leaves is still to be sent."""
        return self.state in _LEAVING

    @property
    def is_leaving(self) -> bool:
        """Whether partitions are being released to leave, or the last heartbeat has no answer."""
        is_released = self._release is None or not self._release.leaves
        return self.is_about_to_leave or self._awaits_leave or not is_released

    @property
    def unresolved_topic_ids(self) -> frozenset[UUID]:
        """The topics of the target assignment whose names are not known yet."""
        if self.state not in ACCEPTS_ASSIGNMENT:
            return frozenset()
        return self._assignment.unresolved_topic_ids

    # What the user does

    def subscription_changed(self) -> None:
        """Join within the next `poll`, unless the member is in the group."""
        self._subscription_changed = True

    def poll(self) -> None:
        """Join if that is needed, and allow callbacks that have raised to be called again.

        Source: AbstractMembershipManager.onConsumerPoll and maybeRejoinStaleMember.
        """
        self._waits_for_poll = False
        if self.state is _S.STALE:
            self._rejoins = True
            self._maybe_rejoin()
        elif self.state is _S.UNSUBSCRIBED:
            if self._subscription_changed and self._release is None:
                self._join()
        elif self.state not in _LEAVING:
            self._subscription_changed = False

    def leave(self, operation: LeaveOperation, *, runs_callbacks: bool) -> None:
        """End the subscription, and leave the group (AbstractMembershipManager.leaveGroup).

        Without callbacks the partitions are given up at once.
        """
        self._leave_operation = operation
        self._subscription_changed = self._rejoins = False
        if self.state is _S.LEAVING:
            self._subscriptions.unsubscribe()
            return
        was_in_group = self.is_in_group
        if self.state is _S.FENCED:
            self._transition(_S.UNSUBSCRIBED)
        elif was_in_group and self.state is not _S.PREPARE_LEAVING:
            self._transition(_S.PREPARE_LEAVING)
            self._abandon_reconciliation()
            self._release_all(leaves=True)
        if self._release is not None and runs_callbacks:
            self._release.leaves = True
        elif self._release is not None or not was_in_group:
            self._release_ended(leaves=True)

    # What to do next

    def next_step(
        self, now: float, *, may_call_back: bool
    ) -> CommitBeforeRevocation | Callback | None:
        """Return the next step of a reconciliation or of a release; None if there is none.

        Only `may_call_back`, within the user's `poll`, allows callbacks, and a reconciliation that
        revokes partitions or commits. An Assign is applied when it is returned.
        """
        self._maybe_reconcile(now, may_call_back=may_call_back)
        step = self._next
        if step is None:
            return None
        if not isinstance(step, CommitBeforeRevocation):
            if not may_call_back:
                return None
            self._running = step
            if isinstance(step, Assign):
                self._subscriptions.assign_from_subscribed_awaiting_callback(
                    step.partitions, step.added
                )
        self._next = None
        return step

    def commit_done(self, step: CommitBeforeRevocation) -> None:
        """Continue, whether or not the commit succeeded."""
        if self._reconciliation is not None and self._reconciliation.step == step:
            self._revoke(self._reconciliation)

    def callback_done(self, step: Callback, error: BaseException | None) -> None:
        """Continue after a callback, which may have raised."""
        if step != self._running:
            return
        self._running = None
        if isinstance(step, Revoke) and error is None:
            self._remove(step.partitions)
        if self._release is not None and self._release.step == step:
            self._release_ended(leaves=self._release.leaves)
        elif self._release is not None:
            self._begin_release(self._release)
        elif self._reconciliation is not None and self._reconciliation.step == step:
            self._reconciled(self._reconciliation, step, is_done=error is None)

    # Heartbeats

    def topic_names_changed(self, names: Mapping[UUID, str]) -> None:
        """Use the topic names of new metadata."""
        self._assignment.set_topic_names(names)

    def poll_expired(self) -> None:
        """Leave at once: the user has not called `poll` for too long.

        Source: AbstractMembershipManager.transitionToSendingLeaveGroup.
        """
        self._is_poll_expired = True
        self._transition(_S.PREPARE_LEAVING)
        self._abandon_reconciliation()
        self._begin_leaving()

    def heartbeat_sent(self) -> None:
        """Change to the state after the heartbeat that has just been built.

        Source: AbstractMembershipManager.onHeartbeatRequestGenerated.
        """
        if self.state is _S.ACKNOWLEDGING:
            is_reconciled = self._assignment.is_reconciled
            self._transition(_S.STABLE if is_reconciled else _S.RECONCILING)
        elif self.state is _S.LEAVING and self._is_poll_expired:
            self._is_poll_expired = False
            self._transition(_S.STALE)
            self._release_all(leaves=False)
        elif self.state is _S.LEAVING:
            self._transition(_S.UNSUBSCRIBED)

    def heartbeat_skipped(self) -> None:
        """End the leaving, if it cannot be announced: there is no coordinator."""
        if self.state is _S.LEAVING:
            self._transition(_S.UNSUBSCRIBED)
            self._awaits_leave = False

    def leave_ended(self) -> None:
        """End the leaving: its heartbeat was answered, or will never be."""
        self._awaits_leave = False

    def heartbeat_answered(
        self, epoch: int, assignment: Mapping[UUID, tuple[int, ...]] | None
    ) -> None:
        """Apply the answer to a heartbeat of the current membership, which did not leave.

        Source: ConsumerMembershipManager.onHeartbeatSuccess.
        """
        if epoch < 0:
            return
        self.epoch = epoch
        if assignment is None or self.state not in ACCEPTS_ASSIGNMENT:
            return
        self._assignment.set_target(assignment)
        self._subscriptions.subscription.assigned_topic_ids = self._assignment.topic_ids
        if not self._assignment.is_reconciled:
            self._transition(_S.RECONCILING)

    def fenced(self) -> None:
        """Release all partitions as lost, then join again: the coordinator removed the member.

        Source: AbstractMembershipManager.transitionToFenced.
        """
        if self.state is _S.PREPARE_LEAVING:
            self._begin_leaving()
            self.heartbeat_skipped()
            self._lose_instead_of_revoking()
        else:
            self._transition(_S.FENCED)
            self._abandon_reconciliation()
            self.epoch = consumer_group_heartbeat.JOIN_GROUP_MEMBER_EPOCH
            self._release_all(leaves=False)

    def failed(self) -> None:
        """Release all partitions as lost, for good.

        Source: AbstractMembershipManager.transitionToFatal.
        """
        was_in_group = self.is_in_group
        is_released = self._release is not None
        self._transition(_S.FATAL)
        self._awaits_leave = False
        self._abandon_reconciliation()
        if is_released:
            self._lose_instead_of_revoking()
        elif was_in_group:
            self._release_all(leaves=False)

    # Reconciliation

    def _maybe_reconcile(self, now: float, *, may_call_back: bool) -> None:
        """Start to apply the target assignment (AbstractMembershipManager.maybeReconcile)."""
        is_busy = self._reconciliation or self._running or self._waits_for_poll
        if self.state is not _S.RECONCILING or self._assignment.is_reconciled or is_busy:
            return
        resolved = self._assignment.resolve()
        current, target = self._assignment.current, frozenset(resolved.partitions)
        owned = frozenset(self._subscriptions.assigned_partitions)
        are_same = resolved.assignment.partitions == current.partitions and owned == target
        if are_same and not current.is_none and not target & self._half_revoked:
            # Only once: what is unresolved waits for metadata.
            if resolved.assignment != current:
                self._acknowledge(resolved)
            return
        given_back = target & self._half_revoked
        revoked = owned - target
        if not may_call_back and (self._settings.is_auto_commit or revoked or given_back):
            return
        self._remove(given_back)
        self._half_revoked = frozenset()
        self._subscriptions.mark_pending_revocation(revoked)
        added = tuple(sorted(target - (owned - given_back)))
        self._reconciliation = _Reconciliation(resolved, added, tuple(sorted(revoked)))
        if self._settings.is_auto_commit:
            until = now + self._settings.rebalance_timeout
            self._reconciliation.step = CommitBeforeRevocation(self._next_number(), until)
            self._next = self._reconciliation.step
        else:
            self._revoke(self._reconciliation)

    def _revoke(self, reconciliation: _Reconciliation) -> None:
        if reconciliation.revoked and self._subscriptions.rebalance_listener is not None:
            reconciliation.step = Revoke(self._next_number(), reconciliation.revoked)
            self._next = reconciliation.step
        else:
            self._remove(reconciliation.revoked)
            self._assign(reconciliation)

    def _assign(self, reconciliation: _Reconciliation) -> None:
        partitions = reconciliation.resolved.partitions
        reconciliation.step = Assign(self._next_number(), partitions, reconciliation.added)
        self._next = reconciliation.step

    def _reconciled(
        self, reconciliation: _Reconciliation, step: Callback, *, is_done: bool
    ) -> None:
        """Continue after the callback of a reconciliation."""
        if not is_done:
            # The coordinator removes the member if this goes on for its rebalance timeout.
            self._reconciliation = None
            self._waits_for_poll = True
            if isinstance(step, Revoke):
                self._half_revoked = frozenset(step.partitions)
        elif isinstance(step, Revoke):
            self._assign(reconciliation)
        else:
            self._reconciliation = None
            self._subscriptions.enable_partitions_awaiting_callback(step.partitions)
            self._acknowledge(reconciliation.resolved)

    def _acknowledge(self, resolved: Resolved) -> None:
        self._assignment.current = resolved.assignment
        self._assignment.forget_names_except(resolved.assignment.partitions)
        self._transition(_S.ACKNOWLEDGING)

    def _abandon_reconciliation(self) -> None:
        if self._reconciliation is not None:
            self._reconciliation = self._next = None

    # The release of all partitions

    def _release_all(self, *, leaves: bool) -> None:
        """Stop fetching, and call back before the partitions are removed."""
        self._subscriptions.mark_pending_revocation(self._subscriptions.assigned_partitions)
        self._release = _Release(leaves)
        if self._running is None:
            self._begin_release(self._release)

    def _begin_release(self, release: _Release) -> None:
        partitions = tuple(sorted(self._subscriptions.assigned_partitions))
        if not partitions or self._subscriptions.rebalance_listener is None:
            self._release_ended(leaves=release.leaves)
            return
        callback = Revoke if self.state is _S.PREPARE_LEAVING else Lose
        self._next = release.step = callback(self._next_number(), partitions)

    def _lose_instead_of_revoking(self) -> None:
        """Replace a revocation that has not begun: the member is in the group no longer."""
        if self._release is not None and self._next is not None:
            self._begin_release(self._release)

    def _release_ended(self, *, leaves: bool) -> None:
        """Remove all partitions, and go on to what comes after that."""
        self._release = self._next = None
        # A subscription that the user has made since stays.
        if leaves and not self._subscription_changed:
            self._subscriptions.unsubscribe()
        else:
            self._subscriptions.assign_from_subscribed(())
        self._subscriptions.subscription.assigned_topic_ids = frozenset()
        self._assignment.clear()
        self._half_revoked = frozenset()
        if self.state is _S.PREPARE_LEAVING:
            self._begin_leaving()
        elif self.state is _S.FENCED:
            self._join()
        else:
            self._maybe_rejoin()

    def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        removed = frozenset(partitions)
        if removed and self._subscriptions.subscription.is_auto_assigned:
            assigned = self._subscriptions.assigned_partitions
            self._subscriptions.assign_from_subscribed(
                partition for partition in assigned if partition not in removed
            )

    # How the state changes

    def _maybe_rejoin(self) -> None:
        is_released = self._rejoins and self._release is None
        is_subscribed = self._subscriptions.subscription.is_auto_assigned
        if self.state is _S.STALE and is_released and is_subscribed:
            self._join()

    def _join(self) -> None:
        self.epoch = consumer_group_heartbeat.JOIN_GROUP_MEMBER_EPOCH
        self._transition(_S.JOINING)
        self._assignment.clear()
        self._subscription_changed = self._rejoins = False
        self._leave_operation = LeaveOperation.DEFAULT

    def _begin_leaving(self) -> None:
        """Send the last heartbeat next, unless a dynamic member is to remain in the group."""
        is_static = self._settings.group_instance_id is not None
        self.epoch = (
            consumer_group_heartbeat.LEAVE_GROUP_STATIC_MEMBER_EPOCH
            if is_static and self._leave_operation is not LeaveOperation.LEAVE_GROUP
            else consumer_group_heartbeat.LEAVE_GROUP_MEMBER_EPOCH
        )
        self._assignment.current = NO_ASSIGNMENT
        self._transition(_S.LEAVING)
        self._awaits_leave = not self._is_poll_expired
        if self._leave_operation is LeaveOperation.REMAIN_IN_GROUP and not is_static:
            self._transition(_S.UNSUBSCRIBED)
            self._awaits_leave = False

    def _transition(self, target: MemberState) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"invalid transition of member {self._settings.member_id!r} of group "
                f"{self._settings.group_id!r} from {self.state.name} to {target.name}"
            )
        self.state = target

    def _next_number(self) -> int:
        self._steps += 1
        return self._steps
