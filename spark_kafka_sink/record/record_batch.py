"""The header of a record batch, format v2 (magic 2; Kafka's `DefaultRecordBatch`).

A batch is a header of 61 bytes, followed by its records, uncompressed or compressed as a whole. The
checksum covers everything from `attributes` on, so that a broker can change the base offset, the
leader epoch and the length. The older formats (magic 0 and 1) are not supported: no broker since
4.0 accepts them.

This module never decodes the records; `record.decode` does.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import crc32c as _crc32c

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_LEADER_EPOCH, NO_SEQUENCE
from spark_kafka_sink.record.compression import CompressionType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


RECORD_BATCH_HEADER: Final = struct.Struct(
    ">"
    "q"  # baseOffset
    "i"  # batchLength: bytes after this field
    "i"  # partitionLeaderEpoch
    "b"  # magic
    "I"  # crc: of all that follows
    "h"  # attributes
    "i"  # lastOffsetDelta
    "q"  # baseTimestamp
    "q"  # maxTimestamp
    "q"  # producerId
    "h"  # producerEpoch
    "i"  # baseSequence
    "i"  # recordsCount
)
RECORD_BATCH_OVERHEAD: Final = RECORD_BATCH_HEADER.size
MAGIC: Final = 2

#: baseOffset and batchLength, the first fields of a batch in every format.
_LOG_OVERHEAD: Final = struct.Struct(">qi")
_MAGIC_OFFSET: Final = 16
_CRC: Final = struct.Struct(">I")
_CRC_OFFSET: Final = 17
_ATTRIBUTES_OFFSET: Final = 21
_MAX_SEQUENCE: Final = 2**31 - 1

_COMPRESSION_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_FLAG: Final = 0x08
_TRANSACTIONAL_FLAG: Final = 0x10
_CONTROL_FLAG: Final = 0x20
_DELETE_HORIZON_FLAG: Final = 0x40


class ControlRecordType(IntEnum):
    """The types of control records that are relevant to clients."""

    ABORT = 0
    COMMIT = 1


class RecordBatchHeader(NamedTuple):
    """The decoded header of a batch, its first 61 bytes; names and units are Kafka's."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_in_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return _LOG_OVERHEAD.size + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record, or of a later one that compaction has removed."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; 2^31 - 1 is followed by 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE

    @property
    def compression(self) -> CompressionType:
        """The codec of the records."""
        return CompressionType(self.attributes & _COMPRESSION_CODEC_MASK)

    @property
    def log_append_time(self) -> bool:
        """Whether `max_timestamp` was set by the broker and applies to every record."""
        return bool(self.attributes & _LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records, such as a transaction marker."""
        return bool(self.attributes & _CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time when the cleaner may drop tombstones (KIP-534)."""
        return bool(self.attributes & _DELETE_HORIZON_FLAG)


def uncompressed_transactional_batch(
    payload: bytes,
    *,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    control: bool = False,
) -> bytearray:
    """Build a transactional batch of records that all have the same timestamp."""
    batch = bytearray(RECORD_BATCH_OVERHEAD) + payload
    write_header(
        batch,
        payload,
        compression=CompressionType.NONE,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
        transactional=True,
        control=control,
    )
    return batch


def write_header(
    target: Buffer,
    payload: Buffer,
    *,
    base_offset: int = 0,
    compression: CompressionType,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    transactional: bool = False,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    log_append_time: bool = False,
    control: bool = False,
) -> None:
    """Write the header of a batch into the first 61 bytes of `target`, checksum included.

    `payload` holds the records as they are sent, possibly compressed. It may be in the same buffer,
    after the header. Its records have the offset deltas 0, 1, 2 and so on.
    """
    payload_bytes = memoryview(payload).nbytes
    attributes = int(compression)
    if log_append_time:
        attributes |= _LOG_APPEND_TIME_FLAG
    if transactional:
        attributes |= _TRANSACTIONAL_FLAG
    if control:
        attributes |= _CONTROL_FLAG
    RECORD_BATCH_HEADER.pack_into(
        target,
        0,
        base_offset,
        RECORD_BATCH_OVERHEAD - _LOG_OVERHEAD.size + payload_bytes,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    covered_header = memoryview(target)[_ATTRIBUTES_OFFSET:RECORD_BATCH_OVERHEAD]
    _CRC.pack_into(target, _CRC_OFFSET, crc32c(payload, crc32c(covered_header)))


def decode_header(buffer: Buffer) -> RecordBatchHeader:
    """Decode the header at the start of `buffer`, which may end after the header.

    Raises CorruptRecordError if it is not the header of a v2 batch, or is inconsistent.
    """
    view = memoryview(buffer)
    if view.nbytes < RECORD_BATCH_OVERHEAD:
        raise CorruptRecordError(
            f"the header of a record batch has {RECORD_BATCH_OVERHEAD} bytes, not {view.nbytes}"
        )
    header = RecordBatchHeader._make(RECORD_BATCH_HEADER.unpack_from(view))
    if header.magic != MAGIC:
        raise CorruptRecordError(f"the record batch has format {header.magic}, not {MAGIC}")
    if header.size_in_bytes < RECORD_BATCH_OVERHEAD:
        raise CorruptRecordError(
            f"batch length {header.batch_length} is less than that of a header"
        )
    if header.attributes & _COMPRESSION_CODEC_MASK not in _CODECS:
        raise CorruptRecordError(
            f"unknown compression {header.attributes & _COMPRESSION_CODEC_MASK}"
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptRecordError(
            f"{header.record_count} records do not fit into the offsets from 0 to"
            f" {header.last_offset_delta}"
        )
    return header


_CODECS: Final = frozenset(CompressionType)


def validate_record_batch(buffer: Buffer) -> RecordBatchHeader:
    """Check that `buffer` is one complete batch with the right checksum; return its header.

    The records are not decoded. Raises CorruptRecordError.
    """
    view = memoryview(buffer)
    header = decode_header(view)
    if header.size_in_bytes != view.nbytes:
        raise CorruptRecordError(
            f"the record batch has {header.size_in_bytes} bytes, its buffer {view.nbytes}"
        )
    check_crc(view)
    return header


def check_crc(batch: memoryview) -> None:
    """Raise CorruptRecordError if a complete batch does not have the checksum in its header."""
    (crc,) = _CRC.unpack_from(batch, _CRC_OFFSET)
    computed = crc32c(batch[_ATTRIBUTES_OFFSET:])
    if computed != crc:
        raise CorruptRecordError(
            f"the record batch has checksum {crc:#010x}, its content {computed:#010x}"
        )


def split_record_batches(buffer: Buffer) -> Iterator[memoryview]:
    """Split the records of a Fetch response or a Produce request into batches, without copying.

    A last batch that is truncated by the size limit of the response is left out. Raises
    CorruptRecordError if a batch is not a v2 batch; checksums are not checked.
    """
    view = memoryview(buffer).cast("B")
    position = 0
    while view.nbytes - position > _MAGIC_OFFSET:
        _, batch_length = _LOG_OVERHEAD.unpack_from(view, position)
        magic = view[position + _MAGIC_OFFSET]
        if magic != MAGIC:
            raise CorruptRecordError(f"the record batch has format {magic}, not {MAGIC}")
        size = _LOG_OVERHEAD.size + batch_length
        if size < RECORD_BATCH_OVERHEAD:
            raise CorruptRecordError(f"batch length {batch_length} is less than that of a header")
        if position + size > view.nbytes:
            return
        yield view[position : position + size]
        position += size


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc`, the checksum of the bytes before it.

    The package of this name uses the processor's instruction, and releases the GIL for large data.
    """
    checksum: int = _crc32c.crc32c(data, crc)
    return checksum


# --- transaction markers

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
    """Build the batch that ends a transaction in a partition (KIP-98), with base offset 0.

    It has one record, is transactional and a control batch, and has no sequence number:

        key    version int16 (0), type int16 (0 abort, 1 commit)
        value  version int16 (0), coordinatorEpoch int32

    Only brokers write markers (MemoryRecords.withEndTransactionMarker); `decode_control_record`
    reads them.
    """
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
