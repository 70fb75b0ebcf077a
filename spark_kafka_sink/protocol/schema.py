"""Messages as data: each is declared once, and both directions are derived from the declaration.

A message is a class with one line per field, in wire order, in the terms of Kafka's own schemas:

    @message
    class PartitionProduceData:
        index: int = field(INT32)
        records: Records | None = field(RECORDS, nullable="0+")

`versions` are those of the request or response that have the field; in the others it is not on
the wire, and takes its default when decoded. So every field that some version lacks has a default,
and so has every tagged one (KIP-482), which is left out when it equals its default. To encode
another value in a version that lacks the field is refused (UnsupportedVersionError) unless
the field is `ignorable`: what would be lost then matters to nobody.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, TypeVar, dataclass_transform

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codec import Codec, struct_codec
from spark_kafka_sink.protocol.field_types import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    LEGACY_STRING,
    RECORDS,
    STRING,
    UUID,
    Records,
    VersionRange,
    array,
    field,
)
from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS, Buffer, Reader, Writer

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.api_keys import ApiKey

__all__ = [
    "BOOL",
    "BYTES",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "LEGACY_STRING",
    "RECORDS",
    "STRING",
    "UUID",
    "ApiMessage",
    "Message",
    "Records",
    "VersionRange",
    "array",
    "decode",
    "encode",
    "encode_bytes",
    "field",
    "message",
    "read_message",
    "write_message",
]

M = TypeVar("M", bound="Message")
T = TypeVar("T")


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

    @property
    def highest_version(self) -> int:
        """The highest version that can say what this message says, whatever the peer has."""
        return self.versions.max


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make a class of `field` declarations a frozen dataclass, to be built by keyword."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


def _codec(message_class: type[Message], version: int) -> Codec:
    if version not in message_class.versions:
        raise UnsupportedVersionError(
            f"{message_class.__name__} is known in versions {message_class.versions}, not {version}"
        )
    return struct_codec(message_class, version, flexible=version >= message_class.flexible_from)


def write_message(writer: Writer, message: Message, version: int) -> None:
    """Write a message behind what is written already; errors as in `encode`."""
    _codec(type(message), version).write(writer, message)


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


def read_message(message_class: type[M], reader: Reader, version: int) -> M:
    """Read a message that more may follow; errors as in `decode`."""
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
    """Read a message that takes up the whole buffer; its records are slices of the buffer.

    Raises DecodeError when the bytes are anything else, or have more elements than `max_elements`,
    and UnsupportedVersionError when the version is not one of the message's.
    """
    reader = Reader(buffer, max_elements)
    decoded = read_message(message_class, reader, version)
    reader.expect_end(f"{message_class.__name__} version {version}")
    return decoded
