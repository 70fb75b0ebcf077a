"""The compiled loop that decodes Avro payloads into Arrow buffers by a plan.

It does what `interpreter` does, many rows at once, and returns when it has decoded all rows, when
a payload is malformed, or when a buffer is full; then nothing of that row is in the columns, and
it can be called again for the same row or the next one.

Nothing in a payload is trusted: all that is read is checked against the payload's end, and all that
is written against a capacity. A list costs at least one byte of the payload or of the output for
each item.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.formats.avro.plan import DAY, MOST_EMPTY_ITEMS, WIDTH, Op, Wire
from spark_kafka_sink.record.kernel.decode_state import MAX_INT64
from spark_kafka_sink.record.kernel.kernel_support import (
    Items,
    kernel,
    kernel_part,
    load_byte,
    load_int32,
    load_int64,
    move_4_bytes,
    move_8_bytes,
    store_as_float32,
    store_as_float64,
    store_int32,
    store_int64,
    store_uint8,
    widen_float,
)
from spark_kafka_sink.record.kernel.kernel_utf8 import is_ascii, is_utf8
from spark_kafka_sink.record.kernel.kernel_varint import copy_short, read_varint

if TYPE_CHECKING:
    import numpy.typing as npt


class Status(IntEnum):
    """Why the kernel returned."""

    DONE = 0
    MALFORMED = 1
    #: A slot has no room for another item, or for the bytes of a text.
    GROW = 2
    GROW_BYTES = 3


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
    #: `COUNT` and `BYTES` before the current row.
    COUNT_BEFORE = 8
    BYTES_BEFORE = 9


class Shape(IntEnum):
    """What stands for `Slot.SHAPE` where items have no fixed number of bytes."""

    STRUCT = 0
    TEXT = -1
    LIST = -2


#: What a call is about. All of it is set by the caller but `slot`; `row` moves on.
TASK_DTYPE: Final = np.dtype(
    [
        # The addresses of the payloads, of where they begin and end (32 bits each), and of a byte
        # for each, 1 for those that become null.
        ("data", np.int64),
        ("offsets", np.int64),
        ("nulls", np.int64),
        # The bytes at the beginning of each payload that are no part of the value.
        ("skipped", np.int64),
        # The next row, and the number of rows.
        ("row", np.int64),
        ("rows", np.int64),
        # Of the plan.
        ("null_operation", np.int64),
        ("constants", np.int64),
        ("constants_end", np.int64),
        # Which slot must grow.
        ("slot", np.int64),
    ]
)

# As plain integers, which compile to constants.
_DONE, _MALFORMED, _GROW, _GROW_BYTES = map(int, Status)
_STRUCT, _TEXT, _LIST = map(int, Shape)
_SHAPE, _DATA, _VALIDITY, _OFFSETS, _CAPACITY = map(int, list(Slot)[:5])
_BYTES_CAPACITY, _COUNT, _BYTES, _COUNT_BEFORE, _BYTES_BEFORE = map(int, list(Slot)[5:])
(
    _END,
    _BOOLEAN,
    _INT32,
    _INT64,
    _FLOAT32,
    _FLOAT64,
    _OP_BYTES,
    _OP_FIXED,
    _DECIMAL,
    _OP_SYMBOL,
    _NULL,
    _OP_STRUCT,
    _ITEMS,
    _ITEMS_END,
    _SKIP,
    _BRANCH,
    _GO,
    _DEFAULT,
    _DEFAULT_END,
    _FAIL,
) = map(int, Op)
_WIRE_BOOLEAN, _WIRE_INT, _WIRE_LONG = int(Wire.BOOLEAN), int(Wire.INT), int(Wire.LONG)
_WIRE_FLOAT, _WIRE_DOUBLE, _WIRE_BYTES = int(Wire.FLOAT), int(Wire.DOUBLE), int(Wire.BYTES)
_WIRE_FIXED, _WIRE_SYMBOL = int(Wire.FIXED), int(Wire.SYMBOL)
_WIDTH: Final = WIDTH
_INT_BITS: Final = 32
_LONG_BITS: Final = 64
_MAX_INT64: Final = MAX_INT64
_DAY: Final = DAY
_MOST_EMPTY_ITEMS: Final = MOST_EMPTY_ITEMS
_DECIMAL_BYTES: Final = 16


@kernel_part
def _block(position: int, end: int) -> tuple[int, int]:
    """Read the header of a block of items; return their number and the address behind."""
    count, position = read_varint(position, end, _LONG_BITS)
    if count < 0 and position:
        size, position = read_varint(position, end, _LONG_BITS)
        if position == 0 or size < 0 or size > end - position or count < -_MAX_INT64:
            return 0, 0
        count = -count
    return count, position


@kernel_part
def _skip(position: int, end: int, wire: int, size: int) -> int:  # noqa: PLR0911  one for each
    """Return the address behind a value, 0 if it is malformed."""
    if wire == _WIRE_INT:
        return read_varint(position, end, _INT_BITS)[1]
    if wire == _WIRE_LONG:
        return read_varint(position, end, _LONG_BITS)[1]
    if wire == _WIRE_BYTES:
        size, position = read_varint(position, end, _LONG_BITS)
        return position + size if position and 0 <= size <= end - position else 0
    if wire == _WIRE_SYMBOL:
        index, position = read_varint(position, end, _INT_BITS)
        return position if position and 0 <= index < size else 0
    if wire == _WIRE_BOOLEAN:
        return position + 1 if position < end and load_byte(position) <= 1 else 0
    if wire in (_WIRE_FLOAT, _WIRE_DOUBLE, _WIRE_FIXED):
        if wire != _WIRE_FIXED:
            size = 4 if wire == _WIRE_FLOAT else 8
        return position + size if size <= end - position else 0
    count, position = _block(position, end)
    while count and position:
        count, position = _block(position, end)
    return position


@kernel_part
def _append_null(slots: Any, slot: int) -> None:
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
def _number(  # noqa: C901, PLR0911, PLR0912, PLR0917  by position, as kernels get arguments
    slots: Any, slot: int, op: int, wire: int, factor: int, position: int, end: int
) -> int:
    """Append a number; return the address behind it, 0 if it is malformed."""
    target = slots[slot, _DATA] + slots[slot, _SHAPE] * slots[slot, _COUNT]
    if wire in (_WIRE_INT, _WIRE_LONG):
        bits = _INT_BITS if wire == _WIRE_INT else _LONG_BITS
        number, position = read_varint(position, end, bits)
        if op == _INT64:
            if factor == 0:
                if not 0 <= number < _DAY:
                    return 0
            elif factor != 1:
                limit = _MAX_INT64 // factor
                if number > limit or number < -limit:
                    return 0
                number *= factor
            store_int64(target, number)
        elif op == _INT32:
            store_int32(target, number)
        elif op == _FLOAT64:
            store_as_float64(target, number)
        else:
            store_as_float32(target, number)
        return position
    if wire == _WIRE_DOUBLE:
        if end - position < 8:  # noqa: PLR2004
            return 0
        move_8_bytes(target, position)
        return position + 8
    if end - position < 4:  # noqa: PLR2004
        return 0
    if op == _FLOAT64:
        widen_float(target, position)
    else:
        move_4_bytes(target, position)
    return position + 4


@kernel_part
def _decimal(target: int, source: int, size: int, limit: int) -> bool:
    """Write a big-endian number as one of 128 bits; return whether it is below a limit."""
    sign = 0
    if size and load_byte(source) & 0x80:
        sign = 0xFF
    while size > _DECIMAL_BYTES:
        if load_byte(source) != sign:
            return False
        source += 1
        size -= 1
    if size == _DECIMAL_BYTES and (load_byte(source) & 0x80) != (sign & 0x80):
        return False
    for index in range(_DECIMAL_BYTES):
        store_uint8(target + index, load_byte(source + size - 1 - index) if index < size else sign)
    # Its absolute value below the limit, word by word; -2^127 is none that is.
    low, high = load_int64(target), load_int64(target + 8)
    if sign:
        low = -low
        high = ~high if low else -high
        if high < 0:
            return False
    limit_low, limit_high = load_int64(limit), load_int64(limit + 8)
    if high != limit_high:
        return high < limit_high
    # As unsigned numbers.
    return (low ^ -_MAX_INT64 - 1) < (limit_low ^ -_MAX_INT64 - 1)


@kernel_part
def _decode_row(  # noqa: C901, PLR0911, PLR0912, PLR0915  the loop over operations
    task: Any, program: Any, slots: Any, lists: Any, operation: int
) -> int:
    """Append the current row, and return a status."""
    constants, constants_end = task.constants, task.constants_end
    position = end = task.data
    data_end = task.data + load_int32(task.offsets + 4 * task.rows)
    if operation == 0:
        position = task.data + load_int32(task.offsets + 4 * task.row) + task.skipped
        end = task.data + load_int32(task.offsets + 4 * task.row + 4)
    if position > end:
        return _MALFORMED
    row_position, row_end, row_data_end = position, end, data_end
    depth = 0
    empty_items = 0
    while True:
        base = operation * _WIDTH
        op, slot, second, third = (
            program[base],
            program[base + 1],
            program[base + 2],
            program[base + 3],
        )
        operation += 1
        if op <= _OP_STRUCT and op != _END:
            count = slots[slot, _COUNT]
            if count >= slots[slot, _CAPACITY]:
                task.slot = slot
                return _GROW
            if op == _NULL:
                _append_null(slots, slot)
                continue
            if _INT32 <= op <= _FLOAT64:
                position = _number(slots, slot, op, second, third, position, end)
                if position == 0:
                    return _MALFORMED
            elif op in (_OP_BYTES, _OP_FIXED, _OP_SYMBOL):
                source, source_end = position, data_end
                if op == _OP_FIXED:
                    size = second
                elif op == _OP_BYTES:
                    size, position = read_varint(position, end, _LONG_BITS)
                    source = position
                else:
                    index, position = read_varint(position, end, _INT_BITS)
                    if position == 0 or index < 0 or index >= third:
                        return _MALFORMED
                    size = program[(second + index) * _WIDTH + 1]
                    if size < 0:
                        return _MALFORMED
                    source = constants + program[(second + index) * _WIDTH]
                    source_end = constants_end
                if op != _OP_SYMBOL:
                    if position == 0 or size < 0 or size > end - position:
                        return _MALFORMED
                    position += size
                    is_text = op == _OP_BYTES and second != 0
                    if is_text and not is_ascii(source, size) and not is_utf8(source, size):
                        return _MALFORMED
                used = slots[slot, _BYTES]
                if size > slots[slot, _BYTES_CAPACITY] - used:
                    task.slot = slot
                    return _GROW_BYTES
                copy_short(slots[slot, _DATA] + used, source, size, source_end)
                slots[slot, _BYTES] = used + size
                store_int32(slots[slot, _OFFSETS] + 4 * count + 4, used + size)
            elif op == _BOOLEAN:
                if position >= end:
                    return _MALFORMED
                byte = load_byte(position)
                if byte > 1:
                    return _MALFORMED
                store_uint8(slots[slot, _DATA] + count, byte)
                position += 1
            elif op == _DECIMAL:
                size = second
                if size < 0:
                    size, position = read_varint(position, end, _LONG_BITS)
                if position == 0 or size < 0 or size > end - position:
                    return _MALFORMED
                target = slots[slot, _DATA] + _DECIMAL_BYTES * count
                if not _decimal(target, position, size, constants + third):
                    return _MALFORMED
                position += size
            if slots[slot, _VALIDITY]:
                store_uint8(slots[slot, _VALIDITY] + count, 1)
            slots[slot, _COUNT] = count + 1
        elif op == _BRANCH:
            branch, position = read_varint(position, end, _INT_BITS)
            if position == 0 or branch < 0 or branch >= second:
                return _MALFORMED
            operation = program[(slot + branch) * _WIDTH]
        elif op == _GO:
            operation = slot
        elif op == _SKIP:
            position = _skip(position, end, slot, second)
            if position == 0:
                return _MALFORMED
        elif op == _ITEMS:
            left, position = _block(position, end)
            if position == 0 or (third and left > end - position):
                return _MALFORMED
            if not third:
                if left > _MOST_EMPTY_ITEMS - empty_items:
                    return _MALFORMED
                empty_items += left
            lists[depth, 0] = left
            lists[depth, 1] = third
            depth += 1
            if left == 0:
                operation = second
        elif op == _ITEMS_END:
            # A list without items comes here at once.
            left = lists[depth - 1, 0]
            if left > 0:
                left -= 1
                if left == 0:
                    third = lists[depth - 1, 1]
                    left, position = _block(position, end)
                    if position == 0 or (third and left > end - position):
                        return _MALFORMED
                    if not third:
                        if left > _MOST_EMPTY_ITEMS - empty_items:
                            return _MALFORMED
                        empty_items += left
            if left > 0:
                lists[depth - 1, 0] = left
                operation = second
                continue
            depth -= 1
            if slot >= 0:
                count = slots[slot, _COUNT]
                if count >= slots[slot, _CAPACITY]:
                    task.slot = slot
                    return _GROW
                store_int32(slots[slot, _OFFSETS] + 4 * count + 4, slots[slot + 1, _COUNT])
                if slots[slot, _VALIDITY]:
                    store_uint8(slots[slot, _VALIDITY] + count, 1)
                slots[slot, _COUNT] = count + 1
        elif op == _DEFAULT:
            row_position, row_end, row_data_end = position, end, data_end
            position, end, data_end = constants + slot, constants + slot + second, constants_end
        elif op == _DEFAULT_END:
            position, end, data_end = row_position, row_end, row_data_end
        elif op == _END:
            return _DONE if position == end else _MALFORMED
        else:
            return _MALFORMED


@kernel(
    1,
    Items(TASK_DTYPE),
    Items(np.dtype(np.int32)),
    Items(np.dtype(np.int64), 2),
    Items(np.dtype(np.int64), 2),
)
def _decode_payloads(table: Any, program: Any, slots: Any, lists: Any) -> int:
    task = table[0]
    while task.row < task.rows:
        for slot in range(slots.shape[0]):
            slots[slot, _COUNT_BEFORE] = slots[slot, _COUNT]
            slots[slot, _BYTES_BEFORE] = slots[slot, _BYTES]
        operation = task.null_operation if load_byte(task.nulls + task.row) else 0
        status = _decode_row(task, program, slots, lists, operation)
        if status != _DONE:
            for slot in range(slots.shape[0]):
                slots[slot, _COUNT] = slots[slot, _COUNT_BEFORE]
                slots[slot, _BYTES] = slots[slot, _BYTES_BEFORE]
            return status
        task.row += 1
    return _DONE


def decode_payloads(
    table: npt.NDArray[np.void],
    program: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    lists: npt.NDArray[np.int64],
) -> Status:
    """Append rows to the buffers of `slots` until Python has to do something.

    `table` has one row of `TASK_DTYPE`, and `lists` has two numbers for each
    list that a value can be in. The
    memory at all addresses must remain allocated.
    """
    return Status(_decode_payloads(table, program, slots, lists))
