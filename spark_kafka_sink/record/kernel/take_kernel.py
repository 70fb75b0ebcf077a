"""The compiled loops that copy a few rows of a column of byte strings, and put numbers into them.

Arrow's own `take` costs as much for a hundred rows as for thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from spark_kafka_sink.record.columns import NULL_SIZE, BytesColumn
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    copy_bytes,
    kernel,
    load_int64,
    load_uint8,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.record.columns import Int64Array, UInt8Array

_INT64S: Final = Items(np.dtype(np.int64))
_UINT8S: Final = Items(np.dtype(np.uint8))
_NO_LIMIT: Final = 1 << 62
_NULL: Final = NULL_SIZE
#: The result for a row that is not in the column.
_NO_ROW: Final = -1
#: With as much room for each row, mostly one call is enough.
_USUAL_BYTES: Final = 256
_ZERO: Final = ord("0")


class ByteRows(NamedTuple):
    """Byte strings, one after another; unlike a column, several can be joined cheaply."""

    #: `NULL_SIZE` for null.
    lengths: Int64Array
    data: UInt8Array


@kernel(1, int, int, int, int, int, _INT64S, _INT64S, _UINT8S)
def _take_rows(  # noqa: PLR0917  kernels get arguments by position
    count: int,
    offsets: int,
    source: int,
    validity: int,
    validity_offset: int,
    rows: Int64Array,
    lengths: Int64Array,
    target: UInt8Array,
) -> int:
    total = 0
    for index in range(rows.size):
        row = rows[index]
        if row < 0 or row >= count:
            return _NO_ROW
        bit = validity_offset + row
        if validity != 0 and not (load_uint8(validity + (bit >> 3)) >> (bit & 7)) & 1:
            lengths[index] = _NULL
            continue
        length = load_int64(offsets + 8 * row + 8) - load_int64(offsets + 8 * row)
        lengths[index] = min(lengths[index], length)
        total += lengths[index]
    if total > target.size:
        return total
    position = target.ctypes.data
    for index in range(rows.size):
        length = lengths[index]
        if length > 0:
            copy_bytes(position, source + load_int64(offsets + 8 * rows[index]), length)
            position += length
    return total


@kernel(0, _INT64S, _INT64S, _UINT8S)
def _write_numbers(numbers: Int64Array, ends: Int64Array, target: UInt8Array) -> None:
    for index in range(numbers.size):
        number, position = numbers[index], ends[index]
        while position > 0:
            position -= 1
            target[position] = _ZERO + number % 10
            number //= 10
            if number == 0:
                break


def take_rows(
    column: BytesColumn,
    rows: Int64Array,
    limits: Int64Array | None = None,
    buffer: UInt8Array | None = None,
) -> ByteRows:
    """Return some rows of a column, whose offsets have been checked; `limits` cut what is longer.

    They are copied to `buffer`, if that is large enough. Raises ValueError for a row that the
    column does not have.
    """
    offsets, data, validity, validity_offset = column
    lengths = np.full(rows.size, _NO_LIMIT) if limits is None else limits.copy()
    target = np.empty(rows.size * _USUAL_BYTES, np.uint8) if buffer is None else buffer
    while True:
        total = _take_rows(
            offsets.size - 1,
            _address(offsets),
            _address(data),
            _address(validity) if validity.size else 0,
            validity_offset,
            rows,
            lengths,
            target,
        )
        if total == _NO_ROW:
            raise ValueError(f"a row is not among the {offsets.size - 1} of the column")
        if total <= target.size:
            return ByteRows(lengths, target[:total])
        target = np.empty(total, np.uint8)


def write_numbers(numbers: Int64Array, ends: Int64Array, target: UInt8Array) -> None:
    """Write the digits of numbers, none of them negative, in front of one end each.

    Raises ValueError for an end that is not in the target.
    """
    if numbers.size != ends.size or (ends.size and int(ends.max()) > target.size):
        raise ValueError("each number needs an end within the target")
    _write_numbers(numbers, ends, target)


def joined(parts: Sequence[ByteRows]) -> BytesColumn:
    """Return a column of all parts."""
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    # One part is not copied.
    data = [part.data for part in parts]
    column = BytesColumn(offsets, data[0] if len(data) == 1 else np.concatenate(data))
    if lengths.size and lengths.min() < 0:
        return column._replace(validity=np.packbits(lengths >= 0, bitorder="little"))
    return column


def _address(array: Int64Array | UInt8Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
