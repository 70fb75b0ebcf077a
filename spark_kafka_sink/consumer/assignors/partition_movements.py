"""The movements of partitions between members during one assignment.

If two members have to exchange partitions of a topic, the one that moved there goes back instead,
so that each keeps what it had.

Source: org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor.PartitionMovements.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from spark_kafka_sink.consumer.assignors.java_order import HashOrderedPartitions

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

#: The members between which a partition moves: from, to.
_Pair: TypeAlias = tuple[str, str]


class PartitionMovements:
    """What has moved so far, by partition and by topic."""

    def __init__(self) -> None:
        """Start without a movement."""
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._by_topic: defaultdict[str, dict[_Pair, HashOrderedPartitions]] = defaultdict(dict)

    def state(self) -> frozenset[object]:
        """Return what is recorded, to be compared."""
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
