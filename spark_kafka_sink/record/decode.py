"""Record batches back into records: for readers, the embedded broker, and tests.

Whatever the bytes are, nothing but CorruptRecordError is raised, and no more memory is taken than
the bytes that are there, `max_uncompressed_bytes`, and Python's objects for the records need.
Checked are the checksum, every length (a record ends where it says, a batch where its last record
does), the number of records, and that offsets rise within the batch. Offsets may have gaps:
compaction leaves them.

To check a batch without looking into it, `record_batch.validate_record_batch` is enough.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType, decompress
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    RecordBatchHeader,
    split_record_batches,
    validate_record_batch,
)
from spark_kafka_sink.record.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

DEFAULT_MAX_UNCOMPRESSED_BYTES: Final = 128 * 1024 * 1024
#: Length, attributes, timestamp, offset, key, value and number of headers, a byte each.
_MIN_RECORD_BYTES: Final = 7

#: version and type, which the key of a control record begins with (ControlRecordType).
_CONTROL_KEY: Final = struct.Struct(">hh")
#: version and coordinatorEpoch, which the value of a transaction marker begins with.
_END_TRANSACTION_MARKER: Final = struct.Struct(">hi")


class Header(NamedTuple):
    """A header of a record; bytes of the key that are not UTF-8 are replaced, as Java does."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record. `timestamp` is in milliseconds since 1970, or -1."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """A batch's header and its records; of a control batch, its markers."""

    header: RecordBatchHeader
    records: list[Record]


@dataclass(slots=True)
class DecodeBudget:
    """What the batches of one request may still cost to decode, all of them together."""

    #: Bytes of payload, decompressed.
    uncompressed_bytes: int
    #: Records and their headers.
    elements: int

    def spend_elements(self, count: int) -> None:
        """Spend records or headers. Raises CorruptRecordError if fewer are left."""
        if count > self.elements:
            raise CorruptRecordError(
                f"{count} more records or headers are too many to decode for one request"
            )
        self.elements -= count

    def decompress(self, compression: CompressionType, payload: memoryview) -> bytes:
        """Return the decompressed payload. Raises CorruptRecordError.

        A failure spends all that is left: the output that came before it is not known.
        """
        limit, self.uncompressed_bytes = self.uncompressed_bytes, 0
        decompressed = bytes(decompress(compression, payload, limit))
        self.uncompressed_bytes = limit - len(decompressed)
        return decompressed


class ControlRecordType(IntEnum):
    """The control records that concern clients."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What a record of a control batch says: how a producer's transaction ended."""

    #: One of `ControlRecordType`, or a number that clients have to ignore.
    type: int
    coordinator_epoch: int


def decode_record_batch(
    buffer: Buffer, *, max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES
) -> RecordBatch:
    """Decode a buffer that holds one whole batch and nothing else.

    Raises CorruptRecordError.
    """
    return decode_within(buffer, DecodeBudget(max_uncompressed_bytes, sys.maxsize))


def decode_within(buffer: Buffer, budget: DecodeBudget) -> RecordBatch:
    """Decode a buffer that holds one whole batch and nothing else, and spend what that costs.

    Raises CorruptRecordError, also where the budget is too small.
    """
    view = memoryview(buffer).cast("B")
    header = validate_record_batch(view)
    payload = budget.decompress(header.compression, view[RECORD_BATCH_OVERHEAD:])
    return RecordBatch(header, _decode_payload(header, payload, budget))


def decode_records(
    buffer: Buffer, *, max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES
) -> Iterator[Record]:
    """Give the records of all whole batches in a buffer, without those of control batches.

    Raises CorruptRecordError when it comes to what is wrong.
    """
    for batch in split_record_batches(buffer):
        decoded = decode_record_batch(batch, max_uncompressed_bytes=max_uncompressed_bytes)
        if not decoded.header.is_control:
            yield from decoded.records


def decode_control_record(record: Record) -> ControlRecord:
    """Read a record of a control batch (KIP-98).

    Raises CorruptRecordError when it is not a transaction marker. Later versions of a marker may
    have more fields; those are ignored, as Kafka's schemas ask for.
    """
    try:
        _, marker_type = _CONTROL_KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _END_TRANSACTION_MARKER.unpack_from(record.value or b"")
    except struct.error as error:
        raise CorruptRecordError(f"no transaction marker at offset {record.offset}") from error
    return ControlRecord(marker_type, coordinator_epoch)


def _decode_payload(header: RecordBatchHeader, data: bytes, budget: DecodeBudget) -> list[Record]:
    # A count that the data cannot hold fails at the first record that is missing.
    budget.spend_elements(min(header.record_count, len(data) // _MIN_RECORD_BYTES + 1))
    records: list[Record] = []
    position = 0
    last_delta = -1
    for _ in range(header.record_count):
        length, position = read_varint(data, position, len(data))
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptRecordError(f"a record of {length} bytes does not fit into its batch")
        # One byte of attributes, all of them unused.
        timestamp_delta, position = read_varlong(data, position + 1, end)
        delta, position = read_varint(data, position, end)
        if not last_delta < delta <= header.last_offset_delta:
            raise CorruptRecordError(
                f"offset delta {delta} behind {last_delta}, in a batch up to"
                f" {header.last_offset_delta}"
            )
        last_delta = delta
        key, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        headers, position = _read_headers(data, position, end, budget)
        if position != end:
            raise CorruptRecordError(f"a record is {end - position} bytes longer than its fields")
        timestamp = (
            header.max_timestamp
            if header.log_append_time
            else header.base_timestamp + timestamp_delta
        )
        records.append(Record(header.base_offset + delta, timestamp, key, value, headers))
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes behind the last record")
    return records


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, end)
    if length < 0:
        # Java takes any negative length for null.
        return None, position
    stop = position + length
    if stop > end:
        raise CorruptRecordError(f"a field of {length} bytes does not fit into its record")
    return data[position:stop], stop


def _read_headers(
    data: bytes, position: int, end: int, budget: DecodeBudget
) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position, end)
    if count == 0:
        return (), position
    if not 0 <= count <= end - position:
        raise CorruptRecordError(f"{count} headers do not fit into a record")
    budget.spend_elements(count)
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise CorruptRecordError("the key of a header is null")
        value, position = _read_bytes(data, position, end)
        headers.append(Header(key.decode("utf-8", "replace"), value))
    return tuple(headers), position
