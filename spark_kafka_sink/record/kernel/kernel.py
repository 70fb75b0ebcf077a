"""The compiled loops that assign rows to partitions and write them as v2 records.

Kafka's counterparts are `DefaultRecord.writeTo` and `BuiltInPartitioner`.
`assign_slots` runs once over a whole batch of rows, so that a row without a valid destination is
found before any row is written. `append_rows` writes rows one by one, each directly into the open
buffer of its partition, and returns whenever Python has to make a decision; it is then called again
with the row where it stopped.

Rules:
- The exact size of a record is computed first and checked against its slot's limit before the
  record is written. Nothing is ever written at or past a slot's limit.
- All input that is read by address has been checked by `RecordColumns`.
- Each function is compiled for one signature, so that loading it from the cache is cheap.

Importing this module loads the kernels; the first time on a machine, numba compiles them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from spark_kafka_sink.record.columns import COLUMNS_DTYPE, NULL_PARTITION, NULL_TIMESTAMP
from spark_kafka_sink.record.kernel.kernel_hashes import key_number
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
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
    store_uint8,
)
from spark_kafka_sink.record.kernel.kernel_varint import varint_bytes, write_varint, zigzag
from spark_kafka_sink.record.kernel.key_sample import (
    NO_SAMPLE,
    NO_SEEDS,
    SEEN,
    SEEN_MASK,
    KeySample,
    sample_key,
)
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE, KeyRule

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.record.columns import Int32Array, Int64Array, RecordColumns

#: A partition's open batch, padded to a cache line, since rows alternate between partitions.
SLOT_DTYPE: Final = np.dtype(
    [
        ("address", np.int64),  # of the batch's buffer; 0 = no open batch
        ("position", np.int64),  # offset of the next record in the buffer
        ("limit", np.int64),  # usable bytes of the buffer
        ("record_count", np.int64),
        ("base_timestamp", np.int64),  # of the batch's first record
        ("max_timestamp", np.int64),
        ("max_record_bytes", np.int64),
        ("_rest_of_cache_line", np.int64),
    ]
)
#: The current partition for the keyless rows of a topic (KIP-794).
STICKY_DTYPE: Final = np.dtype(
    [
        ("slot", np.int64),  # -1 = not chosen yet
        ("bytes", np.int64),  # written to the slot since it was chosen
        ("limit", np.int64),  # when `bytes` reaches this, choose another slot
    ]
)
NO_INDEXES: Final = np.empty(0, np.int32)
#: In the row slots that `assign_slots` returns: the topic's sticky partition.
STICKY_SLOT: Final = -1
#: In row slots: `append_rows` skips the row.
REFUSED_SLOT: Final = -2


class SlotStatus(IntEnum):
    """The outcome of `assign_slots`."""

    ALL_ASSIGNED = 0
    NULL_TOPIC = 1
    INVALID_PARTITION = 2


class SlotAssignment(NamedTuple):
    """The result of `assign_slots`."""

    status: SlotStatus
    #: The invalid row, or the number of rows.
    row: int
    #: int32[rows]: each row's slot, or `STICKY_SLOT`, or if bad rows are to be skipped
    #: `REFUSED_SLOT`; undefined from `row` on.
    row_slots: Int32Array
    #: The rows with `REFUSED_SLOT`.
    refused: Int32Array


class AppendStatus(IntEnum):
    """The reason why `append_rows` returned."""

    ALL_APPENDED = 0
    #: The slot has no open buffer, or too little room in it.
    BATCH_FULL = 1
    #: The sticky partition of the row's topic has reached its limit, or was never chosen.
    STICKY_FULL = 2
    RECORD_TOO_LARGE = 3


class AppendResult(NamedTuple):
    """The row where `append_rows` stopped, and the reason."""

    #: The row to continue with; it has not been written.
    next_row: int
    status: AppendStatus
    #: That row's slot; -1 if it has none.
    slot: int
    #: BATCH_FULL: the size of that row's record in its slot's current batch (0 to 13 bytes more
    #: than in an empty batch). RECORD_TOO_LARGE: its size in an empty batch. Otherwise 0.
    record_bytes: int


# Statuses of the compiled functions for errors of the caller.
_SLOT_OUT_OF_RANGE: Final = -1
_TOPIC_WITHOUT_PARTITIONS: Final = -2

#: For `_assign_slots`: a length that no key reaches, which makes all records keyless.
_NO_KEY: Final = 0x7FFFFFFFFFFFFFFF
#: Longer byte strings are copied by a call.
_MAX_MOVED_BYTES: Final = 32
#: The largest length, which is zigzag-encoded, whose varint is a single byte.
_MAX_ONE_BYTE_LENGTH: Final = 0x3F

# The statuses as plain integers, which compile to constants.
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


class _Strings(NamedTuple):
    """The addresses of a column of byte strings; the compiler keeps them in registers."""

    offsets: int
    data: int
    validity: int
    validity_offset: int


@kernel_part
def _length(column: _Strings, index: int) -> int:
    """Return the length of a byte string, -1 for null."""
    if _is_null(column.validity, column.validity_offset + index):
        return -1
    return load_int64(column.offsets + 8 * index + 8) - load_int64(column.offsets + 8 * index)


@kernel_part
def _address(column: _Strings, index: int) -> int:
    return column.data + load_int64(column.offsets + 8 * index)


@kernel_part
def _field_bytes(length: int) -> int:
    """Return the size of a field in bytes: its length, -1 for null, followed by its content."""
    return varint_bytes(zigzag(length)) + max(length, 0)


@kernel_part
def _copy_field(target: int, source: int, count: int) -> None:
    """Copy at least one byte; up to `_MAX_MOVED_BYTES` by moves, which may overlap, not a call."""
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
    target = write_varint(target, zigzag(length))
    if length > 0:
        _copy_field(target, _address(column, index), length)
        target += length
    return target


@inlined_part
def _headers_bytes(keys: _Strings, values: _Strings, first: int, last: int) -> int:
    size = 0
    for element in range(first, last):
        key_length, value_length = _length(keys, element), _length(values, element)
        if key_length | (value_length + 1) <= _MAX_ONE_BYTE_LENGTH:
            # Nearly all headers have a short name, and a value that is null or short.
            size += 2 + key_length + max(value_length, 0)
        else:
            size += _field_bytes(key_length) + _field_bytes(value_length)
    return size


@inlined_part
def _write_headers(target: int, keys: _Strings, values: _Strings, first: int, last: int) -> int:
    for element in range(first, last):
        target = _write_field(target, keys, element, _length(keys, element))
        target = _write_field(target, values, element, _length(values, element))
    return target


_COLUMNS: Final = Items(COLUMNS_DTYPE)
_SLOTS: Final = Items(SLOT_DTYPE)
_STICKY: Final = Items(STICKY_DTYPE)
_INT32S: Final = Items(np.dtype(np.int32))
_INT64S: Final = Items(np.dtype(np.int64))


@kernel(3, _COLUMNS, _INT32S, _INT32S, int, int, _INT32S, _INT32S, _INT64S, _INT64S)
def _assign_slots(  # noqa: PLR0917  kernels get arguments by position
    table: npt.NDArray[np.void],
    first_slots: Int32Array,
    partition_counts: Int32Array,
    key_hash: int,
    shortest_key: int,
    refused: Int32Array,
    row_slots: Int32Array,
    topic_seeds: Int64Array,
    sample: Int64Array,
) -> tuple[int, int, int]:
    columns = table[0]
    keys = _Strings(
        columns.key_offsets, columns.key_data, columns.key_validity, columns.key_validity_offset
    )
    topic_index, asked_partition = columns.topic_index, columns.partition
    num_rows = columns.num_rows
    sampled_below = sample[0]
    skips = refused.size
    count = 0
    for row in range(num_rows):
        topic = load_int32(topic_index + 4 * row)
        if topic < 0:
            if skips:
                row_slots[row] = REFUSED_SLOT
                refused[count] = row
                count += 1
                continue
            return _NULL_TOPIC, row, 0
        partition_count = partition_counts[topic]
        partition = load_int32(asked_partition + 4 * row)
        if partition == NULL_PARTITION:
            key_length = _length(keys, row)
            if key_length < shortest_key:
                row_slots[row] = STICKY_SLOT
                continue
            if partition_count <= 0:
                return _TOPIC_WITHOUT_PARTITIONS, row, 0
            number = key_number(key_hash, _address(keys, row), max(key_length, 0))
            if (
                number < sampled_below
                and key_length > 0
                and sample[SEEN + ((number + topic) & SEEN_MASK)] != number + (topic << 32) + 1
            ):
                sampled_below = sample_key(
                    sample, number, topic, _address(keys, row), key_length, topic_seeds[topic]
                )
            partition = int(np.uint32(number) % np.uint32(partition_count))
        elif partition < 0 or partition >= partition_count:
            if skips:
                row_slots[row] = REFUSED_SLOT
                refused[count] = row
                count += 1
                continue
            return _INVALID_PARTITION, row, 0
        row_slots[row] = first_slots[topic] + partition
    return _ALL_ASSIGNED, num_rows, count


@kernel(4, _COLUMNS, _INT32S, _INT32S, int, _SLOTS, _STICKY, int, int)
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
    # Copy the fields of the table to locals: the compiler has to assume that writing a record may
    # change the table, and would otherwise read it again for every row.
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
    encoded_counts = columns.encoded_headers_counts
    encoded = _Strings(columns.encoded_headers_offsets, columns.encoded_headers_data, 0, 0)
    has_headers = header_offsets | encoded.offsets != 0
    timestamps, topic_index = columns.timestamp, columns.topic_index
    num_rows = columns.num_rows
    for row in range(start_row, num_rows):
        slot_index = int(row_slots[row])
        is_sticky = slot_index < 0
        if is_sticky and slot_index == REFUSED_SLOT:
            continue
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
        timestamp_delta = zigzag(timestamp - slot.base_timestamp) if offset_delta else 0
        key_length, value_length = _length(keys, row), _length(values, row)
        # The attributes, which are 0, and the number of headers take one byte each.
        content_bytes = 2 + _field_bytes(key_length) + _field_bytes(value_length)
        header_count, first_header, last_header, encoded_bytes = 0, 0, 0, 0
        if has_headers:
            if header_offsets:
                first_header = load_int64(header_offsets + 8 * row)
                last_header = load_int64(header_offsets + 8 * row + 8)
                header_count = last_header - first_header
                content_bytes += _headers_bytes(
                    header_keys, header_values, first_header, last_header
                )
            if encoded.offsets:
                header_count += load_int32(encoded_counts + 4 * row)
                encoded_bytes = _length(encoded, row)
                content_bytes += encoded_bytes
            content_bytes += varint_bytes(header_count << 1) - 1
        body_bytes = content_bytes + varint_bytes(timestamp_delta) + varint_bytes(offset_delta << 1)
        record_bytes = varint_bytes(body_bytes << 1) + body_bytes
        if record_bytes > max_record_bytes:
            # Both deltas of a batch's first record are 0 and take one byte each.
            bytes_if_first = varint_bytes((content_bytes + 2) << 1) + content_bytes + 2
            if bytes_if_first > max_record_bytes:
                return row, _RECORD_TOO_LARGE, slot_index, bytes_if_first
        position = slot.position
        if slot.address == 0 or position + record_bytes > slot.limit:
            return row, _BATCH_FULL, slot_index, record_bytes

        target = write_varint(slot.address + position, body_bytes << 1)
        store_uint8(target, 0)
        target = write_varint(target + 1, timestamp_delta)
        target = write_varint(target, offset_delta << 1)
        target = _write_field(target, keys, row, key_length)
        target = _write_field(target, values, row, value_length)
        if has_headers:
            target = write_varint(target, header_count << 1)
            target = _write_headers(target, header_keys, header_values, first_header, last_header)
            if encoded_bytes:
                copy_bytes(target, _address(encoded, row), encoded_bytes)
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
    skips_bad_rows: bool = False,
    key_sample: KeySample | None = None,
) -> SlotAssignment:
    """Return the slot of every row: `first_slots[topic] + partition`.

    The partition is the row's own, if it has one; otherwise it follows from the key by `key_rule`;
    without a key, or with `ignore_keys`, it is the topic's sticky partition. `first_slots` and
    `partition_counts` have an entry for each of `columns.topics`. Keys that have chosen a partition
    are added to `key_sample`, except empty ones.

    The assignment stops at a row without a topic, or with a partition that its topic does not have:
    see `SlotAssignment`. With `skips_bad_rows` such rows get `REFUSED_SLOT` instead. Raises
    ValueError for arrays of the wrong length, or if a key has to be placed in a topic without
    partitions.
    """
    topic_count = len(columns.topics)
    if first_slots.size != topic_count or partition_counts.size != topic_count:
        raise ValueError(f"expected slots and partition counts for {topic_count} topics")
    row_slots = np.empty(columns.num_rows, np.int32)
    refused = np.empty(columns.num_rows if skips_bad_rows else 0, np.int32)
    status, row, count = _assign_slots(
        columns.table,
        first_slots,
        partition_counts,
        int(key_rule.key_hash),
        _NO_KEY if ignore_keys else key_rule.shortest_key,
        refused,
        row_slots,
        NO_SEEDS if key_sample is None else key_sample.topic_seeds(columns.topics),
        NO_SAMPLE if key_sample is None else key_sample.state,
    )
    if status == _TOPIC_WITHOUT_PARTITIONS:
        topic = columns.topics[columns.topic_index[row]]
        raise ValueError(f"topic {topic!r} has no partitions")
    return SlotAssignment(SlotStatus(status), row, row_slots, refused[:count])


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
    """Append rows from `start_row` on to the open batches of their slots, until one does not fit.

    `row_slots` is the result of `assign_slots`, `slots` has rows of `SLOT_DTYPE`, and `sticky` has
    a row of `STICKY_DTYPE` for each of `columns.topics`. All three are updated: a sticky row gets
    its slot when it is written. Rows with `REFUSED_SLOT` are not written. `now_ms` is the timestamp
    of rows without one. A record that takes more than `max_record_bytes` in an empty batch is
    rejected. `row_indexes`, if given, receives the index of each written row in its batch, counted
    from 0.

    The memory at each slot's address must remain allocated, and be writable up to its limit. Raises
    ValueError for arrays of the wrong length, or for a row slot outside `slots`.
    """
    if not 0 <= start_row <= columns.num_rows or row_slots.size != columns.num_rows:
        raise ValueError(
            f"{row_slots.size} row slots from row {start_row} do not match the columns"
        )
    if row_indexes.size not in {0, columns.num_rows}:
        raise ValueError(f"expected {columns.num_rows} row indexes or none, not {row_indexes.size}")
    if sticky.size != len(columns.topics):
        raise ValueError(f"expected sticky partitions for {len(columns.topics)} topics")
    next_row, status, slot, record_bytes = _append_rows(
        columns.table, row_slots, row_indexes, start_row, slots, sticky, now_ms, max_record_bytes
    )
    if status == _SLOT_OUT_OF_RANGE:
        raise ValueError(f"row {next_row} has slot {slot}, but there are only {slots.size}")
    return AppendResult(next_row, AppendStatus(status), slot, record_bytes)
