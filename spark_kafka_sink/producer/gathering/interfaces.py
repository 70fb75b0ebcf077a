"""The interfaces through which gathering sees the rest of the producer.

`ClusterView` is the picture of the cluster: topics, partitions and leaders. `SendingSide` is the
way out: the queues of closed batches, the network thread, and the errors of records and batches
that never reach a queue. `ProducerCore` implements both. `BufferListener` measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.cluster.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch


class ClusterView(Protocol):
    """The cluster as the producer knows it."""

    def count_partitions(self, topic: str) -> int:
        """Return the partition count of a known topic; the last one if the topic was deleted."""

    def leaders(self, topic: str) -> Sequence[int]:
        """Return the node id of each partition's leader, negative for none."""

    def queue_sizes(self, topic: str) -> Mapping[int, int]:
        """Return the number of queued batches by partition; a missing partition has none."""

    @property
    def snapshot(self) -> MetadataSnapshot:
        """The current metadata of the cluster."""


class SendingSide(Protocol):
    """The part of the producer that sends closed batches."""

    @property
    def is_network_thread(self) -> bool:
        """Whether the caller is the network thread, which compresses nothing itself."""

    def wake_network_thread(self) -> None:
        """Make the network thread call `RecordGatherer.gather` soon."""

    def fail_if_transaction_not_ready(self) -> None:
        """Raise the error of a transactional producer whose transaction accepts no records."""

    @property
    def has_incomplete(self) -> bool:
        """Whether any closed batch is neither acknowledged nor failed."""

    def is_queue_empty(self, topic_partition: TopicPartition) -> bool:
        """Return whether a batch of this partition, if closed now, would be the next to be sent."""

    def sendable_at(self, topic_partition: TopicPartition, now: float) -> float:
        """Return when a batch of this partition, if closed now, could be sent; `now` for at once.

        Returns `NEVER` if that depends on an event that wakes the network thread anyway. Only the
        network thread may call this.
        """

    def enqueue(self, batch: ProducerBatch) -> bool:
        """Add a batch just closed to its queue; raise the error that ended the producer, if any.

        Returns whether the network thread, unless it is the caller, must be woken to send it.
        """

    def note_failed_send(self, error: Exception, records: int) -> None:
        """Record staged records that this error kept from being added to a batch."""

    def note_loss(self, error: Exception) -> None:
        """Record a batch that was lost before it could be queued."""

    def refuse(self, error: Exception) -> None:
        """Make every later call raise `error`: rows may have been lost on their way to a batch.

        An open transaction can only be aborted then.
        """


class BufferListener(Protocol):
    """An observer of the waits for memory (`sender_metrics.SenderMetrics`)."""

    def on_buffer_wait(self, seconds: float, now: float) -> None:
        """Record a wait that has ended, whether or not it succeeded."""

    def on_buffer_exhausted(self, now: float) -> None:
        """Record that memory was not freed in time."""
