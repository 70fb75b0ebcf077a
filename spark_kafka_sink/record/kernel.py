"""The compiled loops: rows are given to partitions, and written as v2 records.

Kafka's counterparts are `DefaultRecord.writeTo` and `BuiltInPartitioner`.
`assign_slots` runs once over a whole batch of rows, so that a row that can go nowhere is found
before any is written. `append_rows` writes rows one after another, each straight into the open
buffer of its partition, and comes back whenever Python has to decide something; it is then called
again with the row where it stopped.

Rules:
- A record is measured first, exactly, then checked against its slot's limit, then written. Nothing
  is ever written at or behind a slot's limit.
- All input that is followed by address has been checked by `RecordColumns`.
- One compiled signature per function, so that loading them from the cache stays cheap.

Importing this module imports numba, and compiles the kernels the first time on a machine.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import from_dtype, types

from spark_kafka_sink.record.columns import COLUMNS_DTYPE, NULL_PARTITION, NULL_TIMESTAMP
from spark_kafka_sink.record.kernel_hashes import key_number
from spark_kafka_sink.record.kernel_support import (
    copy_bytes,
    inlined_part,
    kernel,
    kernel_part,
    load_int32,
    load_int64,
    load_uint8,
    move_4_bytes,
    move_8_bytes,
    move_16_bytes,
    move_byte,
    significant_bits,
    store_uint8,
)
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.record.columns import Int32Array, RecordColumns
    from spark_kafka_sink.record.key_hashes import KeyRule

#: A partition's open batch. As large as a cache line: rows go to their partitions in any order.
SLOT_DTYPE: Final = np.dtype(
    [
        ("address", np.int64),  # of the batch's buffer; 0 = none is open
        ("position", np.int64),  # where in the buffer the next record begins
        ("limit", np.int64),  # bytes of the buffer that may be used
        ("record_count", np.int64),
        ("base_timestamp", np.int64),  # that of the batch's first record
        ("max_timestamp", np.int64),
        ("max_record_bytes", np.int64),
        ("_rest_of_cache_line", np.int64),
    ]
)
#: Where the keyless rows of a topic go at present (KIP-794).
STICKY_DTYPE: Final = np.dtype(
    [
        ("slot", np.int64),  # -1 = none chosen yet
        ("bytes", np.int64),  # written to it since it was chosen
        ("limit", np.int64),  # once `bytes` has reached this, another one is due
    ]
)
NO_INDEXES: Final = np.empty(0, np.int32)
#: In the row slots that `assign_slots` gives: the topic's sticky partition.
STICKY_SLOT: Final = -1


class SlotStatus(IntEnum):
    """How `assign_slots` ended."""

    ALL_ASSIGNED = 0
    NULL_TOPIC = 1
    INVALID_PARTITION = 2


class SlotAssignment(NamedTuple):
    """What `assign_slots` found out."""

    status: SlotStatus
    #: The row that is to blame, or the number of rows.
    row: int
    #: int32[rows]: each row's slot, or `STICKY_SLOT`; not filled in from `row` on.
    row_slots: Int32Array


class AppendStatus(IntEnum):
    """Why `append_rows` came back."""

    ALL_APPENDED = 0
    #: The slot has no open buffer, or too little room in it.
    BATCH_FULL = 1
    #: The sticky partition of the row's topic has had its share, or was never chosen.
    STICKY_FULL = 2
    RECORD_TOO_LARGE = 3


class AppendResult(NamedTuple):
    """Where `append_rows` stopped, and what for."""

    #: The row to go on with; it has not been written.
    next_row: int
    status: AppendStatus
    #: That row's slot; -1 when it has none.
    slot: int
    #: BATCH_FULL: bytes that row's record takes in its slot's batch as that stands (in an empty
    #: batch it takes no more, and at most 13 less). RECORD_TOO_LARGE: in an empty batch. Else 0.
    record_bytes: int


# Statuses of the compiled functions that are mistakes of the caller's.
_SLOT_OUT_OF_RANGE: Final = -1
_TOPIC_WITHOUT_PARTITIONS: Final = -2

#: For `_assign_slots`: no key is as long as this, so that all records are keyless.
_NO_KEY: Final = 0x7FFFFFFFFFFFFFFF
_MAX_INT64: Final = 0x7FFFFFFFFFFFFFFF
#: More than this is copied by a call.
_MAX_MOVED_BYTES: Final = 32
#: A varint of 7 bits per byte: up to here it is a single byte.
_MAX_ONE_BYTE_VARINT: Final = 0x7F
#: The same of a length, which is written with a sign.
_MAX_ONE_BYTE_LENGTH: Final = 0x3F

# The statuses again, as the plain numbers that compile to constants.
_NULL_TOPIC: Final = int(SlotStatus.NULL_TOPIC)
_INVALID_PARTITION: Final = int(SlotStatus.INVALID_PARTITION)
_ALL_ASSIGNED: Final = int(SlotStatus.ALL_ASSIGNED)
_ALL_APPENDED: Final = int(AppendStatus.ALL_APPENDED)
_BATCH_FULL: Final = int(AppendStatus.BATCH_FULL)
_STICKY_FULL: Final = int(AppendStatus.STICKY_FULL)
_RECORD_TOO_LARGE: Final = int(AppendStatus.RECORD_TOO_LARGE)


@kernel_part
def _is_null(validity: int, bit: int) -> bool:
    return validity != 0 and not (load_uint8(validity + (bit >> 3)) >> (bit & 7)) & 1


@kernel_part
def _zigzag(number: int) -> int:
    return (number << 1) ^ (number >> 63)


@kernel_part
def _varint_bytes(zigzagged: int) -> int:
    """Count the bytes of a variable-length number."""
    return (significant_bits(zigzagged | 1) * 37 + 222) >> 8


@kernel_part
def _write_varint(target: int, zigzagged: int) -> int:
    """Write a variable-length number; give the address behind it."""
    while zigzagged & ~_MAX_ONE_BYTE_VARINT:
        store_uint8(target, zigzagged & _MAX_ONE_BYTE_VARINT | 0x80)
        # A shift that brings in zeros: the number has no sign any more.
        zigzagged = (zigzagged >> 7) & _MAX_INT64 >> 6
        target += 1
    store_uint8(target, zigzagged)
    return target + 1


class _Strings(NamedTuple):
    """A column of byte strings, by address; its fields stay in registers."""

    offsets: int
    data: int
    validity: int
    validity_offset: int


@kernel_part
def _length(column: _Strings, index: int) -> int:
    """Give the length of a byte string, -1 for null."""
    if _is_null(column.validity, column.validity_offset + index):
        return -1
    return load_int64(column.offsets + 8 * index + 8) - load_int64(column.offsets + 8 * index)


@kernel_part
def _address(column: _Strings, index: int) -> int:
    return column.data + load_int64(column.offsets + 8 * index)


@kernel_part
def _field_bytes(length: int) -> int:
    """Count the bytes of a field that is its length, -1 for null, and its content."""
    return _varint_bytes(_zigzag(length)) + max(length, 0)


@kernel_part
def _copy_field(target: int, source: int, count: int) -> None:
    """Copy at least one byte; where they are few, by two moves that may overlap, and no call."""
    if count > _MAX_MOVED_BYTES:
        copy_bytes(target, source, count)
    elif count >> 4:  # 16 or more
        move_16_bytes(target, source)
        move_16_bytes(target + count - 16, source + count - 16)
    elif count >> 3:
        move_8_bytes(target, source)
        move_8_bytes(target + count - 8, source + count - 8)
    elif count >> 2:
        move_4_bytes(target, source)
        move_4_bytes(target + count - 4, source + count - 4)
    else:
        for index in range(count):
            move_byte(target + index, source + index)


@kernel_part
def _write_field(target: int, column: _Strings, index: int, length: int) -> int:
    target = _write_varint(target, _zigzag(length))
    if length > 0:
        _copy_field(target, _address(column, index), length)
        target += length
    return target


@inlined_part
def _headers_bytes(keys: _Strings, values: _Strings, first: int, last: int) -> int:
    size = _varint_bytes((last - first) << 1)
    for element in range(first, last):
        key_length, value_length = _length(keys, element), _length(values, element)
        if key_length | (value_length + 1) <= _MAX_ONE_BYTE_LENGTH:
            # Nearly all headers: names, and values that are null or short.
            size += 2 + key_length + max(value_length, 0)
        else:
            size += _field_bytes(key_length) + _field_bytes(value_length)
    return size


@inlined_part
def _write_headers(target: int, keys: _Strings, values: _Strings, first: int, last: int) -> None:
    target = _write_varint(target, (last - first) << 1)
    for element in range(first, last):
        target = _write_field(target, keys, element, _length(keys, element))
        target = _write_field(target, values, element, _length(values, element))


_COLUMNS: Final = types.Array(from_dtype(COLUMNS_DTYPE), 1, "C")
_SLOTS: Final = types.Array(from_dtype(SLOT_DTYPE), 1, "C")
_STICKY: Final = types.Array(from_dtype(STICKY_DTYPE), 1, "C")
_INT32S: Final = types.Array(types.int32, 1, "C")
_INT64_PAIR: Final = types.Tuple((types.int64,) * 2)  # type: ignore[no-untyped-call]
_INT64_QUADRUPLE: Final = types.Tuple((types.int64,) * 4)  # type: ignore[no-untyped-call]


@kernel(_INT64_PAIR(_COLUMNS, _INT32S, _INT32S, types.int64, types.int64, _INT32S))
def _assign_slots(  # noqa: PLR0917  numba passes arguments by position
    table: npt.NDArray[np.void],
    first_slots: Int32Array,
    partition_counts: Int32Array,
    key_hash: int,
    shortest_key: int,
    row_slots: Int32Array,
) -> tuple[int, int]:
    columns = table[0]
    keys = _Strings(
        columns.key_offsets, columns.key_data, columns.key_validity, columns.key_validity_offset
    )
    topic_index, asked_partition = columns.topic_index, columns.partition
    num_rows = columns.num_rows
    for row in range(num_rows):
        topic = load_int32(topic_index + 4 * row)
        if topic < 0:
            return _NULL_TOPIC, row
        partition_count = partition_counts[topic]
        partition = load_int32(asked_partition + 4 * row)
        if partition == NULL_PARTITION:
            key_length = _length(keys, row)
            if key_length < shortest_key:
                row_slots[row] = STICKY_SLOT
                continue
            if partition_count <= 0:
                return _TOPIC_WITHOUT_PARTITIONS, row
            number = key_number(key_hash, _address(keys, row), max(key_length, 0))
            partition = int(np.uint32(number) % np.uint32(partition_count))
        elif partition < 0 or partition >= partition_count:
            return _INVALID_PARTITION, row
        row_slots[row] = first_slots[topic] + partition
    return _ALL_ASSIGNED, num_rows


@kernel(
    _INT64_QUADRUPLE(
        _COLUMNS, _INT32S, _INT32S, types.int64, _SLOTS, _STICKY, types.int64, types.int64
    )
)
def _append_rows(  # noqa: C901, PLR0912, PLR0915, PLR0917  one loop, where each call costs
    table: npt.NDArray[np.void],
    row_slots: Int32Array,
    row_indexes: Int32Array,
    start_row: int,
    slots: npt.NDArray[np.void],
    sticky: npt.NDArray[np.void],
    now_ms: int,
    max_record_bytes: int,
) -> tuple[int, int, int, int]:
    tracked = row_indexes.size > 0
    # What the loop needs of the table goes into locals: a write to a record might, as far as the
    # compiler knows, change the table, which would have to be read again for every row.
    columns = table[0]
    keys = _Strings(
        columns.key_offsets, columns.key_data, columns.key_validity, columns.key_validity_offset
    )
    values = _Strings(
        columns.value_offsets,
        columns.value_data,
        columns.value_validity,
        columns.value_validity_offset,
    )
    header_keys = _Strings(columns.header_key_offsets, columns.header_key_data, 0, 0)
    header_values = _Strings(
        columns.header_value_offsets,
        columns.header_value_data,
        columns.header_value_validity,
        columns.header_value_validity_offset,
    )
    header_offsets = columns.header_offsets
    timestamps, topic_index = columns.timestamp, columns.topic_index
    num_rows = columns.num_rows
    for row in range(start_row, num_rows):
        slot_index = int(row_slots[row])
        is_sticky = slot_index < 0
        topic = load_int32(topic_index + 4 * row) if is_sticky else 0
        if is_sticky:
            slot_index = sticky[topic].slot
            if slot_index < 0 or sticky[topic].bytes >= sticky[topic].limit:
                return row, _STICKY_FULL, slot_index, 0
        if slot_index >= slots.size:
            return row, _SLOT_OUT_OF_RANGE, slot_index, 0
        slot = slots[slot_index]

        timestamp = load_int64(timestamps + 8 * row)
        if timestamp == NULL_TIMESTAMP:
            timestamp = now_ms
        offset_delta = slot.record_count
        timestamp_delta = _zigzag(timestamp - slot.base_timestamp) if offset_delta else 0
        key_length, value_length = _length(keys, row), _length(values, row)
        # Attributes, of which there are none, and the number of headers take a byte each.
        content_bytes = 2 + _field_bytes(key_length) + _field_bytes(value_length)
        first_header, last_header = 0, 0
        if header_offsets:
            first_header = load_int64(header_offsets + 8 * row)
            last_header = load_int64(header_offsets + 8 * row + 8)
            content_bytes += (
                _headers_bytes(header_keys, header_values, first_header, last_header) - 1
            )
        body_bytes = (
            content_bytes + _varint_bytes(timestamp_delta) + _varint_bytes(offset_delta << 1)
        )
        record_bytes = _varint_bytes(body_bytes << 1) + body_bytes
        if record_bytes > max_record_bytes:
            # Both deltas of a batch's first record are 0, of one byte each.
            bytes_if_first = _varint_bytes((content_bytes + 2) << 1) + content_bytes + 2
            if bytes_if_first > max_record_bytes:
                return row, _RECORD_TOO_LARGE, slot_index, bytes_if_first
        position = slot.position
        if slot.address == 0 or position + record_bytes > slot.limit:
            return row, _BATCH_FULL, slot_index, record_bytes

        target = _write_varint(slot.address + position, body_bytes << 1)
        store_uint8(target, 0)
        target = _write_varint(target + 1, timestamp_delta)
        target = _write_varint(target, offset_delta << 1)
        target = _write_field(target, keys, row, key_length)
        target = _write_field(target, values, row, value_length)
        if last_header > first_header:
            _write_headers(target, header_keys, header_values, first_header, last_header)
        else:
            store_uint8(target, 0)

        slot.position = position + record_bytes
        slot.record_count = offset_delta + 1
        slot.max_record_bytes = max(slot.max_record_bytes, record_bytes)
        if offset_delta == 0:
            slot.base_timestamp = timestamp
            slot.max_timestamp = timestamp
        elif timestamp > slot.max_timestamp:
            slot.max_timestamp = timestamp
        if is_sticky:
            sticky[topic].bytes += record_bytes
            row_slots[row] = slot_index
        if tracked:
            row_indexes[row] = offset_delta
    return num_rows, _ALL_APPENDED, -1, 0


def assign_slots(
    columns: RecordColumns,
    first_slots: Int32Array,
    partition_counts: Int32Array,
    *,
    key_rule: KeyRule = DEFAULT_KEY_RULE,
    ignore_keys: bool = False,
) -> SlotAssignment:
    """Find the slot of every row: `first_slots[topic] + partition`.

    The partition is the one that the row asks for; else the one its key hashes to by `key_rule`;
    else, or with `ignore_keys`, the topic's sticky one.
    `first_slots` and `partition_counts` have an entry for each of `columns.topics`.

    A row without a topic, or with a partition that its topic does not have, ends it: see
    `SlotAssignment`. Raises ValueError for tables of the wrong length or a topic of no partitions.
    """
    topic_count = len(columns.topics)
    if first_slots.size != topic_count or partition_counts.size != topic_count:
        raise ValueError(f"slots are needed for {topic_count} topics")
    row_slots = np.empty(columns.num_rows, np.int32)
    status, row = _assign_slots(
        columns.table,
        first_slots,
        partition_counts,
        int(key_rule.key_hash),
        _NO_KEY if ignore_keys else key_rule.shortest_key,
        row_slots,
    )
    if status == _TOPIC_WITHOUT_PARTITIONS:
        topic = columns.topics[columns.topic_index[row]]
        raise ValueError(f"topic {topic!r} has no partitions to choose from")
    return SlotAssignment(SlotStatus(status), row, row_slots)


def append_rows(  # noqa: PLR0917  the arguments of the compiled function
    columns: RecordColumns,
    row_slots: Int32Array,
    start_row: int,
    slots: npt.NDArray[np.void],
    sticky: npt.NDArray[np.void],
    now_ms: int,
    max_record_bytes: int,
    *,
    row_indexes: Int32Array = NO_INDEXES,
) -> AppendResult:
    """Write rows from `start_row` on to the open batches of their slots, as far as it goes.

    `row_slots` is what `assign_slots` gave, `slots` are rows of `SLOT_DTYPE`, `sticky` has a row of
    `STICKY_DTYPE` for each of `columns.topics`; all are kept up to date: a row that was sticky has
    its slot once it is written. `now_ms` is the timestamp of rows that have none. A record that
    alone takes more than `max_record_bytes` is refused. `row_indexes`, where given, is filled with
    each written row's place in its batch, counted from 0.

    The memory behind each slot's address must stay, and be writable up to its limit. Raises
    ValueError for arrays of the wrong length, or a row slot that `slots` does not have.
    """
    if not 0 <= start_row <= columns.num_rows or row_slots.size != columns.num_rows:
        raise ValueError(f"{row_slots.size} row slots, from {start_row}: not those of the columns")
    if row_indexes.size not in {0, columns.num_rows}:
        raise ValueError(f"there is room for {row_indexes.size} indexes of {columns.num_rows} rows")
    if sticky.size != len(columns.topics):
        raise ValueError(f"sticky partitions are needed for {len(columns.topics)} topics")
    next_row, status, slot, record_bytes = _append_rows(
        columns.table, row_slots, row_indexes, start_row, slots, sticky, now_ms, max_record_bytes
    )
    if status == _SLOT_OUT_OF_RANGE:
        raise ValueError(f"row {next_row} goes to slot {slot}, but there are {slots.size}")
    return AppendResult(next_row, AppendStatus(status), slot, record_bytes)
