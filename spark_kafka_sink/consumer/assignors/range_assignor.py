"""Range: each topic is divided into contiguous ranges, one for each member that wants it.

The members get partitions of the same number in all topics that they want and that have the same
number of partitions. With racks (KIP-881), partitions go first to members in the rack of a replica,
as far as that keeps the sizes of the ranges and these equal numbers; the rest is divided as without
racks.

Source: org.apache.kafka.clients.consumer.RangeAssignor.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
    AbstractPartitionAssignor,
    Partitions,
    Subscriptions,
    Topics,
    racks_of_members,
    sorted_members,
    uses_racks,
)
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class RangeAssignor(AbstractPartitionAssignor):
    """The assignor `range`: contiguous ranges of each topic, by rack where that helps."""

    name = "range"

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> Partitions:
        """Divide one topic after the other."""
        racks = racks_of_members(subscriptions)
        members = sorted_members(subscriptions)
        divisions = [
            _Division(
                topic,
                partition_racks,
                {
                    member: racks.get(member)
                    for member in members
                    if topic in subscriptions[member].topics
                },
            )
            for topic, partition_racks in topics.items()
        ]
        assigned: Partitions = {member: [] for member in subscriptions}
        is_by_rack = any(division.uses_racks for division in divisions)
        if is_by_rack:
            _assign_by_rack(divisions, assigned)
        for division in divisions:
            division.assign_ranges(assigned)
        if is_by_rack:
            for partitions in assigned.values():
                partitions.sort()
        return assigned


class _Division:
    """The division of one topic; `members` has the rack of each subscriber, in order."""

    def __init__(
        self,
        topic: str,
        partition_racks: Sequence[frozenset[str]],
        members: Mapping[str, str | None],
    ) -> None:
        self.topic = topic
        self.members = members
        member_racks = {rack for rack in members.values() if rack is not None}
        self.uses_racks = uses_racks(member_racks, partition_racks)
        #: The same for topics that are assigned together.
        self.kind = (tuple(members.items()), len(partition_racks) if member_racks else 0)
        self._partition_racks = partition_racks
        self._unassigned = dict.fromkeys(range(len(partition_racks)))
        self._counts = dict.fromkeys(members, 0)
        # How many partitions each member gets, and how many members get one more.
        self._quota, self._extras = divmod(len(partition_racks), len(members))

    @property
    def partition_count(self) -> int:
        return len(self._partition_racks)

    def remaining_quota(self, member: str) -> int:
        """Return how many more partitions a member may get."""
        return max(0, self._quota + (self._extras > 0) - self._counts[member])

    def racks_match(self, member: str, partition: int) -> bool:
        """Return whether a member has no rack, or that of a replica."""
        rack = self.members[member]
        return rack is None or rack in self._partition_racks[partition]

    def assign(self, member: str, partitions: Iterable[int], assigned: Partitions) -> None:
        for partition in partitions:
            del self._unassigned[partition]
            assigned[member].append(TopicPartition(self.topic, partition))
            self._counts[member] += 1
            if self._counts[member] == self._quota + 1:
                self._extras -= 1

    def assign_ranges(self, assigned: Partitions, *, only_in_rack: bool = False) -> None:
        """Assign to each member as many of the first partitions as it may still get."""
        for member in self.members:
            possible = (
                partition
                for partition in self._unassigned
                if not only_in_rack or self.racks_match(member, partition)
            )
            self.assign(member, list(islice(possible, self.remaining_quota(member))), assigned)


def _assign_by_rack(divisions: list[_Division], assigned: Partitions) -> None:
    kinds: defaultdict[object, list[_Division]] = defaultdict(list)
    for division in divisions:
        kinds[division.kind].append(division)
    for alike in kinds.values():
        if len(alike) > 1:
            _assign_together(alike, assigned)
        elif alike[0].uses_racks:
            alike[0].assign_ranges(assigned, only_in_rack=True)


def _assign_together(alike: list[_Division], assigned: Partitions) -> None:
    """Assign partitions of the same number, in topics with the same members, to one member."""
    members = alike[0].members
    if all(rack is None for rack in members.values()):
        return
    waiting = dict.fromkeys(members)
    for partition in range(alike[0].partition_count):
        matching = (
            member
            for member in waiting
            if all(
                division.remaining_quota(member) and division.racks_match(member, partition)
                for division in alike
            )
        )
        member = next(matching, None)
        if member is not None:
            for division in alike:
                division.assign(member, (partition,), assigned)
            if not any(division.remaining_quota(member) for division in alike):
                del waiting[member]
