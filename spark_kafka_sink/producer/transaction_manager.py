"""Producer id, epoch and sequence numbers (the idempotent half of Kafka's TransactionManager).

Used by the network thread alone. It decides which batch may go next and what an answer means for
the order of a partition; it sends nothing and reads no clock. Without idempotence there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, NO_SEQUENCE, ProducerIdAndEpoch
from spark_kafka_sink.producer.txn_partition_map import TxnPartitionMap, increment_sequence
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.producer.producer_batch import ProducerBatch

#: Batches of each producer that a broker keeps in mind for a partition (ProducerStateEntry).
REMEMBERED_BATCHES = 5


class TransactionManager:
    """Keeps the order of each partition whole across retries."""

    def __init__(self) -> None:
        """Start without a producer id: one has to be asked for before anything is sent."""
        self.producer_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH
        self._partitions = TxnPartitionMap()

    @property
    def has_producer_id(self) -> bool:
        """Whether a broker has given us our id."""
        return self.producer_id_and_epoch.is_valid

    def may_drain(self, first: ProducerBatch) -> bool:
        """Whether a partition's first queued batch may be sent now.

        A retried batch goes when it is the oldest one on its way: the broker would refuse any other
        as out of order (RecordAccumulator.shouldStopDrainBatchesForPartition). A batch that was
        never sent has to wait in three cases in which Java sends it, since the retry of an older
        one might then be refused for ever:

        - Nothing of the partition has been acknowledged yet. A broker that does not know a producer
          takes its first batch with any sequence number; if it refused the first for a moment, as
          the leader of a new topic does, the second would pass for the first.
        - An older one is being retried, or
        - five are on their way. A broker recognizes duplicates among the last five batches only.
          (They are counted here: a connection also counts answers that nobody has looked at yet.)
        """
        if not self.has_producer_id:
            return False
        entry = self._partitions.entry(first.topic_partition)
        in_flight = entry.in_flight
        if not in_flight or in_flight[0] is first:
            return True
        return (
            not first.has_sequence
            and entry.last_acked_sequence != NO_SEQUENCE
            and in_flight[0].attempts == 0
            and len(in_flight) < REMEMBERED_BATCHES
        )

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Give a batch that is drained for the first time the next sequence numbers."""
        if batch.has_sequence:
            return
        entry = self._partitions.entry(batch.topic_partition)
        batch.set_producer_state(self.producer_id_and_epoch, entry.next_sequence)
        entry.next_sequence = increment_sequence(entry.next_sequence, batch.record_count)
        entry.in_flight.append(batch)

    def in_retry_order(self, batches: Sequence[ProducerBatch]) -> list[ProducerBatch]:
        """Sort batches of one partition that wait for a retry by their sequence numbers."""
        in_flight = self._partitions.entry(batches[0].topic_partition).in_flight
        return sorted(batches, key=in_flight.index)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Let parts take over the sequence numbers of a batch the broker found too large."""
        if not batch.has_sequence:
            return
        in_flight = self._partitions.entry(batch.topic_partition).in_flight
        sequence = batch.base_sequence
        for part in parts:
            part.set_producer_state(batch.producer_id_and_epoch, sequence)
            sequence = increment_sequence(sequence, part.record_count)
        position = in_flight.index(batch)
        in_flight[position : position + 1] = parts

    def complete(self, batch: ProducerBatch) -> None:
        """Note that the broker has a batch."""
        entry = self._partitions.entry(batch.topic_partition)
        entry.in_flight.remove(batch)
        last = increment_sequence(batch.base_sequence, batch.record_count - 1)
        if entry.last_acked_sequence == NO_SEQUENCE or not self._is_older(
            last, entry.last_acked_sequence
        ):
            entry.last_acked_sequence = last

    @staticmethod
    def _is_older(sequence: int, than: int) -> bool:
        # Half a turn of the wheel is far more than can ever be in flight.
        return 0 < increment_sequence(than, -sequence) < 2**30

    def fail(self, batch: ProducerBatch) -> None:
        """Note that a batch will not be sent again."""
        if batch.has_sequence:
            self._partitions.entry(batch.topic_partition).in_flight.remove(batch)

    def can_retry(self, batch: ProducerBatch, error_code: int) -> bool:
        """Whether the same bytes, sent again, may succeed.

        OUT_OF_ORDER_SEQUENCE_NUMBER is explained while a batch before this one is not acknowledged:
        then this one came too early and goes again in its turn. Otherwise records are missing on
        the broker that it had acknowledged, and sending again cannot bring them back.
        """
        if error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            entry = self._partitions.entry(batch.topic_partition)
            return not entry.is_next_sequence(batch.base_sequence)
        return is_retriable(error_code)
