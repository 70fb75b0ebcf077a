"""Sequence numbers of each partition (Kafka's TxnPartitionMap and TxnPartitionEntry).

A broker accepts an idempotent producer's batches only in the order of their sequence numbers. A
batch gets its number when it is first drained and keeps it through every retry. From then on it
counts as in flight until it is acknowledged or has failed for good, even while it waits for a
retry.

Numbers change only if the partition *restarts*: an earlier batch was lost or refused, so that there
would remain a gap, or the topic was recreated and its log is empty. The batches in flight then
get numbers from 0 and the producer's newest epoch (KIP-360). Unlike Java, a restart waits until
every batch sent to a broker has been answered: an answer for the old numbers must never be taken
for one for the new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    NO_SEQUENCE,
    UNKNOWN_OFFSET,
    ProducerIdAndEpoch,
)

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

#: Sequence numbers wrap from 2**31 - 1 to 0.
SEQUENCE_MODULUS = 2**31


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, wrapping as Kafka's DefaultRecordBatch does."""
    return (sequence + increment) % SEQUENCE_MODULUS


def is_older_sequence(sequence: int, than: int) -> bool:
    """Return whether a number was assigned before another one, allowing for wrap-around."""
    # Half of the range is far more than can ever be in flight.
    return sequence != than and increment_sequence(than, -sequence) < SEQUENCE_MODULUS // 2


@dataclass(slots=True)
class TxnPartitionEntry:
    """The sequence numbers of one partition."""

    #: The producer id and epoch that the numbers belong to.
    producer_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH
    next_sequence: int = 0
    #: The first number of this producer in the partition's current log.
    first_sequence: int = 0
    #: The last acknowledged number in the current log; NO_SEQUENCE if there is none.
    last_acked_sequence: int = NO_SEQUENCE
    #: Distinguishes a broker that deleted our records, and our state, from one that lost them.
    last_acked_offset: int = UNKNOWN_OFFSET
    #: Batches that have a sequence number and are not done, in the order of assignment.
    in_flight: list[ProducerBatch] = field(default_factory=list)
    #: The number after a batch that was given up with an unknown outcome; None if there is none.
    unresolved_sequence: int | None = None
    #: Whether numbers must be reassigned once no batch is waiting for an answer.
    restart_requested: bool = False
    #: The batch that caused the last restart: a broker that refuses it again will always do so.
    restarted_for: ProducerBatch | None = None
    #: Whether a numbered batch failed in the open transaction, so that no others can follow it.
    has_gap: bool = False
    #: Whether the topic was recreated while batches still have numbers for the deleted log.
    log_replaced: bool = False

    def is_next_sequence(self, sequence: int) -> bool:
        """Return whether everything before `sequence` has been acknowledged."""
        if self.last_acked_sequence == NO_SEQUENCE:
            return sequence == self.first_sequence
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    @property
    def is_quiet(self) -> bool:
        """Whether no batch is waiting for an answer from a broker."""
        return not any(batch.is_in_flight for batch in self.in_flight)

    @property
    def may_have_unanswered(self) -> bool:
        """Whether a broker may have a batch that it has not acknowledged."""
        return any(batch.may_be_appended for batch in self.in_flight)

    def assign(
        self, batch: ProducerBatch, producer: ProducerIdAndEpoch, *, is_transactional: bool
    ) -> None:
        """Assign the next numbers to a batch; from 0 if the producer id or epoch has changed."""
        if self.producer_id_and_epoch != producer and not self.in_flight:
            self.restart(producer)
        batch.set_producer_state(
            self.producer_id_and_epoch, self.next_sequence, is_transactional=is_transactional
        )
        self.next_sequence = increment_sequence(self.next_sequence, batch.record_count)
        self.in_flight.append(batch)

    def restart(self, producer: ProducerIdAndEpoch) -> None:
        """Assign numbers from 0 to all batches in flight, and to those that follow."""
        sequence = 0
        for batch in self.in_flight:
            batch.set_producer_state(producer, sequence, is_transactional=batch.is_transactional)
            sequence = increment_sequence(sequence, batch.record_count)
        self.producer_id_and_epoch = producer
        self.next_sequence = sequence
        self.first_sequence = 0
        self.last_acked_sequence = NO_SEQUENCE
        self.unresolved_sequence = None
        self.restart_requested = False
        self.has_gap = False

    def forget_acknowledged(self) -> None:
        """Reset the acknowledged state: the current log has no such batch; the numbers continue."""
        self.first_sequence = (
            self.in_flight[0].base_sequence if self.in_flight else self.next_sequence
        )
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset = UNKNOWN_OFFSET

    def acknowledge(self, batch: ProducerBatch) -> None:
        """Record that the broker has a batch."""
        if not self.remove(batch):
            return
        last = increment_sequence(batch.base_sequence, batch.record_count - 1)
        if self.last_acked_sequence == NO_SEQUENCE or not is_older_sequence(
            last, self.last_acked_sequence
        ):
            self.last_acked_sequence = last

    def remove(self, batch: ProducerBatch) -> bool:
        """Remove a batch; return False if it was not in flight."""
        if batch not in self.in_flight:
            return False
        self.in_flight.remove(batch)
        return True

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """Record that it will never be known whether the broker has this batch."""
        following = increment_sequence(batch.base_sequence, batch.record_count)
        known = self.unresolved_sequence
        if known is None or is_older_sequence(known, following):
            self.unresolved_sequence = following


class TxnPartitionMap:
    """The entries of all partitions; a new one starts at 0."""

    def __init__(self) -> None:
        """Create an empty map."""
        self._entries: dict[TopicPartition, TxnPartitionEntry] = {}

    def entry(self, topic_partition: TopicPartition) -> TxnPartitionEntry:
        """Return a partition's entry, creating it on first use."""
        entry = self._entries.get(topic_partition)
        if entry is None:
            entry = self._entries[topic_partition] = TxnPartitionEntry()
        return entry

    def of_topic(self, topic: str) -> list[tuple[TopicPartition, TxnPartitionEntry]]:
        """Return the partitions of a topic that have an entry, with their entries."""
        return [each for each in self._entries.items() if each[0].topic == topic]

    def reset(self) -> None:
        """Remove all entries: the next epoch starts at 0 everywhere."""
        self._entries.clear()
