"""The compiled loop that encodes rows of Arrow buffers as Avro payloads by a plan.

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

from spark_kafka_sink.formats.avro.encode_plan import EncodeOp
from spark_kafka_sink.formats.avro.plan import WIDTH
from spark_kafka_sink.formats.columnar.source_kernel import (
    ENCODE_TASK_FIELDS,
    FAILURE_BYTES,
    SourceSlot,
    is_null,
    item_range,
    note_failure,
)
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    kernel,
    kernel_part,
    load_byte,
    load_int32,
    load_int64,
    move_4_bytes,
    move_8_bytes,
    significant_bits,
    store_int32,
    store_int64,
    store_uint8,
)
from spark_kafka_sink.record.kernel.kernel_utf8 import is_ascii, is_utf8
from spark_kafka_sink.record.kernel.kernel_varint import copy_short, write_varint

if TYPE_CHECKING:
    import numpy.typing as npt


class EncodeStatus(IntEnum):
    """Why the kernel returned."""

    DONE = 0
    #: The output needs room for so many more bytes.
    GROW = 1
    #: What is wrong with the value of a column.
    NULL = 2
    NOT_UTF8 = 3
    WRONG_SIZE = 4
    UNKNOWN_SYMBOL = 5
    TOO_MANY_DIGITS = 6
    OUT_OF_RANGE = 7
    NO_MEMBER = 8
    BAD_OFFSETS = 9


#: What a call is about.
ENCODE_TASK_DTYPE: Final = np.dtype(ENCODE_TASK_FIELDS)

# As plain integers, which compile to constants.
_DONE, _GROW, _NULL, _NOT_UTF8, _WRONG_SIZE = map(int, list(EncodeStatus)[:5])
_UNKNOWN_SYMBOL, _TOO_MANY_DIGITS, _OUT_OF_RANGE = map(int, list(EncodeStatus)[5:8])
_NO_MEMBER, _BAD_OFFSETS = map(int, list(EncodeStatus)[8:])
# As offsets in bytes.
_BIT, _DATA, _DATA_SIZE = (8 * int(number) for number in list(SourceSlot)[1:4])
_BASE, _COUNT = (8 * int(number) for number in list(SourceSlot)[6:8])
_SLOT_BYTES: Final = 8 * len(SourceSlot)
_OPERATION_BYTES: Final = 4 * WIDTH
_LIST_BYTES: Final = 16
(
    _END,
    _INT32,
    _INT64,
    _FLOAT32,
    _FLOAT64,
    _BOOLEAN,
    _SCALED,
    _TEXT,
    _OP_BYTES,
    _FIXED,
    _DECIMAL,
    _SYMBOL,
    _STRUCT,
    _ITEMS,
    _ITEMS_END,
    _CONSTANT,
    _NULLABLE,
    _MEMBER,
    _OP_NO_MEMBER,
    _GO,
) = map(int, EncodeOp)
_DECIMAL_BYTES: Final = 16
_MIN_INT64: Final = -0x7FFFFFFFFFFFFFFF - 1
#: The bits of a branch in the third number of `NULLABLE`.
_BRANCH_BITS: Final = 15
_BRANCH_MASK: Final = 0x7FFF


@kernel_part
def _is_below(low: int, high: int, limit: int) -> bool:
    """Return whether a number of 128 bits is nearer to zero than the limit at an address."""
    if high < 0:
        low = -low
        high = ~high if low else -high
        if high < 0:
            return False
    limit_low, limit_high = load_int64(limit), load_int64(limit + 8)
    if high != limit_high:
        return high < limit_high
    # As unsigned numbers.
    return (low ^ _MIN_INT64) < (limit_low ^ _MIN_INT64)


@kernel_part
def _decimal_bytes(low: int, high: int) -> int:
    """Return the fewest bytes that a number of 128 bits has as a signed one."""
    if high == low >> 63:
        return (significant_bits(low ^ high) + 8) >> 3
    return (significant_bits(high ^ high >> 63) + 72) >> 3


@kernel_part
def _encode_row(  # noqa: C901, PLR0911, PLR0912, PLR0915  the loop over operations
    task: Any, position: int
) -> int:
    """Write the current row at an address; return the address behind it, or a negative status."""
    program, slots, lists = task.program, task.slots, task.lists
    constants = task.constants
    limit = task.data + task.capacity
    index = task.row
    operation = 0
    while True:
        if position > limit:
            task.detail = 1
            return -_GROW
        line = program + _OPERATION_BYTES * operation
        op, slot = load_int32(line), load_int32(line + 4)
        second, third = load_int32(line + 8), load_int32(line + 12)
        column = slots + _SLOT_BYTES * slot
        operation += 1
        if op <= _ITEMS and op != _END:
            if is_null(column, index):
                task.slot = slot
                return -_NULL
            if op == _INT64:
                number = load_int64(load_int64(column + _DATA) + 8 * index)
                position = write_varint(position, (number << 1) ^ (number >> 63))
            elif op == _INT32:
                number = load_int32(load_int64(column + _DATA) + 4 * index)
                position = write_varint(position, (number << 1) ^ (number >> 63))
            elif op == _FLOAT64:
                move_8_bytes(position, load_int64(column + _DATA) + 8 * index)
                position += 8
            elif op == _FLOAT32:
                move_4_bytes(position, load_int64(column + _DATA) + 4 * index)
                position += 4
            elif op == _BOOLEAN:
                bit = load_int64(column + _BIT) + index
                byte = load_byte(load_int64(column + _DATA) + (bit >> 3))
                store_uint8(position, (byte >> (bit & 7)) & 1)
                position += 1
            elif op in (_TEXT, _OP_BYTES, _FIXED):
                begin, end = item_range(column, index)
                data, data_size = load_int64(column + _DATA), load_int64(column + _DATA_SIZE)
                source = data + begin
                size = end - begin
                if begin < 0 or size < 0 or end > data_size:
                    task.slot = slot
                    return -_BAD_OFFSETS
                if size > limit - position:
                    task.detail = size
                    return -_GROW
                if op == _TEXT:
                    if not is_ascii(source, size) and not is_utf8(source, size):
                        task.slot = slot
                        return -_NOT_UTF8
                elif op == _FIXED and second >= 0 and size != second:
                    task.slot = slot
                    task.detail = size
                    return -_WRONG_SIZE
                if op != _FIXED:
                    position = write_varint(position, size << 1)
                copy_short(position, source, size, data + data_size)
                position += size
            elif op == _SYMBOL:
                number = load_int32(load_int64(column + _DATA) + 4 * index)
                if number < 0:
                    task.slot = slot
                    return -_UNKNOWN_SYMBOL
                position = write_varint(position, number << 1)
            elif op == _SCALED:
                number = load_int64(load_int64(column + _DATA) + 8 * index)
                scale = constants + second
                if number < load_int64(scale) or number > load_int64(scale + 8):
                    task.slot = slot
                    return -_OUT_OF_RANGE
                number *= load_int64(scale + 16)
                divisor = load_int64(scale + 24)
                if divisor > 1:
                    number //= divisor
                position = write_varint(position, (number << 1) ^ (number >> 63))
            elif op == _DECIMAL:
                source = load_int64(column + _DATA) + _DECIMAL_BYTES * index
                low, high = load_int64(source), load_int64(source + 8)
                if not _is_below(low, high, constants + third):
                    task.slot = slot
                    return -_TOO_MANY_DIGITS
                size = second
                if size < 0:
                    size = _decimal_bytes(low, high)
                    if second == -1:
                        store_uint8(position, size << 1)
                        position += 1
                elif size > limit - position:
                    task.detail = size
                    return -_GROW
                sign = high >> 63
                for at in range(size):
                    byte = size - 1 - at
                    store_uint8(
                        position + at,
                        load_byte(source + byte) if byte < _DECIMAL_BYTES else sign & 0xFF,
                    )
                position += size
            elif op == _ITEMS:
                begin, end = item_range(column, index)
                begin -= load_int64(column + _BASE)
                end -= load_int64(column + _BASE)
                if begin < 0 or end < begin or end > load_int64(column + _COUNT):
                    task.slot = slot
                    return -_BAD_OFFSETS
                if begin == end:
                    store_uint8(position, 0)
                    position += 1
                    operation = second
                else:
                    position = write_varint(position, (end - begin) << 1)
                    store_int64(lists, index)
                    store_int64(lists + 8, end)
                    lists += _LIST_BYTES
                    index = begin
        elif op == _NULLABLE:
            branch = third & _BRANCH_MASK
            if is_null(column, index):
                branch = third >> _BRANCH_BITS
                if branch == 0:
                    task.slot = slot
                    return -_NULL
                operation = second
            if branch:
                position = write_varint(position, (branch - 1) << 1)
        elif op == _CONSTANT:
            if second > limit - position:
                task.detail = second
                return -_GROW
            copy_short(position, constants + slot, second, task.constants_end)
            position += second
        elif op == _ITEMS_END:
            index += 1
            if index < load_int64(lists - 8):
                operation = second
            else:
                lists -= _LIST_BYTES
                index = load_int64(lists)
                store_uint8(position, 0)
                position += 1
        elif op == _MEMBER:
            if is_null(column, index):
                operation = second
            else:
                position = write_varint(position, third << 1)
        elif op == _OP_NO_MEMBER:
            if second < 0:
                task.slot = slot
                return -_NO_MEMBER
            position = write_varint(position, second << 1)
        elif op == _GO:
            operation = slot
        else:
            return position


@kernel(1, Items(ENCODE_TASK_DTYPE))
def _encode_rows(table: Any) -> int:
    task = table[0]
    while task.row < task.rows:
        position = task.data + task.used
        if not is_null(task.slots, task.row):
            if task.prefix_size > task.capacity - task.used:
                task.detail = task.prefix_size
                return _GROW
            prefix_end = task.prefix + task.prefix_size
            copy_short(position, task.prefix, task.prefix_size, prefix_end)
            position += task.prefix_size
            position = _encode_row(task, position)
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


def encode_rows(table: npt.NDArray[np.void]) -> EncodeStatus:
    """Append payloads to the output until Python has to do something.

    `table` has one row of `ENCODE_TASK_DTYPE`. The memory at all addresses must remain allocated,
    with `ROOM` bytes behind the capacity of the output.
    """
    return EncodeStatus(_encode_rows(table))
