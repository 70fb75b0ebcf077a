"""Compiled loops over the columns of an output: counters, nulls, the keys of maps.

A table has a row of numbers (`Slot`) for each column. A format's own loop appends items to the
buffers whose addresses are there, and keeps counters of what a row appended, so that all of it can
be removed again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    kernel,
    kernel_part,
    load_int32,
    load_int64,
    move_8_bytes,
    store_int32,
    store_uint8,
)

if TYPE_CHECKING:
    import numpy.typing as npt


class Status(IntEnum):
    """Why the kernel returned."""

    DONE = 0
    #: It never returns this one.
    MALFORMED = 1
    #: A slot has no room for another item, or for the bytes of a text.
    GROW = 2
    GROW_BYTES = 3
    #: The row costs more than what was left.
    FULL = 4


class Slot(IntEnum):
    """The numbers that the kernel keeps for a column: a row of the table of slots."""

    #: Bytes of an item; or one of `Shape`.
    SHAPE = 0
    #: The address of the items, or of the bytes of texts.
    DATA = 1
    #: The address of a byte for each item, 1 where it is not null; 0 if none can be null.
    VALIDITY = 2
    #: The address of the ends of texts or lists, 32 bits each, behind a first one that is 0.
    OFFSETS = 3
    #: The most items, and the most bytes of texts.
    CAPACITY = 4
    BYTES_CAPACITY = 5
    #: The items so far, and the bytes of texts.
    COUNT = 6
    BYTES = 7
    #: `COUNT` and `BYTES` before the current row, where they are kept.
    COUNT_BEFORE = 8
    BYTES_BEFORE = 9
    #: What an item costs, in bytes, without those of a text.
    COST = 10
    #: One past the slots of the column and all below it.
    END = 11
    #: 1 below a list. Elsewhere, every row has one item.
    IN_LIST = 12


class Shape(IntEnum):
    """What stands for `Slot.SHAPE` where items have no fixed number of bytes."""

    STRUCT = 0
    TEXT = -1
    LIST = -2


#: Instead of an operation: the next row is not begun.
NOT_BEGUN: Final = -1

#: What the loops of all formats know of a batch. The caller sets what is above `slot`, the loop
#: what is below; `row` moves on, and `room` shrinks.
TASK_FIELDS: Final = [
    # The addresses of the payloads, of where they begin and end (32 bits each), of a byte for
    # each, 1 for those that become null, and of the numbers that say where each is malformed.
    ("data", np.int64),
    ("offsets", np.int64),
    ("nulls", np.int64),
    ("failures", np.int64),
    # The bytes at the beginning of each payload that are no part of the value.
    ("skipped", np.int64),
    # The next row, and the number of rows.
    ("row", np.int64),
    ("rows", np.int64),
    # What is left for the costs of rows.
    ("room", np.int64),
    # Where a row goes on: an operation of the format's, or `NOT_BEGUN`.
    ("operation", np.int64),
    # The address of the table of slots.
    ("slots", np.int64),
    # Which slot must grow, and what it must have room for.
    ("slot", np.int64),
    ("needed", np.int64),
    # What is left for the current row.
    ("row_room", np.int64),
]

# As plain integers, which compile to constants.
_STRUCT, _TEXT, _LIST = map(int, Shape)
_SHAPE, _DATA, _VALIDITY, _OFFSETS, _CAPACITY = map(int, list(Slot)[:5])
_BYTES_CAPACITY, _COUNT, _BYTES, _COUNT_BEFORE, _BYTES_BEFORE = map(int, list(Slot)[5:10])
_COST, _SLOT_END, _IN_LIST = map(int, list(Slot)[10:])
#: Between a counter and what it was before the row.
_BEFORE_BYTES: Final = 8 * (_COUNT_BEFORE - _COUNT)
#: Maps of more entries have their keys found by hashes, and not compared with each other.
_FEW_ENTRIES: Final = 8
#: An odd number whose bits are as if at random.
_FACTOR: Final = -0x61C8864680B583EB


@kernel_part
def next_null(slots: Any, slot: int) -> int:
    """Return the next slot that gets a null: not one below a list."""
    return slots[slot, _SLOT_END] if slots[slot, _SHAPE] == _LIST else slot + 1


@kernel_part
def append_null(slots: Any, slot: int) -> None:
    """Append a null; the room for it has been checked."""
    count, shape = slots[slot, _COUNT], slots[slot, _SHAPE]
    if shape == _TEXT:
        store_int32(slots[slot, _OFFSETS] + 4 * count + 4, slots[slot, _BYTES])
    elif shape == _LIST:
        store_int32(slots[slot, _OFFSETS] + 4 * count + 4, slots[slot + 1, _COUNT])
    else:
        # What is there must not be what the memory held before.
        for byte in range(shape):
            store_uint8(slots[slot, _DATA] + shape * count + byte, 0)
    if slots[slot, _VALIDITY]:
        store_uint8(slots[slot, _VALIDITY] + count, 0)
    slots[slot, _COUNT] = count + 1


@kernel_part
def keep_counters(slots: int, kept: Any) -> None:
    """Keep the counters at these offsets in a table, for `forget_counters`."""
    for index in range(kept.shape[0]):
        counter = slots + kept[index]
        move_8_bytes(counter + _BEFORE_BYTES, counter)


@kernel_part
def forget_counters(slots: Any) -> None:
    """Remove what was decoded of a row."""
    rows = slots[0, _COUNT_BEFORE]
    for slot in range(slots.shape[0]):
        slots[slot, _COUNT] = slots[slot, _COUNT_BEFORE] if slots[slot, _IN_LIST] else rows
        slots[slot, _BYTES] = slots[slot, _BYTES_BEFORE]


@kernel(0, Items(np.dtype(np.int64), 2))
def forget_row(slots: Any) -> None:
    """Remove what was decoded of a row that does not go on."""
    forget_counters(slots)


def kept_counters(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return where the counters are that a row does not change by exactly one, and one that is."""
    items = [(slot, Slot.COUNT) for slot in range(len(slots)) if slots[slot, Slot.IN_LIST]]
    texts = [
        (slot, Slot.BYTES) for slot in range(len(slots)) if slots[slot, Slot.SHAPE] == Shape.TEXT
    ]
    counters = [(0, Slot.COUNT), *items, *texts]
    return np.array([8 * (len(Slot) * slot + counter) for slot, counter in counters], np.int32)


@kernel_part
def _are_equal(one: int, other: int, size: int) -> bool:
    """Compare bytes, word by word; behind both there are eight more bytes that can be read."""
    while size >= 8:  # noqa: PLR2004  the bytes of a word
        if load_int64(one) != load_int64(other):
            return False
        one += 8
        other += 8
        size -= 8
    return ((load_int64(one) ^ load_int64(other)) & ((1 << 8 * size) - 1)) == 0


@kernel_part
def _hash(address: int, size: int, seed: int) -> int:
    """Hash bytes, word by word; behind them there are eight more bytes that can be read."""
    value = (seed ^ size) * _FACTOR
    while size >= 8:  # noqa: PLR2004  the bytes of a word
        value = (value ^ load_int64(address)) * _FACTOR
        value ^= (value >> 32) & 0xFFFFFFFF
        address += 8
        size -= 8
    value = (value ^ (load_int64(address) & ((1 << 8 * size) - 1))) * _FACTOR
    return value ^ ((value >> 32) & 0xFFFFFFFF)


@kernel_part
def _first_with_key(  # noqa: PLR0917  by position, as kernels get arguments
    offsets: int, data: int, entries: Any, ends: int, begin: int, count: int, entry: int
) -> int:
    """Return which of the distinct keys is that of an entry, or -1.

    Until a key is there twice, the distinct ones are those of all entries.
    """
    start = load_int32(offsets + 4 * entry)
    size = load_int32(offsets + 4 * entry + 4) - start
    for index in range(begin, begin + count):
        first = entries[index, 0] if ends else index
        other = load_int32(offsets + 4 * first)
        has_size = load_int32(offsets + 4 * first + 4) - other == size
        if has_size and _are_equal(data + other, data + start, size):
            return index
    return -1


@kernel(1, int, int, int, int, int, Items(np.dtype(np.int32)), Items(np.dtype(np.int32), 2), int)
def _find_keys(  # noqa: C901, PLR0912, PLR0917  by position, as kernels get arguments
    maps: int, rows: int, offsets: int, data: int, seed: int, table: Any, entries: Any, ends: int
) -> int:
    kept = 0
    for row in range(rows):
        begin, end = load_int32(maps + 4 * row), load_int32(maps + 4 * row + 4)
        first_kept = kept
        mask = 0
        if end - begin > _FEW_ENTRIES:
            mask = 1
            while mask < 2 * (end - begin):
                mask *= 2
            for place in range(mask):
                table[place] = -1
            mask -= 1
        for entry in range(begin, end):
            found = -1
            if mask:
                start = load_int32(offsets + 4 * entry)
                size = load_int32(offsets + 4 * entry + 4) - start
                place = _hash(data + start, size, seed) & mask
                while table[place] >= 0 and found < 0:
                    found = _first_with_key(offsets, data, entries, ends, table[place], 1, entry)
                    place = (place + 1) & mask
                if found < 0:
                    table[place] = kept
            else:
                found = _first_with_key(
                    offsets, data, entries, ends, first_kept, kept - first_kept, entry
                )
            if not ends:
                if found >= 0:
                    return 1
                kept += 1
            elif found >= 0:
                entries[found, 1] = entry
            else:
                entries[kept, 0] = entries[kept, 1] = entry
                kept += 1
        if ends:
            store_int32(ends + 4 * row + 4, kept)
    return kept if ends else 0


def find_repeated_keys(  # noqa: PLR0917  by position, as the kernel's
    maps: int,
    rows: int,
    offsets: int,
    data: int,
    seed: int,
    table: npt.NDArray[np.int32],
    entries: npt.NDArray[np.int32],
    ends: int,
) -> int:
    """Return whether maps have a key twice, or fill in which entries remain if they do not.

    `maps` is the address of the ends of `rows` maps; `offsets` and `data` are those of their keys,
    behind which eight bytes more can be read. `table` has room for four times the entries of the
    largest map, and the hashes depend on `seed`, which makers of keys must not know.

    With 0 for `ends`, it returns 1 at the first key that is there twice, else 0. Else it writes to
    `entries`, which has two numbers for each key, the positions of the first and of the last entry
    of each distinct key, at the address `ends` the ends of maps of them, and returns their number.
    """
    return int(_find_keys(maps, rows, offsets, data, seed, table, entries, ends))
