"""Default values of fields: from JSON to the bytes of Avro's binary encoding."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.schema import (
    ABSENT,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
)
from spark_kafka_sink.record.default_record import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable

_INT_BITS: Final = 32
_LONG_BITS: Final = 64


def default_bytes(field: Field) -> bytes:
    """Return the default of a field, encoded by the field's schema.

    Raises `SchemaError` if it is no value of that schema.
    """
    encoded = _encoded(field.schema, field.default)
    if encoded is None:
        raise SchemaError(
            f"Avro: the default of the field {field.name!r} is no value of the field's type"
        )
    return encoded


def _encoded(schema: Schema, value: Any) -> bytes | None:
    """Return an encoded value, or None if the schema does not have it."""
    return _ENCODERS[type(schema)](schema, value)


def _encoded_fixed(schema: Fixed, value: Any) -> bytes | None:
    data = _in(value, "latin-1")
    return data if data is not None and len(data) == schema.size else None


def _encoded_enum(schema: Enum, value: Any) -> bytes | None:
    return encode_varint(schema.symbols.index(value)) if value in schema.symbols else None


def _encoded_array(schema: Array, value: Any) -> bytes | None:
    if not isinstance(value, list):
        return None
    return _blocks([_encoded(schema.items, item) for item in value])


def _encoded_map(schema: Map, value: Any) -> bytes | None:
    if not isinstance(value, dict):
        return None
    return _blocks(
        [
            _joined([_with_length(_in(key, "utf-8")), _encoded(schema.values, item)])
            for key, item in value.items()
        ]
    )


def _encoded_union(schema: Union, value: Any) -> bytes | None:
    # The first branch that has the value, as in Java's check of defaults since 1.9. Java's encoder
    # then takes the first one of a like type of JSON: an int for 5000000000, and cuts it.
    for number, branch in enumerate(schema.branches):
        encoded = _encoded(branch, value)
        if encoded is not None:
            return encode_varint(number) + encoded
    return None


def _encoded_record(schema: Record, value: Any) -> bytes | None:
    if not isinstance(value, dict):
        return None
    values = [(field.schema, value.get(field.name, field.default)) for field in schema.fields]
    return _joined([None if item is ABSENT else _encoded(part, item) for part, item in values])


def _joined(parts: list[bytes | None]) -> bytes | None:
    present = [part for part in parts if part is not None]
    return b"".join(present) if len(present) == len(parts) else None


def _blocks(items: list[bytes | None]) -> bytes | None:
    data = _joined(items)
    if data is None:
        return None
    return (encode_varint(len(items)) + data if items else b"") + b"\0"


def _encoded_primitive(schema: Primitive, value: Any) -> bytes | None:
    match schema.type:
        case "null":
            encoded = b"" if value is None else None
        case "boolean":
            encoded = bytes([value]) if isinstance(value, bool) else None
        case "int" | "long":
            encoded = _encoded_integer(value, _INT_BITS if schema.type == "int" else _LONG_BITS)
        case "float" | "double":
            encoded = _encoded_floating(value, "<f" if schema.type == "float" else "<d")
        case "string":
            encoded = _with_length(_in(value, "utf-8"))
        case _:
            encoded = _with_length(_in(value, "latin-1"))
    return encoded


def _encoded_integer(value: Any, bits: int) -> bytes | None:
    limit = 1 << bits - 1
    return encode_varint(value) if type(value) is int and -limit <= value < limit else None


def _encoded_floating(value: Any, layout: str) -> bytes | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return struct.pack(layout, float(value))
    except OverflowError:  # more than the type has, as Java's narrowing of it
        return struct.pack(layout, math.inf if value > 0 else -math.inf)


def _in(value: Any, encoding: str) -> bytes | None:
    """Return a text in an encoding; latin-1 has a byte for each character of a default of bytes."""
    if not isinstance(value, str):
        return None
    try:
        return value.encode(encoding)
    except UnicodeEncodeError:
        return None


def _with_length(data: bytes | None) -> bytes | None:
    return None if data is None else encode_varint(len(data)) + data


_ENCODERS: Final[dict[type, Callable[[Any, Any], bytes | None]]] = {
    Primitive: _encoded_primitive,
    Fixed: _encoded_fixed,
    Enum: _encoded_enum,
    Array: _encoded_array,
    Map: _encoded_map,
    Union: _encoded_union,
    Record: _encoded_record,
}
