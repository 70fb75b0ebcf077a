"""The compiled loop that copies some records of a batch into another batch.

Offsets and timestamps of records count from the first one of their batch, so each record is written
again with new ones. All else of it is copied as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.default_record import PayloadPart
from spark_kafka_sink.record.kernel.kernel_support import Items, copy_bytes, kernel, store_uint8
from spark_kafka_sink.record.kernel.kernel_varint import (
    read_varint,
    varint_bytes,
    write_varint,
    zigzag,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from spark_kafka_sink.record.columns import UInt8Array

_UINT8S: Final = Items(np.dtype(np.uint8))
_INT_BITS: Final = 32
_LONG_BITS: Final = 64
#: How much larger a record may become: a timestamp takes 9 more bytes, its length and its offset
#: may take 4 more each.
_GROWTH: Final = 17


@kernel(4, int, int, int, _UINT8S, int, int)
def _copy_records(  # noqa: PLR0917  kernels get arguments by position
    source: int, size: int, base_timestamp: int, parts: UInt8Array, part: int, target: int
) -> tuple[int, int, int, int]:
    """Copy the records that are in `part`.

    Returns their bytes, their number, the first timestamp and the largest one. Instead of the
    bytes, a negative number `~n` says that record n is malformed, or that bytes follow the last.
    """
    position, end = source, source + size
    written = target
    count, first_timestamp, max_timestamp = 0, 0, 0
    for index in range(parts.size):
        length, start = read_varint(position, end, _INT_BITS)
        if start == 0 or length < 0 or length > end - start:
            return ~index, 0, 0, 0
        position = start + length
        # The attributes come first.
        timestamp_delta, start = read_varint(start + 1, position, _LONG_BITS)
        if start == 0:
            return ~index, 0, 0, 0
        _, start = read_varint(start, position, _INT_BITS)
        if start == 0:
            return ~index, 0, 0, 0
        if parts[index] != part:
            continue
        timestamp = base_timestamp + timestamp_delta
        if count == 0:
            first_timestamp = max_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        timestamp_delta = zigzag(timestamp - first_timestamp)
        offset_delta = zigzag(count)
        length = 1 + varint_bytes(timestamp_delta) + varint_bytes(offset_delta) + position - start
        written = write_varint(written, zigzag(length))
        store_uint8(written, 0)
        written = write_varint(written + 1, timestamp_delta)
        written = write_varint(written, offset_delta)
        copy_bytes(written, start, position - start)
        written += position - start
        count += 1
    if position != end:
        return ~parts.size, 0, 0, 0
    return written - target, count, first_timestamp, max_timestamp


def divide_payload(
    payload: bytes | memoryview, *, record_count: int, base_timestamp: int, taken: Collection[int]
) -> tuple[PayloadPart, PayloadPart]:
    """Divide `payload`, the uncompressed records of a batch, into two: the `taken` ones, the rest.

    `taken` has indexes of records. Offsets and timestamps are rewritten, and the order remains. A
    part may have no records.

    Raises CorruptRecordError if the payload is malformed or has another number of records.
    """
    source = np.frombuffer(payload, np.uint8)
    parts = np.ones(record_count, np.uint8)
    parts[list(taken)] = 0
    target = np.empty(source.size + _GROWTH * record_count, np.uint8)
    divided = []
    for part in range(2):
        size, *numbers = _copy_records(
            _address(source), source.size, base_timestamp, parts, part, _address(target)
        )
        if size < 0:
            raise CorruptRecordError(
                f"record {~size} of a batch of {record_count} is malformed"
                if ~size < record_count
                else f"bytes follow the last of {record_count} records"
            )
        divided.append(PayloadPart(memoryview(target[:size].tobytes()), size, *numbers))
    taken_part, rest = divided
    return taken_part, rest


def _address(array: UInt8Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
