"""Sequence numbers, partition by partition (Kafka's TxnPartitionMap and TxnPartitionEntry).

A broker takes an idempotent producer's batches only in the order of their sequence numbers. So a
number is given when a batch is first drained, kept through every retry, and a batch counts as in
flight from then until it is acknowledged or has failed for good, even while it waits for a retry.

Numbers change in one case only: the partition *restarts*. A batch before these was lost or refused,
so they would leave a gap for ever, or the topic was created again and its log is empty; they get
numbers from 0 and the producer's newest epoch (KIP-360). Unlike Java we wait with that until every
batch of the partition that is with a broker has been answered: an answer to the old numbers must
never be taken for one to the new.
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
    from spark_kafka_sink.producer.producer_batch import ProducerBatch

#: Sequence numbers wrap from 2**31 - 1 to 0.
SEQUENCE_MODULUS = 2**31


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, wrapping as Kafka's DefaultRecordBatch does."""
    return (sequence + increment) % SEQUENCE_MODULUS


def is_older_sequence(sequence: int, than: int) -> bool:
    """Whether a number was given before another one, wrapped or not."""
    # Half a turn of the wheel is far more than can ever be in flight.
    return sequence != than and increment_sequence(than, -sequence) < SEQUENCE_MODULUS // 2


@dataclass(slots=True)
class TxnPartitionEntry:
    """One partition's sequence numbers."""

    #: With which id and epoch the numbers are given.
    producer_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH
    next_sequence: int = 0
    #: The first number that the partition's present log gets from us.
    first_sequence: int = 0
    #: The last number in the present log; NO_SEQUENCE until a batch is acknowledged.
    last_acked_sequence: int = NO_SEQUENCE
    #: Tells a broker that has deleted our records, and forgotten us, from one that has lost them.
    last_acked_offset: int = UNKNOWN_OFFSET
    #: Batches that have a sequence number and are not done, in the order in which they got it.
    in_flight: list[ProducerBatch] = field(default_factory=list)
    #: The number behind a batch that was given up with its fate unknown; None where there is none.
    unresolved_sequence: int | None = None
    #: Whether numbers are to be given anew, as soon as nothing is with a broker.
    restart_requested: bool = False
    #: For which batch the last restart was: a broker that refuses it again will always do so.
    restarted_for: ProducerBatch | None = None
    #: Whether a batch with a number has failed in the open transaction: the rest cannot follow.
    has_gap: bool = False
    #: Whether the topic was created again, and batches still have numbers for the deleted log.
    log_replaced: bool = False

    def is_next_sequence(self, sequence: int) -> bool:
        """Whether everything before `sequence` has been acknowledged."""
        if self.last_acked_sequence == NO_SEQUENCE:
            return sequence == self.first_sequence
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    @property
    def is_quiet(self) -> bool:
        """Whether no batch is with a broker that has not answered."""
        return not any(batch.is_in_flight for batch in self.in_flight)

    @property
    def may_have_unanswered(self) -> bool:
        """Return whether a broker may have a batch that it has not acknowledged."""
        return any(batch.may_be_in for batch in self.in_flight)

    def assign(
        self, batch: ProducerBatch, producer: ProducerIdAndEpoch, *, is_transactional: bool
    ) -> None:
        """Give a batch the next numbers; from 0 where the producer is not the one before."""
        if self.producer_id_and_epoch != producer and not self.in_flight:
            self.restart(producer)
        batch.set_producer_state(
            self.producer_id_and_epoch, self.next_sequence, is_transactional=is_transactional
        )
        self.next_sequence = increment_sequence(self.next_sequence, batch.record_count)
        self.in_flight.append(batch)

    def restart(self, producer: ProducerIdAndEpoch) -> None:
        """Give numbers from 0 to all that is in flight, and to what will follow."""
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
        """Note that the present log has nothing that was acknowledged; the numbers go on."""
        self.first_sequence = (
            self.in_flight[0].base_sequence if self.in_flight else self.next_sequence
        )
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset = UNKNOWN_OFFSET

    def acknowledge(self, batch: ProducerBatch) -> None:
        """Note that the broker has a batch."""
        if not self.remove(batch):
            return
        last = increment_sequence(batch.base_sequence, batch.record_count - 1)
        if self.last_acked_sequence == NO_SEQUENCE or not is_older_sequence(
            last, self.last_acked_sequence
        ):
            self.last_acked_sequence = last

    def remove(self, batch: ProducerBatch) -> bool:
        """Take a batch out; False if it was not in."""
        if batch not in self.in_flight:
            return False
        self.in_flight.remove(batch)
        return True

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """Note that nobody will ever know whether the broker has this batch."""
        following = increment_sequence(batch.base_sequence, batch.record_count)
        known = self.unresolved_sequence
        if known is None or is_older_sequence(known, following):
            self.unresolved_sequence = following


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

    def of_topic(self, topic: str) -> list[tuple[TopicPartition, TxnPartitionEntry]]:
        """List the partitions of a topic that have an entry."""
        return [each for each in self._entries.items() if each[0].topic == topic]

    def reset(self) -> None:
        """Forget all: the next epoch starts at 0 everywhere."""
        self._entries.clear()
