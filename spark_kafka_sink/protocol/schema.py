"""Messages as data: one declaration per message, from which both codecs are built.

A message is a class with one line per field, in wire order, in the terms of Kafka's own schemas:

    @message
    class PartitionProduceData:
        index: int = field(INT32)
        records: Records | None = field(RECORDS, nullable="0+")

`versions` are the versions of the request or response that have the field; in the others it is not
on the wire, and takes its default when decoded. So every field that some version lacks has a
default, and so has every tagged field (KIP-482), which is omitted if it equals its default.
Encoding another value in a version that lacks the field raises UnsupportedVersionError unless the
field is `ignorable`, which means that it may be dropped.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Generic,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
)

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
    "AnyRequest",
    "ApiMessage",
    "ApiRequest",
    "ApiResponse",
    "Message",
    "Records",
    "ResponseT",
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
    """A top-level unit on the wire: a header, a request or a response."""

    __slots__ = ()

    #: The versions that this package supports.
    versions: ClassVar[VersionRange]
    #: The first version with compact encodings and tagged fields.
    flexible_from: ClassVar[int]


class ApiMessage(Message):
    """A request or a response."""

    __slots__ = ()

    api_key: ClassVar[ApiKey]

    def __init_subclass__(cls) -> None:
        """Set the first flexible version to that of the API."""
        super().__init_subclass__()
        # ApiRequest and ApiResponse themselves belong to no API.
        if hasattr(cls, "api_key"):
            cls.flexible_from = cls.api_key.flexible_from

    @property
    def highest_version(self) -> int:
        """The highest version that can represent this message, whatever the peer supports."""
        return self.versions.max


class ApiResponse(ApiMessage):
    """A response."""

    __slots__ = ()


#: The response to a request, for functions that return it.
ResponseT = TypeVar("ResponseT", bound=ApiResponse)
ResponseT_co = TypeVar("ResponseT_co", bound=ApiResponse, covariant=True)


class ApiRequest(ApiMessage, Generic[ResponseT_co]):
    """A request. Its type names the class of its response: `ApiRequest["HeartbeatResponse"]`."""

    __slots__ = ()

    @classmethod
    def response_class(cls) -> type[ResponseT_co]:
        """Return the class of the response, which the module of the request declares."""
        [base] = vars(cls)["__orig_bases__"]
        [reference] = get_args(base)
        response: type[ResponseT_co] = vars(sys.modules[cls.__module__])[reference.__forward_arg__]
        return response


AnyRequest: TypeAlias = ApiRequest[ApiResponse]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make a class of `field` declarations a frozen dataclass with keyword-only arguments."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


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
