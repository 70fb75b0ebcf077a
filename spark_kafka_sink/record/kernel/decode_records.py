"""The compiled part that reads the records of a batch into Arrow buffers.

Rules:
- A record is checked as a whole, and the room for it too, before any of it is written. The checks
  are those of `record.decode`.
- Nothing is read outside of the payload, or written past a capacity.
"""

from __future__ import annotations

from typing import Any, Final

from spark_kafka_sink.record.kernel.decode_headers import end_transaction
from spark_kafka_sink.record.kernel.decode_state import (
    BYTES_PER_HEADER,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    MAX_INT64,
    DecodeStatus,
)
from spark_kafka_sink.record.kernel.kernel_support import (
    kernel_part,
    load_byte,
    store_int32,
    store_int64,
    store_uint8,
)
from spark_kafka_sink.record.kernel.kernel_utf8 import is_ascii, write_utf8
from spark_kafka_sink.record.kernel.kernel_varint import copy_short, read_varint

_MAX_INT32: Final = 0x7FFFFFFF
_INT_BITS: Final = 32
_LONG_BITS: Final = 64
#: The most milliseconds that fit into 64 bits as microseconds.
_MAX_MILLIS: Final = MAX_INT64 // 1000
_REPLACEMENT_BYTES: Final = 3

# The statuses as plain integers, which compile to constants.
_DONE: Final = int(DecodeStatus.DONE)
_FULL: Final = int(DecodeStatus.FULL)
_GROW: Final = int(DecodeStatus.GROW)
_BAD_VARINT: Final = int(DecodeStatus.BAD_VARINT)
_BAD_RECORD_LENGTH: Final = int(DecodeStatus.BAD_RECORD_LENGTH)
_BAD_OFFSET_DELTA: Final = int(DecodeStatus.BAD_OFFSET_DELTA)
_BAD_FIELD_LENGTH: Final = int(DecodeStatus.BAD_FIELD_LENGTH)
_BAD_HEADER_COUNT: Final = int(DecodeStatus.BAD_HEADER_COUNT)
_NULL_HEADER_KEY: Final = int(DecodeStatus.NULL_HEADER_KEY)
_TRAILING_FIELD_BYTES: Final = int(DecodeStatus.TRAILING_FIELD_BYTES)
_TRAILING_BYTES: Final = int(DecodeStatus.TRAILING_BYTES)
_TIMESTAMP_OVERFLOW: Final = int(DecodeStatus.TIMESTAMP_OVERFLOW)
_HEADERS_TOO_LARGE: Final = int(DecodeStatus.HEADERS_TOO_LARGE)
_TOO_MANY_HEADERS: Final = int(DecodeStatus.TOO_MANY_HEADERS)


@kernel_part
def _measure_headers(position: int, end: int, count: int) -> tuple[int, int, int, int]:
    """Check a record's headers; return a status, their end, and the bytes of keys and values."""
    key_bytes, value_bytes = 0, 0
    for _ in range(count):
        length, position = read_varint(position, end, _INT_BITS)
        if position == 0:
            return _BAD_VARINT, 0, 0, 0
        if length < 0:
            return _NULL_HEADER_KEY, 0, 0, 0
        if length > end - position:
            return _BAD_FIELD_LENGTH, 0, 0, 0
        # Each malformed byte may be replaced by three.
        key_bytes += length if is_ascii(position, length) else length * _REPLACEMENT_BYTES
        position += length
        length, position = read_varint(position, end, _INT_BITS)
        if position == 0:
            return _BAD_VARINT, 0, 0, 0
        if length > end - position:
            return _BAD_FIELD_LENGTH, 0, 0, 0
        if length > 0:
            value_bytes += length
            position += length
    return _DONE, position, key_bytes, value_bytes


@kernel_part
def _set_bit(bits: int, index: int, value: int) -> None:
    """Write a bit of a bitmap whose later bits are not written yet."""
    address = bits + (index >> 3)
    before = load_byte(address) if index & 7 else 0
    store_uint8(address, before | value << (index & 7))


@kernel_part
def _append_headers(task: Any, position: int, end: int, count: int, source_end: int) -> None:
    """Write the headers of the current row; they and the room for them have been checked."""
    row, used = task.rows, task.headers_used
    _set_bit(task.header_validity, row, count > 0)
    if count == 0:
        task.headerless += 1
    key_used, value_used = task.header_key_used, task.header_value_used
    for index in range(used, used + count):
        length, position = read_varint(position, end, _INT_BITS)
        target = task.header_key_data + key_used
        if is_ascii(position, length):
            copy_short(target, position, length, source_end)
            key_used += length
        else:
            key_used = write_utf8(target, position, length) - task.header_key_data
        position += length
        store_int32(task.header_key_offsets + 4 * index + 4, key_used)
        length, position = read_varint(position, end, _INT_BITS)
        _set_bit(task.header_value_validity, index, length >= 0)
        if length < 0:
            task.header_value_nulls += 1
        else:
            copy_short(task.header_value_data + value_used, position, length, source_end)
            value_used += length
            position += length
        store_int32(task.header_value_offsets + 4 * index + 4, value_used)
    task.headers_used = used + count
    task.header_key_used, task.header_value_used = key_used, value_used
    store_int32(task.header_offsets + 4 * row + 4, used + count)


@kernel_part
def decode_records(task: Any) -> int:  # noqa: C901, PLR0912, PLR0915  one loop, where each call costs
    """Append the records of the prepared batch; return DONE after the last one."""
    # Locals, since the compiler has to assume that writing a row may change the task.
    record, records_end, last_delta = task.records, task.records_end, task.last_delta
    record_count, last_offset_delta = task.record_count, task.last_offset_delta
    base_offset, base_timestamp = task.base_offset, task.base_timestamp
    start, end = task.start, task.end
    is_control = task.attributes & CONTROL_FLAG != 0
    log_append_time = task.attributes & LOG_APPEND_TIME_FLAG != 0
    offsets, timestamps, header_offsets = task.offsets, task.timestamps, task.header_offsets
    timestamp_factor = task.timestamp_factor
    key_offsets, key_data, key_validity = task.key_offsets, task.key_data, task.key_validity
    value_offsets, value_data = task.value_offsets, task.value_data
    value_validity = task.value_validity
    key_used, value_used, rows, bytes_used = task.key_used, task.value_used, task.rows, task.bytes
    key_nulls, value_nulls = task.key_nulls, task.value_nulls
    key_capacity, value_capacity = task.key_capacity, task.value_capacity
    max_rows, max_bytes = task.max_rows, task.max_bytes
    status = _DONE
    done = task.records_done
    while done < record_count:
        length, position = read_varint(record, records_end, _INT_BITS)
        if position == 0:
            status = _BAD_VARINT
            break
        if length < 0 or length > records_end - position:
            status = _BAD_RECORD_LENGTH
            break
        record_end = position + length
        # The first byte has attributes, none of which is used.
        timestamp_delta, position = read_varint(position + 1, record_end, _LONG_BITS)
        if position == 0:
            status = _BAD_VARINT
            break
        delta, position = read_varint(position, record_end, _INT_BITS)
        if position == 0:
            status = _BAD_VARINT
            break
        if not last_delta < delta <= last_offset_delta:
            status = _BAD_OFFSET_DELTA
            break
        key_length, key = read_varint(position, record_end, _INT_BITS)
        if key == 0:
            status = _BAD_VARINT
            break
        if key_length > record_end - key:
            status = _BAD_FIELD_LENGTH
            break
        key_bytes = max(key_length, 0)
        value_length, value = read_varint(key + key_bytes, record_end, _INT_BITS)
        if value == 0:
            status = _BAD_VARINT
            break
        if value_length > record_end - value:
            status = _BAD_FIELD_LENGTH
            break
        value_bytes = max(value_length, 0)
        header_count, headers = read_varint(value + value_bytes, record_end, _INT_BITS)
        if headers == 0:
            status = _BAD_VARINT
            break
        if not 0 <= header_count <= record_end - headers:
            status = _BAD_HEADER_COUNT
            break
        position = headers
        header_key_bytes, header_value_bytes = 0, 0
        if header_count > 0:
            status, position, header_key_bytes, header_value_bytes = _measure_headers(
                headers, record_end, header_count
            )
            if status != _DONE:
                break
        if position != record_end:
            status = _TRAILING_FIELD_BYTES
            break

        offset = base_offset + delta
        if is_control:
            if done == 0 and task.marked_producer >= 0:
                status = end_transaction(task, key, key_length)
                if status != _DONE:
                    break
        elif start <= offset < end:
            millis = task.max_timestamp if log_append_time else base_timestamp + timestamp_delta
            if timestamps:
                overflows = (
                    not log_append_time
                    and ((base_timestamp ^ millis) & (timestamp_delta ^ millis)) < 0
                )
                if timestamp_factor > 1:
                    overflows |= not -_MAX_MILLIS <= millis <= _MAX_MILLIS
                if overflows:
                    last_delta = delta - 1
                    status = _TIMESTAMP_OVERFLOW
                    break
            row_bytes = 0
            if key_offsets:
                row_bytes += key_bytes
            if value_offsets:
                row_bytes += value_bytes
            if header_offsets:
                row_bytes += header_key_bytes + header_value_bytes + header_count * BYTES_PER_HEADER
                if header_count * BYTES_PER_HEADER > task.max_header_bytes:
                    last_delta = delta - 1
                    status = _TOO_MANY_HEADERS
                    break
                if header_key_bytes > _MAX_INT32:
                    last_delta = delta - 1
                    status = _HEADERS_TOO_LARGE
                    break
            if rows > 0 and (rows >= max_rows or bytes_used + row_bytes > max_bytes):
                status = _FULL
                break
            if (
                (key_offsets and key_used + key_bytes > key_capacity)
                or (value_offsets and value_used + value_bytes > value_capacity)
                or (
                    header_offsets
                    and (
                        task.headers_used + header_count > task.headers_capacity
                        or task.header_key_used + header_key_bytes > task.header_key_capacity
                        or task.header_value_used + header_value_bytes > task.header_value_capacity
                    )
                )
            ):
                task.key_needed = key_used + key_bytes
                task.value_needed = value_used + value_bytes
                task.headers_needed = task.headers_used + header_count
                task.header_key_needed = task.header_key_used + header_key_bytes
                task.header_value_needed = task.header_value_used + header_value_bytes
                status = _GROW
                break

            if key_offsets:
                copy_short(key_data + key_used, key, key_bytes, records_end)
                key_used += key_bytes
                store_int32(key_offsets + 4 * rows + 4, key_used)
                _set_bit(key_validity, rows, key_length >= 0)
                key_nulls += key_length < 0
            if value_offsets:
                copy_short(value_data + value_used, value, value_bytes, records_end)
                value_used += value_bytes
                store_int32(value_offsets + 4 * rows + 4, value_used)
                _set_bit(value_validity, rows, value_length >= 0)
                value_nulls += value_length < 0
            if offsets:
                store_int64(offsets + 8 * rows, offset)
            if timestamps:
                store_int64(timestamps + 8 * rows, millis * timestamp_factor)
            if header_offsets:
                task.rows = rows
                _append_headers(task, headers, record_end, header_count, records_end)
            rows += 1
            bytes_used += row_bytes
        last_delta = delta
        record = record_end
        done += 1
    if status == _DONE and record != records_end:
        status = _TRAILING_BYTES
    task.records, task.records_done, task.last_delta = record, done, last_delta
    task.rows, task.bytes = rows, bytes_used
    task.key_used, task.key_nulls = key_used, key_nulls
    task.value_used, task.value_nulls = value_used, value_nulls
    return status
