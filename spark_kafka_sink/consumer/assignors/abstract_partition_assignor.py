"""The common part of the built-in assignors.

Topics without partitions are left out, members and topics brought into the order in which Java
meets them (`java_order`).

Source: org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from spark_kafka_sink.consumer.assignors.java_order import hash_ordered, text_order
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    Cluster,
    ConsumerPartitionAssignor,
    GroupAssignment,
    GroupSubscription,
    Subscription,
)

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

#: For each subscribed topic that exists, the racks of each partition.
Topics: TypeAlias = Mapping[str, Sequence[frozenset[str]]]
#: The subscription of each member.
Subscriptions: TypeAlias = Mapping[str, "Subscription"]
#: The partitions of each member.
Partitions: TypeAlias = dict[str, list["TopicPartition"]]
_NOWHERE: frozenset[str] = frozenset()


class AbstractPartitionAssignor(ConsumerPartitionAssignor):
    """An assignor that needs only `assign_partitions`."""

    name: ClassVar[str]

    @abstractmethod
    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> Partitions:
        """Divide the partitions of `topics` between all members."""

    def assign(self, cluster: Cluster, group_subscription: GroupSubscription) -> GroupAssignment:
        """Assign the partitions of all subscribed topics that exist."""
        unordered = group_subscription.subscriptions
        subscriptions = {member: unordered[member] for member in hash_ordered(unordered)}
        subscribed = hash_ordered(
            topic for subscription in subscriptions.values() for topic in subscription.topics
        )
        existing = hash_ordered(topic for topic in subscribed if cluster.racks_per_topic.get(topic))
        topics = {topic: cluster.racks_per_topic[topic] for topic in existing}
        assigned = self.assign_partitions(topics, subscriptions)
        return GroupAssignment(
            {member: Assignment(tuple(partitions)) for member, partitions in assigned.items()}
        )


def sorted_members(subscriptions: Subscriptions) -> list[str]:
    """Return static members by instance id, then the others by member id."""

    def order(member: str) -> tuple[bool, bytes]:
        instance = subscriptions[member].group_instance_id
        return instance is None, text_order(member if instance is None else instance)

    return sorted(subscriptions, key=order)


def racks_of_members(subscriptions: Subscriptions) -> dict[str, str]:
    """Return the racks of those members that have one."""
    return {
        member: subscription.rack_id
        for member, subscription in subscriptions.items()
        if subscription.rack_id
    }


def uses_racks(member_racks: AbstractSet[str], partition_racks: Iterable[frozenset[str]]) -> bool:
    """Return whether an assignment by rack can be better than another one.

    It cannot if members and replicas have no rack in common, or if all partitions have replicas in
    all racks.
    """
    racks = set(partition_racks)
    all_racks = frozenset[str]().union(*racks)
    return not all_racks.isdisjoint(member_racks) and any(
        replica_racks != all_racks for replica_racks in racks
    )


class RackInfo:
    """Which members are near which partitions, for the sticky assignors (KIP-881).

    It has no effect if racks do not help.

    Source: org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor.RackInfo.
    """

    def __init__(self, topics: Topics, subscriptions: Subscriptions) -> None:
        """Read the racks of the members and of the replicas."""
        self._topics = topics
        racks = racks_of_members(subscriptions)
        self._members_by_rack = Counter(racks.values())
        all_racks = (rack for partition_racks in topics.values() for rack in partition_racks)
        self.is_used = uses_racks(self._members_by_rack.keys(), all_racks)
        self._member_racks = racks if self.is_used else {}

    def _racks(self, topic_partition: TopicPartition) -> frozenset[str]:
        partitions = self._topics[topic_partition.topic]
        number = topic_partition.partition
        return partitions[number] if 0 <= number < len(partitions) else _NOWHERE

    def mismatch(self, member: str, topic_partition: TopicPartition) -> bool:
        """Return whether the member has a rack, but the partition no replica there."""
        rack = self._member_racks.get(member)
        return rack is not None and rack not in self._racks(topic_partition)

    def rarest_first(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return partitions sorted by the number of members in the racks of their replicas."""
        return sorted(
            partitions,
            key=lambda topic_partition: sum(
                self._members_by_rack[rack] for rack in self._racks(topic_partition)
            ),
        )

    def next_near(
        self, topic_partition: TopicPartition, members: Sequence[str], start: int
    ) -> int | None:
        """Return the index of the first member in a rack of a replica, from `start` in a circle."""
        racks = self._racks(topic_partition)
        for step in range(len(members)):
            index = (start + step) % len(members)
            if self._member_racks.get(members[index]) in racks:
                return index
        return None
