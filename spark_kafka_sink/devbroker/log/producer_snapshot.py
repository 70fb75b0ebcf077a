"""The state of a log's producers at one offset, as a file (`<offset>.snapshot`).

Kafka's ProducerStateManager.writeSnapshot and readSnapshot: the version, a CRC-32C of the rest, and
for each producer its epoch, only its last batch, the coordinator epoch of its last marker, and the
first offset of its open transaction. A log remembers the last five batches of a producer; after a
restart, it has only the last of those before the snapshot.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.log.producer_state import (
    MAX_SEQUENCE,
    NUM_BATCHES_TO_RETAIN,
    BatchMetadata,
    ProducerStateEntry,
)
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.record_batch import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSION = 1
#: version and CRC
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(
    ">"
    "q"  # producerId
    "h"  # epoch
    "i"  # lastSequence
    "q"  # lastOffset
    "i"  # offsetDelta
    "q"  # timestamp
    "i"  # coordinatorEpoch
    "q"  # currentTxnFirstOffset
)
_NONE = -1


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Encode a snapshot."""
    packed = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        packed.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                0 if last is None else last.last_offset - last.first_offset,
                entry.last_timestamp,
                entry.coordinator_epoch,
                _NONE if entry.current_txn_first_offset is None else entry.current_txn_first_offset,
            )
        )
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(content: bytes) -> list[ProducerStateEntry]:
    """Decode a snapshot. Raises CorruptRecordError."""
    body = content[_HEADER.size :]
    if len(content) < _HEADER.size + _COUNT.size:
        raise CorruptRecordError(f"a producer snapshot cannot have only {len(content)} bytes")
    version, crc = _HEADER.unpack_from(content)
    if version != _VERSION:
        raise CorruptRecordError(f"producer snapshot version {version} is not supported")
    if crc != crc32c(body):
        raise CorruptRecordError("the producer snapshot does not match its checksum")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise CorruptRecordError(f"the producer snapshot does not have {count} entries")
    return [_entry(*values) for values in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _entry(  # noqa: PLR0917 - the fields of an entry, in their order
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerStateEntry:
    batches: deque[BatchMetadata] = deque(maxlen=NUM_BATCHES_TO_RETAIN)
    if last_offset >= 0:
        batches.append(
            BatchMetadata(
                # Without a last sequence number there is no first one either.
                first_sequence=last_sequence
                if last_sequence < 0
                else (last_sequence - offset_delta) & MAX_SEQUENCE,
                last_sequence=last_sequence,
                first_offset=last_offset - offset_delta,
                last_offset=last_offset,
                timestamp=timestamp,
            )
        )
    return ProducerStateEntry(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        batches=batches,
        last_timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        current_txn_first_offset=None
        if current_txn_first_offset == _NONE
        else current_txn_first_offset,
    )
