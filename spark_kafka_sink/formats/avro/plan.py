"""Plans: how to decode a payload, as a program of small integers.

`make_plan` translates what `resolve` found into operations on slots, the numbers of the columns.
A plan is data: a compiled kernel runs it, and so does `interpreter`, its oracle in Python. No code
is compiled for a schema.

Every operation has four numbers, and so does a line of a table:

| operation | numbers | effect |
|---|---|---|
| `BOOLEAN` `INT32` `INT64` `FLOAT32` `FLOAT64` | slot, `Wire`, factor | read a number, append it |
| `BYTES` | slot, whether it is text | read a length and bytes, append them |
| `FIXED` | slot, size | read bytes, append them |
| `DECIMAL` | slot, size or -1, limit | read a big-endian number below the limit, append it |
| `SYMBOL` | slot, table, lines | read an index, append the constant of its line |
| `NULL` | slot | append a null, or anything where the column has none |
| `STRUCT` | slot | append a struct that is there |
| `ITEMS` | slot or -1, end, size | a list: items up to `end`, each of `size` bytes or more |
| `ITEMS_END` | slot or -1, begin | go back to `begin` for the next item, if any |
| `SKIP` | `Wire`, size or count | read a value without appending it |
| `BRANCH` | table, lines | read a branch, go to what its line says |
| `GO` | target | go to another operation |
| `DEFAULT` | offset, length, end | read a constant up to the operation `end`, then the payload |
| `FAIL` | problem | fail |
| `END` | | the payload must end here |

The lines of a `BRANCH` have a target; those of a `SYMBOL` the offset and length of a constant, with
the length -1 for a symbol that the reader does not have. The limit of a `DECIMAL` is the offset of
a constant, a little-endian number of 128 bits. A number is multiplied by its factor; with the
factor 0 it is a time of the day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.columns import columns_of, factor_of
from spark_kafka_sink.formats.avro.resolution import (
    Choose,
    Fail,
    Read,
    ReadEnum,
    ReadItems,
    ReadRecord,
    ReadUnion,
    Skip,
    resolve,
)
from spark_kafka_sink.formats.avro.schema import (
    Array,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    parts_of,
    takes_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.formats.avro.columns import Column
    from spark_kafka_sink.formats.avro.resolution import Action
    from spark_kafka_sink.formats.avro.schema import Schema

#: Numbers of an operation: its own, and three arguments.
WIDTH: Final = 4
#: The most items without bytes that a payload can have. One of ten bytes can say that it has 2^62.
MOST_EMPTY_ITEMS: Final = 100_000
#: Longer plans are refused: a type that is used twice in each of thirty others is there 2^30 times.
MOST_OPERATIONS: Final = 100_000
#: The microseconds of a day, which every time of the day is below.
DAY: Final = 86_400_000_000


class Op(IntEnum):
    """What an operation does; see the table of this module."""

    END = 0
    BOOLEAN = 1
    INT32 = 2
    INT64 = 3
    FLOAT32 = 4
    FLOAT64 = 5
    BYTES = 6
    FIXED = 7
    DECIMAL = 8
    SYMBOL = 9
    NULL = 10
    STRUCT = 11
    ITEMS = 12
    ITEMS_END = 13
    SKIP = 14
    BRANCH = 15
    GO = 16
    DEFAULT = 17
    DEFAULT_END = 18
    FAIL = 19


class Wire(IntEnum):
    """How a value stands in a payload."""

    NOTHING = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    FIXED = 7
    SYMBOL = 8
    #: A list whose items have no bytes; a hostile one has 2^62 of them.
    EMPTY_ITEMS = 9


_WIRES: Final = {
    "null": Wire.NOTHING,
    "boolean": Wire.BOOLEAN,
    "int": Wire.INT,
    "long": Wire.LONG,
    "float": Wire.FLOAT,
    "double": Wire.DOUBLE,
    "bytes": Wire.BYTES,
    "string": Wire.BYTES,
}
_PLAIN: Final = {"null": Op.NULL, "boolean": Op.BOOLEAN}
_LONG_BITS: Final = 64
_DECIMAL_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """How to decode payloads of one writer's schema into the columns of a reader's."""

    column: Column
    #: Operations and tables, `WIDTH` numbers each.
    program: tuple[int, ...]
    constants: bytes
    problems: tuple[str, ...]
    #: The operation that begins a row which is null.
    null_operation: int
    #: The most lists that a value is in.
    lists: int


def make_plan(writer: Schema, reader: Schema) -> Plan:
    """Return the plan for payloads of `writer` as values of `reader`.

    Raises `SchemaError` if no columns can have such values, or the plan would be too long.
    """
    # Whatever the schema says: a payload may be missing or malformed.
    column = replace(columns_of(reader), nullable=True)
    compiler = _Compiler()
    try:
        compiler.action(resolve(writer, reader), column)
    except RecursionError:
        raise SchemaError("Avro: the schema has too many levels") from None
    null_operation = compiler.emit(Op.END) + 1
    compiler.null(column)
    compiler.emit(Op.END)
    return Plan(
        column,
        tuple(compiler.program),
        bytes(compiler.constants),
        tuple(compiler.problems),
        null_operation,
        compiler.most_lists,
    )


class _Compiler:
    def __init__(self) -> None:
        self.program: list[int] = []
        self.constants = bytearray()
        self.problems: list[str] = []
        #: The lists that the next operation is in, and the most of any operation.
        self._lists = 0
        self.most_lists = 0

    def emit(self, op: int, first: int = 0, second: int = 0, third: int = 0) -> int:
        """Append an operation, or a line of a table; return its number."""
        if len(self.program) >= MOST_OPERATIONS * WIDTH:
            raise SchemaError(f"Avro: the schema needs more than {MOST_OPERATIONS} operations")
        self.program += (op, first, second, third)
        return len(self.program) // WIDTH - 1

    def _next(self) -> int:
        return len(self.program) // WIDTH

    def _patch(self, operation: int, argument: int, value: int) -> None:
        self.program[operation * WIDTH + argument] = value

    def action(self, action: Action, column: Column) -> None:
        """Add what reads one value into a column."""
        self._EMITTERS[type(action)](self, action, column)

    def _no_match(self, action: Fail, _: Column) -> None:
        if action.problem not in self.problems:
            self.problems.append(action.problem)
        self.emit(Op.FAIL, self.problems.index(action.problem))

    def _read(self, action: Read, column: Column) -> None:
        writer, reader = action.writer, action.reader
        size = writer.size if isinstance(writer, Fixed) else -1
        if column.kind in _PLAIN:
            self.emit(_PLAIN[column.kind], column.slot)
        elif column.kind == "decimal":
            limit = len(self.constants)
            self.constants += (10**column.type.precision).to_bytes(_DECIMAL_BYTES, "little")
            self.emit(Op.DECIMAL, column.slot, size, limit)
        elif column.kind == "number":
            # A union of int and long is a column of plain numbers, whatever their logical types.
            factor = factor_of(reader) if pa.types.is_timestamp(column.type) else 1
            factor = 0 if pa.types.is_time(column.type) else factor
            self.emit(_storage(column), column.slot, _WIRES[writer.type], factor)
        elif size < 0:
            self.emit(Op.BYTES, column.slot, pa.types.is_string(column.type))
        else:
            self.emit(Op.FIXED, column.slot, size)

    def _read_symbol(self, action: ReadEnum, column: Column) -> None:
        lines = []
        for symbol in action.symbols:
            data = b"" if symbol is None else symbol.encode()
            lines.append((len(self.constants), -1 if symbol is None else len(data)))
            self.constants += data
        self.emit(Op.SYMBOL, column.slot, self._next() + 2, len(lines))
        skip = self.emit(Op.GO)
        for offset, length in lines:
            self.emit(offset, length)
        self._patch(skip, 1, self._next())

    def _read_items(self, action: ReadItems, column: Column) -> None:
        begin = self._begin_items(column.slot, takes_bytes=action.takes_bytes)
        if action.is_map:
            self.emit(Op.BYTES, column.children[0].slot, 1)
        self.action(action.item, column.children[-1])
        self._end_items(begin, column.slot)

    def _begin_items(self, slot: int, *, takes_bytes: bool) -> int:
        self._lists += 1
        self.most_lists = max(self.most_lists, self._lists)
        return self.emit(Op.ITEMS, slot, 0, int(takes_bytes))

    def _end_items(self, begin: int, slot: int) -> None:
        self._lists -= 1
        self._patch(begin, 2, self.emit(Op.ITEMS_END, slot, begin + 1))

    def _read_record(self, action: ReadRecord, column: Column) -> None:
        self.emit(Op.STRUCT, column.slot)
        for position, part in action.fields:
            # What is skipped has no column; any will do.
            self.action(part, column if position is None else column.children[position])
        for position, default in action.defaults:
            schema = action.reader.fields[position].schema
            begin = self.emit(Op.DEFAULT, len(self.constants), len(default))
            self.constants += default
            self.action(resolve(schema, schema), column.children[position])
            self._patch(begin, 3, self.emit(Op.DEFAULT_END))

    def _choose(self, action: Choose, column: Column) -> None:
        if action.reader.branches[action.branch].type == "null":
            self.null(column)
        elif column.members:
            self.emit(Op.STRUCT, column.slot)
            member = column.members[action.branch]
            for child in column.children:
                if child is member:
                    self.action(action.action, child)
                else:
                    self.null(child)
        else:
            self.action(action.action, column)

    def null(self, column: Column) -> None:
        """Add what appends a null to a column, and something to the members of a struct."""
        self.emit(Op.NULL, column.slot)
        if column.kind == "struct":
            for child in column.children:
                self.null(child)

    def _read_branches(self, action: ReadUnion, column: Column) -> None:
        self._branches([partial(self.action, branch, column) for branch in action.branches])

    def _branches(self, emitters: list[Callable[[], None]]) -> None:
        """Add the choice of a branch, and what each emits."""
        table = self.emit(Op.BRANCH, self._next() + 1, len(emitters)) + 1
        for _ in emitters:
            self.emit(0)
        ends = []
        for line, emit in enumerate(emitters, table):
            self._patch(line, 0, self._next())
            emit()
            ends.append(self.emit(Op.GO))
        for end in ends:
            self._patch(end, 1, self._next())

    def _skip(self, action: Skip, _: Column) -> None:
        self._skip_value(action.writer)

    def _skip_value(self, writer: Schema) -> None:
        match writer:
            case Fixed() if writer.size:
                self.emit(Op.SKIP, Wire.FIXED, writer.size)
            case Enum():
                self.emit(Op.SKIP, Wire.SYMBOL, len(writer.symbols))
            case Array() | Map():
                self._skip_items(writer)
            case Union():
                self._branches([partial(self._skip_value, branch) for branch in writer.branches])
            case Record():
                for part in parts_of(writer):
                    self._skip_value(part)
            case Primitive() if writer.type != "null":
                self.emit(Op.SKIP, _WIRES[writer.type])

    def _skip_items(self, writer: Array | Map) -> None:
        if isinstance(writer, Array) and not takes_bytes(writer.items):
            self.emit(Op.SKIP, Wire.EMPTY_ITEMS)
            return
        begin = self._begin_items(-1, takes_bytes=True)
        if isinstance(writer, Map):
            self.emit(Op.SKIP, Wire.BYTES)
        for part in parts_of(writer):
            self._skip_value(part)
        self._end_items(begin, -1)

    _EMITTERS: ClassVar[dict[type, Callable[[Any, Any, Column], None]]] = {
        Read: _read,
        ReadEnum: _read_symbol,
        ReadItems: _read_items,
        ReadRecord: _read_record,
        ReadUnion: _read_branches,
        Choose: _choose,
        Skip: _skip,
        Fail: _no_match,
    }


def _storage(column: Column) -> Op:
    """Return the operation that appends a number to a column."""
    narrow, wide = (
        (Op.FLOAT32, Op.FLOAT64) if pa.types.is_floating(column.type) else (Op.INT32, Op.INT64)
    )
    return wide if column.type.bit_width == _LONG_BITS else narrow
