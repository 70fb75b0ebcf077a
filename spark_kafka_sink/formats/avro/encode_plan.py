"""Plans for encoding: how rows of Arrow become payloads, as a program of small integers.

`make_encode_plan` compares the type of an array with the writer's schema, and translates the two
into operations on slots, the numbers of the columns. A plan is data, which a compiled kernel runs.

Columns match fields by name: exactly first, else one that differs in case only. A column without a
field is refused. A field without a column takes its default, else null. The type of a column must
be one whose values the field's type has without a loss:

| column | field |
|---|---|
| bool | boolean |
| int8, int16, uint8, uint16 | int, long, float, double |
| int32 | int, long, double |
| uint32 | long, double |
| int64 | long |
| float16, float32 | float, double |
| float64 | double |
| string | string (also uuid), enum |
| binary | bytes, fixed |
| decimal | decimal of the same scale, with as many digits or more |
| date32, date64 | int, date |
| time32 | time-millis, time-micros |
| time64 | time-micros |
| timestamp with a time zone | timestamp-millis, timestamp-micros, timestamp-nanos, long |
| timestamp without one | local-timestamp-millis, -micros, -nanos, long |
| duration | long, in microseconds |
| list | array |
| map with strings as keys | map |
| struct | record, general union |

Values are those of Spark's `to_avro`:

- An integer is written as it is, whatever the logical type of an int or a long.
- A timestamp in a long without logical type has milliseconds.
- What the unit of a timestamp or a time cannot hold is cut off, towards the past.
- A general union is a struct of `member0`, `member1` and so on; the first that is set counts. An
  integer can be in a union of int and long, and a number in one of float and double.

Beyond `to_avro` there are default values, the wider types above, seconds and nanoseconds.

Each operation has four numbers:

| operation | numbers | effect |
|---|---|---|
| `INT32` `INT64` | slot | write an integer |
| `FLOAT32` `FLOAT64` | slot | write a number of 4 or 8 bytes |
| `BOOLEAN` | slot | write a byte |
| `SCALED` | slot, scale | check an integer, multiply and divide it, write it |
| `TEXT` `BYTES` | slot | write length and bytes; a text must be UTF-8 |
| `FIXED` | slot, size or -1 | write bytes, with -1 however many |
| `DECIMAL` | slot, size, limit | write a number below the limit, big-endian |
| `SYMBOL` | slot | write the index of a symbol; a negative one fails |
| `STRUCT` | slot | write nothing |
| `ITEMS` | slot, end | a list: the number of its items, and the first; or go behind it |
| `ITEMS_END` | slot, begin | go to `begin` for the next item, or end the list |
| `CONSTANT` | offset, length | write a constant |
| `NULLABLE` | slot, target, branches | write the branch of null and go to `target`; or the other |
| `MEMBER` | slot, target, branch | write the branch if the slot is set, else go to `target` |
| `NO_MEMBER` | slot, branch | no member is set: write the branch of null, or fail with -1 |
| `GO` | target | go to another operation |
| `END` | | the payload is complete |

The operations up to `ITEMS` fail where their slot is null. A decimal with the size -1 has a length
before its bytes, with -2 it has none. `scale` is the offset of four numbers of 64 bits among the
constants: the smallest integer and the largest, factor and divisor. A limit is one of 128 bits.
`branches` are two numbers in one, see `both_branches`.
"""

from __future__ import annotations

import difflib
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.defaults import DefaultEncoder
from spark_kafka_sink.formats.avro.plan import DAY, MOST_OPERATIONS, WIDTH
from spark_kafka_sink.formats.avro.schema import (
    ABSENT,
    SPARK_TYPE,
    Array,
    DecimalType,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    shortened,
)
from spark_kafka_sink.formats.columnar.columns import MOST_DIGITS
from spark_kafka_sink.formats.columnar.sources import (
    EncodePlan,
    PlanBuilder,
    Source,
    is_any_binary,
    is_any_list,
    is_any_string,
    is_direct,
    stored_bytes,
    value_type,
)
from spark_kafka_sink.record.default_record import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.formats.columnar.sources import Storage


class EncodeOp(IntEnum):
    """What an operation does; see the table of this module."""

    END = 0
    INT32 = 1
    INT64 = 2
    FLOAT32 = 3
    FLOAT64 = 4
    BOOLEAN = 5
    SCALED = 6
    TEXT = 7
    BYTES = 8
    FIXED = 9
    DECIMAL = 10
    SYMBOL = 11
    STRUCT = 12
    ITEMS = 13
    ITEMS_END = 14
    CONSTANT = 15
    NULLABLE = 16
    MEMBER = 17
    NO_MEMBER = 18
    GO = 19


#: The size of a decimal of bytes without their length.
_NO_LENGTH: Final = -2
_DECIMAL_BYTES: Final = 16
#: A union of more branches is refused, since `both_branches` has 15 bits for each.
_MOST_BRANCHES: Final = 10_000
#: What an operation writes, in bytes: only the memory at first allocated depends on it.
_USUAL_BYTES: Final = {
    EncodeOp.INT32: 4,
    EncodeOp.INT64: 6,
    EncodeOp.FLOAT32: 4,
    EncodeOp.FLOAT64: 8,
    EncodeOp.BOOLEAN: 1,
    EncodeOp.SCALED: 9,
    EncodeOp.TEXT: 2,
    EncodeOp.BYTES: 2,
    EncodeOp.DECIMAL: 9,
    EncodeOp.SYMBOL: 1,
    EncodeOp.ITEMS: 3,
    EncodeOp.NULLABLE: 1,
    EncodeOp.MEMBER: 1,
}
#: For each type of number, those of Avro that have all its values.
_NUMBERS: Final = {
    "int8": ("int", "long", "float", "double"),
    "int16": ("int", "long", "float", "double"),
    "int32": ("int", "long", "double"),
    "int64": ("long",),
    "uint8": ("int", "long", "float", "double"),
    "uint16": ("int", "long", "float", "double"),
    "uint32": ("long", "double"),
    "halffloat": ("float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
}
_STORED: Final[dict[str, tuple[EncodeOp, Any]]] = {
    "int": (EncodeOp.INT32, pa.int32()),
    "long": (EncodeOp.INT64, pa.int64()),
    "float": (EncodeOp.FLOAT32, pa.float32()),
    "double": (EncodeOp.FLOAT64, pa.float64()),
}
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_OF_A_DAY: Final = DAY // _PER_SECOND["us"]
_MILLISECONDS_OF_A_DAY: Final = _SECONDS_OF_A_DAY * _PER_SECOND["ms"]
#: The units of what Avro's logical types count. Without one, Spark writes milliseconds.
_INSTANTS: Final[dict[Any, str]] = {
    None: "ms",
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
}
_LOCAL_TIMES: Final[dict[Any, str]] = {
    None: "ms",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
_DURATIONS: Final = frozenset({None, f"{SPARK_TYPE}interval day to second"})
#: Names that an error lists, and with which it compares one.
_MOST_NAMES: Final = 5
_MOST_COMPARED: Final = 1000


class Scale(NamedTuple):
    """How an integer is converted: those from `low` to `high`, times `factor` by `divisor`."""

    low: int
    high: int
    factor: int
    divisor: int


def make_encode_plan(
    schema: Schema, arrow_type: Any, column: str = "value", *, bare_bytes: bool = False
) -> EncodePlan:
    """Return the plan for arrays of a `pyarrow.DataType` as payloads of a writer's schema.

    `column` is the name of the array in errors. With `bare_bytes`, the payloads of the schema
    "bytes" have no length before the bytes: so Confluent's serializers write them behind their
    framing, and their deserializers read them. Raises `SchemaError` if the schema does not have
    all values of the type, or the plan would be too long.
    """
    compiler = _Compiler()
    source = compiler.value(schema, arrow_type, column, required=False)
    if bare_bytes and schema.type == "bytes":
        compiler.remove_length()
    compiler.emit(EncodeOp.END)
    return compiler.plan(arrow_type, source)


def both_branches(null: int, other: int) -> int:
    """Return the third number of `NULLABLE`: branches of a union, each -1 if there is none."""
    return (null + 1) << 15 | (other + 1)


class _Compiler(PlanBuilder):
    def __init__(self) -> None:
        super().__init__(WIDTH)
        self._defaults = DefaultEncoder()

    def emit(self, op: EncodeOp, first: int = 0, second: int = 0, third: int = 0) -> int:
        """Append an operation; return its number."""
        if len(self.program) >= MOST_OPERATIONS * WIDTH:
            raise SchemaError(f"Avro: the schema needs more than {MOST_OPERATIONS} operations")
        if not self._lists:
            self.row_bytes += _USUAL_BYTES.get(op, 0)
            if op in {EncodeOp.FIXED, EncodeOp.CONSTANT}:
                self.row_bytes += second
        self.program += (op, first, second, third)
        return self._next() - 1

    def remove_length(self) -> None:
        """Change the only operation: it writes no length."""
        op, slot, _, limit = self.program
        self.program = (
            [EncodeOp.DECIMAL, slot, _NO_LENGTH, limit]
            if op == EncodeOp.DECIMAL
            else [EncodeOp.FIXED, slot, -1, 0]
        )

    def _patch(self, operation: int, argument: int, value: int) -> None:
        self.program[operation * WIDTH + argument] = value

    def _constant(self, data: bytes) -> None:
        if data:
            self.emit(EncodeOp.CONSTANT, len(self.constants), len(data))
            self.constants += data

    def value(self, schema: Schema, arrow_type: Any, path: str, *, required: bool = True) -> Source:
        """Add what writes the values of a column; without `required` there are no nulls."""
        kind = value_type(arrow_type)
        column = _Place(self._slots, path, arrow_type, kind)
        self._slots += 1
        if pa.types.is_null(kind):
            return self._no_value(schema, column, required=required)
        if not isinstance(schema, Union):
            return self._branch(schema, column)
        null = next(
            (number for number, each in enumerate(schema.branches) if each.type == "null"), -1
        )
        if len(schema.branches) > _MOST_BRANCHES:
            raise _mismatch(column, schema, f"has more than {_MOST_BRANCHES} branches")
        number = _branch_for(schema, kind)
        begin = self.emit(EncodeOp.NULLABLE, column.slot, 0, both_branches(null, number))
        if number < 0:
            source = self._members(schema, column, null)
        else:
            source = self._branch(schema.branches[number], column)
        self._patch(begin, 2, self._next())
        return source

    def _no_value(self, schema: Schema, column: _Place, *, required: bool) -> Source:
        """Add a column of nulls only."""
        branches = schema.branches if isinstance(schema, Union) else (schema,)
        null = next((number for number, each in enumerate(branches) if each.type == "null"), None)
        if null is None and required:
            raise _mismatch(column, schema, "cannot be null")
        if null is not None and isinstance(schema, Union):
            self._constant(encode_varint(null))
        return self._source(column, schema, "null")

    def _source(
        self, column: _Place, schema: Schema, storage: Storage, **properties: Any
    ) -> Source:
        source = Source(
            column.slot,
            column.path,
            column.type,
            described(schema),
            storage,
            needs_check=not is_direct(column.type, storage, properties.get("cast")),
            **properties,
        )
        self.sources.append(source)
        return source

    def _branch(self, schema: Schema, column: _Place) -> Source:
        """Add what writes the values of a column by a schema that is not a union."""
        kind = column.kind
        if isinstance(schema, Record) and pa.types.is_struct(kind):
            return self._record(schema, column)
        if isinstance(schema, Array) and is_any_list(kind):
            return self._list(column, schema, "[]", [(schema.items, kind.value_type)])
        if isinstance(schema, Map) and pa.types.is_map(kind):
            return self._map(schema, column)
        if isinstance(schema, Enum) and is_any_string(kind):
            self.emit(EncodeOp.SYMBOL, column.slot)
            return self._source(
                column,
                schema,
                "symbols",
                symbols=schema.symbols,
                cast=_cast(kind, stored_bytes(kind)),
            )
        leaf = _leaf(schema, kind)
        if leaf is None:
            raise _mismatch(column, schema, _advice(schema, kind))
        second = third = 0
        if leaf.scale is not None:
            second = len(self.constants)
            self.constants += struct.pack("<4q", *leaf.scale)
        if leaf.op == EncodeOp.DECIMAL:
            second, third = leaf.size, len(self.constants)
            self.constants += leaf.limit.to_bytes(_DECIMAL_BYTES, "little")
        elif leaf.op == EncodeOp.FIXED:
            second = leaf.size
        self.emit(leaf.op, column.slot, second, third)
        return self._source(column, schema, leaf.storage, cast=_cast(kind, leaf.stored))

    def _list(
        self, column: _Place, schema: Schema, name: str, parts: list[tuple[Schema, Any]]
    ) -> Source:
        self._lists += 1
        self.most_lists = max(self.most_lists, self._lists)
        begin = self.emit(EncodeOp.ITEMS, column.slot)
        children = tuple(
            self.value(part, arrow_type, f"{column.path}{name}") for part, arrow_type in parts
        )
        self.emit(EncodeOp.ITEMS_END, column.slot, begin + 1)
        self._patch(begin, 2, self._next())
        self._lists -= 1
        return self._source(column, schema, "list", children=children)

    def _map(self, schema: Map, column: _Place) -> Source:
        key_type, item_type = column.kind.key_type, column.kind.item_type
        if not is_any_string(value_type(key_type)):
            raise _mismatch(column, schema, "has strings as keys")
        parts = [(Primitive("string"), key_type), (schema.values, item_type)]
        return self._list(column, schema, "{}", parts)

    def _record(self, schema: Record, column: _Place) -> Source:
        self.emit(EncodeOp.STRUCT, column.slot)
        children: dict[int, Source] = {}
        for field, position in _matched(schema, column):
            if position is None:
                self._constant(self._absent(schema, field, column))
            else:
                child = column.kind.field(position)
                children[position] = self.value(
                    field.schema, child.type, f"{column.path}.{child.name}"
                )
        return self._struct(schema, column, children)

    def _absent(self, schema: Record, field: Field, column: _Place) -> bytes:
        """Return what is written for a field that has no column."""
        if field.default is not ABSENT:
            return self._defaults.default_bytes(field)
        branches = field.schema.branches if isinstance(field.schema, Union) else (field.schema,)
        for number, branch in enumerate(branches):
            if branch.type == "null":
                return encode_varint(number) if isinstance(field.schema, Union) else b""
        names = [each.name for each in column.kind]
        raise _wrong(
            column.path,
            f"has no column for the field {shortened(field.name)!r} ({described(field.schema)}) "
            f"of {shortened(schema.name)}, which has neither a default nor null"
            f"{_nearest(field.name, names)}",
            "Add the column",
        )

    def _members(self, schema: Union, column: _Place, null: int) -> Source:
        """Add a general union: the first member that is set is written with its branch."""
        branches = [
            (number, each) for number, each in enumerate(schema.branches) if each.type != "null"
        ]
        names = [f"member{number}" for number in range(len(branches))]
        kind = column.kind
        if not pa.types.is_struct(kind) or [each.name for each in kind] != names:
            raise _mismatch(column, schema, f"needs a struct of {_listed(names)}")
        children: dict[int, Source] = {}
        ends = []
        for position, (number, branch) in enumerate(branches):
            child = kind.field(position)
            path = f"{column.path}.{child.name}"
            if pa.types.is_null(value_type(child.type)):
                continue  # It is never set.
            begin = self.emit(EncodeOp.MEMBER, self._slots, 0, number)
            children[position] = self.value(branch, child.type, path)
            ends.append(self.emit(EncodeOp.GO))
            self._patch(begin, 2, self._next())
        self.emit(EncodeOp.NO_MEMBER, column.slot, null)
        for end in ends:
            self._patch(end, 1, self._next())
        return self._struct(schema, column, children)

    def _struct(self, schema: Schema, column: _Place, children: dict[int, Source]) -> Source:
        return self._source(
            column,
            schema,
            "struct",
            children=tuple(children.values()),
            positions=tuple(children),
        )


class _Place(NamedTuple):
    """A column that is to be written."""

    slot: int
    path: str
    type: Any
    #: The type of its values; see `value_type`.
    kind: Any


class _Leaf(NamedTuple):
    """How values without parts are written."""

    op: EncodeOp
    storage: Storage
    #: The type that the kernel reads.
    stored: Any
    scale: Scale | None = None
    size: int = -1
    limit: int = 0


def _leaf(schema: Schema, kind: Any) -> _Leaf | None:  # noqa: PLR0911  one for each kind of type
    """Return how values of a type are written by a schema; None if they cannot."""
    if isinstance(schema, Primitive | Fixed) and pa.types.is_decimal(kind):
        return _decimal(schema, kind)
    if isinstance(schema, Fixed):
        return _fixed(schema, kind)
    if not isinstance(schema, Primitive):
        return None
    if schema.type in _NUMBERS.get(str(kind), ()):
        op, stored = _STORED[schema.type]
        return _Leaf(op, "numbers", stored)
    if schema.type == "boolean":
        return _Leaf(EncodeOp.BOOLEAN, "bits", kind) if pa.types.is_boolean(kind) else None
    if schema.type == "string":
        return _Leaf(EncodeOp.TEXT, "bytes", stored_bytes(kind)) if is_any_string(kind) else None
    if schema.type == "bytes":
        return _Leaf(EncodeOp.BYTES, "bytes", stored_bytes(kind)) if is_any_binary(kind) else None
    return _moment(schema, kind)


def _cast(kind: Any, stored: Any) -> Any:
    return None if stored == kind else stored


def _fixed(schema: Fixed, kind: Any) -> _Leaf | None:
    if not is_any_binary(kind):
        return None
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width != schema.size:
        return None
    return _Leaf(EncodeOp.FIXED, "bytes", stored_bytes(kind), size=schema.size)


def _decimal(schema: Primitive | Fixed, kind: Any) -> _Leaf | None:
    logical = schema.logical
    if (
        not isinstance(logical, DecimalType)
        or kind.scale != logical.scale
        or not kind.precision <= min(logical.precision, MOST_DIGITS)
    ):
        return None
    return _Leaf(
        EncodeOp.DECIMAL,
        "numbers",
        pa.decimal128(kind.precision, kind.scale),
        size=schema.size if isinstance(schema, Fixed) else -1,
        limit=10 ** min(logical.precision, MOST_DIGITS),
    )


def _moment(schema: Primitive, kind: Any) -> _Leaf | None:
    """Return how dates, times, timestamps and durations are written."""
    is_date = schema.type == "int" and schema.logical in {"date", None}
    if is_date and pa.types.is_date32(kind):
        return _Leaf(EncodeOp.INT32, "numbers", kind)
    if is_date and pa.types.is_date64(kind):
        day = _MILLISECONDS_OF_A_DAY
        scale: Scale | None = Scale(-(2**31) * day, 2**31 * day - 1, 1, day)
    elif pa.types.is_time(kind):
        scale = _scale_of_time(schema, kind)
    else:
        scale = _scale_of_long(schema, kind)
    if scale is None:
        return None
    if scale == _scale("us", "us"):
        return _Leaf(EncodeOp.INT64, "numbers", kind)
    stored = pa.int64() if pa.types.is_time32(kind) else kind
    return _Leaf(EncodeOp.SCALED, "numbers", stored, scale)


def _scale_of_time(schema: Primitive, kind: Any) -> Scale | None:
    if schema.logical == "time-micros":
        unit = "us"
    elif schema.logical == "time-millis" and pa.types.is_time32(kind):
        unit = "ms"
    else:
        return None
    return Scale(0, _SECONDS_OF_A_DAY * _PER_SECOND[kind.unit] - 1, *_ratio(kind.unit, unit))


def _scale_of_long(schema: Primitive, kind: Any) -> Scale | None:
    if schema.type == "long" and pa.types.is_timestamp(kind):
        units = _INSTANTS if kind.tz is not None else _LOCAL_TIMES
        return _scale(kind.unit, units[schema.logical]) if schema.logical in units else None
    if schema.type == "long" and schema.logical in _DURATIONS and pa.types.is_duration(kind):
        return _scale(kind.unit, "us")
    return None


def _ratio(unit: str, target: str) -> tuple[int, int]:
    own, other = _PER_SECOND[unit], _PER_SECOND[target]
    return (other // own, 1) if other >= own else (1, own // other)


def _scale(unit: str, target: str) -> Scale:
    factor, divisor = _ratio(unit, target)
    return Scale(-(2**63 // factor), (2**63 - 1) // factor, factor, divisor)


def _branch_for(schema: Union, kind: Any) -> int:
    """Return the branch of a union for columns of a type; -1 if they must have members."""
    others = [at for at, each in enumerate(schema.branches) if each.type != "null"]
    if len(others) == 1:
        return others[0]
    branches = {schema.branches[at].type: at for at in others}
    if branches.keys() in ({"int", "long"}, {"float", "double"}):
        return next((branches[n] for n in _NUMBERS.get(str(kind), ()) if n in branches), -1)
    return -1


def _matched(schema: Record, column: _Place) -> list[tuple[Field, int | None]]:
    """Return the position of each field's column in a struct."""
    columns = {each.name: position for position, each in enumerate(column.kind)}
    names = list(columns)
    if len(columns) < column.kind.num_fields:
        twice = next(name for name in names if column.kind.get_field_index(name) < 0)
        raise _wrong(column.path, f"has two columns {twice!r}", "Drop or rename one of them")
    fields = {field.name: columns.pop(field.name, None) for field in schema.fields}
    for name in list(columns):
        like = [field for field, at in fields.items() if at is None and _alike(field, name)]
        twins = [other for other in columns if _alike(other, name)]
        if len(like) == len(twins) == 1:
            fields[like[0]] = columns[name]
        elif like:
            raise _wrong(
                column.path,
                f"has {_listed(twins)} for {_listed(like)} of {shortened(schema.name)}, "
                "which differ in case",
                "Name them exactly as the fields",
            )
        else:
            raise _wrong(
                f"{column.path}.{name}",
                f"has no field in the record {shortened(schema.name)}"
                f"{_nearest(name, list(fields))}",
                "Drop or rename the column, or use a schema that has the field",
            )
    return [(field, fields[field.name]) for field in schema.fields]


def _alike(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def described(schema: Schema) -> str:
    """Return what an error calls a schema: its type, and what else tells it from others."""
    match schema:
        case Union():
            return f"union of {_listed([described(each) for each in schema.branches])}"
        case Primitive() | Fixed() if isinstance(schema.logical, DecimalType):
            return f"decimal({schema.logical.precision}, {schema.logical.scale})"
        case Primitive():
            return f"{schema.type} ({schema.logical})" if schema.logical else schema.type
        case Array() | Map():
            return schema.type
        case Fixed():
            return f"fixed {shortened(schema.name)} of {schema.size} bytes"
    return f"{schema.type} {shortened(schema.name)}"


def _advice(schema: Schema, kind: Any) -> str:
    """Return what a schema needs instead of a type."""
    if isinstance(schema, Record):
        return "needs a struct"
    if isinstance(schema, Fixed) and pa.types.is_fixed_size_binary(kind):
        return f"has {schema.size} bytes"
    if pa.types.is_timestamp(kind) and isinstance(schema, Primitive):
        zone = "with" if kind.tz is not None else "without"
        return f"does not have timestamps {zone} a time zone"
    return "does not have all its values"


def _mismatch(column: _Place, schema: Schema, problem: str) -> SchemaError:
    is_encoded = isinstance(schema, Record) and is_any_binary(column.kind)
    first = "Pass the struct itself, not its bytes" if is_encoded else "Cast the column"
    return _wrong(
        column.path,
        f"has type {column.type}, and the schema {described(schema)}, which {problem}",
        f"{first}, or use another schema",
    )


def _wrong(path: str, problem: str, advice: str) -> SchemaError:
    return SchemaError(f"Avro: column {path!r} {problem}. {advice}")


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names[:_MOST_COMPARED], 1)
    return f"; the nearest is {shortened(near[0])!r}" if near else ""


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    shown = [shortened(name) for name in names[:_MOST_NAMES]]
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
