"""The compiled loop that encodes rows of Arrow buffers as JSON by a plan.

It returns when all rows are encoded, when a value cannot be, or when the output is full; then
nothing of that row is in the output, and it can be called again for the same row. As long as there
is room for failures, it keeps what is wrong with a value, and goes on with the next row.

The addresses, and the numbers of items behind them, must be right. Offsets in the buffers need not
be: they are checked before they are followed. Each operation begins with room for `ROOM` bytes in
the output, and asks for more before it writes more.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.formats.columnar.source_kernel import (
    ENCODE_TASK_FIELDS,
    FAILURE_BYTES,
    SourceSlot,
    is_null,
    item_range,
    note_failure,
)
from spark_kafka_sink.formats.json.encode_plan import WIDTH, EncodeOp
from spark_kafka_sink.formats.json.number_kernel import write_decimal, write_float, write_integer
from spark_kafka_sink.formats.json.text_kernel import (
    HAS_MORE_THAN_ASCII,
    encode_base64,
    write_date,
    write_escaped,
    write_timestamp,
)
from spark_kafka_sink.formats.json.text_kernel import plain_size as _plain_size
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    kernel,
    kernel_part,
    load_byte,
    load_int32,
    load_int64,
    store_int32,
    store_int64,
    store_uint8,
)
from spark_kafka_sink.record.kernel.kernel_utf8 import is_utf8
from spark_kafka_sink.record.kernel.kernel_varint import copy_short

if TYPE_CHECKING:
    import numpy.typing as npt


class EncodeStatus(IntEnum):
    """Why the kernel returned."""

    DONE = 0
    #: The output needs room for so many more bytes.
    GROW = 1
    #: What is wrong with the value of a column.
    NULL_KEY = 2
    NOT_UTF8 = 3
    BAD_OFFSETS = 4


#: What a call is about.
ENCODE_TASK_DTYPE: Final = np.dtype(
    [
        *ENCODE_TASK_FIELDS,
        ("tables", np.int64),
        # int64[rows]: the rows of the columns to encode; 0 for the first ones.
        ("chosen", np.int64),
    ]
)

# As plain integers, which compile to constants.
_DONE, _GROW, _NULL_KEY, _NOT_UTF8, _BAD_OFFSETS = map(int, EncodeStatus)
# As offsets in bytes.
_BIT, _DATA, _DATA_SIZE = (8 * int(number) for number in list(SourceSlot)[1:4])
_BASE, _COUNT = (8 * int(number) for number in list(SourceSlot)[6:8])
_SLOT_BYTES: Final = 8 * len(SourceSlot)
_OPERATION_BYTES: Final = 4 * WIDTH
_LIST_BYTES: Final = 16
(
    _END,
    _OPEN,
    _CLOSE,
    _FIELD,
    _CONSTANT,
    _ITEMS,
    _ITEM,
    _KEY,
    _ITEMS_END,
    _INT32,
    _INT64,
    _BOOLEAN,
    _FLOAT32,
    _FLOAT64,
    _DECIMAL,
    _TEXT,
    _BINARY,
    _DATE,
    _TIMESTAMP,
) = map(int, EncodeOp)
_BRACE, _CLOSE_BRACE, _BRACKET, _CLOSE_BRACKET, _COMMA, _QUOTE = b'{}[],"'
_TRUE: Final = int.from_bytes(b"true", "little")
_FALSE: Final = int.from_bytes(b"false", "little")
_HAS_MORE: Final = HAS_MORE_THAN_ASCII
#: The most bytes that a byte of a text becomes.
_LONGEST: Final = 6


@kernel_part
def _write_text(task: Any, column: int, index: int, position: int, is_binary: bool) -> int:  # noqa: FBT001
    """Write a string; return the address behind it, or a negative status."""
    begin, end = item_range(column, index)
    data, data_size = load_int64(column + _DATA), load_int64(column + _DATA_SIZE)
    source, size = data + begin, end - begin
    if begin < 0 or size < 0 or end > data_size:
        return -_BAD_OFFSETS
    limit = task.data + task.capacity
    needed = (size // 3 + 1) * 4 if is_binary else size
    if needed > limit - position:
        task.detail = needed
        return -_GROW
    store_uint8(position, _QUOTE)
    position += 1
    if is_binary:
        position = encode_base64(position, source, size)
    else:
        plain, found = _plain_size(source, size)
        if found & _HAS_MORE and not is_utf8(source, size):
            return -_NOT_UTF8
        if plain == size:
            copy_short(position, source, size, data + data_size)
            position += size
        else:
            if _LONGEST * size > limit - position:
                task.detail = _LONGEST * size
                return -_GROW
            position = write_escaped(position, source, size)
    store_uint8(position, _QUOTE)
    return position + 1


@kernel_part
def _write_leaf(  # noqa: PLR0911, PLR0917  one for each type; by position, as kernels get arguments
    task: Any, line: int, op: int, column: int, index: int, position: int
) -> int:
    """Write a value without parts; return the address behind it, or a negative status."""
    data = load_int64(column + _DATA)
    if op in (_TEXT, _BINARY):
        return _write_text(task, column, index, position, op == _BINARY)
    if op == _INT64:
        return write_integer(position, load_int64(data + 8 * index))
    if op == _INT32:
        # As a number of 64 bits, whose opposite fits into them.
        return write_integer(position, 0 + load_int32(data + 4 * index))
    if op == _FLOAT64:
        return write_float(position, load_int64(data + 8 * index), 52, task.tables)
    if op == _FLOAT32:
        return write_float(position, load_int32(data + 4 * index), 23, task.tables)
    if op == _BOOLEAN:
        bit = load_int64(column + _BIT) + index
        is_true = (load_byte(data + (bit >> 3)) >> (bit & 7)) & 1
        store_int64(position, _TRUE if is_true else _FALSE)
        return position + (4 if is_true else 5)
    if op == _DECIMAL:
        return write_decimal(position, data + 16 * index, load_int32(line + 8))
    store_uint8(position, _QUOTE)
    if op == _DATE:
        position = write_date(position + 1, load_int32(data + 4 * index))
    else:
        moment = load_int64(data + 8 * index)
        position = write_timestamp(
            position + 1, moment, load_int32(line + 8), load_int32(line + 12)
        )
    store_uint8(position, _QUOTE)
    return position + 1


@kernel_part
def _encode_row(task: Any, index: int, position: int) -> int:  # noqa: C901, PLR0912, PLR0915
    """Write a row at an address; return the address behind it, or a negative status."""
    program, slots, lists = task.program, task.slots, task.lists
    constants, constants_end = task.constants, task.constants_end
    limit = task.data + task.capacity
    operation = 0
    while True:
        if position > limit:
            task.detail = 1
            return -_GROW
        line = program + _OPERATION_BYTES * operation
        op, slot = load_int32(line), load_int32(line + 4)
        column = slots + _SLOT_BYTES * slot
        operation += 1
        if op >= _INT32:
            position = _write_leaf(task, line, op, column, index, position)
            if position < 0:
                task.slot = slot
                return position
        elif op == _FIELD:
            if is_null(column, index):
                operation = load_int32(line + 8)
                continue
            size = load_int32(line + 16)
            if size > limit - position:
                task.detail = size
                return -_GROW
            # Behind the brace of the object, only a field writes anything before this one.
            if load_byte(position - 1) != _BRACE:
                store_uint8(position, _COMMA)
                position += 1
            copy_short(position, constants + load_int32(line + 12), size, constants_end)
            position += size
        elif op == _OPEN:
            store_uint8(position, _BRACE)
            position += 1
        elif op == _CLOSE:
            store_uint8(position, _CLOSE_BRACE)
            position += 1
        elif op == _ITEM:
            if is_null(column, index):
                operation = load_int32(line + 8)
                size = load_int32(line + 16)
                copy_short(position, constants + load_int32(line + 12), size, constants_end)
                position += size
        elif op == _CONSTANT:
            size = load_int32(line + 8)
            copy_short(position, constants + slot, size, constants_end)
            position += size
        elif op == _KEY:
            if is_null(column, index):
                task.slot = slot
                return -_NULL_KEY
        elif op == _ITEMS:
            is_map = load_int32(line + 12)
            begin, end = item_range(column, index)
            begin -= load_int64(column + _BASE)
            end -= load_int64(column + _BASE)
            if begin < 0 or end < begin or end > load_int64(column + _COUNT):
                task.slot = slot
                return -_BAD_OFFSETS
            store_uint8(position, _BRACE if is_map else _BRACKET)
            position += 1
            if begin == end:
                store_uint8(position, _CLOSE_BRACE if is_map else _CLOSE_BRACKET)
                position += 1
                operation = load_int32(line + 8)
            else:
                store_int64(lists, index)
                store_int64(lists + 8, end)
                lists += _LIST_BYTES
                index = begin
        elif op == _ITEMS_END:
            index += 1
            if index < load_int64(lists - 8):
                store_uint8(position, _COMMA)
                operation = load_int32(line + 8)
            else:
                lists -= _LIST_BYTES
                index = load_int64(lists)
                is_map = load_int32(line + 12)
                store_uint8(position, _CLOSE_BRACE if is_map else _CLOSE_BRACKET)
            position += 1
        else:
            return position


@kernel(1, Items(ENCODE_TASK_DTYPE))
def _encode_json(table: Any) -> int:
    task = table[0]
    while task.row < task.rows:
        position = task.data + task.used
        index = load_int64(task.chosen + 8 * task.row) if task.chosen else task.row
        if not is_null(task.slots, index):
            if task.prefix_size > task.capacity - task.used:
                task.detail = task.prefix_size
                return _GROW
            prefix_end = task.prefix + task.prefix_size
            copy_short(position, task.prefix, task.prefix_size, prefix_end)
            position += task.prefix_size
            position = _encode_row(task, index, position)
            if position >= 0:
                task.used = position - task.data
            elif position in (-_GROW, -_BAD_OFFSETS) or task.failed == task.most_failed:
                return -position
            else:
                failure = task.failures + FAILURE_BYTES * task.failed
                note_failure(failure, task.row, -position, task.slot, task.detail)
                task.failed += 1
        store_int32(task.offsets + 4 * task.row + 4, task.used)
        task.row += 1
    return _DONE


def encode_json(table: npt.NDArray[np.void]) -> EncodeStatus:
    """Append payloads to the output until Python has to do something.

    `table` has one row of `ENCODE_TASK_DTYPE`. The memory at all addresses must remain allocated,
    with `ROOM` bytes behind the capacity of the output.
    """
    return EncodeStatus(_encode_json(table))
