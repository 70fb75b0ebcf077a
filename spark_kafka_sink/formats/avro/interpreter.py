"""Decode one payload at a time by a plan, in Python: the oracle of the compiled kernel.

It says exactly what a plan means, and when and why a payload is malformed. It decodes single
records (`value_decoder`), and tests compare the kernel with it.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from spark_kafka_sink.formats.avro.plan import DAY, MOST_EMPTY_ITEMS, WIDTH, Op, Wire
from spark_kafka_sink.formats.avro.problems import Problem, worded

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.formats.avro.plan import Plan
    from spark_kafka_sink.formats.columnar.columns import Column

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
#: The most that a byte of a number can say; with the eighth bit, another one follows.
_SEVEN_BITS: Final = 0x7F
_END: Final = int(Op.END)
_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)


class MalformedError(Exception):
    """A payload is malformed, or does not match the reader's schema."""


def _problem(problem: Problem, detail: int = 0) -> MalformedError:
    return MalformedError(worded(problem, detail))


class Interpreter:
    """Appends rows to columns of Python objects; `value` is what errors call the value."""

    def __init__(self, plan: Plan, value: str = "") -> None:
        self._plan = plan
        self._value = value

    @cached_property
    def _code(self) -> _Code:
        # Not before: the decoder of columns needs it for malformed payloads only.
        return _Code.of(self._plan, self._value)

    @cached_property
    def _values(self) -> list[list[Any]]:
        return self._code.empty_columns()

    def append(self, payload: bytes) -> None:
        """Decode a payload; after `MalformedError`, nothing of it is in the columns."""
        lengths = [len(values) for values in self._values]
        try:
            _Run(self._code, self._values, payload).run()
        except MalformedError:
            for values, length in zip(self._values, lengths, strict=True):
                del values[length:]
            raise

    def rows(self) -> list[Any]:
        """Return the rows, as `pyarrow.Array.to_pylist` returns them, but raw numbers for times."""
        column = self._code.plan.column
        count = len(self._values[column.slot])
        return [self._code.row(self._values, column, row) for row in range(count)]

    def decode(self, payload: bytes) -> Any:
        """Return the row of one payload, which is not appended. Any thread may call it.

        Raises `MalformedError`.
        """
        values = self._code.empty_columns()
        _Run(self._code, values, payload).run()
        return self._code.row(values, self._code.plan.column, 0)


class _Code(NamedTuple):
    """A plan, in the form in which it is run."""

    plan: Plan
    #: What errors call the value.
    value: str
    #: The operations, and the lines of their tables.
    lines: tuple[tuple[int, ...], ...]
    #: By slot.
    columns: list[Column]
    #: The names of members of structs, by slot.
    names: list[list[str]]

    @classmethod
    def of(cls, plan: Plan, value: str) -> _Code:
        program = plan.program
        lines = tuple(program[at : at + WIDTH] for at in range(0, len(program), WIDTH))
        columns = _by_slot(plan.column)
        names = [
            [column.type.field(number).name for number in range(column.type.num_fields)]
            if column.kind == "struct"
            else []
            for column in columns
        ]
        return cls(plan, value, lines, columns, names)

    def empty_columns(self) -> list[list[Any]]:
        """Return the values of each slot; of a list, the end of each row among its items."""
        return [[] for _ in self.columns]

    def row(self, values: list[list[Any]], column: Column, row: int) -> Any:
        """Return the value of a column in a row."""
        value = values[column.slot][row]
        if value is None:
            return None
        if column.kind == "struct":
            return {
                name: self.row(values, child, row)
                for name, child in zip(self.names[column.slot], column.children, strict=True)
            }
        if column.kind in {"list", "map"}:
            begin, end = value
            items = [
                tuple(self.row(values, child, item) for child in column.children)
                for item in range(begin, end)
            ]
            return (
                list(dict(items).items()) if column.kind == "map" else [item for (item,) in items]
            )
        return value


class _Run:
    """Decodes one payload."""

    def __init__(self, code: _Code, values: list[list[Any]], payload: bytes) -> None:
        self._code = code
        self._plan = code.plan
        self._columns = code.columns
        self._values = values
        self._data = payload
        self._position = 0
        self._limit = len(payload)
        #: Where to go on in the payload after a default.
        self._payload = (payload, 0, 0)
        #: The items without bytes so far.
        self._empty_items = 0
        #: Of each list that is being read: the items left in its block, where they began, and the
        #: fewest bytes of one.
        self._lists: list[tuple[int, int, int]] = []

    def run(self) -> None:
        operation = 0
        lines, steps = self._code.lines, self._STEPS
        try:
            while True:
                op, first, second, third = lines[operation]
                target = steps[op](self, first, second, third)
                if op == _END:
                    return
                operation = operation + 1 if target is None else target
        except MalformedError as error:
            text = self._plan.problem_at(operation, str(error), self._code.value)
            raise MalformedError(text) from None

    def _end(self, *_: int) -> None:
        if self._position < self._limit:
            raise _problem(Problem.BYTES_LEFT)

    def _go(self, target: int, *_: int) -> int:
        return target

    def _branch(self, table: int, lines: int, _: int) -> int:
        branch = self._varint(_INT_BYTES)
        if not 0 <= branch < lines:
            raise _problem(Problem.NO_BRANCH, branch)
        return self._plan.program[(table + branch) * WIDTH]

    def _default(self, offset: int, length: int, *_: int) -> None:
        self._payload = (self._data, self._position, self._limit)
        self._data, self._position, self._limit = self._plan.constants, offset, offset + length

    def _default_end(self, *_: int) -> None:
        self._data, self._position, self._limit = self._payload

    def _items(self, slot: int, end: int, size: int) -> int | None:
        first = self._length(slot + 1) if slot >= 0 else 0
        self._lists.append((self._block_of(size, skips=slot < 0), first, size))
        return None if self._lists[-1][0] else end

    def _items_end(self, slot: int, begin: int, _: int) -> int | None:
        left, first, size = self._lists.pop()
        # A list without items comes here at once.
        if left and (left := left - 1 or self._block_of(size, skips=slot < 0)):
            self._lists.append((left, first, size))
            return begin
        if slot >= 0:
            self._values[slot].append((first, self._length(slot + 1)))
        return None

    def _length(self, slot: int) -> int:
        return len(self._values[slot])

    def _fail(self, problem: int, *_: int) -> None:
        raise MalformedError(self._plan.problems[problem])

    def _null(self, slot: int, end: int, _: int) -> None:
        while slot < end:
            column = self._columns[slot]
            is_list = column.kind in {"list", "map"}
            # Where a struct is null, its members are neither read nor checked for nulls.
            self._values[slot].append((0, 0) if is_list and not column.nullable else None)
            slot = column.end if is_list else slot + 1

    def _struct(self, slot: int, *_: int) -> None:
        self._values[slot].append(True)

    def _append_boolean(self, slot: int, *_: int) -> None:
        self._values[slot].append(self._boolean())

    def _append_integer(self, slot: int, wire: int, factor: int) -> None:
        number = self._number(wire)
        if factor == 0 and not 0 <= number < DAY:
            raise _problem(Problem.NO_TIME, number)
        number *= factor or 1
        if number not in _LONG:
            raise _problem(Problem.TIMESTAMP_RANGE)
        self._values[slot].append(number)

    def _append_float32(self, slot: int, wire: int, _: int) -> None:
        number = self._number(wire)
        # From a long in one step: by way of a double it would be rounded twice.
        is_float = wire == Wire.FLOAT
        value = number if is_float else float(np.int64(number).astype(np.float32))
        self._values[slot].append(value)

    def _append_float64(self, slot: int, wire: int, factor: int) -> None:
        number = self._number(wire)
        self._values[slot].append(float(number if factor else np.int64(number).astype(np.float32)))

    def _append_bytes(self, slot: int, is_text: int, _: int) -> None:
        data = self._bytes(self._varint(_LONG_BYTES))
        self._values[slot].append(_text(data) if is_text else data)

    def _append_fixed(self, slot: int, size: int, _: int) -> None:
        self._values[slot].append(self._bytes(size))

    def _append_decimal(self, slot: int, size: int, limit: int) -> None:
        data = self._bytes(self._varint(_LONG_BYTES) if size < 0 else size)
        if not data:
            raise _problem(Problem.EMPTY_DECIMAL)
        unscaled = int.from_bytes(data, "big", signed=True)
        if abs(unscaled) >= int.from_bytes(self._plan.constants[limit : limit + 16], "little"):
            digits = self._columns[slot].type.precision
            raise _problem(Problem.TOO_MANY_DIGITS, digits)
        figures = tuple(map(int, str(abs(unscaled))))
        scale = self._columns[slot].type.scale
        self._values[slot].append(Decimal((int(unscaled < 0), figures, -scale)))

    def _append_symbol(self, slot: int, table: int, lines: int) -> None:
        line = table + self._symbol(lines)
        offset, length = self._plan.program[line * WIDTH : line * WIDTH + 2]
        if length < 0:
            raise _problem(Problem.LOST_SYMBOL)
        self._values[slot].append(self._plan.constants[offset : offset + length].decode())

    def _symbol(self, symbols: int) -> int:
        index = self._varint(_INT_BYTES)
        if not 0 <= index < symbols:
            raise _problem(Problem.NO_SYMBOL, index)
        return index

    def _skip(self, wire: int, size: int, _: int) -> None:
        match wire:
            case Wire.BYTES:
                self._bytes(self._varint(_LONG_BYTES))
            case Wire.FIXED:
                self._bytes(size)
            case Wire.BOOLEAN:
                self._boolean()
            case Wire.SYMBOL:
                self._symbol(size)
            case Wire.EMPTY_ITEMS:
                while self._block(skips=True):
                    pass
            case _:
                self._number(wire)

    def _number(self, wire: int) -> Any:
        match wire:
            case Wire.INT:
                return self._varint(_INT_BYTES)
            case Wire.LONG:
                return self._varint(_LONG_BYTES)
            case Wire.FLOAT:
                return struct.unpack("<f", self._bytes(4))[0]
            case _:
                return struct.unpack("<d", self._bytes(8))[0]

    def _boolean(self) -> bool:
        [byte] = self._bytes(1)
        if byte > 1:
            raise _problem(Problem.NO_BOOLEAN, byte)
        return bool(byte)

    def _block(self, *, skips: bool) -> int:
        """Return the number of items in the next block of a list.

        As in Java, the size of a block counts where the list is skipped, and only there.
        """
        while (count := self._varint(_LONG_BYTES)) < 0:
            size = self._varint(_LONG_BYTES)
            if not 0 <= size <= self._limit - self._position:
                raise _problem(Problem.LONG_BLOCK, size)
            if -count not in _LONG:
                raise _problem(Problem.UNCOUNTABLE_BLOCK)
            if not skips:
                return -count
            self._position += size
        return count

    def _block_of(self, size: int, *, skips: bool) -> int:
        """Return the number of items in the next block; each takes `size` bytes or more."""
        count = self._block(skips=skips)
        if size and count > self._limit - self._position:
            raise _problem(Problem.TOO_MANY_ITEMS, count)
        if not size:
            self._empty_items += count
            if self._empty_items > MOST_EMPTY_ITEMS:
                raise _problem(Problem.TOO_MANY_EMPTY_ITEMS)
        return count

    def _bytes(self, size: int) -> bytes:
        if not 0 <= size <= self._limit - self._position:
            raise _problem(Problem.TOO_LONG, size)
        data = self._data[self._position : self._position + size]
        self._position += size
        return data

    def _varint(self, most_bytes: int) -> int:
        position = self._position
        if position < self._limit and (only := self._data[position]) <= _SEVEN_BITS:
            self._position = position + 1
            return only >> 1 ^ -(only & 1)
        number = 0
        for index in range(most_bytes):
            [byte] = self._bytes(1)
            number |= (byte & _SEVEN_BITS) << 7 * index
            if byte <= _SEVEN_BITS:
                value = number >> 1 ^ -(number & 1)
                if value not in (_INT if most_bytes == _INT_BYTES else _LONG):
                    break
                return value
        raise _problem(Problem.TOO_MANY_BITS)

    #: Each does one operation, and returns which one follows if it is not the next.
    _STEPS: ClassVar[dict[int, Callable[..., int | None]]] = {
        Op.END: _end,
        Op.BOOLEAN: _append_boolean,
        Op.INT32: _append_integer,
        Op.INT64: _append_integer,
        Op.FLOAT32: _append_float32,
        Op.FLOAT64: _append_float64,
        Op.BYTES: _append_bytes,
        Op.FIXED: _append_fixed,
        Op.DECIMAL: _append_decimal,
        Op.SYMBOL: _append_symbol,
        Op.NULL: _null,
        Op.STRUCT: _struct,
        Op.ITEMS: _items,
        Op.ITEMS_END: _items_end,
        Op.SKIP: _skip,
        Op.BRANCH: _branch,
        Op.GO: _go,
        Op.DEFAULT: _default,
        Op.DEFAULT_END: _default_end,
        Op.FAIL: _fail,
    }


def _by_slot(column: Column) -> list[Column]:
    columns, rest = [], [column]
    while rest:
        column = rest.pop()
        columns.append(column)
        rest += reversed(column.children)
    return columns


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _problem(Problem.NOT_UTF8) from None
