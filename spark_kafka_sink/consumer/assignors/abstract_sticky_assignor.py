"""The common part of the sticky assignors: who owned what, and the choice of the algorithm.

Members that all want the same topics are served by `ConstrainedAssignment`, others by
`GeneralAssignment`. Of several members that claim the same partition, the one with the highest
generation keeps it; if two of them have the same generation, none does.

The results are those of Java, except where Java's classes fail, never end, or assign a partition
twice, not at all, or to a member that does not want its topic. Ours then assign each partition to
one member that wants it:

- Members without topics, such as those with a pattern that matches none, get no partition.
- Owned partitions that no longer exist are ignored.
- A partition does not stay with an earlier owner that no longer wants its topic.
- Movements of partitions that repeat themselves end.

Source: org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
    AbstractPartitionAssignor,
    RackInfo,
)
from spark_kafka_sink.consumer.assignors.constrained_assignment import ConstrainedAssignment
from spark_kafka_sink.consumer.assignors.general_assignment import GeneralAssignment
from spark_kafka_sink.consumer.assignors.partition_assignor import DEFAULT_GENERATION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
        Partitions,
        Subscriptions,
        Topics,
    )
    from spark_kafka_sink.consumer.assignors.partition_assignor import Subscription
    from spark_kafka_sink.model import TopicPartition


class MemberData(NamedTuple):
    """What a member says that it owned, and in which generation."""

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
            constrained = ConstrainedAssignment(topics, rack_info, claims.owned, claims.disputed)
            assigned = constrained.build()
            if not any(assigned[member] for member in subscribed if not subscribed[member]):
                return assigned, constrained.changing_owners
        stale = self._stale_owners(data)
        general = GeneralAssignment(topics, rack_info, claims.owned, subscribed, stale)
        assigned = general.build()
        subscribed_owners = {
            topic_partition: member
            for topic_partition, member in stale.items()
            if topic_partition.topic in subscribed[member]
        }
        if subscribed_owners != stale and (
            general.is_circular or not _is_wanted(assigned, subscribed, stale.values())
        ):
            general = GeneralAssignment(
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
