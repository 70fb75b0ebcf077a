"""Random columns of Arrow for Avro schemas, in any layout; repeatable by seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.avro.schema import (
    Array,
    DecimalType,
    Enum,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Schema,
    Union,
    parse_schema,
)
from spark_kafka_sink.formats.columnar.sources import value_type
from tests.support.formats.avro_cases import make_case
from tests.support.formats.avro_writer import PER_SECOND, branch_of, written_number

_INTEGERS = ("int8", "int16", "uint8", "uint16", "int32", "uint32", "int64")
_NUMBERS = {
    "int": _INTEGERS[:5],
    "long": _INTEGERS,
    "float": ("int8", "int16", "uint8", "uint16", "float16", "float32"),
    "double": (*_INTEGERS[:6], "float16", "float32", "float64"),
}
_TEXTS = ("", "text", "ü€𝄞", "x" * 70, "seven..", "x" * 31, "x" * 32, "x" * 33)


@dataclass(frozen=True)
class EncodeCase:
    """A schema as text, an array, and its rows as raw Python values."""

    schema: str
    array: pa.Array
    rows: list[Any]


def make_encode_case(seed: int, rows: int = 6, *, plain: bool = False) -> EncodeCase:
    """Return a case; with `plain`, types and layouts are those that a decoder returns."""
    rng = random.Random(seed)
    text = make_case(seed, payloads=0).writer
    schema = parse_schema(text)
    maker = _Maker(rng, plain=plain)
    column = maker.type_of(schema)
    before, after = (0, 0) if plain else (rng.randrange(12), rng.randrange(3))
    values = [
        None if rng.random() < 0.1 else maker.value(schema, column)
        for _ in range(before + rows + after)
    ]
    array = maker.array(column, values)
    return EncodeCase(text, array.slice(before, rows), values[before : before + rows])


class _Maker:
    def __init__(self, rng: random.Random, *, plain: bool) -> None:
        self._rng = rng
        self._plain = plain

    def type_of(self, schema: Schema) -> pa.DataType:  # noqa: PLR0911  # kinds of schemas
        """Return a type whose values a schema has."""
        match schema:
            case Union():
                return self._union_type(schema)
            case Record():
                fields = [(field.name, self.type_of(field.schema)) for field in schema.fields]
                if not self._plain:
                    self._rng.shuffle(fields)
                return pa.struct(fields)
            case Array():
                return pa.list_(self.type_of(schema.items))
            case Map():
                return pa.map_(pa.string(), self.type_of(schema.values))
            case Enum():
                return pa.string()
            case Primitive() | Fixed() if isinstance(schema.logical, DecimalType):
                precision, scale = schema.logical
                fewer = 0 if self._plain else self._rng.randint(0, precision - max(scale, 1))
                wide = pa.decimal256 if self._rng.random() < 0.2 else pa.decimal128
                return (pa.decimal128 if self._plain else wide)(precision - fewer, scale)
            case Fixed():
                is_fixed = schema.size and not self._plain and self._rng.random() < 0.5
                return pa.binary(schema.size) if is_fixed else pa.binary()
        return self._primitive_type(schema)

    def _union_type(self, schema: Union) -> pa.DataType:
        branches = [branch for branch in schema.branches if branch.type != "null"]
        if not branches:
            return pa.null()
        types = {branch.type for branch in branches}
        if len(branches) == 1:
            return self.type_of(branches[0])
        if types == {"int", "long"}:
            return getattr(pa, "int64" if self._plain else self._rng.choice(_INTEGERS))()
        if types == {"float", "double"}:
            return getattr(pa, "float64" if self._plain else self._rng.choice(_NUMBERS["double"]))()
        return pa.struct(
            [(f"member{at}", self.type_of(branch)) for at, branch in enumerate(branches)]
        )

    def _primitive_type(self, schema: Primitive) -> pa.DataType:  # noqa: PLR0911  # kinds of schemas
        unit = self._rng.choice(["s", "ms", "us", "ns"])
        logical = str(schema.logical)
        if schema.type in _NUMBERS:
            if "local-timestamp" in logical and self._rng.random() < 0.8:
                return pa.timestamp("us" if self._plain else unit)
            if logical.startswith("timestamp") and self._rng.random() < 0.8:
                return pa.timestamp("us" if self._plain else unit, "UTC")
            if logical == "date" and self._rng.random() < 0.8:
                return self._rng.choice([pa.date32(), pa.date32() if self._plain else pa.date64()])
            if logical == "time-millis" and self._rng.random() < 0.8 and not self._plain:
                return pa.time32(self._rng.choice(["s", "ms"]))
            if logical == "time-micros" and self._rng.random() < 0.8:
                short = pa.time32(self._rng.choice(["s", "ms"]))
                long = pa.time64(self._rng.choice(["us", "ns"]))
                return pa.time64("us") if self._plain else self._rng.choice([short, long])
            names = _NUMBERS[schema.type]
            return getattr(pa, names[-1] if self._plain else self._rng.choice(names))()
        return {
            "null": pa.null(),
            "boolean": pa.bool_(),
            "bytes": pa.binary(),
            "string": pa.string(),
        }[schema.type]

    def value(self, schema: Schema, column: pa.DataType) -> Any:  # noqa: PLR0911  # kinds of schemas
        """Return a value that is not null, unless the type has no other."""
        rng = self._rng
        match schema:
            case Union():
                return self._union_value(schema, column)
            case Record():
                by_name = {field.name: field.schema for field in schema.fields}
                return {each.name: self.value(by_name[each.name], each.type) for each in column}
            case Array():
                return [
                    self.value(schema.items, column.value_type) for _ in range(rng.randrange(4))
                ]
            case Map():
                keys = rng.sample(["a", "b", "ü", ""], rng.randrange(4))
                return [(key, self.value(schema.values, column.item_type)) for key in keys]
            case Enum():
                return rng.choice(schema.symbols)
            case Primitive() | Fixed() if isinstance(schema.logical, DecimalType):
                # Of -128, fastavro writes two bytes.
                edge = 127 if self._plain else 128
                number = rng.choice([0, 1, 127, edge, 10**column.precision - 1])
                number = rng.choice([number, rng.randrange(10**column.precision)])
                number = min(number, 10**column.precision - 1) * rng.choice([1, -1])
                digits = tuple(map(int, str(abs(number))))
                return Decimal((int(number < 0), digits, -column.scale))
            case Fixed():
                return rng.randbytes(schema.size)
        return self._leaf(column)

    def _union_value(self, schema: Union, column: pa.DataType) -> Any:
        branches = [branch for branch in schema.branches if branch.type != "null"]
        if not branches or (len(branches) < len(schema.branches) and self._rng.random() < 0.4):
            return None
        branch = branch_of(schema, column)
        if branch is not None:
            return self.value(schema.branches[branch], column)
        chosen = self._rng.randrange(len(branches))
        return {
            each.name: self.value(branches[at], each.type) if at == chosen else None
            for at, each in enumerate(column)
        }

    def _leaf(self, column: pa.DataType) -> Any:  # noqa: PLR0911  # kinds of types
        rng = self._rng
        if pa.types.is_null(column):
            return None
        if pa.types.is_boolean(column):
            return rng.random() < 0.5
        if pa.types.is_string(column):
            return rng.choice(_TEXTS)
        if pa.types.is_binary(column):
            return rng.choice(_TEXTS).encode()
        if pa.types.is_floating(column):
            return rng.choice([0.0, -0.0, 1.5, float("inf"), -2.0, 0.25])
        if pa.types.is_integer(column):
            low = 0 if pa.types.is_unsigned_integer(column) else -(2 ** (column.bit_width - 1))
            high = low + 2**column.bit_width - 1
            return rng.choice([0, 1, low, high, rng.randint(low, high), rng.randint(0, 127)])
        if pa.types.is_time(column):
            return rng.randrange(86_400 * PER_SECOND[column.unit])
        if pa.types.is_date32(column):
            return rng.choice([0, -1, rng.randint(-(2**20), 2**20)])
        if pa.types.is_date64(column):
            return 86_400_000 * rng.choice([0, -1, rng.randint(-(2**20), 2**20)])
        # Of few years, so that all units have them.
        return rng.choice([0, -1, 1, 999, -1001, rng.randint(-(2**31), 2**31)])

    def array(self, column: pa.DataType, values: list[Any]) -> pa.Array:
        """Return an array of values, whose type differs from `column` in its layout only."""
        if pa.types.is_struct(column):
            return self._struct(column, values)
        if pa.types.is_list(column):
            return self._list(column, values)
        if pa.types.is_map(column):
            return self._map(column, values)
        return self._layout(_leaf_array(column, values))

    def _layout(self, array: pa.Array) -> pa.Array:
        """Return an array of the same values in another layout, perhaps."""
        rng, kind = self._rng, array.type
        if self._plain or rng.random() < 0.5 or pa.types.is_null(kind):
            return array
        if pa.types.is_string(kind) and rng.random() < 0.5:
            array = array.cast(rng.choice([pa.large_string(), pa.string_view()]))
        elif pa.types.is_binary(kind) and rng.random() < 0.5:
            array = array.cast(rng.choice([pa.large_binary(), pa.binary_view()]))
        if rng.random() < 0.3 and not pa.types.is_decimal(kind) and "view" not in str(array.type):
            array = array.dictionary_encode()
        elif rng.random() < 0.2 and not pa.types.is_float16(kind):
            array = _runs(array)
        return array

    def _struct(self, column: pa.DataType, values: list[Any]) -> pa.Array:
        mask = [value is None for value in values]
        children = []
        for each in column:
            # What is below a null may be anything.
            parts = [None if value is None else value[each.name] for value in values]
            if not self._plain:
                spare = [part for part in parts if part is not None]
                parts = [
                    self._rng.choice(spare) if value is None and spare else part
                    for part, value in zip(parts, values, strict=True)
                ]
            children.append(self.array(each.type, parts))
        if not children:
            return pa.array([None if value is None else {} for value in values], pa.struct([]))
        fields = [
            pa.field(each.name, child.type) for each, child in zip(column, children, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(mask, pa.bool_()))

    def _list(self, column: pa.DataType, values: list[Any]) -> pa.Array:
        ends, items, mask = self._items(values)
        child = self.array(column.value_type, items)
        choice = 0.0 if self._plain else self._rng.random()
        if choice < 0.6:
            return pa.ListArray.from_arrays(ends, child, mask=mask)
        if choice < 0.8:
            return pa.LargeListArray.from_arrays(ends.cast(pa.int64()), child, mask=mask)
        offsets = ends.to_numpy()
        return pa.ListViewArray.from_arrays(
            ends.slice(0, len(values)), pa.array(np.diff(offsets), pa.int32()), child, mask=mask
        )

    def _map(self, column: pa.DataType, values: list[Any]) -> pa.Array:
        ends, items, mask = self._items(values)
        keys = self.array(pa.string(), [key for key, _ in items])
        child = self.array(column.item_type, [item for _, item in items])
        return pa.MapArray.from_arrays(ends, keys, child, pa.map_(keys.type, child.type), mask=mask)

    def _items(self, values: list[Any]) -> tuple[pa.Array, list[Any], pa.Array]:
        """Return the offsets of lists, their items and their nulls, which may have items, too."""
        spare = [value for value in values if value is not None]
        if not self._plain and spare:
            filled = [self._rng.choice(spare) if value is None else value for value in values]
        else:
            filled = [[] if value is None else value for value in values]
        ends = np.cumsum([0, *map(len, filled)])
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.array(ends, pa.int32()), [item for items in filled for item in items], mask


def _leaf_array(column: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_float16(column):
        values = [None if value is None else np.float16(value) for value in values]
    if pa.types.is_date64(column):
        return pa.array(values, pa.int64()).view(pa.date64())
    return pa.array(values, column)


def _runs(array: pa.Array) -> pa.Array:
    """Return an array as runs, one for each item."""
    ends = pa.array(range(1, len(array) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, array)


def fastavro_value(schema: Schema, column: pa.DataType, value: Any) -> Any:
    """Return a raw value as fastavro takes it, with the names of branches that have one."""
    kind = value_type(column)
    match schema:
        case Union():
            return _fastavro_branch(schema, kind, value)
        case Record():
            names = {each.name for each in kind}
            return {
                field.name: fastavro_value(
                    field.schema, kind.field(field.name).type, value[field.name]
                )
                for field in schema.fields
                if field.name in names
            }
        case Array():
            return [fastavro_value(schema.items, kind.value_type, item) for item in value]
        case Map():
            return {key: fastavro_value(schema.values, kind.item_type, item) for key, item in value}
        case Primitive() if schema.type in {"int", "long"}:
            return written_number(schema, kind, value)
    return value


def _fastavro_branch(schema: Union, kind: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    branch = branch_of(schema, kind)
    if branch is not None:
        return _named_branch(schema.branches[branch], kind, value)
    branches = [each for each in schema.branches if each.type != "null"]
    for number, each in enumerate(branches):
        member = value[f"member{number}"]
        if member is not None:
            return _named_branch(each, kind.field(number).type, member)
    return None


def _named_branch(schema: Schema, column: pa.DataType, value: Any) -> tuple[str, Any]:
    name = schema.name if isinstance(schema, Named) else schema.type
    return name, fastavro_value(schema, column, value)


def without_logical(schema: Any) -> Any:
    """Return a schema without logical types but decimals, whose values fastavro converts."""
    if isinstance(schema, list):
        return [without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") not in {None, "decimal"}:
        return schema["type"]
    return {key: without_logical(each) for key, each in schema.items()}
