"""Compiled loops that read lists of Python `bytes`, to turn single records into columns.

They walk the references of a list and copy the bytes without calling Python for each object. This
requires a known memory layout of CPython's lists and byte strings, which has been the same for many
years: see `reads_objects`. On other interpreters, and for other types, the caller has to convert
the records itself.

Rules:
- Only the caller holds the list, and the list holds references to its items: nothing is moved or
  freed meanwhile, even though the loops run without the GIL. Byte strings are immutable.
- The type of each object is checked first, and only exact `bytes` objects are read further.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from spark_kafka_sink.record.columns import NULL_SIZE, RECORD_FIELDS, BytesColumn, null_column
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    copy_bytes,
    kernel,
    load_int32,
    load_int64,
)

if TYPE_CHECKING:
    from spark_kafka_sink.record.columns import Int64Array, UInt8Array

#: The positions of a record's topic, key and value among its `RECORD_FIELDS` objects; the first
#: object is its future.
_TOPIC: Final = 1
_KEY: Final = 2
_VALUE: Final = 3

#: Offsets in bytes: `ob_type` of any object, `ob_item` of a list, `ob_size` and `ob_sval` of a byte
#: string. The reference count is at offset 0, in 32 bits at least.
_TYPE: Final = 8
_LIST_ITEMS: Final = 24
_BYTES_SIZE: Final = 16
_BYTES_DATA: Final = 32
#: The first and last version of CPython with this layout, and the sizes of both types.
_VERSIONS: Final = ((3, 11), (3, 14))
_BASIC_SIZES: Final = (40, 33)

_INT64S: Final = Items(np.dtype(np.int64))
_INT64_ROWS: Final = Items(np.dtype(np.int64), dimensions=2)
_BYTES: Final = Items(np.dtype(np.uint8))


@kernel(5, int, int, int, int, int, _INT64_ROWS, _INT64_ROWS)
def _scan_items(  # noqa: PLR0917  kernels get arguments by position
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


@kernel(0, int, int, _INT64S, _INT64S, _BYTES)
def _join_items(
    items: int, field: int, sizes: Int64Array, offsets: Int64Array, data: UInt8Array
) -> None:
    item = load_int64(items + _LIST_ITEMS) + 8 * field
    target = data.ctypes.data
    for row in range(sizes.size):
        if sizes[row] > 0:
            copy_bytes(target + offsets[row], load_int64(item) + _BYTES_DATA, sizes[row])
        item += 8 * RECORD_FIELDS


@kernel(1, int, int, int, _INT64S)
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
    """Records as columns, and the properties they share."""

    #: Whether all futures are exactly of the given type.
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
    """Return whether this interpreter's objects can be read, by its version and a sample.

    Free-threaded builds are not supported: they split the reference count in two.
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
    """Convert a list of `RECORD_FIELDS` items per record, for at least one record, to columns.

    Returns None if objects cannot be read here, or if a key or value is neither bytes nor None.
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
    """Return the rows whose objects have other than `unheld` references; None if over `most`."""
    rows = np.empty(most, np.int64)
    found = _find_held(id(objects), len(objects), unheld, rows)
    return None if found > most else rows[:found].tolist()
