"""Transaction markers: control batches that end a producer's transaction in a partition (KIP-98).

A marker is a batch of one record, both transactional and control, without a sequence number:

    key    version int16 (0), type int16 (0 abort, 1 commit)
    value  version int16 (0), coordinatorEpoch int32

Only brokers write them; `decode.decode_control_record` reads them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.model import NO_SEQUENCE
from spark_kafka_sink.record.record_batch import uncompressed_transactional_batch

if TYPE_CHECKING:
    from spark_kafka_sink.record.decode import ControlRecordType

_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
#: length, attributes, timestamp delta 0, offset delta 0, key length: one byte each; all but the
#: attributes are zigzag varints.
_RECORD_START: Final = struct.Struct(">BBBBB")


def _zigzag(number: int) -> int:
    """Encode a length below 64 as its varint, which is one byte."""
    return number << 1


#: Everything after the length: five single bytes (attributes, both deltas, both lengths), the key,
#: the value, and the number of headers.
_RECORD_LENGTH: Final = 5 + _KEY.size + _VALUE.size + 1


def transaction_marker(
    marker_type: ControlRecordType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """Build a marker (MemoryRecords.withEndTransactionMarker) with base offset 0."""
    payload = b"".join(
        (
            _RECORD_START.pack(_zigzag(_RECORD_LENGTH), 0, 0, 0, _zigzag(_KEY.size)),
            _KEY.pack(_VERSION, marker_type),
            bytes([_zigzag(_VALUE.size)]),
            _VALUE.pack(_VERSION, coordinator_epoch),
            b"\0",
        )
    )
    return uncompressed_transactional_batch(
        payload,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
        control=True,
    )
