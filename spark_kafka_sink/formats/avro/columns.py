"""The columns that values of an Avro schema become, with the types of Spark's `from_avro` (4.2).

They follow Spark's `SchemaConverters`, with these additions: a decimal of more than 38 digits is
refused, and so is a schema with more columns than `MOST_COLUMNS`. Of the intervals of Spark's
`to_avro`, those of days to seconds are durations; others are refused, since PySpark has no Arrow
type for them.

A general union is a struct with a member for each branch but null. One of them is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.schema import (
    SPARK_TYPE,
    Array,
    DecimalType,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
    shortened,
)
from spark_kafka_sink.formats.columnar.columns import MOST_COLUMNS, MOST_DIGITS, Column

if TYPE_CHECKING:
    from spark_kafka_sink.formats.columnar.columns import Kind

_MICROSECONDS: Final = pa.timestamp("us")
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_PRIMITIVES: Final[dict[str, tuple[Kind, Any]]] = {
    "null": ("null", pa.null()),
    "boolean": ("boolean", pa.bool_()),
    "int": ("number", pa.int32()),
    "long": ("number", pa.int64()),
    "float": ("number", pa.float32()),
    "double": ("number", pa.float64()),
    "bytes": ("bytes", pa.binary()),
    "string": ("bytes", pa.string()),
}
_LOGICAL: Final[dict[str, Any]] = {
    "date": pa.date32(),
    "time-micros": pa.time64("us"),
    "timestamp-millis": _INSTANT,
    "timestamp-micros": _INSTANT,
    "local-timestamp-millis": _MICROSECONDS,
    "local-timestamp-micros": _MICROSECONDS,
}


#: Spark's names of types that columns of a number have.
_SPARK_TYPES: Final[dict[tuple[str, str], Any]] = {
    ("int", "int"): pa.int32(),
    ("int", "integer"): pa.int32(),
    ("long", "bigint"): pa.int64(),
    ("long", "long"): pa.int64(),
    ("long", "interval day to second"): pa.duration("us"),
    ("long", "time(6)"): pa.time64("us"),
}


def columns_of(schema: Schema, *, tells_moments: bool = False) -> Column:
    """Return the column for values of a schema, with all columns below it.

    A union of int and long is a column of plain numbers. With `tells_moments` it is a struct like
    other unions if one of them has a logical type, such as a date. Raises `SchemaError` if no
    column can have the values.
    """
    return _Numbering(tells_moments=tells_moments).column(schema)


class _Numbering:
    def __init__(self, *, tells_moments: bool) -> None:
        self._slots = 0
        self._tells_moments = tells_moments

    def column(self, schema: Schema, *, nullable: bool = False) -> Column:
        if isinstance(schema, Union):
            return self._union(schema, nullable=nullable)
        slot = self._next()
        children: tuple[Column, ...] = ()
        kind: Kind
        kind_type: Any
        match schema:
            case Primitive():
                kind, kind_type = _primitive(schema)
            case Enum():
                kind, kind_type = "bytes", pa.string()
            case Fixed():
                kind, kind_type = _decimal(schema.logical) or ("bytes", pa.binary())
            case Array():
                children = (self.column(schema.items),)
                kind, kind_type = "list", pa.list_(_field("element", children[0]))
            case Map():
                children = (self.column(Primitive("string")), self.column(schema.values))
                kind = "map"
                kind_type = pa.map_(pa.string(), _field("value", children[1]))
            case Record():
                children = tuple(self.column(field.schema) for field in schema.fields)
                names = [field.name for field in schema.fields]
                kind, kind_type = "struct", _struct(names, children)
        nullable = nullable or kind == "null"
        return Column(kind, kind_type, nullable, slot, children, end=self._slots)

    def _union(self, schema: Union, *, nullable: bool) -> Column:
        branches = [branch for branch in schema.branches if branch.type != "null"]
        nullable = nullable or len(branches) < len(schema.branches)
        types = {branch.type for branch in branches}
        if len(branches) == 1:
            return self.column(branches[0], nullable=nullable)
        is_told = self._tells_moments and any(
            isinstance(branch, Primitive) and branch.logical is not None for branch in branches
        )
        for pair, wider in (({"int", "long"}, "long"), ({"float", "double"}, "double")):
            if types == pair and not is_told:
                return self.column(Primitive(wider), nullable=nullable)
        slot = self._next()
        children = tuple(self.column(branch, nullable=True) for branch in branches)
        names = [f"member{number}" for number in range(len(children))]
        rest = iter(children)
        members = tuple(None if branch.type == "null" else next(rest) for branch in schema.branches)
        return Column(
            "struct",
            _struct(names, children),
            nullable,
            slot,
            children,
            members,
            end=self._slots,
        )

    def _next(self) -> int:
        if self._slots >= MOST_COLUMNS:
            raise SchemaError(f"Avro: the schema has more than {MOST_COLUMNS} columns")
        self._slots += 1
        return self._slots - 1


def factor_of(schema: Primitive | Fixed) -> int:
    """Return how many units of its column a unit of a number is: timestamps have microseconds."""
    return 1000 if schema.logical in {"timestamp-millis", "local-timestamp-millis"} else 1


def _primitive(schema: Primitive) -> tuple[Kind, Any]:
    kind, kind_type = _PRIMITIVES[schema.type]
    if isinstance(schema.logical, str):
        if schema.logical.startswith(SPARK_TYPE):
            return kind, _spark_type(schema.type, schema.logical.removeprefix(SPARK_TYPE))
        return kind, _LOGICAL.get(schema.logical, kind_type)
    return _decimal(schema.logical) or (kind, kind_type)


def _spark_type(kind: str, name: str) -> Any:
    """Return the type of a number that has one in Spark."""
    spark_type = _SPARK_TYPES.get((kind, name))
    if spark_type is None:
        raise SchemaError(
            f"Avro: the {kind} is '{shortened(name)}' in Spark ({SPARK_TYPE.strip()}), a type for "
            "which there is no column; remove the property to read the number"
        )
    return spark_type


def _decimal(logical: str | DecimalType | None) -> tuple[Kind, Any] | None:
    if not isinstance(logical, DecimalType):
        return None
    if logical.precision > MOST_DIGITS:
        raise SchemaError(
            f"Avro: a decimal of {logical.precision} digits; Spark has {MOST_DIGITS} at most"
        )
    return "decimal", pa.decimal128(logical.precision, logical.scale)


def _struct(names: list[str], children: tuple[Column, ...]) -> Any:
    return pa.struct([_field(name, child) for name, child in zip(names, children, strict=True)])


def _field(name: str, column: Column) -> Any:
    return pa.field(name, column.type, nullable=column.nullable)
