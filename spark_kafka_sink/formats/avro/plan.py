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
| `NULL` | slot, end | append a null, or anything where there is none, to the slots up to `end` |
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
factor 0 an `INT64` is a time of the day, and a `FLOAT64` is rounded to 32 bits before. A `NULL`
leaves out the slots below a list, which has no items then.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

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

    from spark_kafka_sink.formats.avro.resolution import Action
    from spark_kafka_sink.formats.avro.schema import Schema
    from spark_kafka_sink.formats.columnar.columns import Column

#: Numbers of an operation: its own, and three arguments.
WIDTH: Final = 4
#: The most items without bytes that a payload can have. One of ten bytes can say that it has 2^62.
MOST_EMPTY_ITEMS: Final = 100_000
#: Longer plans are refused: a type that is used twice in each of thirty others is there 2^30 times.
MOST_OPERATIONS: Final = 100_000
#: The most fields, items and branches that are looked at to make a plan.
_MOST_VISITS: Final = 10 * MOST_OPERATIONS
#: The most characters of a path that an error shows.
_SHOWN_PATH: Final = 200
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
    #: Where the values of operations are: from each operation on, until the next one.
    places: tuple[Place, ...]

    def problem_at(self, operation: int, problem: str, value: str = "") -> str:
        """Return the text of a problem, with the path of the field that an operation reads.

        The path begins with the name of the value, if that is given.
        """
        names, size = [], 0
        number = bisect_right(self.places, operation, key=lambda place: place.operation) - 1
        node = self.places[number].path
        while node is not None and size <= _SHOWN_PATH:
            names.append(node.name)
            size += len(node.name)
            node = node.outer
        path = "".join(reversed(names))
        if size > _SHOWN_PATH:
            path = f"...{path[-_SHOWN_PATH:]}"
        path = f"{value}{path}" if value else path.removeprefix(".")
        return f"{path}: {problem}" if path else problem


class FieldPath(NamedTuple):
    """A part of a value: the name behind that of the part that it is in."""

    outer: FieldPath | None
    #: A field with a dot before it, or the brackets of a list or a map.
    name: str


class Place(NamedTuple):
    """The path of the operations from one on; None of the value itself."""

    operation: int
    path: FieldPath | None


def make_plan(writer: Schema, reader: Schema, *, tells_moments: bool = False) -> Plan:
    """Return the plan for payloads of `writer` as values of `reader`; see `columns_of`.

    Raises `SchemaError` if no columns can have such values, or the plan would be too long.
    """
    # Whatever the schema says: a payload may be missing or malformed.
    compiler = _Compiler()
    try:
        column = replace(columns_of(reader, tells_moments=tells_moments), nullable=True)
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
        tuple(compiler.places),
    )


class _Compiler:
    def __init__(self) -> None:
        self.program: list[int] = []
        self.constants = bytearray()
        #: The problems, with their numbers.
        self.problems: dict[str, int] = {}
        self.places = [Place(0, None)]
        self._path: FieldPath | None = None
        self._visits = 0
        #: The lists that the next operation is in, and the most of any operation.
        self._lists = 0
        self.most_lists = 0
        #: Where the constants are, and the tables of enums, by the identities of their actions.
        self._offsets: dict[bytes, int] = {}
        self._tables: dict[int, int] = {}

    def emit(self, op: int, first: int = 0, second: int = 0, third: int = 0) -> int:
        """Append an operation, or a line of a table; return its number."""
        if len(self.program) >= MOST_OPERATIONS * WIDTH:
            raise SchemaError(f"Avro: the schema needs more than {MOST_OPERATIONS} operations")
        if self.places[-1].path is not self._path:
            self.places.append(Place(self._next(), self._path))
        self.program += (op, first, second, third)
        return len(self.program) // WIDTH - 1

    def _visit(self) -> None:
        self._visits += 1
        if self._visits > _MOST_VISITS:
            raise SchemaError(f"Avro: the schema has more than {_MOST_VISITS} parts")

    def _enter(self, name: str) -> FieldPath | None:
        """Set the path of the next operations to a part of the current one, which is returned."""
        outer, self._path = self._path, FieldPath(self._path, name)
        return outer

    def _constant(self, data: bytes) -> int:
        """Return where a constant is."""
        if data not in self._offsets:
            self._offsets[data] = len(self.constants)
            self.constants += data
        return self._offsets[data]

    def _next(self) -> int:
        return len(self.program) // WIDTH

    def _patch(self, operation: int, argument: int, value: int) -> None:
        self.program[operation * WIDTH + argument] = value

    def action(self, action: Action, column: Column) -> None:
        """Add what reads one value into a column."""
        self._visit()
        self._EMITTERS[type(action)](self, action, column)

    def _no_match(self, action: Fail, _: Column) -> None:
        self.emit(Op.FAIL, self.problems.setdefault(action.problem, len(self.problems)))

    def _read(self, action: Read, column: Column) -> None:
        writer = action.writer
        size = writer.size if isinstance(writer, Fixed) else -1
        if column.kind == "null":
            self.null(column)
        elif column.kind == "boolean":
            self.emit(Op.BOOLEAN, column.slot)
        elif column.kind == "decimal":
            limit = (10**column.type.precision).to_bytes(_DECIMAL_BYTES, "little")
            self.emit(Op.DECIMAL, column.slot, size, self._constant(limit))
        elif column.kind == "number":
            self.emit(_storage(column), column.slot, _WIRES[writer.type], _factor(action, column))
        elif size < 0:
            self.emit(Op.BYTES, column.slot, pa.types.is_string(column.type))
        else:
            self.emit(Op.FIXED, column.slot, size)

    def _read_symbol(self, action: ReadEnum, column: Column) -> None:
        # The same enum has the same action wherever it is used.
        if id(action) in self._tables:
            self.emit(Op.SYMBOL, column.slot, self._tables[id(action)], len(action.symbols))
            return
        self._tables[id(action)] = self._next() + 2
        self.emit(Op.SYMBOL, column.slot, self._next() + 2, len(action.symbols))
        skip = self.emit(Op.GO)
        for symbol in action.symbols:
            data = b"" if symbol is None else symbol.encode()
            self.emit(self._constant(data), -1 if symbol is None else len(data))
        self._patch(skip, 1, self._next())

    def _read_items(self, action: ReadItems, column: Column) -> None:
        begin = self._begin_items(column.slot, takes_bytes=action.takes_bytes)
        outer = self._enter("{}" if action.is_map else "[]")
        if action.is_map:
            self.emit(Op.BYTES, column.children[0].slot, 1)
        self.action(action.item, column.children[-1])
        self._path = outer
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
        for name, position, part in action.fields:
            outer = self._enter(f".{name}")
            # What is skipped has no column; any will do.
            self.action(part, column if position is None else column.children[position])
            self._path = outer
        for position, default, part in action.defaults:
            outer = self._enter(f".{action.reader.fields[position].name}")
            begin = self.emit(Op.DEFAULT, self._constant(default), len(default))
            self.action(part, column.children[position])
            self._patch(begin, 3, self.emit(Op.DEFAULT_END))
            self._path = outer

    def _choose(self, action: Choose, column: Column) -> None:
        if action.reader.branches[action.branch].type == "null":
            self.null(column)
        elif column.members:
            self.emit(Op.STRUCT, column.slot)
            member = column.members[action.branch]
            assert member is not None  # noqa: S101  # the branch is not null
            self._nulls(column.slot + 1, member.slot)
            self.action(action.action, member)
            self._nulls(member.end, column.end)
        else:
            self.action(action.action, column)

    def null(self, column: Column) -> None:
        """Add what appends a null to a column, and something to the members of a struct."""
        self._nulls(column.slot, column.end)

    def _nulls(self, begin: int, end: int) -> None:
        if begin < end:
            self.emit(Op.NULL, begin, end)

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
            if line < table + len(emitters) - 1:
                ends.append(self.emit(Op.GO))
        for end in ends:
            self._patch(end, 1, self._next())

    def _skip(self, action: Skip, _: Column) -> None:
        self._skip_value(action.writer)

    def _skip_value(self, writer: Schema) -> None:
        self._visit()
        if not takes_bytes(writer):
            return
        match writer:
            case Fixed():
                self.emit(Op.SKIP, Wire.FIXED, writer.size)
            case Enum():
                self.emit(Op.SKIP, Wire.SYMBOL, len(writer.symbols))
            case Array() | Map():
                self._skip_items(writer)
            case Union():
                self._branches([partial(self._skip_value, branch) for branch in writer.branches])
            case Record():
                for field in writer.fields:
                    outer = self._enter(f".{field.name}")
                    self._skip_value(field.schema)
                    self._path = outer
            case Primitive():
                self.emit(Op.SKIP, _WIRES[writer.type])

    def _skip_items(self, writer: Array | Map) -> None:
        if isinstance(writer, Array) and not takes_bytes(writer.items):
            self.emit(Op.SKIP, Wire.EMPTY_ITEMS)
            return
        begin = self._begin_items(-1, takes_bytes=True)
        outer = self._enter("{}" if isinstance(writer, Map) else "[]")
        if isinstance(writer, Map):
            self.emit(Op.SKIP, Wire.BYTES)
        for part in parts_of(writer):
            self._skip_value(part)
        self._path = outer
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


def _factor(action: Read, column: Column) -> int:
    if pa.types.is_time(column.type):
        return 0
    # The column of a union of float and double has doubles.
    is_narrowed = action.reader.type == "float" and action.writer.type != "float"
    if pa.types.is_floating(column.type):
        return 0 if is_narrowed else 1
    # A union of int and long is a column of plain numbers, whatever their logical types.
    return factor_of(action.reader) if pa.types.is_timestamp(column.type) else 1


def _storage(column: Column) -> Op:
    """Return the operation that appends a number to a column."""
    narrow, wide = (
        (Op.FLOAT32, Op.FLOAT64) if pa.types.is_floating(column.type) else (Op.INT32, Op.INT64)
    )
    return wide if column.type.bit_width == _LONG_BITS else narrow
