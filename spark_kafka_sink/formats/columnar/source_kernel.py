"""Where compiled loops find the items of a column of Arrow."""

from __future__ import annotations

from enum import IntEnum

from spark_kafka_sink.record.kernel.kernel_support import (
    kernel_part,
    load_byte,
    load_int32,
    load_int64,
)


class SourceSlot(IntEnum):
    """The numbers that the kernel has for a column: a row of the table of slots."""

    #: The address of the bitmap, 1 for items that are not null; 0 if none are.
    VALIDITY = 0
    #: The first bit of that bitmap, and of the one with booleans.
    BIT = 1
    #: The address of the first item, or of the bytes of texts, and how many of those there are.
    DATA = 2
    DATA_SIZE = 3
    #: The address of the offsets, and whether they have 64 bits.
    OFFSETS = 4
    WIDE = 5
    #: What is subtracted from the offsets of a list, and the number of its items.
    BASE = 6
    COUNT = 7


# As offsets in bytes.
_VALIDITY, _BIT, _OFFSETS, _WIDE = (
    8 * int(number)
    for number in (SourceSlot.VALIDITY, SourceSlot.BIT, SourceSlot.OFFSETS, SourceSlot.WIDE)
)


@kernel_part
def is_null(column: int, index: int) -> bool:
    """Return whether an item is null."""
    validity = load_int64(column + _VALIDITY)
    if validity == 0:
        return False
    bit = load_int64(column + _BIT) + index
    return (load_byte(validity + (bit >> 3)) >> (bit & 7)) & 1 == 0


@kernel_part
def item_range(column: int, index: int) -> tuple[int, int]:
    """Return the offsets of a text or a list."""
    if load_int64(column + _WIDE):
        address = load_int64(column + _OFFSETS) + 8 * index
        return load_int64(address), load_int64(address + 8)
    address = load_int64(column + _OFFSETS) + 4 * index
    return load_int32(address), load_int32(address + 4)
