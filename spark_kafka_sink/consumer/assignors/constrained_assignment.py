"""The sticky assignment of members that all want the same topics.

Every member gets the minimum number of partitions, or one more. Members first keep what they own,
up to their number, and with racks only what is near. What is left goes to near members, then to any
member, in turns.

Source: org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor
(ConstrainedAssignmentBuilder).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.java_order import text_order
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
        Partitions,
        RackInfo,
        Topics,
    )


class ConstrainedAssignment:
    """One assignment; `owned` has all members, in order."""

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
        #: The members with exactly the quota, some of which get one more.
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
