"""Sequence numbers, partition by partition (Kafka's TxnPartitionMap and TxnPartitionEntry).

A broker takes an idempotent producer's batches only in the order of their sequence numbers. So a
number is given when a batch is first drained, kept through every retry, and a batch counts as in
flight from then until it is acknowledged or has failed for good, even while it waits for a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.model import NO_SEQUENCE

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.producer_batch import ProducerBatch

#: Sequence numbers wrap from 2**31 - 1 to 0.
SEQUENCE_MODULUS = 2**31


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, wrapping as Kafka's DefaultRecordBatch does."""
    return (sequence + increment) % SEQUENCE_MODULUS


@dataclass(slots=True)
class TxnPartitionEntry:
    """One partition's sequence numbers."""

    next_sequence: int = 0
    last_acked_sequence: int = NO_SEQUENCE
    #: Batches that have a sequence number and are not done, in the order in which they got it.
    in_flight: list[ProducerBatch] = field(default_factory=list)

    def is_next_sequence(self, sequence: int) -> bool:
        """Whether everything before `sequence` has been acknowledged."""
        if self.last_acked_sequence == NO_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked_sequence, 1)


class TxnPartitionMap:
    """The entries of all partitions; an unknown one starts at 0."""

    def __init__(self) -> None:
        """Know no partition yet."""
        self._entries: dict[TopicPartition, TxnPartitionEntry] = {}

    def entry(self, topic_partition: TopicPartition) -> TxnPartitionEntry:
        """Give a partition's entry, made when first asked for."""
        entry = self._entries.get(topic_partition)
        if entry is None:
            entry = self._entries[topic_partition] = TxnPartitionEntry()
        return entry
