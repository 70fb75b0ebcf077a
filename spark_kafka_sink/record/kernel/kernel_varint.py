"""Numbers of variable length, and short copies, as parts of compiled kernels."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK, MAX_INT64
from spark_kafka_sink.record.kernel.kernel_support import (
    copy_bytes,
    kernel_part,
    load_byte,
    move_16_bytes,
    significant_bits,
    store_uint8,
)

#: The largest number whose varint is a single byte.
_MAX_ONE_BYTE: Final = 0x7F


@kernel_part
def _read_long_varint(position: int, end: int, bits: int) -> tuple[int, int]:
    """Read a number of any length; return it and its end, which is 0 if it is corrupt."""
    folded = 0
    shift = 0
    while shift < bits and position < end:
        byte = load_byte(position)
        position += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            if bits - shift < 7 and byte >> (bits - shift):  # noqa: PLR2004
                return 0, 0
            return ((folded >> 1) & MAX_INT64) ^ -(folded & 1), position
        shift += 7
    return 0, 0


@kernel_part
def read_varint(position: int, end: int, bits: int) -> tuple[int, int]:
    """Read a signed number that ends by `end`; return it and its end, which is 0 if corrupt."""
    if position < end:
        byte = load_byte(position)
        if byte < 0x80:  # noqa: PLR2004
            return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long_varint(position, end, bits)


@kernel_part
def zigzag(number: int) -> int:
    """Return the unsigned number as which a signed one is written."""
    return (number << 1) ^ (number >> 63)


@kernel_part
def varint_bytes(zigzagged: int) -> int:
    """Return the size of a variable-length number in bytes."""
    return (significant_bits(zigzagged | 1) * 37 + 222) >> 8


@kernel_part
def write_varint(target: int, zigzagged: int) -> int:
    """Write a variable-length number; return the address after it."""
    while zigzagged & ~_MAX_ONE_BYTE:
        store_uint8(target, zigzagged & _MAX_ONE_BYTE | 0x80)
        # A logical shift: the mask clears the sign bits that the arithmetic shift brings in.
        zigzagged = (zigzagged >> 7) & MAX_INT64 >> 6
        target += 1
    store_uint8(target, zigzagged)
    return target + 1


@kernel_part
def copy_short(target: int, source: int, count: int, source_end: int) -> None:
    """Copy bytes, few of them as two words; the target must have room for `COPY_SLACK`."""
    if count <= COPY_SLACK <= source_end - source:
        move_16_bytes(target, source)
        move_16_bytes(target + 16, source + 16)
    elif count > 0:
        copy_bytes(target, source, count)
