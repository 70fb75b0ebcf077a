"""Where compiled loops find the items of a column of Arrow."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import (
    kernel_part,
    load_byte,
    load_int32,
    load_int64,
    store_int64,
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


#: What a call is about; `row` and `used` move on.
ENCODE_TASK_FIELDS: Final = [
    ("row", np.int64),
    ("rows", np.int64),
    # The bytes before each payload.
    ("prefix", np.int64),
    ("prefix_size", np.int64),
    # The plan: int32[operations, numbers], and the constants.
    ("program", np.int64),
    ("constants", np.int64),
    ("constants_end", np.int64),
    # int64[columns, SourceSlot], and room for two numbers for each list that a value is in.
    ("slots", np.int64),
    ("lists", np.int64),
    # The output: its address, its offsets of 32 bits, its capacity without `ROOM`, its size.
    ("data", np.int64),
    ("offsets", np.int64),
    ("capacity", np.int64),
    ("used", np.int64),
    # The column with a wrong value, and what it has, or the bytes that the output lacks.
    ("slot", np.int64),
    ("detail", np.int64),
    # Wrong values that do not end the call: int64[most_failed, row status slot detail], and how
    # many there are.
    ("failures", np.int64),
    ("failed", np.int64),
    ("most_failed", np.int64),
]
#: The numbers of a wrong value.
FAILURE_WIDTH: Final = 4
FAILURE_BYTES: Final = 8 * FAILURE_WIDTH
#: Bytes behind the capacity of an output: copies are made in blocks.
ROOM: Final = 128

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


@kernel_part
def note_failure(failure: int, row: int, status: int, slot: int, detail: int) -> None:
    """Keep at an address what is wrong with a row, which has no payload."""
    store_int64(failure, row)
    store_int64(failure + 8, status)
    store_int64(failure + 16, slot)
    store_int64(failure + 24, detail)
