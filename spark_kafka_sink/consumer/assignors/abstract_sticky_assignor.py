"""The common part of the sticky assignors: who owned what, and the choice of the algorithm.

Members that all want the same topics are served by `_ConstrainedAssignment`, others by
`_GeneralAssignment`. Of several members that claim the same partition, the one with the highest
generation keeps it; if two of them have the same generation, none does.

The results are those of Java, except where Java's classes fail, never end, or assign a partition
twice, not at all, or to a member that does not want its topic. Ours then assign each partition to
one member that wants it:

- Members without topics, such as those with a pattern that matches none, get no partition.
- Owned partitions that no longer exist are ignored.
- A partition does not stay with an earlier owner that no longer wants its topic.
- Movements of partitions that repeat themselves end.

Source: org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor, with its builders.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
    AbstractPartitionAssignor,
    Partitions,
    RackInfo,
    Subscriptions,
    Topics,
)
from spark_kafka_sink.consumer.assignors.java_order import HashOrderedPartitions, text_order
from spark_kafka_sink.consumer.assignors.partition_assignor import DEFAULT_GENERATION, Subscription
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


class MemberData(NamedTuple):
    """The partitions that a member claims to have owned, and the generation."""

    partitions: Sequence[TopicPartition]
    generation: int = DEFAULT_GENERATION


class AbstractStickyAssignor(AbstractPartitionAssignor):
    """An assignor that keeps partitions where they are, as far as the balance allows."""

    def __init__(self) -> None:
        #: The highest generation that any member of any rebalance has claimed.
        self._max_generation = DEFAULT_GENERATION

    @abstractmethod
    def member_data(self, subscription: Subscription) -> MemberData:
        """Return what the subscription says about the partitions that the member owned."""

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> Partitions:
        """Keep what members own, then assign the rest."""
        return self.assign_and_report(topics, subscriptions)[0]

    def assign_and_report(
        self, topics: Topics, subscriptions: Subscriptions
    ) -> tuple[Partitions, Mapping[TopicPartition, str] | None]:
        """Return also the new owners of partitions that a member may still own.

        They are None after the general algorithm, which does not record them.
        """
        data = {
            member: self.member_data(subscription) for member, subscription in subscriptions.items()
        }
        claims = _Claims(topics, subscriptions)
        for member, member_data in data.items():
            self._max_generation = max(self._max_generation, member_data.generation)
            claims.add(member, member_data)
        rack_info = RackInfo(topics, subscriptions)
        subscribed = {member: subscription.topics for member, subscription in subscriptions.items()}
        if _all_equal(list(subscribed.values())):
            constrained = _ConstrainedAssignment(topics, rack_info, claims.owned, claims.disputed)
            assigned = constrained.build()
            if not any(assigned[member] for member in subscribed if not subscribed[member]):
                return assigned, constrained.changing_owners
        stale = self._stale_owners(data)
        general = _GeneralAssignment(topics, rack_info, claims.owned, subscribed, stale)
        assigned = general.build()
        subscribed_owners = {
            topic_partition: member
            for topic_partition, member in stale.items()
            if topic_partition.topic in subscribed[member]
        }
        if subscribed_owners != stale and (
            general.is_circular or not _is_wanted(assigned, subscribed, stale.values())
        ):
            general = _GeneralAssignment(
                topics, rack_info, claims.owned, subscribed, subscribed_owners
            )
            assigned = general.build()
        return assigned, None

    def _stale_owners(self, data: Mapping[str, MemberData]) -> dict[TopicPartition, str]:
        """Return the latest owners among the members that missed the last generation."""
        stale: dict[TopicPartition, tuple[str, int]] = {}
        for member, (partitions, generation) in data.items():
            if generation < self._max_generation:
                for topic_partition in partitions:
                    latest = stale.get(topic_partition)
                    if latest is None or generation > latest[1]:
                        stale[topic_partition] = (member, generation)
        return {topic_partition: member for topic_partition, (member, _) in stale.items()}


class _Claims:
    """The partitions that the members own, with conflicts resolved; members come in order."""

    def __init__(self, topics: Collection[str], subscriptions: Subscriptions) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._owners: dict[TopicPartition, str] = {}
        self.owned: Partitions = {}
        #: Partitions that two members of the same generation claim.
        self.disputed: set[TopicPartition] = set()

    def add(self, member: str, data: MemberData) -> None:
        owned = self.owned[member] = []
        for topic_partition in data.partitions:
            if topic_partition.topic not in self._topics:
                continue
            owner = self._owners.get(topic_partition)
            if owner is None:
                owned.append(topic_partition)
                self._owners[topic_partition] = member
                continue
            # Java compares with the generation of the subscription, not with that of user data.
            generation = max(self._subscriptions[owner].generation_id, DEFAULT_GENERATION)
            if data.generation < generation:
                continue
            if data.generation > generation:
                owned.append(topic_partition)
            else:
                self.disputed.add(topic_partition)
            self._owners[topic_partition] = member
            if topic_partition in self.owned[owner]:
                self.owned[owner].remove(topic_partition)


def _is_wanted(
    assigned: Partitions, subscribed: Mapping[str, Sequence[str]], members: Iterable[str]
) -> bool:
    """Return whether members want all topics of their partitions."""
    return all(
        topic_partition.topic in subscribed[member]
        for member in set(members)
        for topic_partition in assigned[member]
    )


def _all_equal(subscribed: Sequence[Sequence[str]]) -> bool:
    """Return whether all members want the same topics, where Java ignores the first without any."""
    first: frozenset[str] = frozenset()
    for topics in subscribed:
        if not first:
            first = frozenset(topics)
        elif len(topics) != len(first) or not first.issuperset(topics):
            return False
    return True


class _ConstrainedAssignment:
    """An assignment of members that all want the same topics; `owned` has all of them, in order.

    Every member gets the minimum number of partitions, or one more. Members first keep what they
    own, up to their number, and with racks only what is near. What is left goes to near members,
    then to any member, in turns.
    """

    def __init__(
        self,
        topics: Topics,
        rack_info: RackInfo,
        owned: Partitions,
        disputed: AbstractSet[TopicPartition],
    ) -> None:
        """Compute the number of partitions for each member."""
        self._rack_info = rack_info
        self._owned = owned
        self._disputed = disputed
        self._all = [
            TopicPartition(topic, number)
            for topic in sorted(topics)
            for number in range(len(topics[topic]))
        ]
        self._existing = frozenset(self._all)
        self._assigned: Partitions = {member: [] for member in owned}
        # Each member gets `min_quota` partitions, and `extras_left` members one more.
        self._min_quota, self._extras_left = divmod(len(self._all), len(owned))
        self._max_quota = self._min_quota + (self._extras_left > 0)
        #: The members that get more partitions in any case.
        self._below_quota: list[str] = []
        #: The members with exactly the quota; some of them get one more.
        self._at_quota: list[str] = []
        self._revoked: dict[TopicPartition, str] = {}
        #: The new owners of partitions that another member may still own.
        self.changing_owners: dict[TopicPartition, str] = {}

    def build(self) -> Partitions:
        """Return the partitions of each member."""
        for member, partitions in self._owned.items():
            self._keep_owned(member, partitions)
        kept = {
            topic_partition
            for partitions in self._assigned.values()
            for topic_partition in partitions
        }
        unassigned = [
            topic_partition for topic_partition in self._all if topic_partition not in kept
        ]
        self._below_quota.sort(key=text_order)
        self._at_quota.sort(key=text_order)
        unassigned = self._rack_info.rarest_first(unassigned)
        if self._rack_info.is_used:
            unassigned = self._assign_near(unassigned)
        self._assign_in_turns(unassigned)
        return self._assigned

    def _keep_owned(self, member: str, owned: Sequence[TopicPartition]) -> None:
        """Assign what a member owned, up to its quota."""
        keepable = []
        for topic_partition in sorted(owned, key=lambda item: (item.partition, item.topic)):
            if self._rack_info.mismatch(member, topic_partition):
                self._revoked[topic_partition] = member
            elif topic_partition in self._existing and topic_partition not in self._disputed:
                keepable.append(topic_partition)
        if len(keepable) < self._min_quota:
            quota = len(keepable)
            self._below_quota.append(member)
        elif len(keepable) >= self._max_quota and self._extras_left:
            quota = self._max_quota
            self._use_extra()
        else:
            quota = self._min_quota
            if self._extras_left:
                self._at_quota.append(member)
        self._assigned[member] += keepable[:quota]
        self._revoked.update(dict.fromkeys(keepable[quota:], member))

    def _use_extra(self) -> None:
        self._extras_left -= 1
        if not self._extras_left:
            self._at_quota.clear()

    def _assign_near(self, unassigned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to near members; return those for which there is none left."""
        left = []
        turn = 0
        for topic_partition in unassigned:
            index = self._rack_info.next_near(topic_partition, self._below_quota, turn)
            if index is not None:
                member = self._below_quota[index]
                size = self._assign(topic_partition, member)
                if size < self._min_quota:
                    index += 1
                else:
                    del self._below_quota[index]
                    if size < self._max_quota and self._extras_left:
                        self._at_quota.append(member)
                turn = index % len(self._below_quota) if self._below_quota else 0
                continue
            index = self._rack_info.next_near(topic_partition, self._at_quota, 0)
            if index is None:
                left.append(topic_partition)
                continue
            self._assign(topic_partition, self._at_quota.pop(index))
            self._use_extra()
        return left

    def _assign_in_turns(self, unassigned: Sequence[TopicPartition]) -> None:
        """Assign in turns, to all members up to the quota, then to some of them one more."""
        turn = 0
        for topic_partition in unassigned:
            if not self._below_quota:
                self._assign(topic_partition, self._at_quota.pop(0))
                continue
            turn %= len(self._below_quota)
            member = self._below_quota[turn]
            if self._assign(topic_partition, member) == self._min_quota:
                del self._below_quota[turn]
                self._at_quota.append(member)
            else:
                turn += 1

    def _assign(self, topic_partition: TopicPartition, member: str) -> int:
        """Assign a partition that the member does not own; return how many it has then."""
        partitions = self._assigned[member]
        partitions.append(topic_partition)
        if (
            self._revoked.get(topic_partition, member) != member
            or topic_partition in self._disputed
        ):
            self.changing_owners[topic_partition] = member
        return len(partitions)


#: The members between which a partition moves: from, to.
_Pair: TypeAlias = tuple[str, str]


class _PartitionMovements:
    """The movements between members during one assignment, by partition and by topic.

    If two members have to exchange partitions of a topic, the one that moved there goes back
    instead, so that each keeps what it had.

    Source: AbstractStickyAssignor.PartitionMovements.
    """

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._by_topic: defaultdict[str, dict[_Pair, HashOrderedPartitions]] = defaultdict(dict)

    def state(self) -> frozenset[object]:
        """Return a value to compare the recorded movements by."""
        return frozenset(self._pairs.items())

    def move(self, topic_partition: TopicPartition, source: str, target: str) -> None:
        """Record a movement; several of a partition count as one, or as none if it is back."""
        earlier = self._pairs.pop(topic_partition, None)
        if earlier is not None:
            self._forget(topic_partition, earlier)
            source = earlier[0]
            if source == target:
                return
        pair = (source, target)
        self._pairs[topic_partition] = pair
        self._by_topic[topic_partition.topic].setdefault(pair, HashOrderedPartitions()).add(
            topic_partition
        )

    def _forget(self, topic_partition: TopicPartition, pair: _Pair) -> None:
        moved = self._by_topic[topic_partition.topic]
        moved[pair].remove(topic_partition)
        if not moved[pair]:
            del moved[pair]

    def partition_to_move(
        self, topic_partition: TopicPartition, source: str, target: str
    ) -> TopicPartition:
        """Return the partition to move in place of this one: one that moved the other way."""
        earlier = self._pairs.get(topic_partition)
        if earlier is not None:
            source = earlier[0]
        back = self._by_topic[topic_partition.topic].get((target, source))
        return topic_partition if back is None else back.first()


class _GeneralAssignment:
    """An assignment of members that want different topics.

    Members keep what they own, if they still want it, and with racks only what is near. What is
    left goes to the member with the fewest partitions. Then single partitions move from members
    with more partitions to members with fewer, as long as that improves the balance.

    `owned` has all members, in order, and `stale_owners` earlier owners.
    """

    def __init__(
        self,
        topics: Topics,
        rack_info: RackInfo,
        owned: Partitions,
        subscribed: Mapping[str, Sequence[str]],
        stale_owners: Mapping[TopicPartition, str],
    ) -> None:
        """Find out who wants what; `owned` stays as it is."""
        self._topics = topics
        self._rack_info = rack_info
        self._assigned = {member: list(partitions) for member, partitions in owned.items()}
        self._stale_owners = stale_owners
        self._subscribed = {
            member: [topic for topic in topic_names if topic in topics]
            for member, topic_names in subscribed.items()
        }
        self._subscribers: dict[str, list[str]] = {topic: [] for topic in topics}
        for member, topic_names in self._subscribed.items():
            for topic in topic_names:
                self._subscribers[topic].append(member)
        # Topics that few members want come first.
        self._all = [
            TopicPartition(topic, number)
            for topic in sorted(topics, key=lambda name: (len(self._subscribers[name]), name))
            for number in range(len(topics[topic]))
        ]
        self._owners: dict[TopicPartition, str] = {}
        self._by_size = _MembersBySize(self._assigned)
        self._movements = _PartitionMovements()
        self._revokes = False
        #: Whether the movements would not have ended.
        self.is_circular = False
        #: None if it must be computed again.
        self._balanced: bool | None = None

    def build(self) -> Partitions:
        """Return the partitions of each member."""
        self._keep_owned()
        for member in self._assigned:
            self._by_size.add(member)
        is_first = self._by_size.most() == 0
        unassigned = [
            topic_partition for topic_partition in self._all if topic_partition not in self._owners
        ]
        self._assign(unassigned)
        self._balance(unassigned, may_revert=not is_first)
        return self._assigned

    def _keep_owned(self) -> None:
        """Remove what members own but may not keep."""
        existing = frozenset(self._all)
        for member, partitions in self._assigned.items():
            kept = []
            for topic_partition in partitions:
                is_subscribed = topic_partition.topic in self._subscribed[member]
                if not is_subscribed or self._rack_info.mismatch(member, topic_partition):
                    self._revokes = True
                elif topic_partition in existing:
                    kept.append(topic_partition)
                    self._owners[topic_partition] = member
            partitions[:] = kept

    def _assign(self, unassigned: Sequence[TopicPartition]) -> None:
        """Assign partitions to the smallest members, where racks are used to near ones first."""
        left = unassigned
        if self._rack_info.is_used:
            left = [
                topic_partition
                for topic_partition in left
                if not self._assign_one(topic_partition, near=True)
            ]
        for topic_partition in left:
            self._assign_one(topic_partition, near=False)

    def _assign_one(self, topic_partition: TopicPartition, *, near: bool) -> bool:
        for member in self._by_size:
            if topic_partition.topic in self._subscribed[member] and not (
                near and self._rack_info.mismatch(member, topic_partition)
            ):
                self._by_size.remove(member)
                self._assigned[member].append(topic_partition)
                self._owners[topic_partition] = member
                self._by_size.add(member)
                return True
        return False

    # --- balance

    def _balance(self, unassigned: Sequence[TopicPartition], *, may_revert: bool) -> None:
        """Move partitions, first new ones; undo all movements that did not improve the balance."""
        fixed = {
            member: self._assigned[member]
            for member in self._subscribed
            if not self._can_change(member)
        }
        for member in fixed:
            self._by_size.remove(member)
            del self._assigned[member]
        before = {member: list(partitions) for member, partitions in self._assigned.items()}
        if not self._revokes:
            self._move_all(unassigned)
        has_moved = self._move_all(self._all)
        if may_revert and has_moved and _imbalance(self._assigned) >= _imbalance(before):
            self._assigned.update(before)
        self._assigned.update(fixed)

    def _is_shared(self, topic: str) -> bool:
        return len(self._subscribers[topic]) > 1

    def _can_change(self, member: str) -> bool:
        """Return whether a member could get another partition, or give one away."""
        partitions = self._assigned[member]
        return len(partitions) < self._most_possible(member) or any(
            self._is_shared(topic_partition.topic) for topic_partition in partitions
        )

    def _most_possible(self, member: str) -> int:
        subscribed = self._subscribed[member]
        if len(subscribed) == len(self._topics):
            return len(self._all)
        return sum(len(self._topics[topic]) for topic in subscribed)

    def _move_all(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions as long as that helps; return whether any has moved.

        Java never ends if the earlier owners of partitions pull them in a circle. What moves
        next follows from who owns what and from the movements so far, so the circle is closed when
        both return.
        """
        movable = [
            topic_partition
            for topic_partition in partitions
            if self._is_shared(topic_partition.topic)
        ]
        has_moved = False
        is_done = False
        seen: set[tuple[tuple[str, ...], frozenset[object]]] = set()
        while not is_done:
            is_done = True
            state = (
                tuple(self._owners[topic_partition] for topic_partition in self._all),
                self._movements.state(),
            )
            if state in seen:
                self.is_circular = True
                break
            seen.add(state)
            for topic_partition in movable:
                if self._is_balanced():
                    break
                if self._maybe_move(topic_partition):
                    has_moved = True
                    is_done = False
        return has_moved

    def _is_balanced(self) -> bool:
        if self._balanced is None:
            self._balanced = self._compute_balanced()
        return self._balanced

    def _compute_balanced(self) -> bool:
        """Return whether no member could take a partition from one with two more than it has."""
        if self._by_size.fewest() >= self._by_size.most() - 1:
            return True
        most: defaultdict[str, int] = defaultdict(int)
        for partitions in self._assigned.values():
            for topic, _ in partitions:
                most[topic] = max(most[topic], len(partitions))
        return not any(
            most[topic] > len(partitions) + 1
            for member, partitions in self._assigned.items()
            if len(partitions) != self._most_possible(member)
            for topic in self._subscribed[member]
        )

    def _maybe_move(self, topic_partition: TopicPartition) -> bool:
        """Move a partition to its earlier owner or to the smallest member, if its owner has more.

        As in Java, the earlier owner need not want the topic any more. And Java first looks for a
        smaller member among those in the racks of the replicas, but whether it finds one or not,
        the partition goes to the smallest member of all.
        """
        topic = topic_partition.topic
        size = len(self._assigned[self._owners[topic_partition]])
        stale_owner = self._stale_owners.get(topic_partition)
        if stale_owner in self._assigned and size > len(self._assigned[stale_owner]) + 1:
            self._move(topic_partition, stale_owner)
            return True
        if any(size > len(self._assigned[member]) + 1 for member in self._subscribers[topic]):
            self._move(
                topic_partition,
                next(member for member in self._by_size if topic in self._subscribed[member]),
            )
            return True
        return False

    def _move(self, topic_partition: TopicPartition, target: str) -> None:
        source = self._owners[topic_partition]
        moving = self._movements.partition_to_move(topic_partition, source, target)
        source = self._owners[moving]
        self._by_size.remove(source)
        self._by_size.remove(target)
        self._movements.move(moving, source, target)
        self._assigned[source].remove(moving)
        self._assigned[target].append(moving)
        self._owners[moving] = target
        self._by_size.add(target)
        self._by_size.add(source)
        self._balanced = None


class _MembersBySize:
    """Members sorted by the number of their partitions, then by id.

    Remove a member before its partitions change, and add it again afterwards.
    """

    def __init__(self, assigned: Partitions) -> None:
        self._assigned = assigned
        self._sorted: list[tuple[int, bytes, str]] = []

    def __iter__(self) -> Iterator[str]:
        return (member for _, _, member in self._sorted)

    def _entry(self, member: str) -> tuple[int, bytes, str]:
        return len(self._assigned[member]), text_order(member), member

    def add(self, member: str) -> None:
        entry = self._entry(member)
        self._sorted.insert(bisect_left(self._sorted, entry), entry)

    def remove(self, member: str) -> None:
        del self._sorted[bisect_left(self._sorted, self._entry(member))]

    def fewest(self) -> int:
        return self._sorted[0][0]

    def most(self) -> int:
        return self._sorted[-1][0]


def _imbalance(assigned: Partitions) -> int:
    """Return the sum of the differences in size between all pairs of members."""
    sizes = sorted(map(len, assigned.values()))
    return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))
