"""The racks of members and replicas, as the sticky assignors use them (KIP-881).

Source: org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor.RackInfo.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
    racks_of_members,
    uses_racks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
        Subscriptions,
        Topics,
    )
    from spark_kafka_sink.model import TopicPartition

_NOWHERE: frozenset[str] = frozenset()


class RackInfo:
    """Which members are near which partitions; without effect if racks do not help."""

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
