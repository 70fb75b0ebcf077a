"""How a member moves from its current assignment to its target (CurrentAssignmentBuilder).

A member first revokes the partitions that it is to lose, and confirms this by no longer listing
them among the partitions that it owns. Then it moves to the epoch of the target assignment and
receives its new partitions, except for those that another member has not revoked yet: it receives
them with a later heartbeat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.groups.consumer.consumer_group import (
    ConsumerMember,
    MemberState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection


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
