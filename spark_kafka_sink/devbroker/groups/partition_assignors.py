"""The server-side assignors, which compute the target assignment of a consumer group (KIP-848).

`uniform` gives all members about the same number of partitions, and moves as few as possible.
`range` gives each member a range of each topic's partitions, the same of each topic if all members
subscribe to the same topics. Where Kafka's order depends on hash codes, this one sorts.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.groups.consumer_group import TopicIdPartition

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping

#: As in Kafka, the number of times that `uniform` goes through all topics to balance them.
_MAX_ROUNDS = 16


class AssignedMember(NamedTuple):
    """What an assignor knows of a member."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    #: Its part of the last target assignment.
    assigned: frozenset[TopicIdPartition]


class _Spec(NamedTuple):
    """The members of a group, and the number of partitions of each topic."""

    members: list[AssignedMember]
    partition_counts: Mapping[uuid.UUID, int]


#: The partitions of each member.
_Assignment = dict[str, set[TopicIdPartition]]


def assign(
    assignor: str, members: Iterable[AssignedMember], partition_counts: Mapping[uuid.UUID, int]
) -> dict[str, frozenset[TopicIdPartition]]:
    """Return the partitions of each member, as the assignor of this name distributes them."""
    spec = _Spec(sorted(members), partition_counts)
    if not spec.members:
        return {}
    assigned = ASSIGNORS[assignor](spec)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _assign_ranges(spec: _Spec) -> _Assignment:
    # Static members first: their ids remain the same, and so do their ranges.
    members = sorted(
        spec.members,
        key=lambda m: (m.instance_id is None, m.instance_id or m.member_id),
    )
    assigned: _Assignment = {member.member_id: set() for member in members}
    for topic_id, count in spec.partition_counts.items():
        subscribers = [member for member in members if topic_id in member.topic_ids]
        start = 0
        for number, member in enumerate(subscribers):
            size = count // len(subscribers) + (number < count % len(subscribers))
            assigned[member.member_id].update(_partitions(topic_id, range(start, start + size)))
            start += size
    return assigned


def _assign_uniformly(spec: _Spec) -> _Assignment:
    if len({member.topic_ids for member in spec.members}) == 1:
        return _assign_to_equal_subscribers(spec)
    return _assign_to_different_subscribers(spec)


def _assign_to_equal_subscribers(spec: _Spec) -> _Assignment:
    """Assign the same number of partitions to all members, give or take one."""
    existing = _all_partitions(spec)
    extra = len(existing) % len(spec.members)
    assigned: _Assignment = {}
    quotas: dict[str, int] = {}
    for number, member in enumerate(spec.members):
        quota = len(existing) // len(spec.members) + (extra > 0)
        has_extra = extra > 0
        present = sorted(member.assigned.intersection(existing))
        assigned[member.member_id] = set(present[:quota])
        left = quota - len(assigned[member.member_id])
        if left and has_extra and len(spec.members) - number > extra:
            # A member behind this one may already have one partition more.
            left -= 1
            has_extra = False
        extra -= has_extra
        quotas[member.member_id] = left
    # Partitions that had no owner before go first.
    before = {partition for member in spec.members for partition in member.assigned}
    taken = {partition for partitions in assigned.values() for partition in partitions}
    unassigned = [partition for partition in existing if partition not in taken]
    free = iter(sorted(unassigned, key=before.__contains__))
    for member_id, quota in quotas.items():
        for _, partition in zip(range(quota), free, strict=False):
            assigned[member_id].add(partition)
    return assigned


def _assign_to_different_subscribers(spec: _Spec) -> _Assignment:
    """Assign each partition to the subscriber that has the fewest, then move some to balance."""
    subscribers: dict[uuid.UUID, list[str]] = defaultdict(list)
    for member in spec.members:
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(member.member_id)
    existing = set(_all_partitions(spec))
    assigned: _Assignment = {
        member.member_id: {
            p for p in member.assigned if p in existing and p.topic_id in member.topic_ids
        }
        for member in spec.members
    }
    taken = {partition for partitions in assigned.values() for partition in partitions}

    def load(member_id: str) -> int:
        return len(assigned[member_id])

    # The topics with the most partitions for each subscriber first.
    topics = sorted(
        subscribers,
        key=lambda t: (-spec.partition_counts[t] / len(subscribers[t]), len(subscribers[t]), t),
    )
    for topic_id in topics:
        for partition in _partitions(topic_id, range(spec.partition_counts[topic_id])):
            if partition not in taken:
                assigned[min(subscribers[topic_id], key=load)].add(partition)
    for _ in range(_MAX_ROUNDS):
        if not sum(_balance(topic_id, subscribers[topic_id], assigned) for topic_id in topics):
            break
    return assigned


def _balance(topic_id: uuid.UUID, subscribers: list[str], assigned: _Assignment) -> int:
    """Move a topic's partitions from members with many to members with few; return how many."""
    owned = {m: sorted(p for p in assigned[m] if p.topic_id == topic_id) for m in subscribers}
    moved = 0
    while True:
        owners = [member_id for member_id in subscribers if owned[member_id]]
        if not owners:
            return moved
        most = max(owners, key=lambda member_id: len(assigned[member_id]))
        least = min(subscribers, key=lambda member_id: len(assigned[member_id]))
        if len(assigned[most]) - len(assigned[least]) <= 1:
            return moved
        partition = owned[most].pop()
        assigned[most].remove(partition)
        insort(owned[least], partition)
        assigned[least].add(partition)
        moved += 1


def _partitions(topic_id: uuid.UUID, indexes: Iterable[int]) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic_id, index) for index in indexes]


def _all_partitions(spec: _Spec) -> list[TopicIdPartition]:
    """Return the partitions of all topics to which a member subscribes."""
    topic_ids = frozenset().union(*(member.topic_ids for member in spec.members))
    return [
        partition
        for topic_id in sorted(topic_ids)
        for partition in _partitions(topic_id, range(spec.partition_counts[topic_id]))
    ]


#: By name, as in group.consumer.assignors.
ASSIGNORS: dict[str, Callable[[_Spec], _Assignment]] = {
    "uniform": _assign_uniformly,
    "range": _assign_ranges,
}
