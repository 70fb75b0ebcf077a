"""Default values of fields: from JSON to the bytes of Avro's binary encoding."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
    shortened,
)
from spark_kafka_sink.record.default_record import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable

_INT_BITS: Final = 32
_LONG_BITS: Final = 64
#: The most bytes of all defaults of a reader's schema, and the most values, also tried ones. A
#: default can have other ones in it, and a short text be a default of 10^30 values.
MOST_DEFAULTS: Final = 1 << 20


def default_bytes(field: Field) -> bytes:
    """Return the default of a field, encoded by the field's schema.

    Raises `SchemaError` if it is no value of that schema, or too large.
    """
    return DefaultEncoder().default_bytes(field)


class DefaultEncoder:
    """Encodes defaults of a reader's schema, up to a limit for all of them."""

    def __init__(self) -> None:
        self._left = MOST_DEFAULTS
        #: For each enum, by its identity, the indices of its symbols.
        self._indices: dict[int, dict[str, int]] = {}

    def default_bytes(self, field: Field) -> bytes:
        """Return the default of a field, encoded by the field's schema.

        Raises `SchemaError` if it is no value of that schema, or the defaults are too many.
        """
        encoded = self._encoded(field.schema, field.default)
        if encoded is None:
            raise SchemaError(
                f"Avro: the default of the field '{shortened(field.name)}' is no value of the "
                "field's type"
            )
        return encoded

    def _encoded(self, schema: Schema, value: Any) -> bytes | None:
        """Return an encoded value, or None if the schema does not have it."""
        encoded = self._ENCODERS[type(schema)](self, schema, value)
        self._left -= 1 + len(encoded or b"")
        if self._left < 0:
            raise SchemaError(
                f"Avro: the defaults in the reader's schema have more than {MOST_DEFAULTS} bytes "
                "and values"
            )
        return encoded

    def _fixed(self, schema: Fixed, value: Any) -> bytes | None:
        data = _in(value, "latin-1")
        # As in Java, zeros are added, and bytes beyond the size do not count.
        return None if data is None else data[: schema.size].ljust(schema.size, b"\0")

    def _enum(self, schema: Enum, value: Any) -> bytes | None:
        if id(schema) not in self._indices:
            self._indices[id(schema)] = {symbol: n for n, symbol in enumerate(schema.symbols)}
        index = self._indices[id(schema)].get(value) if isinstance(value, str) else None
        return None if index is None else encode_varint(index)

    def _array(self, schema: Array, value: Any) -> bytes | None:
        if not isinstance(value, list):
            return None
        return _blocks([self._encoded(schema.items, item) for item in value])

    def _map(self, schema: Map, value: Any) -> bytes | None:
        if not isinstance(value, dict):
            return None
        return _blocks(
            [
                _joined([_with_length(_in(key, "utf-8")), self._encoded(schema.values, item)])
                for key, item in value.items()
            ]
        )

    def _union(self, schema: Union, value: Any) -> bytes | None:
        # The first branch that has the value, as in Java's check of defaults since 1.9. Java's
        # encoder then takes the first one of a like type of JSON: an int for 5000000000, and cuts
        # it.
        for number, branch in enumerate(schema.branches):
            encoded = self._encoded(branch, value)
            if encoded is not None:
                return encode_varint(number) + encoded
        return None

    def _record(self, schema: Record, value: Any) -> bytes | None:
        if not isinstance(value, dict):
            return None
        values = [(field.schema, value.get(field.name, field.default)) for field in schema.fields]
        return _joined(
            [None if item is ABSENT else self._encoded(part, item) for part, item in values]
        )

    def _primitive(self, schema: Primitive, value: Any) -> bytes | None:
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

    _ENCODERS: ClassVar[dict[type, Callable[[Any, Any, Any], bytes | None]]] = {
        Primitive: _primitive,
        Fixed: _fixed,
        Enum: _enum,
        Array: _array,
        Map: _map,
        Union: _union,
        Record: _record,
    }


def _joined(parts: list[bytes | None]) -> bytes | None:
    present = [part for part in parts if part is not None]
    return b"".join(present) if len(present) == len(parts) else None


def _blocks(items: list[bytes | None]) -> bytes | None:
    data = _joined(items)
    if data is None:
        return None
    return (encode_varint(len(items)) + data if items else b"") + b"\0"


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
