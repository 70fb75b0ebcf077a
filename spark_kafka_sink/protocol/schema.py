"""Messages as data: each is declared once, and both directions are derived from the declaration.

A message is a class with one line per field, in wire order, in the terms of Kafka's own schemas:

    @message
    class PartitionProduceData:
        index: int = field(INT32)
        records: Records | None = field(RECORDS, nullable="0+")

`versions` are those of the *message* that have the field; outside them it is not on the wire and
takes its default when decoded. Every field that some version lacks therefore has a default, and so
has every tagged one (KIP-482), which is left out when it equals its default. To encode another
value in a version that lacks the field is refused (UnsupportedVersionError) unless the field is
`ignorable`: what would be lost then matters to nobody.

From a declaration, `_struct_codec` makes one writing and one reading function for each version,
once; encoding and decoding then run straight through them. Nothing recurses by what the bytes
say: nesting is as deep as the declarations are. A count is checked against the bytes that are
left before anything is read for it. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import MAX_STRING_BYTES, Buffer, Reader, Writer

#: What a records field takes. Decoded, it is a memoryview into the message, or None.
Records: TypeAlias = bytes | memoryview | list[Buffer] | tuple[Buffer, ...]

_OPEN_END = 32767
_SPEC = "kafka"
M = TypeVar("M", bound="Message")
T = TypeVar("T")


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


class Message:
    """What stands for itself on the wire: a header, a request, a response."""

    __slots__ = ()

    #: The versions that this package speaks.
    versions: ClassVar[VersionRange]
    #: From this version on, compact forms and tagged fields are used.
    flexible_from: ClassVar[int]


class ApiMessage(Message):
    """A request or a response."""

    __slots__ = ()

    api_key: ClassVar[ApiKey]

    def __init_subclass__(cls) -> None:
        """Take the first flexible version from the API."""
        cls.flexible_from = cls.api_key.flexible_from


class Codec(NamedTuple):
    """One type's two directions, in one version of one message."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]
    #: The fewest bytes that a value takes: bounds how many can follow a count.
    min_size: int


class FieldType:
    """How values of a field look on the wire."""

    def codec(self, version: int, *, flexible: bool, nullable: bool) -> Codec:
        """Choose the form that a version uses."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar(FieldType):
    """A value of fixed size; it is never null."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]
    size: int

    def codec(self, version: int, *, flexible: bool, nullable: bool) -> Codec:  # noqa: ARG002 - always the same form
        """Give the only form there is."""
        return Codec(self.write, self.read, self.size)


BOOL = Scalar(Writer.write_bool, Reader.read_bool, 1)
INT8 = Scalar(Writer.write_int8, Reader.read_int8, 1)
INT16 = Scalar(Writer.write_int16, Reader.read_int16, 2)
INT32 = Scalar(Writer.write_int32, Reader.read_int32, 4)
INT64 = Scalar(Writer.write_int64, Reader.read_int64, 8)
FLOAT64 = Scalar(Writer.write_float64, Reader.read_float64, 8)
UUID = Scalar(Writer.write_uuid, Reader.read_uuid, 16)


class _LengthForm(NamedTuple):
    """How a length, or null as -1, is written in front of a value."""

    write: Callable[[Writer, int], None]
    read: Callable[[Reader], int]
    size: int


_INT16_LENGTH = _LengthForm(Writer.write_int16, Reader.read_int16, 2)
_INT32_LENGTH = _LengthForm(Writer.write_int32, Reader.read_int32, 4)
_COMPACT_LENGTH = _LengthForm(Writer.write_compact_length, Reader.read_compact_length, 1)


def _sized_codec(
    length_form: _LengthForm,
    *,
    nullable: bool,
    write: Callable[[Writer, Any, Callable[[Writer, int], None]], None],
    read: Callable[[Reader, int], Any],
) -> Codec:
    """Build the codec of a type that has its length in front.

    `write` writes the length too: only it knows it. `read` is given a length that is not negative.
    """
    write_length, read_length, length_size = length_form

    def write_value(writer: Writer, value: Any) -> None:
        if value is not None:
            write(writer, value, write_length)
        elif nullable:
            write_length(writer, -1)
        else:
            raise UnsupportedVersionError("null cannot be written")

    def read_value(reader: Reader) -> Any:
        length = read_length(reader)
        if length >= 0:
            return read(reader, length)
        if nullable and length == -1:
            return None
        raise DecodeError(f"length {length} before {reader.position}")

    return Codec(write_value, read_value, length_size)


@dataclasses.dataclass(frozen=True, slots=True)
class String(FieldType):
    """UTF-8 text, in the compact form when the message is flexible and the field allows it."""

    compact: bool = True

    def codec(self, version: int, *, flexible: bool, nullable: bool) -> Codec:  # noqa: ARG002 - depends on flexibility alone
        """Choose the length in front of it."""
        form = _COMPACT_LENGTH if flexible and self.compact else _INT16_LENGTH
        return _sized_codec(form, nullable=nullable, write=_write_text, read=Reader.read_text)


def _write_text(writer: Writer, text: str, write_length: Callable[[Writer, int], None]) -> None:
    encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise ValueError(f"a string of {len(encoded)} bytes; Kafka's limit is {MAX_STRING_BYTES}")
    write_length(writer, len(encoded))
    writer.write_bytes(encoded)


class RecordsType(FieldType):
    """Record batches: bytes that are copied in neither direction."""

    def codec(self, version: int, *, flexible: bool, nullable: bool) -> Codec:  # noqa: ARG002 - depends on flexibility alone
        """Choose the length in front of it."""
        form = _COMPACT_LENGTH if flexible else _INT32_LENGTH
        return _sized_codec(form, nullable=nullable, write=_write_records, read=Reader.read_view)


def _write_records(
    writer: Writer, records: Records, write_length: Callable[[Writer, int], None]
) -> None:
    buffers = records if isinstance(records, list | tuple) else (records,)
    write_length(writer, sum(memoryview(buffer).nbytes for buffer in buffers))
    for buffer in buffers:
        writer.append(buffer)


STRING = String()
#: A string that keeps its two-byte length even in a flexible version: the header's client id.
LEGACY_STRING = String(compact=False)
RECORDS = RecordsType()


@dataclasses.dataclass(frozen=True, slots=True)
class Struct(FieldType):
    """The fields of a class declared with `message`, one after the other."""

    message_class: type

    def codec(self, version: int, *, flexible: bool, nullable: bool) -> Codec:
        """Build it from the declaration, once per version."""
        if nullable:
            raise TypeError(f"{self.message_class.__name__}: a struct cannot be null")
        return _struct_codec(self.message_class, version, flexible=flexible)


@dataclasses.dataclass(frozen=True, slots=True)
class array(FieldType):  # noqa: N801 - reads as a word of the schema, beside `field`
    """Any number of values of one type; in Python a tuple."""

    element: FieldType | type

    def codec(self, version: int, *, flexible: bool, nullable: bool) -> Codec:
        """Build it around the codec of its elements."""
        element = _field_type(self.element).codec(version, flexible=flexible, nullable=False)
        write_element, read_element, element_size = element

        def write(
            writer: Writer, values: tuple[Any, ...], write_length: Callable[[Writer, int], None]
        ) -> None:
            write_length(writer, len(values))
            for value in values:
                write_element(writer, value)

        def read(reader: Reader, count: int) -> tuple[Any, ...]:
            if count * element_size > reader.remaining:
                raise DecodeError(
                    f"an array before {reader.position} claims {count} elements, "
                    f"{reader.remaining} bytes are left"
                )
            return tuple([read_element(reader) for _ in range(count)])

        form = _COMPACT_LENGTH if flexible else _INT32_LENGTH
        return _sized_codec(form, nullable=nullable, write=write, read=read)


def _field_type(declared: FieldType | type) -> FieldType:
    return declared if isinstance(declared, FieldType) else Struct(declared)


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

    A tagged field is tagged in all its versions. Without a default it must be given to the
    constructor.
    """
    spec = FieldSpec(
        _field_type(type),
        VersionRange.parse(versions),
        None if nullable is None else VersionRange.parse(nullable),
        tag,
        ignorable,
    )
    # Records do not belong in a repr: they are long, and what users write is no log's business.
    shown = not isinstance(spec.type, RecordsType)
    return dataclasses.field(default=default, metadata={_SPEC: spec}, repr=shown)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make a class of `field` declarations a frozen dataclass, to be built by keyword."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


class _Field(NamedTuple):
    """A field of one version of a message."""

    name: str
    spec: FieldSpec
    default: Any

    def codec(self, version: int, *, flexible: bool) -> Codec:
        nullable = self.spec.nullable is not None and version in self.spec.nullable
        return self.spec.type.codec(version, flexible=flexible, nullable=nullable)


def _fields(cls: type) -> list[_Field]:
    return [
        _Field(declared.name, declared.metadata[_SPEC], declared.default)
        for declared in dataclasses.fields(cls)
    ]


@cache
def _struct_codec(cls: type, version: int, *, flexible: bool) -> Codec:
    """Compile one version of a struct."""
    plain: list[_Field] = []
    tagged: list[_Field] = []
    absent: list[_Field] = []
    for declared in _fields(cls):
        if version not in declared.spec.versions:
            absent.append(declared)
        elif declared.spec.tag is None:
            plain.append(declared)
        else:
            tagged.append(declared)
    for declared in (*absent, *tagged):
        if declared.default is dataclasses.MISSING:
            raise TypeError(f"{cls.__name__}.{declared.name} needs a default: it may be absent")
    if tagged and not flexible:
        raise TypeError(f"{cls.__name__}: tagged fields before the first flexible version")

    codecs = [(it.name, it.codec(version, flexible=flexible)) for it in plain]
    writers = [(attrgetter(name), name, codec.write) for name, codec in codecs]
    readers = [(name, codec.read) for name, codec in codecs]
    refused = [(attrgetter(it.name), it) for it in absent if not it.spec.ignorable]
    tags = _TaggedFields(tagged, version) if flexible else None

    def write(writer: Writer, value: Any) -> None:
        for get, declared in refused:
            if get(value) != declared.default:
                raise UnsupportedVersionError(
                    f"{cls.__name__} version {version} has no {declared.name}, "
                    f"which is {get(value)!r}"
                )
        for get, name, write_field in writers:
            try:
                write_field(writer, get(value))
            except (ValueError, struct.error) as error:
                raise ValueError(f"{cls.__name__}.{name}: {error}") from error
        if tags is not None:
            tags.write(writer, value)

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in readers}
        if tags is not None:
            tags.read(reader, values)
        return cls(**values)

    size = sum(codec.min_size for _, codec in codecs) + (1 if flexible else 0)
    return Codec(write, read, size)


class _TaggedFields:
    """The end of every flexible struct: optional fields by number (KIP-482)."""

    __slots__ = ("_by_tag", "_writers")

    def __init__(self, tagged: list[_Field], version: int) -> None:
        codecs = [(it, it.codec(version, flexible=True)) for it in tagged]
        self._by_tag = {it.spec.tag: (it.name, codec.read) for it, codec in codecs}
        self._writers = sorted(
            ((it.spec.tag or 0), attrgetter(it.name), it.default, codec.write)
            for it, codec in codecs
        )

    def write(self, writer: Writer, value: Any) -> None:
        """Write those that differ from their default, by ascending tag."""
        present = [
            (tag, field_value, write)
            for tag, get, default, write in self._writers
            if (field_value := get(value)) != default
        ]
        writer.write_unsigned_varint(len(present))
        for tag, field_value, write in present:
            content = Writer()
            write(content, field_value)
            encoded = b"".join(content.finish())
            writer.write_unsigned_varint(tag)
            writer.write_unsigned_varint(len(encoded))
            writer.write_bytes(encoded)

    def read(self, reader: Reader, values: dict[str, Any]) -> None:
        """Read the known ones into `values`; skip the others."""
        previous = -1
        for _ in range(reader.read_unsigned_varint()):
            tag = reader.read_unsigned_varint()
            if tag <= previous:
                raise DecodeError(f"tag {tag} after tag {previous}")
            previous = tag
            content = Reader(reader.read_view(reader.read_unsigned_varint()))
            if tag in self._by_tag:
                name, read = self._by_tag[tag]
                values[name] = read(content)
                _expect_end(content, f"tagged field {name}")


def _expect_end(reader: Reader, what: str) -> None:
    if reader.remaining:
        raise DecodeError(f"{reader.remaining} bytes too many after {what}")


@cache
def _message_codec(cls: type[Message], version: int) -> Codec:
    if version not in cls.versions:
        raise UnsupportedVersionError(
            f"{cls.__name__} is known in versions {cls.versions}, not {version}"
        )
    return _struct_codec(cls, version, flexible=version >= cls.flexible_from)


def write_message(writer: Writer, message: Message, version: int) -> None:
    """Write a message behind what is written already; errors as in `encode`."""
    _message_codec(type(message), version).write(writer, message)


def encode(message: Message, version: int) -> list[Buffer]:
    """Give a message's bytes as a list of buffers; those of records are the caller's own.

    Raises UnsupportedVersionError when the version is not one of the message's, or cannot say what
    the message says; ValueError when a value does not fit its field.
    """
    writer = Writer()
    write_message(writer, message, version)
    return writer.finish()


def encode_bytes(message: Message, version: int) -> bytes:
    """Give a message's bytes in one piece; errors as in `encode`."""
    return b"".join(encode(message, version))


def read_message(cls: type[M], reader: Reader, version: int) -> M:
    """Read a message that more may follow; errors as in `decode`."""
    decoded: M = _message_codec(cls, version).read(reader)
    return decoded


def decode(cls: type[M], buffer: Buffer | bytearray, version: int) -> M:
    """Read a message that takes up the whole buffer; its records are slices of the buffer.

    Raises DecodeError when the bytes are anything else, UnsupportedVersionError when the version is
    not one of the message's.
    """
    reader = Reader(buffer)
    try:
        decoded = read_message(cls, reader, version)
        _expect_end(reader, "the message")
    except DecodeError as error:
        raise DecodeError(f"{cls.__name__} version {version}: {error}") from error
    return decoded
