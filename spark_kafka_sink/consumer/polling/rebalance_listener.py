"""The user's view of rebalances: `ConsumerRebalanceListener`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from spark_kafka_sink.model import TopicPartition


class ConsumerRebalanceListener:
    """Methods that `poll` calls when the group changes what this consumer reads.

    Override those that you need; each gets the partitions concerned and may use the consumer. An
    exception is raised by `poll`, after the rebalance. Java's interface has the same name.

    >>> class Committing(ConsumerRebalanceListener):
    ...     def __init__(self, consumer):
    ...         self.consumer = consumer
    ...
    ...     def on_partitions_revoked(self, partitions):
    ...         self.consumer.commit()
    """

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Handle new partitions, before they are read: a place to `seek`."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Handle partitions that another member gets next: a place to commit what was done."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Handle partitions that another member may have already; offsets cannot be committed.

        Unless it is overridden, it calls `on_partitions_revoked`.
        """
        self.on_partitions_revoked(partitions)
