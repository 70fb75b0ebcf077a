"""The compiled loop that decodes Avro payloads into Arrow buffers by a plan.

It does what `interpreter` does, many rows at once. It returns when it has decoded all rows; when a
buffer is full, and goes on in the middle of the row when it is called again with a larger one; or
when a row does not fit into what is left of the output, and then nothing of that row is in the
columns. A malformed payload becomes null, and where it was found to be malformed is written down.

Nothing in a payload is trusted: all that is read is checked against the payload's end, and all that
is written against a capacity. A list costs at least one byte of the payload or of the output for
each item.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.formats.avro.plan import DAY, MOST_EMPTY_ITEMS, WIDTH, Op, Wire
from spark_kafka_sink.formats.avro.problems import Problem
from spark_kafka_sink.formats.columnar.output_kernel import (
    NOT_BEGUN,
    TASK_FIELDS,
    Slot,
    Status,
    append_null,
    forget_counters,
    keep_counters,
    next_null,
)
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


class Failure(IntEnum):
    """The numbers, 32 bits each, that say where and why a payload was found to be malformed."""

    #: The operation plus one; 0 if the payload is not malformed.
    OPERATION = 0
    #: A `Problem`.
    PROBLEM = 1
    #: What its text needs besides, in 64 bits.
    DETAIL = 2


#: The numbers of a failure.
FAILURE_NUMBERS: Final = 4

#: What a call is about.
TASK_DTYPE: Final = np.dtype(
    [
        *TASK_FIELDS,
        # Of the plan.
        ("null_operation", np.int64),
        ("constants", np.int64),
        ("constants_end", np.int64),
        # The state of the row.
        ("position", np.int64),
        ("end", np.int64),
        ("data_end", np.int64),
        ("row_position", np.int64),
        ("row_end", np.int64),
        ("row_data_end", np.int64),
        ("depth", np.int64),
        ("empty_items", np.int64),
    ]
)

# As plain integers, which compile to constants.
_DONE, _MALFORMED, _GROW, _GROW_BYTES, _FULL = map(int, Status)
_SHAPE, _DATA, _VALIDITY, _OFFSETS, _CAPACITY = map(int, list(Slot)[:5])
_BYTES_CAPACITY, _COUNT, _BYTES = map(int, list(Slot)[5:8])
_COST: Final = int(Slot.COST)
_FAILURE_OPERATION, _FAILURE_PROBLEM, _FAILURE_DETAIL = (4 * int(part) for part in Failure)
_FAILURE_BYTES: Final = 4 * FAILURE_NUMBERS
(
    _NOTHING,
    _BYTES_LEFT,
    _NO_BRANCH,
    _PLANNED,
    _TOO_LONG,
    _TOO_MANY_BITS,
    _NO_TIME,
    _TIMESTAMP_RANGE,
    _NOT_UTF8,
    _EMPTY_DECIMAL,
    _TOO_MANY_DIGITS,
    _NO_SYMBOL,
    _LOST_SYMBOL,
    _NO_BOOLEAN,
    _LONG_BLOCK,
    _UNCOUNTABLE_BLOCK,
    _TOO_MANY_ITEMS,
    _TOO_MANY_EMPTY_ITEMS,
    _TOO_SHORT,
) = map(int, Problem)
#: The most bytes of a number.
_INT_BYTES, _LONG_BYTES = 5, 10
_NOT_BEGUN: Final = NOT_BEGUN
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
def _block(position: int, end: int, slot: int) -> tuple[int, int]:
    """Read the header of a block of items; return their number and the address behind.

    Where the list is skipped and has no slot, blocks that have a size are skipped at once.
    """
    count, position = read_varint(position, end, _LONG_BITS)
    while count < 0 and position:
        size, position = read_varint(position, end, _LONG_BITS)
        if position == 0 or size < 0 or size > end - position or count < -_MAX_INT64:
            return 0, 0
        if slot >= 0:
            return -count, position
        count, position = read_varint(position + size, end, _LONG_BITS)
    return count, position


@kernel_part
def _items(
    position: int, end: int, slot: int, takes_bytes: int, empty_items: int
) -> tuple[int, int, int]:
    """Read the header of a block whose items are read; return as well the items without bytes.

    The address is 0 if there are more items than there can be.
    """
    count, position = _block(position, end, slot)
    if takes_bytes:
        if count > end - position:
            position = 0
    elif count > _MOST_EMPTY_ITEMS - empty_items:
        position = 0
    else:
        empty_items += count
    return count, position, empty_items


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
    count, position = _block(position, end, -1)
    while count and position:
        count, position = _block(position, end, -1)
    return position


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
        elif op == _FLOAT64 and factor:
            store_as_float64(target, number)
        elif op == _FLOAT64:
            store_as_float32(target, number)
            widen_float(target, target)
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
def _decode_row(  # noqa: C901, PLR0912, PLR0915  the loop over operations
    task: Any, program: Any, slots: Any, lists: Any
) -> int:
    """Append the current row, or go on with it, and return a status."""
    constants, constants_end = task.constants, task.constants_end
    if task.operation != _NOT_BEGUN:
        operation, room = task.operation, task.row_room
        position, end, data_end = task.position, task.end, task.data_end
        row_position, row_end = task.row_position, task.row_end
        row_data_end = task.row_data_end
        depth, empty_items = task.depth, task.empty_items
    else:
        operation, room = 0, task.room
        position = end = task.data
        data_end = task.data + load_int32(task.offsets + 4 * task.rows)
        if load_byte(task.nulls + task.row):
            operation = task.null_operation
        else:
            position = task.data + load_int32(task.offsets + 4 * task.row) + task.skipped
            end = task.data + load_int32(task.offsets + 4 * task.row + 4)
            if position > end:
                return _MALFORMED  # Before any operation.
        row_position, row_end, row_data_end = position, end, data_end
        depth, empty_items = 0, 0
    start = position
    while True:
        start = position
        base = operation * _WIDTH
        op, slot, second, third = (
            program[base],
            program[base + 1],
            program[base + 2],
            program[base + 3],
        )
        operation += 1
        if op == _NULL:
            null = slot
            while null < second and slots[null, _COUNT] < slots[null, _CAPACITY]:
                null = next_null(slots, null)
            if null < second:
                task.slot, task.needed = null, slots[null, _COUNT] + 1
                status = _GROW
                break
            null = slot
            while null < second:
                append_null(slots, null)
                room -= slots[null, _COST]
                null = next_null(slots, null)
        elif op <= _OP_STRUCT and op != _END:
            count = slots[slot, _COUNT]
            if count >= slots[slot, _CAPACITY]:
                task.slot, task.needed = slot, count + 1
                status = _GROW
                break
            if _INT32 <= op <= _FLOAT64:
                position = _number(slots, slot, op, second, third, position, end)
                if position == 0:
                    status = _MALFORMED
                    break
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
                        status = _MALFORMED
                        break
                    size = program[(second + index) * _WIDTH + 1]
                    if size < 0:
                        status = _MALFORMED
                        break
                    source = constants + program[(second + index) * _WIDTH]
                    source_end = constants_end
                if op != _OP_SYMBOL:
                    if position == 0 or size < 0 or size > end - position:
                        status = _MALFORMED
                        break
                    position += size
                    is_text = op == _OP_BYTES and second != 0
                    if is_text and not is_ascii(source, size) and not is_utf8(source, size):
                        status = _MALFORMED
                        break
                used = slots[slot, _BYTES]
                if size > slots[slot, _BYTES_CAPACITY] - used:
                    task.slot, task.needed = slot, used + size
                    status = _GROW_BYTES
                    break
                copy_short(slots[slot, _DATA] + used, source, size, source_end)
                slots[slot, _BYTES] = used + size
                store_int32(slots[slot, _OFFSETS] + 4 * count + 4, used + size)
                room -= size
            elif op == _BOOLEAN:
                if position >= end or load_byte(position) > 1:
                    status = _MALFORMED
                    break
                store_uint8(slots[slot, _DATA] + count, load_byte(position))
                position += 1
            elif op == _DECIMAL:
                size = second
                if size < 0:
                    size, position = read_varint(position, end, _LONG_BITS)
                if position == 0 or size <= 0 or size > end - position:
                    status = _MALFORMED
                    break
                target = slots[slot, _DATA] + _DECIMAL_BYTES * count
                if not _decimal(target, position, size, constants + third):
                    status = _MALFORMED
                    break
                position += size
            if slots[slot, _VALIDITY]:
                store_uint8(slots[slot, _VALIDITY] + count, 1)
            slots[slot, _COUNT] = count + 1
            room -= slots[slot, _COST]
        elif op == _BRANCH:
            branch, position = read_varint(position, end, _INT_BITS)
            if position == 0 or branch < 0 or branch >= second:
                status = _MALFORMED
                break
            operation = program[(slot + branch) * _WIDTH]
        elif op == _GO:
            operation = slot
        elif op == _SKIP:
            position = _skip(position, end, slot, second)
            if position == 0:
                status = _MALFORMED
                break
        elif op == _ITEMS:
            left, position, empty_items = _items(position, end, slot, third, empty_items)
            if position == 0:
                status = _MALFORMED
                break
            lists[depth, 0] = left
            lists[depth, 1] = third
            depth += 1
            if left == 0:
                operation = second
        elif op == _ITEMS_END:
            # A list without items comes here at once.
            left = lists[depth - 1, 0]
            if left > 1:
                lists[depth - 1, 0] = left - 1
                operation = second
                continue
            # Before anything is read, so that the operation can be repeated.
            if slot >= 0 and slots[slot, _COUNT] >= slots[slot, _CAPACITY]:
                task.slot, task.needed = slot, slots[slot, _COUNT] + 1
                status = _GROW
                break
            if left == 1:
                third = lists[depth - 1, 1]
                left, position, empty_items = _items(position, end, slot, third, empty_items)
                if position == 0:
                    status = _MALFORMED
                    break
                if left > 0:
                    lists[depth - 1, 0] = left
                    operation = second
                    continue
            depth -= 1
            if slot >= 0:
                count = slots[slot, _COUNT]
                store_int32(slots[slot, _OFFSETS] + 4 * count + 4, slots[slot + 1, _COUNT])
                if slots[slot, _VALIDITY]:
                    store_uint8(slots[slot, _VALIDITY] + count, 1)
                slots[slot, _COUNT] = count + 1
                room -= slots[slot, _COST]
        elif op == _DEFAULT:
            row_position, row_end, row_data_end = position, end, data_end
            position, end, data_end = constants + slot, constants + slot + second, constants_end
        elif op == _DEFAULT_END:
            position, end, data_end = row_position, row_end, row_data_end
        elif op == _END:
            if position == end:
                if room < 0:
                    return _FULL
                task.room = room
                return _DONE
            status = _MALFORMED
            break
        else:
            status = _MALFORMED
            break
    if status == _MALFORMED and room < 0:
        # What comes first in a row counts, whatever the buffers had room for.
        return _FULL
    task.operation = operation - 1
    task.position, task.end, task.data_end = start, end, data_end
    task.row_position, task.row_end, task.row_data_end = row_position, row_end, row_data_end
    task.depth, task.empty_items, task.row_room = depth, empty_items, room
    return status


@kernel_part
def _why_no_number(position: int, end: int, most_bytes: int) -> tuple[int, int]:
    for at in range(position, position + most_bytes):
        if at >= end:
            return _TOO_LONG, 1
        if load_byte(at) < 0x80:  # noqa: PLR2004
            break
    return _TOO_MANY_BITS, 0


@kernel_part
def _why_no_bytes(position: int, end: int, other: int) -> tuple[int, int]:
    """Return what is wrong with bytes behind their length: `other` if they are there."""
    size, behind = read_varint(position, end, _LONG_BITS)
    if behind == 0:
        return _why_no_number(position, end, _LONG_BYTES)
    return (other, 0) if 0 <= size <= end - behind else (_TOO_LONG, size)


@kernel_part
def _why_no_symbol(position: int, end: int, symbols: int) -> tuple[int, int]:
    index, behind = read_varint(position, end, _INT_BITS)
    if behind == 0:
        return _why_no_number(position, end, _INT_BYTES)
    return (_LOST_SYMBOL, 0) if 0 <= index < symbols else (_NO_SYMBOL, index)


@kernel_part
def _why_no_boolean(position: int, end: int) -> tuple[int, int]:
    if position >= end:
        return _TOO_LONG, 1
    return _NO_BOOLEAN, load_byte(position)


@kernel_part
def _why_not_read(position: int, end: int, wire: int) -> tuple[int, int]:
    """Return what is wrong with a number, whatever it is read as; else nothing, and the number."""
    if wire in (_WIRE_INT, _WIRE_LONG):
        bits, most_bytes = _LONG_BITS, _LONG_BYTES
        if wire == _WIRE_INT:
            bits, most_bytes = _INT_BITS, _INT_BYTES
        number, behind = read_varint(position, end, bits)
        return (_NOTHING, number) if behind else _why_no_number(position, end, most_bytes)
    size = 4 if wire == _WIRE_FLOAT else 8
    return (_TOO_LONG, size) if size > end - position else (_NOTHING, 0)


@kernel_part
def _why_no_count(position: int, end: int, slot: int) -> tuple[int, int]:
    """Return what is wrong with the header of a block as `_block` reads it, if anything is."""
    while True:
        count, behind = read_varint(position, end, _LONG_BITS)
        if behind == 0:
            return _why_no_number(position, end, _LONG_BYTES)
        if count >= 0:
            return _NOTHING, 0
        position = behind
        size, behind = read_varint(position, end, _LONG_BITS)
        if behind == 0:
            return _why_no_number(position, end, _LONG_BYTES)
        if size < 0 or size > end - behind:
            return _LONG_BLOCK, size
        if count < -_MAX_INT64:
            return _UNCOUNTABLE_BLOCK, 0
        if slot >= 0:
            return _NOTHING, 0
        position = behind + size


@kernel_part
def _why_no_items(
    position: int, end: int, slot: int, takes_bytes: int, empty_items: int
) -> tuple[int, int]:
    """Return what is wrong with the header of a block whose items are read."""
    problem, detail = _why_no_count(position, end, slot)
    if problem != _NOTHING:
        return problem, detail
    count, position = _block(position, end, slot)
    if takes_bytes:
        return (_TOO_MANY_ITEMS if count > end - position else _NOTHING), count
    return (_TOO_MANY_EMPTY_ITEMS if count > _MOST_EMPTY_ITEMS - empty_items else _NOTHING), 0


@kernel_part
def _why(  # noqa: C901, PLR0911, PLR0912  one for each operation
    task: Any, program: Any
) -> tuple[int, int]:
    """Return why the operation of a row found it malformed: a problem and its detail.

    It repeats what the operation did, in no hurry.
    """
    if task.operation == _NOT_BEGUN:
        return _TOO_SHORT, 0
    position, end = task.position, task.end
    base = task.operation * _WIDTH
    op, slot, second, third = (
        program[base],
        program[base + 1],
        program[base + 2],
        program[base + 3],
    )
    if op == _END:
        return _BYTES_LEFT, 0
    if op == _FAIL:
        return _PLANNED, 0
    if op == _BOOLEAN:
        return _why_no_boolean(position, end)
    if op == _OP_BYTES:
        return _why_no_bytes(position, end, _NOT_UTF8 if second else _NOTHING)
    if op == _OP_FIXED:
        return _TOO_LONG, second
    if op == _OP_SYMBOL:
        return _why_no_symbol(position, end, third)
    if op == _BRANCH:
        branch, behind = read_varint(position, end, _INT_BITS)
        return (_NO_BRANCH, branch) if behind else _why_no_number(position, end, _INT_BYTES)
    if op == _DECIMAL:
        size = second
        if size < 0:
            problem, detail = _why_no_bytes(position, end, _TOO_MANY_DIGITS)
            if problem != _TOO_MANY_DIGITS:
                return problem, detail
            size = read_varint(position, end, _LONG_BITS)[0]
        elif size > end - position:
            return _TOO_LONG, size
        return (_TOO_MANY_DIGITS if size else _EMPTY_DECIMAL), 0
    if op == _ITEMS:
        return _why_no_items(position, end, slot, third, task.empty_items)
    if op == _ITEMS_END:
        takes_bytes = program[(second - 1) * _WIDTH + 3]
        return _why_no_items(position, end, slot, takes_bytes, task.empty_items)
    if op == _SKIP:
        return _why_not_skipped(position, end, slot, second)
    problem, number = _why_not_read(position, end, second)
    if problem == _NOTHING and op == _INT64:
        return (_NO_TIME, number) if third == 0 else (_TIMESTAMP_RANGE, 0)
    return problem, number


@kernel_part
def _why_not_skipped(position: int, end: int, wire: int, size: int) -> tuple[int, int]:
    if wire == _WIRE_BYTES:
        return _why_no_bytes(position, end, _NOTHING)
    if wire == _WIRE_FIXED:
        return _TOO_LONG, size
    if wire == _WIRE_SYMBOL:
        return _why_no_symbol(position, end, size)
    if wire == _WIRE_BOOLEAN:
        return _why_no_boolean(position, end)
    if wire in (_WIRE_INT, _WIRE_LONG, _WIRE_FLOAT, _WIRE_DOUBLE):
        return _why_not_read(position, end, wire)
    problem, detail = _why_no_count(position, end, -1)
    while problem == _NOTHING:
        count, position = _block(position, end, -1)
        if count == 0:
            break
        problem, detail = _why_no_count(position, end, -1)
    return problem, detail


@kernel_part
def _note_failure(task: Any, program: Any) -> None:
    """Write down where and why the current row is malformed, and let it become null."""
    failure = task.failures + _FAILURE_BYTES * task.row
    problem, detail = _why(task, program)
    store_int32(failure + _FAILURE_OPERATION, max(task.operation + 1, 1))
    store_int32(failure + _FAILURE_PROBLEM, problem)
    store_int64(failure + _FAILURE_DETAIL, detail)
    store_uint8(task.nulls + task.row, 1)


@kernel(
    1,
    Items(TASK_DTYPE),
    Items(np.dtype(np.int32)),
    Items(np.dtype(np.int64), 2),
    Items(np.dtype(np.int64), 2),
    Items(np.dtype(np.int32)),
)
def _decode_payloads(table: Any, program: Any, slots: Any, lists: Any, kept: Any) -> int:
    task = table[0]
    while task.row < task.rows:
        if task.operation == _NOT_BEGUN:
            keep_counters(task.slots, kept)
        status = _decode_row(task, program, slots, lists)
        if status in (_GROW, _GROW_BYTES):
            return status
        if status == _MALFORMED:
            _note_failure(task, program)
        task.operation = _NOT_BEGUN
        if status == _DONE:
            task.row += 1
            continue
        forget_counters(slots)
        if status == _FULL:
            return status
    return _DONE


def decode_payloads(
    table: npt.NDArray[np.void],
    program: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    lists: npt.NDArray[np.int64],
    kept: npt.NDArray[np.int32],
) -> Status:
    """Append rows to the buffers of `slots` until Python has to do something.

    `table` has one row of `TASK_DTYPE`, and `lists` has two numbers for each list that a value can
    be in. `kept` has the offsets in `slots`, in bytes, of the counters that are kept before each
    row: those of `kept_counters`. The memory at all addresses must remain allocated. The constants
    end with `COPY_SLACK` bytes, which are read, and belong to none.
    """
    return Status(_decode_payloads(table, program, slots, lists, kept))
