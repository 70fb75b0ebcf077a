"""Encode and decode messages: a compiler from declarations to the codecs of their versions.

`struct_codec` builds one write and one read function per (class, version), once; encoding and
decoding then never branch on the version. The bytes cannot cause recursion: nesting is as deep as
the declarations. A count is checked before its elements are read, against the bytes left and
against the number of elements that the whole message may have. Unknown tagged fields are skipped; a
tag out of order is an error, as in Kafka.

Arrays of numbers, and of messages that have only numbers, are packed and unpacked at once. They
have as many elements as there are partitions, in Metadata or ListOffsets for example: one call for
each number of each element takes most of the time of such a message.

Sources: KIP-482; org.apache.kafka.common.protocol.types.TaggedFields, CompactArrayOf.
"""

from __future__ import annotations

import struct
from dataclasses import MISSING
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.primitives import (
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    Buffer,
    Reader,
    Writer,
)
from spark_kafka_sink.protocol.schema import (
    Array,
    BytesType,
    DeclaredField,
    FieldType,
    Message,
    RecordsType,
    Scalar,
    String,
    Struct,
    declared_fields,
    slot_setter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.protocol.schema import Records


M = TypeVar("M", bound=Message)


def letter(declared: DeclaredField) -> str:
    """Return the letter of the `struct` module for a field; empty if it is not a number."""
    type_ = declared.spec.type
    return type_.letter if isinstance(type_, Scalar) else ""


class Numbers:
    """The elements of an array of numbers."""

    __slots__ = ("_letter", "size")

    def __init__(self, letter: str, size: int) -> None:
        """Use the letter of the `struct` module for numbers of `size` bytes."""
        self._letter = letter
        #: That of an element, in bytes.
        self.size = size

    def pack(self, values: Sequence[Any]) -> bytes | None:
        """Return the elements; None if one does not fit."""
        try:
            return struct.pack(f">{len(values)}{self._letter}", *values)
        except struct.error:
            return None

    def unpack(self, view: memoryview) -> tuple[Any, ...]:
        """Return the elements."""
        return struct.unpack(f">{view.nbytes // self.size}{self._letter}", view)


class NumberRows:
    """The elements of an array of messages that have only numbers, in one version."""

    __slots__ = ("_class", "_get", "_is_flexible", "_layout", "_others", "_setters", "size")

    def __init__(
        self,
        message_class: type,
        numbers: Sequence[DeclaredField],
        absent: Sequence[DeclaredField],
        *,
        flexible: bool,
    ) -> None:
        """Use the fields that the version has, and those that it lacks, which have defaults."""
        self._class = message_class
        self._is_flexible = flexible
        self._get = attrgetter(*(field.name for field in numbers))
        self._setters = [slot_setter(message_class, field.name) for field in numbers]
        self._others = [(slot_setter(message_class, field.name), field.default) for field in absent]
        # With the number of tagged fields, in flexible versions.
        letters = "".join(map(letter, numbers)) + ("B" if flexible else "")
        self._layout = struct.Struct(f">{letters}")
        #: That of an element, in bytes.
        self.size = self._layout.size

    def pack(self, values: Sequence[Any]) -> bytes | None:
        """Return the elements; None if one does not fit."""
        get, pack = self._get, self._layout.pack
        tags = (0,) if self._is_flexible else ()
        try:
            return b"".join([pack(*get(value), *tags) for value in values])
        except struct.error:
            return None

    def unpack(self, view: memoryview) -> tuple[Any, ...] | None:
        """Return the elements; None if one of them has tagged fields."""
        new, message_class, is_flexible = object.__new__, self._class, self._is_flexible
        setters, others = self._setters, self._others
        elements = []
        for row in self._layout.iter_unpack(view):
            if is_flexible and row[-1]:
                return None
            element: Any = new(message_class)
            for set_field, value in zip(setters, row, strict=False):
                set_field(element, value)
            for set_field, value in others:
                set_field(element, value)
            elements.append(element)
        return tuple(elements)


class Codec(NamedTuple):
    """The write and read functions of a type, in one version of one message."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]
    #: The minimum size of a value in bytes, which limits how many elements can follow a count.
    min_size: int
    #: Of a number, or a class that has only numbers: what writes and reads arrays of it.
    numbers: Numbers | NumberRows | None = None


class _LengthForm(NamedTuple):
    """The encoding of the length in front of a value; -1 stands for null."""

    write: Callable[[Writer, int], None]
    read: Callable[[Reader], int]
    size: int


_INT16_LENGTH = _LengthForm(Writer.write_int16, Reader.read_int16, 2)
_INT32_LENGTH = _LengthForm(Writer.write_int32, Reader.read_int32, 4)
_COMPACT_LENGTH = _LengthForm(Writer.write_compact_length, Reader.read_compact_length, 1)


class _NullError(Exception):
    """A value is None but this version has no null; the field's codec adds the name."""


def _type_codec(type_: FieldType, version: int, *, flexible: bool, nullable: bool) -> Codec:
    """Return the codec of a type in one version."""
    long_form = _COMPACT_LENGTH if flexible else _INT32_LENGTH
    match type_:
        case Scalar(write, read, size, of_struct):
            return Codec(write, read, size, Numbers(of_struct, size) if of_struct else None)
        case Struct(message_class):
            codec = struct_codec(message_class, version, flexible=flexible)
            return _nullable_struct_codec(codec) if nullable else codec
        case String(compact):
            form = _COMPACT_LENGTH if flexible and compact else _INT16_LENGTH
            return _sized_codec(form, nullable, _write_text, Reader.read_text)
        case BytesType():
            return _sized_codec(long_form, nullable, _write_bytes, _read_bytes)
        case RecordsType():
            return _sized_codec(long_form, nullable, _write_records, Reader.read_view)
        case Array(element_type):
            element = _type_codec(element_type, version, flexible=flexible, nullable=False)
            return _sized_codec(long_form, nullable, *_array_functions(element))


def _nullable_struct_codec(codec: Codec) -> Codec:
    """Build the codec of a struct after a byte that says whether it is there: 1, or -1 for null."""

    def write(writer: Writer, value: Any) -> None:
        if value is None:
            writer.write_int8(-1)
        else:
            writer.write_int8(1)
            codec.write(writer, value)

    def read(reader: Reader) -> Any:
        # As in Kafka, any byte that is not negative means that the struct follows.
        return None if reader.read_int8() < 0 else codec.read(reader)

    return Codec(write, read, 1)


def _never_null(codec: Codec) -> Codec:
    """Build the codec of a struct that can be null in other versions."""

    def write(writer: Writer, value: Any) -> None:
        if value is None:
            raise _NullError
        codec.write(writer, value)

    return codec._replace(write=write)


def _sized_codec(
    length_form: _LengthForm,
    nullable: bool,  # noqa: FBT001 - a step of `_type_codec`, which takes it by keyword
    write: Callable[[Writer, Any, Callable[[Writer, int], None]], None],
    read: Callable[[Reader, int], Any],
) -> Codec:
    """Build the codec of a length-prefixed type.

    `write` also writes the length, which only it knows. `read` gets a length that is not negative.
    """
    write_length, read_length, length_size = length_form

    def write_value(writer: Writer, value: Any) -> None:
        if value is not None:
            write(writer, value, write_length)
        elif nullable:
            write_length(writer, -1)
        else:
            raise _NullError

    def read_value(reader: Reader) -> Any:
        length = read_length(reader)
        if length >= 0:
            return read(reader, length)
        if nullable and length == -1:
            return None
        raise DecodeError(f"length {length} before byte {reader.position}")

    return Codec(write_value, read_value, length_size)


def _write_text(writer: Writer, text: str, write_length: Callable[[Writer, int], None]) -> None:
    encoded = text.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise ValueError(f"a string of {len(encoded)} bytes; Kafka's limit is {MAX_STRING_BYTES}")
    write_length(writer, len(encoded))
    writer.write_bytes(encoded)


def _write_bytes(writer: Writer, data: bytes, write_length: Callable[[Writer, int], None]) -> None:
    write_length(writer, len(data))
    writer.write_bytes(data)


def _read_bytes(reader: Reader, length: int) -> bytes:
    return bytes(reader.read_view(length))


def _write_records(
    writer: Writer, records: Records, write_length: Callable[[Writer, int], None]
) -> None:
    buffers = records if isinstance(records, list | tuple) else (records,)
    write_length(writer, sum([memoryview(buffer).nbytes for buffer in buffers]))
    for buffer in buffers:
        writer.append(buffer)


def _array_functions(
    element: Codec,
) -> tuple[
    Callable[[Writer, Any, Callable[[Writer, int], None]], None],
    Callable[[Reader, int], tuple[Any, ...]],
]:
    write_element, read_element, element_size, numbers = element

    def write(
        writer: Writer, values: Sequence[Any], write_length: Callable[[Writer, int], None]
    ) -> None:
        write_length(writer, len(values))
        # What does not fit is written element by element, which raises an error that names it.
        packed = None if numbers is None else numbers.pack(values)
        if packed is not None:
            writer.write_bytes(packed)
            return
        for value in values:
            write_element(writer, value)

    def read(reader: Reader, count: int) -> tuple[Any, ...]:
        if count * element_size > reader.end - reader.position:
            raise DecodeError(
                f"the array before byte {reader.position} claims {count} elements, "
                f"but only {reader.remaining} bytes are left"
            )
        reader.count_elements(count)
        if numbers is not None:
            start = reader.position
            elements = numbers.unpack(reader.read_view(count * numbers.size))
            if elements is not None:
                return elements
            reader.position = start
        if count == 1:
            return (read_element(reader),)
        return tuple([read_element(reader) for _ in range(count)])

    return write, read


#: The codecs compiled so far, by class, version and flexibility.
_COMPILED: dict[tuple[type, int, bool], Codec] = {}


def struct_codec(message_class: type, version: int, *, flexible: bool) -> Codec:
    """Return the codec of a message class in one version of its request or response.

    Raises TypeError if the declaration contradicts itself.
    """
    key = (message_class, version, flexible)
    codec = _COMPILED.get(key)
    if codec is None:
        codec = _COMPILED[key] = _compile(message_class, version, flexible=flexible)
    return codec


def _compile(message_class: type, version: int, *, flexible: bool) -> Codec:
    fields = declared_fields(message_class)
    name = message_class.__name__
    present = [field for field in fields if version in field.spec.versions]
    absent = [field for field in fields if version not in field.spec.versions]
    plain = [field for field in present if field.spec.tag is None]
    tagged = {field.spec.tag: field for field in present if field.spec.tag is not None}
    for field in (*absent, *tagged.values()):
        if field.default is MISSING:
            raise TypeError(f"{name}.{field.name} needs a default: it may be absent")
    if tagged and not flexible:
        raise TypeError(f"{name} version {version} cannot have tagged fields")

    parts = _parts(name, plain, version, flexible=flexible)
    tags = _TaggedFields(message_class, tagged, version) if flexible else None
    refused = [field for field in absent if not field.spec.ignorable]
    rows = None
    if len(parts) == 1 and len(plain) > 1 and not tagged and not refused:
        rows = NumberRows(message_class, plain, absent, flexible=flexible)
    return Codec(
        _compile_write(f"{name} version {version}", parts, tags, refused),
        _compile_read(message_class, parts, tags, [*absent, *tagged.values()]),
        sum(part.codec.min_size for part in parts) + (1 if flexible else 0),
        rows,
    )


class _Part(NamedTuple):
    """A field, or several numbers in a row, which are packed and unpacked at once.

    The codec of several numbers writes and reads a tuple of them.
    """

    names: tuple[str, ...]
    codec: Codec


def _parts(
    message_name: str, fields: list[DeclaredField], version: int, *, flexible: bool
) -> list[_Part]:
    parts = []
    for are_numbers, neighbours in groupby(fields, key=lambda field: bool(letter(field))):
        run = list(neighbours)
        codecs = [_field_codec(message_name, field, version, flexible=flexible) for field in run]
        if are_numbers and len(run) > 1:
            codec = _numbers_codec("".join(map(letter, run)), codecs)
            parts.append(_Part(tuple(field.name for field in run), codec))
        else:
            parts += [_Part((field.name,), codec) for field, codec in zip(run, codecs, strict=True)]
    return parts


def _numbers_codec(letters: str, codecs: list[Codec]) -> Codec:
    layout = struct.Struct(f">{letters}")

    def write(writer: Writer, values: tuple[Any, ...]) -> None:
        try:
            writer.write_bytes(layout.pack(*values))
        except struct.error:
            # One at a time, which raises an error that names the field.
            for codec, value in zip(codecs, values, strict=True):
                codec.write(writer, value)

    return Codec(write, lambda reader: reader.unpack(layout), layout.size)


def _field_codec(
    message_name: str, declared: DeclaredField, version: int, *, flexible: bool
) -> Codec:
    """Build a field's codec, whose write errors name the field."""
    spec = declared.spec
    nullable = spec.nullable is not None and version in spec.nullable
    codec = _type_codec(spec.type, version, flexible=flexible, nullable=nullable)
    if isinstance(spec.type, Struct) and spec.nullable is not None and not nullable:
        codec = _never_null(codec)

    def write(writer: Writer, value: Any) -> None:
        try:
            codec.write(writer, value)
        except _NullError:
            raise UnsupportedVersionError(
                f"{declared.name} cannot be null in {message_name} version {version}"
            ) from None
        except (ValueError, struct.error) as error:
            raise ValueError(f"{message_name}.{declared.name}: {error}") from error

    return codec._replace(write=write)


def _compile_write(
    what: str,
    parts: list[_Part],
    tags: _TaggedFields | None,
    refused: list[DeclaredField],
) -> Callable[[Writer, Any], None]:
    writers = [(attrgetter(*names), codec.write) for names, codec in parts]
    defaults = [(field.name, attrgetter(field.name), field.default) for field in refused]

    def write(writer: Writer, value: Any) -> None:
        for name, get, default in defaults:
            if get(value) != default:
                raise UnsupportedVersionError(f"{what} has no field {name} ({get(value)!r})")
        for get, write_part in writers:
            write_part(writer, get(value))
        if tags is not None:
            tags.write(writer, value)

    return write


def _compile_read(
    message_class: type,
    parts: list[_Part],
    tags: _TaggedFields | None,
    others: list[DeclaredField],
) -> Callable[[Reader], Any]:
    readers = [(len(part.names) > 1, part.codec.read) for part in parts]
    setters = [slot_setter(message_class, name) for part in parts for name in part.names]
    # Fields that are not read have their defaults.
    defaults = [(slot_setter(message_class, field.name), field.default) for field in others]

    def read(reader: Reader) -> Any:
        values: list[Any] = []
        for are_several, read_part in readers:
            if are_several:
                values += read_part(reader)
            else:
                values.append(read_part(reader))
        decoded: Any = object.__new__(message_class)
        for set_field, value in zip(setters, values, strict=True):
            set_field(decoded, value)
        for set_field, value in defaults:
            set_field(decoded, value)
        if tags is not None:
            tags.read(reader, decoded)
        return decoded

    return read


class _TaggedFields:
    """The tagged fields at the end of every flexible struct."""

    __slots__ = ("_readers", "_writers")

    def __init__(self, message_class: type, tagged: dict[int, DeclaredField], version: int) -> None:
        self._readers: dict[int, tuple[str, Callable[[Reader], Any], Callable[[Any, Any], None]]]
        self._readers = {}
        self._writers: list[tuple[int, Callable[[Any], Any], Any, Callable[[Writer, Any], None]]]
        self._writers = []
        for tag, declared in sorted(tagged.items()):
            codec = _field_codec(message_class.__name__, declared, version, flexible=True)
            setter = slot_setter(message_class, declared.name)
            self._readers[tag] = (declared.name, codec.read, setter)
            self._writers.append((tag, attrgetter(declared.name), declared.default, codec.write))

    def write(self, writer: Writer, value: Any) -> None:
        """Write the fields that differ from their defaults, by ascending tag."""
        if not self._writers:
            writer.write_unsigned_varint(0)
            return
        present = [
            (tag, field_value, write_field)
            for tag, get, default, write_field in self._writers
            if (field_value := get(value)) != default
        ]
        writer.write_unsigned_varint(len(present))
        for tag, field_value, write_field in present:
            content = Writer()
            write_field(content, field_value)
            encoded = b"".join(content.finish())
            writer.write_unsigned_varint(tag)
            writer.write_unsigned_varint(len(encoded))
            writer.write_bytes(encoded)

    def read(self, reader: Reader, decoded: Any) -> None:
        """Read the known fields into a message; skip the others."""
        previous = -1
        count = reader.read_unsigned_varint()
        if not count:
            return
        reader.count_elements(count)
        for _ in range(count):
            tag = reader.read_unsigned_varint()
            if tag <= previous:
                raise DecodeError(f"tag {tag} after tag {previous}")
            previous = tag
            content = Reader(reader.read_view(reader.read_unsigned_varint()), reader.elements_left)
            if tag in self._readers:
                name, read_field, set_field = self._readers[tag]
                set_field(decoded, read_field(content))
                content.expect_end(f"tagged field {name}")
                reader.elements_left = content.elements_left


#: The codecs found so far, by class and version.
_CODECS: dict[tuple[type[Message], int], Codec] = {}


def _codec(message_class: type[Message], version: int) -> Codec:
    codec = _CODECS.get((message_class, version))
    if codec is None:
        if version not in message_class.versions:
            raise UnsupportedVersionError(
                f"{message_class.__name__} has versions {message_class.versions}, not {version}"
            )
        flexible = version >= message_class.flexible_from
        codec = struct_codec(message_class, version, flexible=flexible)
        _CODECS[message_class, version] = codec
    return codec


def write_message(writer: Writer, message: Message, version: int) -> None:
    """Append a message to a writer; raises the errors of `encode`."""
    _codec(type(message), version).write(writer, message)


def encode(message: Message, version: int) -> list[Buffer]:
    """Encode a message as a list of buffers; records are the caller's own buffers, not copies.

    Raises UnsupportedVersionError if the version is not supported or cannot represent the message,
    and ValueError if a value does not fit its field.
    """
    writer = Writer()
    write_message(writer, message, version)
    return writer.finish()


def encode_bytes(message: Message, version: int) -> bytes:
    """Encode a message as one bytes object; raises the errors of `encode`."""
    return b"".join(encode(message, version))


def read_message(message_class: type[M], reader: Reader, version: int) -> M:
    """Read a message that may be followed by more bytes; raises the errors of `decode`."""
    try:
        decoded: M = _codec(message_class, version).read(reader)
    except DecodeError as error:
        raise DecodeError(f"{message_class.__name__} version {version}: {error}") from error
    return decoded


def decode(
    message_class: type[M],
    buffer: Buffer | bytearray,
    version: int,
    *,
    max_elements: int = MAX_ELEMENTS,
) -> M:
    """Decode a message that fills the whole buffer; its records are slices of the buffer.

    Raises DecodeError if the bytes are not such a message or have more elements than
    `max_elements`, and UnsupportedVersionError if the version is not supported.
    """
    reader = Reader(buffer, max_elements)
    decoded = read_message(message_class, reader, version)
    reader.expect_end(f"{message_class.__name__} version {version}")
    return decoded
