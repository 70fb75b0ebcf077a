"""What a partition remembers of its idempotent producers, and what it makes of their next batch.

Kafka's ProducerStateEntry, ProducerAppendInfo and ProducerStateManager, for appends by clients:

- A batch with the exact sequence range, and the epoch, of one of the producer's last five batches
  is a duplicate. It is answered with the offsets of the first time and not appended again.
- An epoch below the last one seen is INVALID_PRODUCER_EPOCH.
- A new epoch must begin at sequence 0, otherwise OUT_OF_ORDER_SEQUENCE_NUMBER.
- Within an epoch a batch must begin where the last one ended. Anything else (a gap, an overlap, a
  duplicate older than five batches) is OUT_OF_ORDER_SEQUENCE_NUMBER.
- A producer id that the partition does not know may begin anywhere: its state may have expired.
- Sequence numbers run from 0 to 2^31-1 and then from 0 again, within a batch as well.

Nothing is remembered until `update`, so that a batch refused for another reason leaves no trace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_SEQUENCE
from spark_kafka_sink.protocol.error_codes import ErrorCode

MAX_SEQUENCE = 2**31 - 1
#: As many batches as a producer may have in flight to one partition (KAFKA-5494).
NUM_BATCHES_TO_RETAIN = 5


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, past 2^31-1 back to 0 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + increment) & MAX_SEQUENCE


class ProducerBatchInfo(NamedTuple):
    """What the sequence rules need to know of a batch that wants to be appended."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record."""
        return increment_sequence(self.base_sequence, self.record_count - 1)


class BatchMetadata(NamedTuple):
    """A batch that was appended, as far as its duplicates need it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    #: Largest timestamp of the batch in milliseconds.
    timestamp: int


@dataclass(slots=True)
class ProducerStateEntry:
    """One producer's epoch and last batches in one partition."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    #: Oldest first.
    batches: deque[BatchMetadata] = field(
        default_factory=lambda: deque(maxlen=NUM_BATCHES_TO_RETAIN)
    )
    #: Largest timestamp of the last batch in milliseconds, -1 before there is one.
    last_timestamp: int = -1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record of this epoch, `NO_SEQUENCE` if there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last record of this epoch, -1 if there is none."""
        return self.batches[-1].last_offset if self.batches else -1

    def find_duplicate(self, batch: ProducerBatchInfo) -> BatchMetadata | None:
        """Return the remembered batch with exactly this epoch and sequence range."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        last_sequence = batch.last_sequence
        for known in self.batches:
            if known.first_sequence == batch.base_sequence and known.last_sequence == last_sequence:
                return known
        return None

    def add_batch(self, producer_epoch: int, metadata: BatchMetadata) -> None:
        """Remember a batch that was appended; a new epoch forgets the batches of the old one."""
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch
        self.batches.append(metadata)
        self.last_timestamp = metadata.timestamp


class ProducerStateManager:
    """The idempotent producers of one partition."""

    def __init__(self) -> None:
        """Know no producer."""
        self._entries: dict[int, ProducerStateEntry] = {}

    def last_entry(self, producer_id: int) -> ProducerStateEntry | None:
        """Return what is known of a producer."""
        return self._entries.get(producer_id)

    def entries(self) -> list[ProducerStateEntry]:
        """Return what is known of every producer."""
        return list(self._entries.values())

    def find_duplicate(self, batch: ProducerBatchInfo) -> BatchMetadata | None:
        """Return where the batch was appended before, if it is one of the last five."""
        entry = self._entries.get(batch.producer_id)
        return None if entry is None else entry.find_duplicate(batch)

    def validate(self, batch: ProducerBatchInfo) -> None:
        """Check epoch and sequence of a batch that is no duplicate.

        Raises RefusedError with INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER
        (ProducerAppendInfo.checkProducerEpoch and checkSequence).
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            return
        if batch.producer_epoch < entry.producer_epoch:
            raise RefusedError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} has been seen with epoch {entry.producer_epoch}; "
                f"this batch has {batch.producer_epoch}",
            )
        if batch.producer_epoch > entry.producer_epoch:
            if batch.base_sequence != 0:
                raise RefusedError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"epoch {batch.producer_epoch} of producer {batch.producer_id} begins with "
                    f"sequence {batch.base_sequence} instead of 0",
                )
            return
        # -1 is NO_SEQUENCE: an epoch of which no batch is remembered begins at 0.
        expected = increment_sequence(entry.last_sequence, 1)
        if batch.base_sequence != expected:
            raise RefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {batch.base_sequence} of producer {batch.producer_id}, where "
                f"{expected} was next",
            )

    def update(self, batch: ProducerBatchInfo, *, first_offset: int, timestamp: int) -> None:
        """Remember a batch that has just been appended at `first_offset`."""
        entry = self._entries.setdefault(
            batch.producer_id, ProducerStateEntry(producer_id=batch.producer_id)
        )
        entry.add_batch(
            batch.producer_epoch,
            BatchMetadata(
                first_sequence=batch.base_sequence,
                last_sequence=batch.last_sequence,
                first_offset=first_offset,
                last_offset=first_offset + batch.record_count - 1,
                timestamp=timestamp,
            ),
        )
