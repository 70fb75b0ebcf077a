"""The vocabulary of message declarations: types, version ranges, fields.

This is data only; `codec.py` implements the wire format of the types.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

#: The value of a records field. Decoded, it is a memoryview into the message, or None.
Records: TypeAlias = bytes | memoryview | list[Buffer] | tuple[Buffer, ...]

_OPEN_END = 32767
_SPEC = "kafka"


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions from `min` to `max`, inclusive."""

    min: int
    max: int

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max

    def __str__(self) -> str:
        """Format the range as Kafka's schemas do."""
        return f"{self.min}+" if self.max == _OPEN_END else f"{self.min}-{self.max}"

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parse the notation of Kafka's schemas: "3+", "0-12" or "4"."""
        if text.endswith("+"):
            return cls(int(text[:-1]), _OPEN_END)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A value that always takes `size` bytes and is never null."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]
    size: int
    #: The letter of the `struct` module that stands for it; empty if there is none.
    letter: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class String:
    """UTF-8 text; with `compact` its length is a varint in flexible versions."""

    compact: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class BytesType:
    """Opaque bytes, copied when encoded and decoded."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordsType:
    """Record batches: bytes that are never copied."""


@dataclasses.dataclass(frozen=True, slots=True)
class Struct:
    """The fields of a class declared with `message`, one after the other."""

    message_class: type


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """Any number of values of one type, none of them null; a tuple in Python."""

    element: FieldType


FieldType: TypeAlias = Scalar | String | BytesType | RecordsType | Struct | Array

BOOL = Scalar(Writer.write_bool, Reader.read_bool, 1, "?")
INT8 = Scalar(Writer.write_int8, Reader.read_int8, 1, "b")
INT16 = Scalar(Writer.write_int16, Reader.read_int16, 2, "h")
INT32 = Scalar(Writer.write_int32, Reader.read_int32, 4, "i")
INT64 = Scalar(Writer.write_int64, Reader.read_int64, 8, "q")
FLOAT64 = Scalar(Writer.write_float64, Reader.read_float64, 8, "d")
UUID = Scalar(Writer.write_uuid, Reader.read_uuid, 16)
STRING = String()
#: A string with a two-byte length even in flexible versions: the header's client id.
LEGACY_STRING = String(compact=False)
BYTES = BytesType()
RECORDS = RecordsType()


def array(element: FieldType | type) -> Array:
    """Declare an array of a type or of a message class."""
    return Array(_field_type(element))


def _field_type(declared: FieldType | type) -> FieldType:
    return Struct(declared) if isinstance(declared, type) else declared


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """The wire properties of a field, as passed to `field`."""

    type: FieldType
    versions: VersionRange
    nullable: VersionRange | None
    tag: int | None
    ignorable: bool


def field(
    type: FieldType | type,  # noqa: A002 - the word of Kafka's schemas
    *,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field: its type, and the message versions in which it exists and may be null.

    A tagged field is tagged in all its versions. A field without a default must be passed to the
    constructor.
    """
    spec = FieldSpec(
        _field_type(type),
        VersionRange.parse(versions),
        None if nullable is None else VersionRange.parse(nullable),
        tag,
        ignorable,
    )
    if nullable is not None and isinstance(spec.type, Scalar):
        raise TypeError(f"{spec.type} cannot be null")
    # A repr omits records: they are long, and users' data must not get into logs.
    shown = not isinstance(spec.type, RecordsType)
    return dataclasses.field(default=default, metadata={_SPEC: spec}, repr=shown)


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a message class."""

    name: str
    spec: FieldSpec
    #: `dataclasses.MISSING` if there is none.
    default: Any


def declared_fields(message_class: type) -> list[DeclaredField]:
    """Return the fields of a message class in declaration order."""
    return [
        DeclaredField(declared.name, declared.metadata[_SPEC], declared.default)
        for declared in dataclasses.fields(message_class)
    ]
