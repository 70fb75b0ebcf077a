"""The compiled loop that decodes payloads of JSON into Arrow buffers by a plan.

It does what `interpreter` does, many rows at once, in one pass and without going back. It returns
when it has decoded all rows; when a buffer is full, and goes on with the same value when it is
called again with a larger one; when only Python can round a number; or when a row does not fit into
what is left of the output, and then nothing of that row is in the columns. A malformed payload
becomes null, and where and why it was found to be malformed is written down.

Nothing in a payload is trusted: all that is read is checked against the payload's end, and all that
is written against a capacity.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.formats.columnar.output_kernel import (
    NOT_BEGUN,
    TASK_FIELDS,
    Shape,
    Slot,
    Status,
    append_null,
    forget_counters,
    keep_counters,
    next_null,
)
from spark_kafka_sink.formats.json.number_kernel import (
    HARD,
    NUMBER,
    parse_decimal,
    parse_float,
    read_integer,
    scan_number,
)
from spark_kafka_sink.formats.json.plan import (
    COLUMN_WIDTH,
    FIELD_WIDTH,
    HASH_FACTOR,
    HASH_MASK,
    HASH_START,
    MOST_CHARACTERS,
    MOST_DEPTH,
    JsonOp,
)
from spark_kafka_sink.formats.json.problems import Problem
from spark_kafka_sink.formats.json.text_kernel import (
    HAS_ESCAPES,
    HAS_MORE_THAN_ASCII,
    decode_base64,
    parse_date,
    parse_timestamp,
    scan_string,
    unescape,
)
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

#: What else it returns: a number must be rounded; a name with escapes needs memory.
ROUND: Final = len(Status)
SCRATCH: Final = len(Status) + 1

#: What a call is about.
TASK_DTYPE: Final = np.dtype(
    [
        *TASK_FIELDS,
        # The addresses of the names of fields, and of the tables of numbers.
        ("constants", np.int64),
        ("tables", np.int64),
        # Memory for a name without its escapes.
        ("scratch", np.int64),
        ("scratch_size", np.int64),
        # A number that Python has to round, from here to there: its bits, or that it is too large.
        ("number", np.int64),
        ("number_end", np.int64),
        ("number_bits", np.int64),
        ("number_state", np.int64),
        # The state of the row.
        ("position", np.int64),
        ("value_slot", np.int64),
        ("depth", np.int64),
    ]
)
#: The numbers that are kept of each object or array that a value is in: its slot, or -1 if it is
#: not wanted; whether it is an object; the field that is expected; the fields that were there.
FRAME_WIDTH: Final = 4


class Failure(IntEnum):
    """The numbers, 32 bits each, that say where and why a payload was found to be malformed."""

    #: The slot plus one whose path an error names; 0 if the payload is not malformed.
    PLACE = 0
    #: A `Problem`.
    PROBLEM = 1
    #: The part of the payload that an error shows: where it begins and ends in the data.
    BEGIN = 2
    END = 3


#: What Python has made of a number.
ASKED: Final = 0
ROUNDED: Final = 1
TOO_LARGE: Final = 2

# As plain integers, which compile to constants.
_DONE, _MALFORMED, _GROW, _GROW_BYTES, _FULL = map(int, Status)
_ROUND, _SCRATCH = ROUND, SCRATCH
_STRUCT, _TEXT, _LIST = map(int, Shape)
_SHAPE, _DATA, _VALIDITY, _OFFSETS, _CAPACITY = map(int, list(Slot)[:5])
_BYTES_CAPACITY, _COUNT, _BYTES = map(int, list(Slot)[5:8])
_COST, _SLOT_END = int(Slot.COST), int(Slot.END)
(
    _OP_STRUCT,
    _OP_LIST,
    _OP_MAP,
    _OP_BOOLEAN,
    _OP_INTEGER,
    _OP_FLOAT32,
    _OP_FLOAT64,
    _OP_DECIMAL,
    _OP_TEXT,
    _OP_BINARY,
    _OP_DATE,
    _OP_TIMESTAMP,
) = map(int, JsonOp)
_NOT_BEGUN: Final = NOT_BEGUN
#: Instead of an operation, what is next: a value; the first item of an object or an array, or its
#: end; what follows a value.
_VALUE, _FIRST, _NEXT = 0, 1, 2
_COLUMN, _FIELD = COLUMN_WIDTH, FIELD_WIDTH
_MOST_DEPTH, _MOST_CHARACTERS = MOST_DEPTH, MOST_CHARACTERS
_HASH_START, _HASH_FACTOR, _HASH_MASK = HASH_START, HASH_FACTOR, HASH_MASK
_HAS_ESCAPES, _HAS_MORE = HAS_ESCAPES, HAS_MORE_THAN_ASCII
_NUMBER, _HARD = NUMBER, HARD
_ASKED, _ROUNDED = ASKED, ROUNDED
_FAILURE_PLACE, _FAILURE_PROBLEM, _FAILURE_BEGIN, _FAILURE_END = (4 * int(part) for part in Failure)
_FAILURE_BYTES: Final = 4 * len(Failure)
(
    _NOTHING,
    _TOO_SHORT,
    _NOT_UTF8,
    _NULL,
    _OTHER_TYPE,
    _NO_VALUE,
    _LEFT,
    _NO_COMMA_IN_OBJECT,
    _NO_COMMA_IN_ARRAY,
    _NO_NAME,
    _NO_COLON,
    _BAD_STRING,
    _HALF_PAIR,
    _TOO_DEEP,
    _LONG_NUMBER,
    _NOT_WHOLE,
    _DOES_NOT_FIT,
    _NOT_A_NUMBER,
    _NOT_A_DECIMAL,
    _NOT_BASE64,
    _NOT_A_DATE,
    _NOT_A_TIMESTAMP,
    _OTHER_ZONE,
) = map(int, Problem)
_QUOTE, _OPEN, _CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY, _COMMA, _COLON, _SPACE = b'"{}[],: '
_N, _T, _F, _MINUS, _ZERO, _NINE = b"ntf-09"
_B, _R, _U, _A, _E, _LAST_HEX, _BACKSLASH, _SLASH, _POINT, _PLUS = b"bruaef\\/.+"
#: The words, and the lengths, of `true`, `false` without its first letter, and `null`.
_TRUE: Final = int.from_bytes(b"true", "little")
_FALSE_END: Final = int.from_bytes(b"false"[1:], "little")
_NULL_WORD: Final = int.from_bytes(b"null", "little")
_ALL_BITS: Final = 0xFFFFFFFF
#: What stands for numbers that are not finite, in 64 bits and in 32.
_NAN64, _INF64, _SIGN64 = 0x7FF8 << 48, 0x7FF0 << 48, -(1 << 63)
_NAN32, _INF32, _SIGN32 = 0x7FC00000, 0x7F800000, 1 << 31
_NAN: Final = int.from_bytes(b"NaN", "little")
_INF: Final = int.from_bytes(b"INF", "little")
_INFINITY: Final = int.from_bytes(b"Infinity", "little")


@kernel_part
def _skip_space(position: int, end: int) -> int:
    while position < end:
        byte = load_byte(position)
        if byte > _SPACE or byte not in (_SPACE, 10, 13, 9):
            break
        position += 1
    return position


@kernel_part
def _word(position: int, end: int) -> int:
    """Return the address behind `true`, `false` or `null`, 0 if none of them is here."""
    if end - position < 4:  # noqa: PLR2004
        return 0
    word = load_int32(position) & _ALL_BITS
    if word in (_TRUE, _NULL_WORD):
        return position + 4
    if end - position > 4 and load_byte(position) == _F:  # noqa: PLR2004
        return position + 5 if load_int32(position + 1) & _ALL_BITS == _FALSE_END else 0
    return 0


@kernel_part
def _check_string(position: int, end: int) -> int:
    """Return the address behind a string that begins here, 0 if it is malformed."""
    close, found = scan_string(position, end)
    if close:
        if found & _HAS_ESCAPES and not unescape(0, position, close):
            return 0
        if found & _HAS_MORE and not is_utf8(position, close - position):
            return 0
        return close + 1
    return 0


@kernel_part
def _is_here(position: int, name: int, size: int) -> bool:
    at = 0
    while at < size and load_byte(position + at) == load_byte(name + at):
        at += 1
    return at == size


@kernel_part
def _not_finite(position: int, size: int, is_single: bool) -> int:  # noqa: FBT001
    """Return the bits that a word stands for, 0 if there is no such number."""
    sign = 0
    infinity, nan = _INF64, _NAN64
    if is_single:
        infinity, nan = _INF32, _NAN32
    if size == 3 and (load_byte(position) | load_byte(position + 1) << 8) == _NAN & 0xFFFF:  # noqa: PLR2004
        return nan if load_byte(position + 2) == _NAN >> 16 else 0
    if size in (4, 9):
        if load_byte(position) == _MINUS:
            sign = _SIGN32 if is_single else _SIGN64
        elif load_byte(position) != 0x2B:  # noqa: PLR2004  +
            return 0
        position += 1
        size -= 1
    if size == 8:  # noqa: PLR2004
        is_word = load_int64(position) == _INFINITY
        return sign | infinity if is_word else 0
    if size == 3:  # noqa: PLR2004
        word = load_byte(position) | load_byte(position + 1) << 8 | load_byte(position + 2) << 16
        return sign | infinity if word == _INF else 0
    return 0


@kernel_part
def _truncate(slots: Any, slot: int, count: int) -> None:
    """Remove the items of a column from one on, and what is below it."""
    slots[slot, _COUNT] = count
    for column in range(slot, slots[slot, _SLOT_END]):
        shape, left = slots[column, _SHAPE], slots[column, _COUNT]
        if shape == _TEXT:
            slots[column, _BYTES] = load_int32(slots[column, _OFFSETS] + 4 * left)
        elif shape in (_STRUCT, _LIST):
            if shape == _LIST:
                left = load_int32(slots[column, _OFFSETS] + 4 * left)
            child = column + 1
            while child < slots[column, _SLOT_END]:
                slots[child, _COUNT] = left
                child = slots[child, _SLOT_END]


@kernel_part
def _find(  # noqa: PLR0917  by position, as kernels get arguments
    columns: Any, fields: Any, places: Any, slot: int, constants: int, name: int, size: int
) -> int:
    """Return the field of a name, -1 if there is none."""
    value = _HASH_START
    for at in range(name, name + size):
        value = ((value ^ load_byte(at)) * _HASH_FACTOR) & _HASH_MASK
    first, mask = columns[slot * _COLUMN + 3], columns[slot * _COLUMN + 4]
    place = value & mask
    field: int = places[first + place]
    while field >= 0:
        is_size = fields[field * _FIELD + 2] == size
        if is_size and _is_here(name, constants + fields[field * _FIELD + 1], size):
            return field
        place = (place + 1) & mask
        field = places[first + place]
    return -1


@kernel_part
def _append_string(  # noqa: PLR0917  by position, as kernels get arguments
    task: Any,
    slots: Any,
    slot: int,
    position: int,
    end: int,
    data_end: int,
    is_binary: bool,  # noqa: FBT001
) -> tuple[int, int]:
    """Append the string that begins here; return the address behind it, or a negative status.

    And how many bytes it has. The room for the item has been checked.
    """
    close, found = scan_string(position, end)
    size = close - position
    if close == 0:
        return -_MALFORMED, 0
    used = slots[slot, _BYTES]
    if size > slots[slot, _BYTES_CAPACITY] - used:
        task.slot, task.needed = slot, used + size
        return -_GROW_BYTES, 0
    if found & _HAS_MORE and not is_utf8(position, size):
        return -_MALFORMED, 0
    target = slots[slot, _DATA] + used
    if found & _HAS_ESCAPES:
        written = unescape(target, position, close)
        if written == 0:
            return -_MALFORMED, 0
        size = written - target
    else:
        copy_short(target, position, size, data_end)
    if is_binary:
        size = decode_base64(target, size)
        if size < 0:
            return -_MALFORMED, 0
    count = slots[slot, _COUNT]
    slots[slot, _BYTES] = used + size
    store_int32(slots[slot, _OFFSETS] + 4 * count + 4, used + size)
    slots[slot, _COUNT] = count + 1
    return close + 1, size


@kernel_part
def _append_nulls(task: Any, slots: Any, slot: int) -> int:
    """Append a null to a column and those below; return what it costs, -1 if one has no room."""
    end = slots[slot, _SLOT_END]
    null = slot
    while null < end and slots[null, _COUNT] < slots[null, _CAPACITY]:
        null = next_null(slots, null)
    if null < end:
        task.slot, task.needed = null, slots[null, _COUNT] + 1
        return -1
    null, cost = slot, 0
    while null < end:
        append_null(slots, null)
        cost += slots[null, _COST]
        null = next_null(slots, null)
    return cost


@kernel_part
def _append_float(
    task: Any,
    target: int,
    position: int,
    end: int,
    is_single: bool,  # noqa: FBT001
) -> int:
    """Write a number; return the address behind it, or a negative status."""
    if load_byte(position) == _QUOTE:
        close, _ = scan_string(position + 1, end)
        bits = 0
        if close:
            bits = _not_finite(position + 1, close - position - 1, is_single)
        if bits == 0:
            return -_MALFORMED
        behind = close + 1
    else:
        behind, number, exponent, is_cut, _ = scan_number(position, end)
        if behind == 0:
            return -_MALFORMED
        if task.number == position and task.number_state != _ASKED:
            state = _NUMBER if task.number_state == _ROUNDED else -1
            bits = task.number_bits
        else:
            sign = int(load_byte(position) == _MINUS)
            size = 23 if is_single else 52
            state, bits = parse_float(number, exponent, is_cut, sign, size, task.tables)
        if state == _HARD:
            task.number, task.number_end, task.number_state = position, behind, _ASKED
            return -_ROUND
        if state != _NUMBER:
            return -_MALFORMED
    if is_single:
        store_int32(target, bits)
    else:
        store_int64(target, bits)
    return behind


@kernel_part
def _append_leaf(  # noqa: C901, PLR0911, PLR0912, PLR0915, PLR0917  one for each type
    task: Any, columns: Any, slots: Any, slot: int, position: int, end: int, data_end: int
) -> tuple[int, int]:
    """Append a value that is no object and no array; return as `_append_string`."""
    op = columns[slot * _COLUMN]
    byte = load_byte(position)
    count = slots[slot, _COUNT]
    if op in (_OP_TEXT, _OP_BINARY):
        if byte != _QUOTE:
            return -_MALFORMED, 0
        return _append_string(task, slots, slot, position + 1, end, data_end, op == _OP_BINARY)
    if op == _OP_INTEGER:
        number, behind = read_integer(position, end)
        bits = columns[slot * _COLUMN + 1]
        limit = number >> (bits - 1)
        if behind == 0 or limit not in (0, -1):
            return -_MALFORMED, 0
        # Here, and not as something behind a number, so that the reason is found.
        if behind < end and (load_byte(behind) == _POINT or load_byte(behind) | 0x20 == _E):
            return -_MALFORMED, 0
        if bits == 64:  # noqa: PLR2004
            store_int64(slots[slot, _DATA] + 8 * count, number)
        elif bits == 32:  # noqa: PLR2004
            store_int32(slots[slot, _DATA] + 4 * count, number)
        else:
            store_uint8(slots[slot, _DATA] + (bits >> 3) * count, number & 0xFF)
            if bits == 16:  # noqa: PLR2004
                store_uint8(slots[slot, _DATA] + 2 * count + 1, number >> 8 & 0xFF)
    elif op == _OP_BOOLEAN:
        behind = _word(position, end)
        if behind == 0:
            return -_MALFORMED, 0
        store_uint8(slots[slot, _DATA] + count, byte == _T)
    elif op in (_OP_FLOAT32, _OP_FLOAT64):
        is_single = op == _OP_FLOAT32
        target = slots[slot, _DATA] + (4 if is_single else 8) * count
        behind = _append_float(task, target, position, end, is_single)
        if behind < 0:
            return behind, 0
    elif op == _OP_DECIMAL:
        close = 0
        if byte == _QUOTE:
            position += 1
            close, _ = scan_string(position, end)
            if close == 0:
                return -_MALFORMED, 0
            end = close
        behind, _, _, _, digits_end = scan_number(position, end)
        if behind == 0 or (close and behind != close):
            return -_MALFORMED, 0
        precision, scale = columns[slot * _COLUMN + 1], columns[slot * _COLUMN + 2]
        target = slots[slot, _DATA] + 16 * count
        if not parse_decimal(target, position, digits_end, behind, precision, scale, task.tables):
            return -_MALFORMED, 0
        if close:
            behind += 1
    else:
        close = 0
        if byte == _QUOTE:
            close, _ = scan_string(position + 1, end)
        if close == 0:
            return -_MALFORMED, 0
        if op == _OP_DATE:
            days, behind = parse_date(position + 1, close)
            if behind != close:
                return -_MALFORMED, 0
            store_int32(slots[slot, _DATA] + 4 * count, days)
        else:
            has_zone = columns[slot * _COLUMN + 1]
            micros, is_timestamp = parse_timestamp(position + 1, close, has_zone)
            if not is_timestamp:
                return -_MALFORMED, 0
            store_int64(slots[slot, _DATA] + 8 * count, micros)
        behind = close + 1
    slots[slot, _COUNT] = count + 1
    return behind, 0


@kernel_part
def _skip_scalar(position: int, end: int) -> int:
    """Return the address behind a value that is not wanted, 0 if it is malformed."""
    byte = load_byte(position)
    if byte == _QUOTE:
        return _check_string(position + 1, end)
    if byte in (_T, _F, _N):
        return _word(position, end)
    behind, _, _, _, _ = scan_number(position, end)
    return behind


@kernel_part
def _field(  # noqa: PLR0917  by position, as kernels get arguments
    task: Any,
    columns: Any,
    fields: Any,
    places: Any,
    slots: Any,
    stack: Any,
    frame: int,
    position: int,
    end: int,
) -> tuple[int, int]:
    """Read a name that begins here; return the slot of its field, or -1, and the address behind.

    The address is a negative status if the name is malformed.
    """
    slot = stack[frame, 0]
    first, count = columns[slot * _COLUMN + 1], columns[slot * _COLUMN + 2]
    expected = stack[frame, 2]
    field = -1
    if expected < count:
        line = (first + expected) * _FIELD
        size = fields[line + 2]
        # Names in another order, or without those that are null, are found by their hashes.
        is_name = end - position > size and fields[line + 3] != 0
        is_name = is_name and load_byte(position + size) == _QUOTE
        if is_name and _is_here(position, task.constants + fields[line + 1], size):
            field = first + expected
            position += size + 1
    if field < 0:
        close, found = scan_string(position, end)
        size = close - position
        if close == 0 or (found & _HAS_MORE and not is_utf8(position, size)):
            return -1, -_MALFORMED
        name = position
        if found & _HAS_ESCAPES:
            if size > task.scratch_size:
                task.needed = size
                return -1, -_SCRATCH
            behind = unescape(task.scratch, position, close)
            if behind == 0:
                return -1, -_MALFORMED
            name, size = task.scratch, behind - task.scratch
        field = _find(columns, fields, places, slot, task.constants, name, size)
        position = close + 1
        if field < 0:
            return -1, position
    stack[frame, 2] = field - first + 1
    child = fields[field * _FIELD]
    if slots[child, _COUNT] > slots[slot, _COUNT]:
        # As in Spark, the last value of a name counts.
        _truncate(slots, child, slots[slot, _COUNT])
        stack[frame, 3] -= 1
    stack[frame, 3] += 1
    return child, position


@kernel_part
def _decode_row(  # noqa: C901, PLR0911, PLR0912, PLR0915, PLR0917  the loop over values
    task: Any, columns: Any, fields: Any, places: Any, slots: Any, stack: Any
) -> int:
    """Append the current row, or go on with it, and return a status."""
    end = task.data + load_int32(task.offsets + 4 * task.row + 4)
    data_end = task.data + load_int32(task.offsets + 4 * task.rows)
    if task.operation != _NOT_BEGUN:
        phase, room = task.operation, task.row_room
        position, slot, depth = task.position, task.value_slot, task.depth
    else:
        room = task.room
        position = task.data + load_int32(task.offsets + 4 * task.row) + task.skipped
        if load_byte(task.nulls + task.row):
            cost = _append_nulls(task, slots, 0)
            if cost < 0:
                return _GROW
            if room < cost:
                return _FULL
            task.room = room - cost
            return _DONE
        if position > end:
            return _MALFORMED
        phase, slot, depth = _VALUE, 0, 0
        task.number_state = _ASKED
        task.number = 0
    while True:
        # Where the row goes on if something has to be done first.
        task.operation, task.position, task.value_slot = phase, position, slot
        task.depth, task.row_room = depth, room
        position = _skip_space(position, end)
        if position >= end:
            if depth == 0 and phase == _NEXT:
                if room < 0:
                    return _FULL
                task.room = room
                return _DONE
            return _MALFORMED
        byte = load_byte(position)
        if phase == _VALUE:
            op = _OP_STRUCT
            if slot >= 0:
                op = columns[slot * _COLUMN]
            is_wanted = slot >= 0
            if byte == _N and is_wanted:
                position = _word(position, end)
                if position == 0 or depth == 0:
                    return _MALFORMED
                cost = _append_nulls(task, slots, slot)
                if cost < 0:
                    return _GROW
                room -= cost
                phase = _NEXT
            elif (is_wanted and op <= _OP_MAP) or (not is_wanted and byte in (_OPEN, _OPEN_ARRAY)):
                is_object = byte == _OPEN
                if is_wanted and byte != (_OPEN_ARRAY if op == _OP_LIST else _OPEN):
                    return _MALFORMED
                if depth >= _MOST_DEPTH:
                    return _MALFORMED
                stack[depth, 0], stack[depth, 1] = slot, is_object
                stack[depth, 2], stack[depth, 3] = 0, 0
                depth += 1
                position += 1
                phase = _FIRST
            elif is_wanted:
                if slots[slot, _COUNT] >= slots[slot, _CAPACITY]:
                    task.slot, task.needed = slot, slots[slot, _COUNT] + 1
                    return _GROW
                position, size = _append_leaf(task, columns, slots, slot, position, end, data_end)
                if position < 0:
                    return -position
                if slots[slot, _VALIDITY]:
                    store_uint8(slots[slot, _VALIDITY] + slots[slot, _COUNT] - 1, 1)
                room -= slots[slot, _COST] + size
                phase = _NEXT
            else:
                position = _skip_scalar(position, end)
                if position == 0:
                    return _MALFORMED
                phase = _NEXT
            continue
        if depth == 0:
            return _MALFORMED  # Something is left behind the value.
        frame = depth - 1
        slot = stack[frame, 0]
        op = _OP_STRUCT
        if slot >= 0:
            op = columns[slot * _COLUMN]
        is_object = stack[frame, 1] != 0
        if byte == (_CLOSE if is_object else _CLOSE_ARRAY):
            if slot >= 0:
                count = slots[slot, _COUNT]
                if op == _OP_STRUCT and stack[frame, 3] < columns[slot * _COLUMN + 2]:
                    child = slot + 1
                    while child < slots[slot, _SLOT_END]:
                        if slots[child, _COUNT] == count:
                            cost = _append_nulls(task, slots, child)
                            if cost < 0:
                                task.row_room = room
                                return _GROW
                            room -= cost
                        child = slots[child, _SLOT_END]
                if count >= slots[slot, _CAPACITY]:
                    task.slot, task.needed = slot, count + 1
                    task.row_room = room
                    return _GROW
                if op != _OP_STRUCT:
                    store_int32(slots[slot, _OFFSETS] + 4 * count + 4, slots[slot + 1, _COUNT])
                if slots[slot, _VALIDITY]:
                    store_uint8(slots[slot, _VALIDITY] + count, 1)
                slots[slot, _COUNT] = count + 1
                room -= slots[slot, _COST]
            depth -= 1
            position += 1
            phase = _NEXT
            continue
        if phase == _NEXT:
            if byte != _COMMA:
                return _MALFORMED
            position = _skip_space(position + 1, end)
            if position >= end:
                return _MALFORMED
            byte = load_byte(position)
        child = slot if slot < 0 else slot + 1
        if is_object:
            if byte != _QUOTE:
                return _MALFORMED
            if slot < 0:
                position = _check_string(position + 1, end)
                if position == 0:
                    return _MALFORMED
            elif op == _OP_MAP:
                if slots[child, _COUNT] >= slots[child, _CAPACITY]:
                    task.slot, task.needed = child, slots[child, _COUNT] + 1
                    return _GROW
                position, size = _append_string(
                    task, slots, child, position + 1, end, data_end, False
                )
                if position < 0:
                    return -position
                room -= slots[child, _COST] + size
                child = slots[child, _SLOT_END]
            else:
                child, position = _field(
                    task, columns, fields, places, slots, stack, frame, position + 1, end
                )
                if position < 0:
                    return -position
            position = _skip_space(position, end)
            if position >= end or load_byte(position) != _COLON:
                return _MALFORMED
            position += 1
        slot = child
        phase = _VALUE


@kernel_part
def _raw_end(  # noqa: C901, PLR0911
    position: int, end: int
) -> int:
    """Return the address of the closing quotation mark, 0 if there is none, or a wrong escape."""
    while position < end:
        byte = load_byte(position)
        if byte == _QUOTE:
            return position
        if byte < _SPACE:
            return 0
        position += 1
        if byte == _BACKSLASH:
            if position >= end:
                return 0
            letter = load_byte(position)
            position += 1
            if letter == _U:
                if end - position < 4:  # noqa: PLR2004
                    return 0
                for at in range(position, position + 4):
                    digit = load_byte(at)
                    is_digit = _ZERO <= digit <= _NINE
                    if not is_digit and not _A <= digit | 0x20 <= _LAST_HEX:
                        return 0
                position += 4
            elif letter not in (_QUOTE, _BACKSLASH, _SLASH, _B, _F, _N, _R, _T):
                return 0
    return 0


@kernel_part
def _digits_end(position: int, end: int) -> int:
    while position < end and _ZERO <= load_byte(position) <= _NINE:
        position += 1
    return position


@kernel_part
def _number_end(position: int, end: int) -> tuple[int, bool]:
    """Return the address behind the longest number that begins here, and whether it is whole.

    The address is 0 if there is none.
    """
    if position < end and load_byte(position) == _MINUS:
        position += 1
    behind = _digits_end(position, end)
    if behind == position:
        return 0, False
    if load_byte(position) == _ZERO:
        behind = position + 1
    is_whole = True
    if behind < end and load_byte(behind) == _POINT:
        digits_end = _digits_end(behind + 1, end)
        if digits_end > behind + 1:
            behind = digits_end
            is_whole = False
    if behind < end and load_byte(behind) | 0x20 == _E:
        digits = behind + 1
        if digits < end and load_byte(digits) in (_MINUS, _PLUS):
            digits += 1
        digits_end = _digits_end(digits, end)
        if digits_end > digits:
            behind = digits_end
            is_whole = False
    return behind, is_whole


@kernel_part
def _place(columns: Any, stack: Any, depth: int) -> int:
    """Return the slot whose path is that of what an object or array is read for."""
    frame = depth - 1
    while stack[frame, 0] < 0:
        frame -= 1
    slot: int = stack[frame, 0]
    return slot if columns[slot * _COLUMN] == _OP_STRUCT else slot + 1


@kernel_part
def _why_no_string(position: int, end: int) -> tuple[int, int, int]:
    """Return what is wrong with the string here, and what to show; else where it ends."""
    close = _raw_end(position + 1, end)
    if close == 0:
        return _BAD_STRING, position, end
    if unescape(0, position + 1, close) == 0:
        return _HALF_PAIR, position, position
    return _NOTHING, position, close + 1


@kernel_part
def _why_no_number(  # noqa: C901, PLR0911, PLR0912, PLR0917  one for each type
    task: Any, columns: Any, slots: Any, slot: int, position: int, end: int
) -> tuple[int, int, int]:
    """Return as `_why_no_string`, for a number of any type or of none."""
    op = -1
    if slot >= 0:
        op = columns[slot * _COLUMN]
    is_float = op in (_OP_FLOAT32, _OP_FLOAT64)
    close = 0
    begin = position
    if position < end and load_byte(position) == _QUOTE and (is_float or op == _OP_DECIMAL):
        close = _raw_end(position + 1, end)
        if close == 0:
            return _BAD_STRING, position, end
        if is_float:
            return _NOT_A_NUMBER, position + 1, close
        begin = position + 1
    behind, is_whole = _number_end(begin, end)
    if close and behind != close:
        return _NOT_A_DECIMAL, begin, begin
    if behind == 0:
        return (_NO_VALUE if slot < 0 else _OTHER_TYPE), position, end
    if behind - begin > _MOST_CHARACTERS:
        return _LONG_NUMBER, begin, begin
    if slot < 0:
        return _NOTHING, begin, behind
    if op == _OP_INTEGER:
        if not is_whole:
            return _NOT_WHOLE, begin, behind
        number, is_long = read_integer(begin, behind)
        if is_long == 0 or number >> (columns[slot * _COLUMN + 1] - 1) not in (0, -1):
            return _DOES_NOT_FIT, begin, behind
        return _NOTHING, begin, behind
    _, number, exponent, is_cut, digits_end = scan_number(begin, behind)
    if op == _OP_DECIMAL:
        precision, scale = columns[slot * _COLUMN + 1], columns[slot * _COLUMN + 2]
        # There is room for the item, which the loop was about to append.
        target = slots[slot, _DATA] + 16 * slots[slot, _COUNT]
        fits = parse_decimal(target, begin, digits_end, behind, precision, scale, task.tables)
        return (_NOTHING if fits and close == 0 else _DOES_NOT_FIT), begin, behind
    if task.number == begin and task.number_state != _ASKED:
        return (_NOTHING if task.number_state == _ROUNDED else _DOES_NOT_FIT), begin, behind
    size = 23 if op == _OP_FLOAT32 else 52
    state, _ = parse_float(number, exponent, is_cut, 0, size, task.tables)
    return (_NOTHING if state in (_NUMBER, _HARD) else _DOES_NOT_FIT), begin, behind


@kernel_part
def _why_no_value(  # noqa: C901, PLR0911, PLR0917  one for each type
    task: Any, columns: Any, slots: Any, slot: int, depth: int, position: int, end: int
) -> tuple[int, int, int]:
    """Return as `_why_no_string`, for any value."""
    byte = 0
    if position < end:
        byte = load_byte(position)
    op = -1
    if slot >= 0:
        op = columns[slot * _COLUMN]
    if byte == _N or (byte in (_T, _F) and op in (-1, _OP_BOOLEAN)):
        if depth == 0 and byte == _N:
            return _NULL, position, end
        behind = _word(position, end)
        return (_NOTHING, position, behind) if behind else (_NO_VALUE, position, end)
    opens = byte in (_OPEN, _OPEN_ARRAY)
    if (op == -1 and opens) or _OP_STRUCT <= op <= _OP_MAP:
        if op != -1 and byte != (_OPEN_ARRAY if op == _OP_LIST else _OPEN):
            return _OTHER_TYPE, position, end
        return (_TOO_DEEP if depth >= _MOST_DEPTH else _NOTHING), position, position
    if op == _OP_BOOLEAN:
        return _OTHER_TYPE, position, end
    if _OP_INTEGER <= op <= _OP_DECIMAL or (op == -1 and byte != _QUOTE):
        return _why_no_number(task, columns, slots, slot, position, end)
    if byte != _QUOTE:
        return _OTHER_TYPE, position, end
    problem, begin, behind = _why_no_string(position, end)
    if op in (-1, _OP_TEXT) or problem == _BAD_STRING:
        return problem, begin, behind
    if op == _OP_BINARY:
        return (_NOT_BASE64 if problem == _NOTHING else problem), begin, begin
    close = _raw_end(position + 1, end)
    if op == _OP_DATE:
        return _NOT_A_DATE, position + 1, close
    has_zone = columns[slot * _COLUMN + 1]
    _, is_other = parse_timestamp(position + 1, close, 1 - has_zone)
    return (_OTHER_ZONE if is_other else _NOT_A_TIMESTAMP), position + 1, close


@kernel_part
def _why(  # noqa: C901, PLR0911
    task: Any, columns: Any, slots: Any, stack: Any
) -> tuple[int, int, int, int]:
    """Return why the row is malformed, the slot whose path an error names, and what it shows.

    It repeats what the loop did last, in no hurry, and finds what the interpreter finds.
    """
    start = task.data + load_int32(task.offsets + 4 * task.row) + task.skipped
    end = task.data + load_int32(task.offsets + 4 * task.row + 4)
    if task.operation == _NOT_BEGUN:
        return _TOO_SHORT, 0, end, end
    if not is_utf8(start, end - start):
        return _NOT_UTF8, 0, end, end
    phase, slot, depth, position = task.operation, task.value_slot, task.depth, task.position
    while True:
        position = _skip_space(position, end)
        if phase == _VALUE:
            place = slot if slot >= 0 else _place(columns, stack, depth)
            problem, begin, behind = _why_no_value(task, columns, slots, slot, depth, position, end)
            if problem != _NOTHING or behind == position:
                return problem, place, begin, behind
            # It was only the beginning of what is here, such as 0 of 01.
            position = behind
            phase = _NEXT
            continue
        if depth == 0:
            return _LEFT, 0, position, end
        place = _place(columns, stack, depth)
        is_object = stack[depth - 1, 1] != 0
        if phase == _NEXT:
            if position >= end or load_byte(position) != _COMMA:
                problem = _NO_COMMA_IN_OBJECT if is_object else _NO_COMMA_IN_ARRAY
                return problem, place, position, end
            position = _skip_space(position + 1, end)
        if is_object:
            if position >= end or load_byte(position) != _QUOTE:
                return _NO_NAME, place, position, end
            problem, begin, behind = _why_no_string(position, end)
            if problem == _NOTHING:
                begin = _skip_space(behind, end)
                problem, behind = _NO_COLON, end
            return problem, place, begin, behind
        slot = stack[depth - 1, 0]
        if slot >= 0:
            slot += 1
        phase = _VALUE


@kernel_part
def _note_failure(task: Any, columns: Any, slots: Any, stack: Any) -> None:
    """Write down where and why the current row is malformed, and let it become null."""
    problem, place, begin, behind = _why(task, columns, slots, stack)
    failure = task.failures + _FAILURE_BYTES * task.row
    store_int32(failure + _FAILURE_PLACE, place + 1)
    store_int32(failure + _FAILURE_PROBLEM, problem)
    store_int32(failure + _FAILURE_BEGIN, begin - task.data)
    store_int32(failure + _FAILURE_END, behind - task.data)
    store_uint8(task.nulls + task.row, 1)


@kernel(
    1,
    Items(TASK_DTYPE),
    Items(np.dtype(np.int32)),
    Items(np.dtype(np.int32)),
    Items(np.dtype(np.int32)),
    Items(np.dtype(np.int64), 2),
    Items(np.dtype(np.int64), 2),
    Items(np.dtype(np.int32)),
)
def _decode_json(  # noqa: PLR0917  by position, as kernels get arguments
    table: Any, columns: Any, fields: Any, places: Any, slots: Any, stack: Any, kept: Any
) -> int:
    task = table[0]
    while task.row < task.rows:
        if task.operation == _NOT_BEGUN:
            keep_counters(task.slots, kept)
        status = _decode_row(task, columns, fields, places, slots, stack)
        if status not in (_DONE, _MALFORMED, _FULL):
            return status
        if status == _DONE:
            task.operation = _NOT_BEGUN
            task.row += 1
            continue
        if status == _MALFORMED:
            _note_failure(task, columns, slots, stack)
        task.operation = _NOT_BEGUN
        forget_counters(slots)
        if status == _FULL:
            return status
    return _DONE


def decode_json(  # noqa: PLR0917  by position, as the kernel's
    table: npt.NDArray[np.void],
    columns: npt.NDArray[np.int32],
    fields: npt.NDArray[np.int32],
    places: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    stack: npt.NDArray[np.int64],
    kept: npt.NDArray[np.int32],
) -> int:
    """Append rows to the buffers of `slots` until Python has to do something; return a `Status`.

    It may also be `ROUND` or `SCRATCH`. `table` has one row of `TASK_DTYPE`, and `stack` room for
    `MOST_DEPTH` frames. `kept` has the offsets of the counters that are kept before each row. The
    memory at all addresses must remain allocated.
    """
    return int(_decode_json(table, columns, fields, places, slots, stack, kept))
