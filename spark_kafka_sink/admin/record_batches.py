"""Record batches of a few records, encoded without the compiled kernels.

For rare writes, such as a ledger's entries. Loading the kernels costs a driver half a second, and
encoding ten records in Python only some microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.record.encode import encode_record
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    uncompressed_transactional_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_kafka_sink.model import ProducerIdAndEpoch


class KeyValue(NamedTuple):
    """A record of a compacted topic; a tombstone if it has no value."""

    key: bytes
    value: bytes | None


#: The most bytes of a record's fields besides key and value: length, attributes, deltas, sizes.
_MAX_RECORD_OVERHEAD = 32
#: The longest batch that brokers accept by default (message.max.bytes is a little above it).
DEFAULT_MAX_BATCH_BYTES = 900_000


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
