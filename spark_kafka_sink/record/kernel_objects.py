"""Lists of Python's own byte strings, read by compiled loops: how single records become columns.

A list of references is walked, and the bytes behind them are copied, without a call of Python's for
each. That is possible where it is known how CPython lays out lists and byte strings, which has been
the same for many years: see `reads_objects`. Elsewhere, and for what is no byte string, the caller
has to go the long way.

Rules:
- The caller alone has the list, which refers to all that is in it: nothing moves or goes meanwhile,
  even though the loops run without the interpreter's lock. A byte string never changes.
- Of each object the type is looked at first, and only what is exactly `bytes` is followed further.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numba import types

from spark_kafka_sink.record.columns import (
    NULL_SIZE,
    RECORD_FIELDS,
    BytesColumn,
    null_column,
)
from spark_kafka_sink.record.kernel_support import copy_bytes, kernel, load_int32, load_int64

if TYPE_CHECKING:
    from spark_kafka_sink.record.columns import Int64Array, UInt8Array

#: Where a record's topic, key and value are among its `RECORD_FIELDS` objects; the first is its
#: future.
_TOPIC: Final = 1
_KEY: Final = 2
_VALUE: Final = 3

#: What lies where, in bytes: `ob_type` of any object, `ob_item` of a list, `ob_size` and `ob_sval`
#: of a byte string. The number of references lies at 0, in 32 bits at least.
_TYPE: Final = 8
_LIST_ITEMS: Final = 24
_BYTES_SIZE: Final = 16
_BYTES_DATA: Final = 32
#: The versions of CPython of which that is known, and the sizes of both types there.
_VERSIONS: Final = ((3, 11), (3, 14))
_BASIC_SIZES: Final = (40, 33)

_INT64_QUINTUPLE: Final = types.Tuple((types.int64,) * 5)  # type: ignore[no-untyped-call]


@kernel(_INT64_QUINTUPLE(*(types.int64,) * 5, types.int64[:, ::1], types.int64[:, ::1]))
def _scan_items(  # noqa: PLR0917  numba passes arguments by position
    items: int,
    count: int,
    future_type: int,
    bytes_type: int,
    none: int,
    sizes: Int64Array,
    offsets: Int64Array,
) -> tuple[int, int, int, int, int]:
    item = load_int64(items + _LIST_ITEMS)
    first_topic = load_int64(item + 8 * _TOPIC)
    others = full_futures = other_topics = null_keys = null_values = 0
    key_end = value_end = 0
    offsets[0, 0] = offsets[1, 0] = 0
    for row in range(count):
        if load_int64(load_int64(item) + _TYPE) != future_type:
            full_futures += 1
        if load_int64(item + 8 * _TOPIC) != first_topic:
            other_topics += 1
        key, value = load_int64(item + 8 * _KEY), load_int64(item + 8 * _VALUE)
        key_size, value_size = NULL_SIZE, NULL_SIZE
        if key == none:
            null_keys += 1
        elif load_int64(key + _TYPE) != bytes_type:
            others += 1
        else:
            key_size = load_int64(key + _BYTES_SIZE)
            key_end += key_size
        if value == none:
            null_values += 1
        elif load_int64(value + _TYPE) != bytes_type:
            others += 1
        else:
            value_size = load_int64(value + _BYTES_SIZE)
            value_end += value_size
        sizes[0, row], offsets[0, row + 1] = key_size, key_end
        sizes[1, row], offsets[1, row + 1] = value_size, value_end
        item += 8 * RECORD_FIELDS
    return others, full_futures, other_topics, null_keys, null_values


@kernel(types.void(types.int64, types.int64, types.int64[::1], types.int64[::1], types.uint8[::1]))
def _join_items(
    items: int, field: int, sizes: Int64Array, offsets: Int64Array, data: UInt8Array
) -> None:
    item = load_int64(items + _LIST_ITEMS) + 8 * field
    target = data.ctypes.data
    for row in range(sizes.size):
        if sizes[row] > 0:
            copy_bytes(target + offsets[row], load_int64(item) + _BYTES_DATA, sizes[row])
        item += 8 * RECORD_FIELDS


@kernel(types.int64(types.int64, types.int64, types.int64, types.int64[::1]))
def _find_held(objects: int, count: int, unheld: int, rows: Int64Array) -> int:
    item = load_int64(objects + _LIST_ITEMS)
    found = 0
    for row in range(count):
        if load_int32(load_int64(item + 8 * row)) != unheld:
            if found < rows.size:
                rows[found] = row
            found += 1
    return found


class ScannedItems(NamedTuple):
    """Records as columns, and what they have in common."""

    #: Whether all futures are exactly of the type that was asked for.
    is_plain: bool
    #: Whether all topics are the same object.
    has_one_topic: bool
    key: BytesColumn
    #: int64[records], `NULL_SIZE` for None.
    key_sizes: Int64Array
    value: BytesColumn
    value_sizes: Int64Array


@cache
def reads_objects() -> bool:
    """Whether objects of this interpreter can be read: it is known, and a sample comes out right.

    Not where threads run without a lock between them: a number of references is split in two there.
    """
    if (
        sys.implementation.name != "cpython"
        or not _VERSIONS[0] <= sys.version_info[:2] <= _VERSIONS[1]
        or not getattr(sys, "_is_gil_enabled", lambda: True)()
        or (list.__basicsize__, bytes.__basicsize__) != _BASIC_SIZES
    ):
        return False
    items = [object(), "t", None, b"value", object(), "t", b"", b"of the second"]
    scanned = _scan(items, object)
    return (
        scanned is not None
        and scanned.is_plain
        and scanned.key_sizes.tolist() == [NULL_SIZE, 0]
        and scanned.value_sizes.tolist() == [len(b"value"), len(b"of the second")]
        and scanned.value.data.tobytes() == b"valueof the second"
    )


def scan_items(items: list[Any], future_type: type[object]) -> ScannedItems | None:
    """Make columns of a list that has `RECORD_FIELDS` items for each record, one record at least.

    Gives None where objects cannot be read here, or a key or value is neither bytes nor None.
    """
    return _scan(items, future_type) if reads_objects() else None


def _scan(items: list[Any], future_type: type[object]) -> ScannedItems | None:
    count = len(items) // RECORD_FIELDS
    sizes, offsets = np.empty((2, count), np.int64), np.empty((2, count + 1), np.int64)
    others, full_futures, other_topics, null_keys, null_values = _scan_items(
        id(items), count, id(future_type), id(bytes), id(None), sizes, offsets
    )
    if others:
        return None
    return ScannedItems(
        is_plain=not full_futures,
        has_one_topic=not other_topics,
        key=_column(items, _KEY, sizes[0], offsets[0], null_keys),
        key_sizes=sizes[0],
        value=_column(items, _VALUE, sizes[1], offsets[1], null_values),
        value_sizes=sizes[1],
    )


def _column(
    items: list[Any], field: int, sizes: Int64Array, offsets: Int64Array, nulls: int
) -> BytesColumn:
    if nulls == sizes.size:
        return null_column(nulls)
    data = np.empty(offsets[-1], np.uint8)
    _join_items(id(items), field, sizes, offsets, data)
    if not nulls:
        return BytesColumn(offsets, data)
    return BytesColumn(offsets, data, np.packbits(sizes != NULL_SIZE, bitorder="little"))


def held_rows(objects: list[Any], unheld: int, most: int) -> list[int] | None:
    """Find the objects that have not `unheld` references; None where they are more than `most`."""
    rows = np.empty(most, np.int64)
    found = _find_held(id(objects), len(objects), unheld, rows)
    return None if found > most else rows[:found].tolist()
