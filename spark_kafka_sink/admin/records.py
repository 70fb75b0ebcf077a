"""The few records that a driver reads and writes, without the compiled kernels.

For a ledger's entries and the like. Loading the kernels costs a driver half a second, and encoding
ten records in Python only some microseconds.

A partition is read as records and as ends of transactions, in offset order, by readers that read
everything up to the high watermark and decide themselves what counts: a record of a transaction
counts once the COMMIT marker of its producer id follows, and never after an ABORT marker. Waiting
for the last stable offset instead would make one reader wait for the transactions of all other
producers of the partition.

This remains true under compaction: a marker is kept as long as a batch of its transaction is
(LogCleaner's CleanedTransactionMetadata).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from spark_kafka_sink.record.decode import Record, decode_control_record, decode_record_batch
from spark_kafka_sink.record.default_record import encode_record
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    ControlRecordType,
    decode_header,
    split_record_batches,
    uncompressed_transactional_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

    from spark_kafka_sink.model import ProducerIdAndEpoch

#: The most bytes of a record's fields besides key and value: length, attributes, deltas, sizes.
_MAX_RECORD_OVERHEAD = 32
#: The longest batch that brokers accept by default (message.max.bytes is a little above it).
DEFAULT_MAX_BATCH_BYTES = 900_000

# --- read


class DataRecord(NamedTuple):
    """A record, and the producer whose transaction it belongs to."""

    record: Record
    #: The producer id; None for a record outside of any transaction, which counts at once.
    transaction_of: int | None


class EndMarker(NamedTuple):
    """The end of a producer's transaction in a partition."""

    offset: int
    producer_id: int
    #: With transaction.version 2, and after a timeout, one above that of the records (KIP-890).
    producer_epoch: int
    committed: bool


PartitionEvent: TypeAlias = DataRecord | EndMarker


class PartitionChunk(NamedTuple):
    """The contents of a partition in one Fetch response."""

    events: tuple[PartitionEvent, ...]
    #: The offset to continue at.
    next_offset: int


def read_chunk(data: Buffer, *, offset: int, markers_only: bool = False) -> PartitionChunk:
    """Decode the batches of a Fetch response from `offset` on; records before it are left out.

    With `markers_only` no record is decoded. A next offset equal to `offset` means that there was
    no whole batch. Raises CorruptRecordError.
    """
    events: list[PartitionEvent] = []
    next_offset = offset
    for batch in split_record_batches(data):
        header = decode_header(batch)
        next_offset = max(next_offset, header.last_offset + 1)
        if markers_only and not header.is_control:
            continue
        events += (event for event in _events(batch) if _offset(event) >= offset)
    return PartitionChunk(tuple(events), next_offset)


def _events(batch: memoryview) -> Iterator[PartitionEvent]:
    decoded = decode_record_batch(batch)
    header = decoded.header
    if header.is_control:
        for record in decoded.records:
            marker = decode_control_record(record)
            # Other control records, such as those of KRaft, concern no reader.
            if marker.type in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
                yield EndMarker(
                    record.offset,
                    header.producer_id,
                    header.producer_epoch,
                    marker.type == ControlRecordType.COMMIT,
                )
        return
    transaction_of = header.producer_id if header.is_transactional else None
    for record in decoded.records:
        yield DataRecord(record, transaction_of)


def _offset(event: PartitionEvent) -> int:
    return event.offset if isinstance(event, EndMarker) else event.record.offset


# --- write


class KeyValue(NamedTuple):
    """A record of a compacted topic; a tombstone if it has no value."""

    key: bytes
    value: bytes | None


def transactional_batches(
    records: Sequence[KeyValue],
    *,
    producer: ProducerIdAndEpoch,
    timestamp_ms: int,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> Iterator[bytearray]:
    """Encode records into as few batches as their size allows, with sequence numbers from 0 on.

    A record above the limit gets a batch of its own. `timestamp_ms` applies to every record.
    """
    sequence = 0
    for group in _groups(records, max_batch_bytes):
        payload = b"".join(
            encode_record(key, value, offset_delta=delta)
            for delta, (key, value) in enumerate(group)
        )
        yield uncompressed_transactional_batch(
            payload,
            timestamp_ms=timestamp_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            record_count=len(group),
        )
        sequence += len(group)


def _groups(records: Sequence[KeyValue], max_batch_bytes: int) -> Iterator[list[KeyValue]]:
    group: list[KeyValue] = []
    size = RECORD_BATCH_OVERHEAD
    for record in records:
        added = len(record.key) + len(record.value or b"") + _MAX_RECORD_OVERHEAD
        if group and size + added > max_batch_bytes:
            yield group
            group, size = [], RECORD_BATCH_OVERHEAD
        group.append(record)
        size += added
    if group:
        yield group
