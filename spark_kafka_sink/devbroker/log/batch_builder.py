"""The encoder of record batches that the broker itself writes: the coordinators and the cleaner.

It is plain Python and encodes record by record: `record.kernel` is for producers and slow to load.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.default_record import encode_record
from spark_kafka_sink.record.record_batch import (
    MAGIC,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD,
    crc32c,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.record.decode import Record

_CRC = struct.Struct(">I")
_CRC_POSITION = 17
_ATTRIBUTES_POSITION = 21
_LOG_OVERHEAD = 12
_CODEC_MASK = 0x07


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset_delta: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """Build a batch of records that have their offsets; there may be gaps, or no records.

    The compression codec is that of `attributes`. Timestamps are in milliseconds.
    """
    payload: bytes | memoryview = b"".join(
        _encode_record(record, base_offset, base_timestamp) for record in records
    )
    compression = CompressionType(attributes & _CODEC_MASK)
    if compression is not CompressionType.NONE:
        payload = Compressor(compression).compress(payload)
    batch = bytearray(RECORD_BATCH_OVERHEAD) + payload
    RECORD_BATCH_HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - _LOG_OVERHEAD,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[_ATTRIBUTES_POSITION:]))
    return batch


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    return encode_record(
        record.key,
        record.value,
        offset_delta=record.offset - base_offset,
        timestamp_delta=record.timestamp - base_timestamp,
        headers=record.headers,
    )
