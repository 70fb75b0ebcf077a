"""The partitions of the open transaction, from the first batch to the coordinator's answer.

Under TV1 a partition is new, then pending, then added: no batch is sent before the coordinator has
added its partition. Under TV2 it is added at once, because Produce does so itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition


class TransactionPartitions:
    """The partitions of the open transaction, and whether it has begun on the brokers."""

    def __init__(self) -> None:
        """Start with an empty transaction."""
        self._new: set[TopicPartition] = set()
        self._pending: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()
        self._is_started = False

    @property
    def is_started(self) -> bool:
        """Whether the coordinator may know of the transaction, so that it must be ended there."""
        return self._is_started

    @property
    def has_added(self) -> bool:
        """Whether at least one partition has been added."""
        return bool(self._added)

    @property
    def new(self) -> frozenset[TopicPartition]:
        """The partitions that were not requested yet."""
        return frozenset(self._new)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition has been added, so that its batches may be sent."""
        return topic_partition in self._added

    def note_started(self) -> None:
        """Record that the coordinator may know of the transaction."""
        self._is_started = True

    def request(self, topic_partition: TopicPartition) -> None:
        """Add a partition with the next request, unless it is known already (TV1)."""
        if not (topic_partition in self._added or topic_partition in self._pending):
            self._new.add(topic_partition)

    def add(self, topic_partition: TopicPartition) -> None:
        """Add a partition at once, because its Produce request will (TV2)."""
        self._added.add(topic_partition)
        self._is_started = True

    def requested(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the request for new partitions is queued."""
        self._pending |= partitions
        self._new -= partitions

    def drop_new(self) -> None:
        """Drop the partitions that were not requested yet."""
        self._new.clear()

    def accepted(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the coordinator has added pending partitions."""
        self._pending -= partitions
        self._added |= partitions
        self._is_started = True

    def refused(self, partitions: frozenset[TopicPartition]) -> None:
        """Record that the coordinator has not added pending partitions."""
        self._pending -= partitions

    def clear(self) -> None:
        """Start with an empty transaction again."""
        self._is_started = False
        self._new.clear()
        self._pending.clear()
        self._added.clear()
