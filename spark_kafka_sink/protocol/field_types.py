"""The vocabulary of message declarations: types, version ranges, fields.

Data only. What the types look like on the wire is in `codec.py`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a records field takes. Decoded, it is a memoryview into the message, or None.
Records: TypeAlias = bytes | memoryview | list[Buffer] | tuple[Buffer, ...]

_OPEN_END = 32767
_SPEC = "kafka"


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `min` to `max`, both included."""

    min: int
    max: int

    def __contains__(self, version: int) -> bool:
        """Whether a version is in the range."""
        return self.min <= version <= self.max

    def __str__(self) -> str:
        """Write it as Kafka's schemas do."""
        return f"{self.min}+" if self.max == _OPEN_END else f"{self.min}-{self.max}"

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read what Kafka's schemas write: "3+", "0-12" or "4"."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class String:
    """UTF-8 text; `compact` lets its length be a varint in flexible versions."""

    compact: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class BytesType:
    """Opaque bytes, copied in both directions."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordsType:
    """Record batches: bytes that are copied in neither direction."""


@dataclasses.dataclass(frozen=True, slots=True)
class Struct:
    """The fields of a class declared with `message`, one after the other; never null."""

    message_class: type


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """Any number of values of one type, none of them null; in Python a tuple."""

    element: FieldType


FieldType: TypeAlias = Scalar | String | BytesType | RecordsType | Struct | Array

BOOL = Scalar(Writer.write_bool, Reader.read_bool, 1)
INT8 = Scalar(Writer.write_int8, Reader.read_int8, 1)
INT16 = Scalar(Writer.write_int16, Reader.read_int16, 2)
INT32 = Scalar(Writer.write_int32, Reader.read_int32, 4)
INT64 = Scalar(Writer.write_int64, Reader.read_int64, 8)
FLOAT64 = Scalar(Writer.write_float64, Reader.read_float64, 8)
UUID = Scalar(Writer.write_uuid, Reader.read_uuid, 16)
STRING = String()
#: A string that keeps its two-byte length even in flexible versions: the header's client id.
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
    """What `field` was told."""

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
    """Declare a field: its type, and which versions of the message have it, or may have it null.

    A tagged field is tagged in all its versions. A field without a default must be given to the
    constructor.
    """
    spec = FieldSpec(
        _field_type(type),
        VersionRange.parse(versions),
        None if nullable is None else VersionRange.parse(nullable),
        tag,
        ignorable,
    )
    if nullable is not None and isinstance(spec.type, Scalar | Struct):
        raise TypeError(f"{spec.type} cannot be null")
    # Records do not belong in a repr: they are long, and what users write is no log's business.
    shown = not isinstance(spec.type, RecordsType)
    return dataclasses.field(default=default, metadata={_SPEC: spec}, repr=shown)


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a message class."""

    name: str
    spec: FieldSpec
    #: `dataclasses.MISSING` where there is none.
    default: Any


def declared_fields(message_class: type) -> list[DeclaredField]:
    """List the fields of a message class in the order of their declaration."""
    return [
        DeclaredField(declared.name, declared.metadata[_SPEC], declared.default)
        for declared in dataclasses.fields(message_class)
    ]
