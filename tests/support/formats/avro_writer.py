"""Encode one row of Python values by a schema: the oracle of the compiled encoder.

Times of all kinds are raw numbers in the unit of their Arrow type, structs dicts, maps pairs.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from spark_kafka_sink.formats.avro.defaults import default_bytes
from spark_kafka_sink.formats.avro.schema import (
    ABSENT,
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
)
from spark_kafka_sink.formats.columnar.sources import value_type
from spark_kafka_sink.record.default_record import encode_varint

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
#: By the end of a logical type's name.
UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


class RefusedError(Exception):
    """The schema does not have the value."""


def encode(schema: Schema, arrow_type: pa.DataType, value: Any) -> bytes:
    """Return the bytes of a value of a column; raise `RefusedError` if there are none."""
    kind = value_type(arrow_type)
    match schema:
        case Union():
            return _union(schema, kind, value)
        case Record():
            return _record(schema, kind, value)
        case Array():
            items = [encode(schema.items, kind.value_type, item) for item in present(value)]
            return blocks(items)
        case Map():
            entries = [
                encode(Primitive("string"), kind.key_type, key)
                + encode(schema.values, kind.item_type, item)
                for key, item in present(value)
            ]
            return blocks(entries)
        case Enum():
            if present(value) not in schema.symbols:
                raise RefusedError("no symbol")
            return encode_varint(schema.symbols.index(value))
    return _leaf(schema, kind, value)


def present(value: Any) -> Any:
    """Return a value that is not null."""
    if value is None:
        raise RefusedError("null")
    return value


def blocks(items: list[bytes]) -> bytes:
    """Return a list of encoded items, all in one block."""
    return (encode_varint(len(items)) + b"".join(items) if items else b"") + b"\0"


def branch_of(schema: Union, kind: pa.DataType) -> int | None:
    """Return the branch for columns of a type, None for one with members."""
    types = [branch.type for branch in schema.branches]
    others = [name for name in types if name != "null"]
    if len(others) == 1:
        return types.index(others[0])
    if set(others) == {"int", "long"}:
        is_long = pa.types.is_int64(kind) or pa.types.is_uint32(kind)
        return types.index("long" if is_long else "int")
    if set(others) == {"float", "double"} and not pa.types.is_struct(kind):
        is_float = pa.types.is_float32(kind) or pa.types.is_float16(kind)
        is_short = pa.types.is_integer(kind) and kind.bit_width <= 16
        return types.index("float" if is_float or is_short else "double")
    return None


def _union(schema: Union, kind: pa.DataType, value: Any) -> bytes:
    null = next((at for at, each in enumerate(schema.branches) if each.type == "null"), None)
    if value is not None:
        branch = branch_of(schema, kind)
        if branch is not None:
            return encode_varint(branch) + encode(schema.branches[branch], kind, value)
        members = [at for at in range(len(schema.branches)) if at != null]
        for number, at in enumerate(members):
            member = value[f"member{number}"]
            if member is not None:
                member_type = kind.field(number).type
                return encode_varint(at) + encode(schema.branches[at], member_type, member)
    if null is None:
        raise RefusedError("null")
    return encode_varint(null)


def _record(schema: Record, kind: pa.DataType, value: Any) -> bytes:
    present(value)
    encoded = b""
    for field in schema.fields:
        names = {each.name.lower(): each.name for each in kind}
        name = field.name if field.name in value else names.get(field.name.lower())
        if name is None:
            encoded += _absent(field)
        else:
            encoded += encode(field.schema, kind.field(name).type, value[name])
    return encoded


def _absent(field: Field) -> bytes:
    if field.default is not ABSENT:
        return default_bytes(field)
    if isinstance(field.schema, Union):
        return encode_varint([each.type for each in field.schema.branches].index("null"))
    return b""


def _leaf(schema: Primitive | Fixed, kind: pa.DataType, value: Any) -> bytes:  # noqa: PLR0911  # kinds of schemas
    if schema.type == "null":
        return b""
    present(value)
    if pa.types.is_decimal(kind):
        return _decimal(schema, value)
    if isinstance(schema, Fixed):
        if len(value) != schema.size:
            raise RefusedError("size")
        return bytes(value)
    match schema.type:
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return encode_varint(written_number(schema, kind, value))
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            value = value.encode()
    return encode_varint(len(value)) + value


def _decimal(schema: Primitive | Fixed, value: Any) -> bytes:
    assert isinstance(schema.logical, DecimalType)
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * 10 ** (exponent + schema.logical.scale)
    unscaled = -unscaled if sign else unscaled
    if abs(unscaled) >= 10 ** min(schema.logical.precision, 38):
        raise RefusedError("digits")
    if isinstance(schema, Fixed):
        return unscaled.to_bytes(schema.size, "big", signed=True)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    size = (bits + 7) // 8
    return encode_varint(size) + unscaled.to_bytes(size, "big", signed=True)


def written_number(schema: Primitive, kind: pa.DataType, value: int) -> int:
    """Return what is written for a raw number of a column."""
    if pa.types.is_date64(kind):
        number = value // 86_400_000
    elif pa.types.is_time(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        if pa.types.is_time(kind) and not 0 <= value < 86_400 * PER_SECOND[kind.unit]:
            raise RefusedError("no time of the day")
        other = UNITS[str(schema.logical).rpartition("-")[2]] if schema.logical else "ms"
        other = "us" if pa.types.is_duration(kind) else other
        number = value * PER_SECOND[other] // PER_SECOND[kind.unit]
    else:
        number = value
    if not -(2**63) <= number < 2**63 or (schema.type == "int" and not -(2**31) <= number < 2**31):
        raise RefusedError("range")
    return number
