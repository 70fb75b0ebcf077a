"""The primitive types that Kafka messages consist of.

A `Writer` collects small values in one buffer and appends large ones (`append`) without copying
them. A `Reader` walks over a memoryview and returns slices of it, also without copying. Both
support the plain encodings and the compact ones (KIP-482), where a length is an unsigned varint of
length + 1.

For any bytes, a `Reader` either returns a value or raises DecodeError; it never reads past the end
and never allocates memory for more than is there. An array element may take a single byte on the
wire but a thousand bytes as an object, so a reader also counts elements and rejects a message with
too many. A value that does not fit its field is the caller's mistake: a `Writer` raises ValueError
or struct.error.

Sources: org.apache.kafka.common.protocol.types.Type, org.apache.kafka.common.utils.ByteUtils.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

from spark_kafka_sink.errors import DecodeError

#: Bytes that can be sent to a socket as they are.
Buffer: TypeAlias = bytes | memoryview

#: The id that means "none".
ZERO_UUID = UUID(int=0)
#: The maximum length of a string, in the compact encoding too.
MAX_STRING_BYTES = 0x7FFF

#: The default limit on the array elements and tagged fields of a message: enough for the metadata
#: of more than 100,000 partitions with three replicas each.
MAX_ELEMENTS = 1_000_000

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")
_UUID_BYTES = 16
_MAX_UINT32 = 2**32 - 1
#: The groups of a varint: seven bits, and one that marks that more follow.
_GROUP_BITS = 0x7F
_MORE = 0x80
#: 32 bits take five groups, the last of which has four bits.
_LAST_VARINT_SHIFT = 28
_LAST_VARINT_MAX = 0x0F


@lru_cache(maxsize=1024)
def _uuid(data: bytes) -> UUID:
    """Return an id; the same few topics are in one response after the other."""
    return UUID(bytes=data)


class Writer:
    """A builder of a message as a list of buffers."""

    __slots__ = ("_buffers", "_tail")

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._tail = bytearray()

    def finish(self) -> list[Buffer]:
        """Return everything written, in order; the writer must not be used afterwards."""
        if self._tail:
            self._buffers.append(bytes(self._tail))
        return self._buffers

    def append(self, buffer: Buffer) -> None:
        """Append bytes without copying them."""
        if self._tail:
            self._buffers.append(bytes(self._tail))
            self._tail = bytearray()
        self._buffers.append(buffer)

    def write_bytes(self, data: Buffer) -> None:
        """Write a copy of a few bytes; the caller writes their length."""
        self._tail += data

    def write_bool(self, value: bool) -> None:  # noqa: FBT001 - it is the value itself
        """Write one byte, 1 or 0."""
        self._tail.append(1 if value else 0)

    def write_int8(self, value: int) -> None:
        """Write a signed byte."""
        self._tail += _INT8.pack(value)

    def write_int16(self, value: int) -> None:
        """Write two bytes, big-endian."""
        self._tail += _INT16.pack(value)

    def write_uint16(self, value: int) -> None:
        """Write two bytes without a sign, big-endian."""
        self._tail += _UINT16.pack(value)

    def write_int32(self, value: int) -> None:
        """Write four bytes, big-endian."""
        self._tail += _INT32.pack(value)

    def write_int64(self, value: int) -> None:
        """Write eight bytes, big-endian."""
        self._tail += _INT64.pack(value)

    def write_float64(self, value: float) -> None:
        """Write an IEEE 754 double, big-endian."""
        self._tail += _FLOAT64.pack(value)

    def write_uuid(self, value: UUID) -> None:
        """Write the 16 bytes of an id."""
        self._tail += value.bytes

    def write_unsigned_varint(self, value: int) -> None:
        """Write seven bits per byte, lowest first; the high bit marks that more follow."""
        if not 0 <= value <= _MAX_UINT32:
            raise ValueError(f"{value} is not an unsigned 32-bit number")
        tail = self._tail
        while value > _GROUP_BITS:
            tail.append((value & _GROUP_BITS) | _MORE)
            value >>= 7
        tail.append(value)

    def write_compact_length(self, length: int) -> None:
        """Write a length in the compact encoding; -1 stands for null."""
        if -1 <= length < _GROUP_BITS:
            # Nearly all of them are this short.
            self._tail.append(length + 1)
        else:
            self.write_unsigned_varint(length + 1)


class Reader:
    """A reader of consecutive values; raises DecodeError if the bytes do not contain them."""

    __slots__ = ("_view", "elements_left", "end", "position")

    def __init__(self, buffer: Buffer | bytearray, max_elements: int = MAX_ELEMENTS) -> None:
        self._view = memoryview(buffer)
        #: How many more elements the message may have.
        self.elements_left = max_elements
        #: The index of the next byte to read.
        self.position = 0
        #: The number of bytes in the buffer.
        self.end = self._view.nbytes

    @property
    def remaining(self) -> int:
        """The number of bytes not yet read."""
        return self.end - self.position

    def expect_end(self, what: str) -> None:
        """Raise DecodeError if bytes are left over after `what`."""
        if self.position != self.end:
            raise DecodeError(f"{self.remaining} extra bytes after {what}")

    def count_elements(self, count: int) -> None:
        """Count elements about to be read; raises DecodeError if there are too many."""
        self.elements_left -= count
        if self.elements_left < 0:
            raise DecodeError(
                f"the message has too many elements: {count} before byte {self.position} are "
                f"{-self.elements_left} more than the limit"
            )

    def read_view(self, length: int) -> memoryview:
        """Read bytes as a slice of the buffer."""
        start = self.position
        end = start + length
        if end > self.end:
            raise DecodeError(f"expected {length} bytes at {start}, got {self.end - start}")
        self.position = end
        return self._view[start:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the values of a layout, all at once."""
        start = self.position
        try:
            values = layout.unpack_from(self._view, start)
        except struct.error:
            raise DecodeError(
                f"expected {layout.size} bytes at {start}, got {self.end - start}"
            ) from None
        self.position = start + layout.size
        return values

    def _unpack(self, layout: struct.Struct) -> int:
        (value,) = self.unpack(layout)
        return value  # type: ignore[no-any-return] # the layout is one of integers

    def read_bool(self) -> bool:
        """Read one byte; as in Kafka, any value other than zero is true."""
        return self._unpack(_INT8) != 0

    def read_int8(self) -> int:
        """Read a signed byte."""
        return self._unpack(_INT8)

    def read_int16(self) -> int:
        """Read two bytes, big-endian."""
        return self._unpack(_INT16)

    def read_uint16(self) -> int:
        """Read two bytes without a sign, big-endian."""
        return self._unpack(_UINT16)

    def read_int32(self) -> int:
        """Read four bytes, big-endian."""
        return self._unpack(_INT32)

    def read_int64(self) -> int:
        """Read eight bytes, big-endian."""
        return self._unpack(_INT64)

    def read_float64(self) -> float:
        """Read an IEEE 754 double, big-endian."""
        return self._unpack(_FLOAT64)

    def read_uuid(self) -> UUID:
        """Read the 16 bytes of an id."""
        return _uuid(self.read_view(_UUID_BYTES).tobytes())

    def read_unsigned_varint(self) -> int:
        """Read seven bits per byte, at most 32 bits in total."""
        view = self._view
        position = self.position
        if position < self.end and view[position] < _MORE:
            # Nearly all of them are this short.
            self.position = position + 1
            return view[position]
        value = 0
        shift = 0
        while True:
            if position >= self.end:
                raise DecodeError(f"the varint at {self.position} has no end")
            byte = view[position]
            position += 1
            if shift == _LAST_VARINT_SHIFT and byte > _LAST_VARINT_MAX:
                raise DecodeError(f"the varint at {self.position} has more than 32 bits")
            value |= (byte & _GROUP_BITS) << shift
            if byte < _MORE:
                self.position = position
                return value
            shift += 7

    def read_compact_length(self) -> int:
        """Read a length in the compact encoding; -1 stands for null."""
        position = self.position
        if position < self.end and (first := self._view[position]) < _MORE:
            # Nearly all of them are this short.
            self.position = position + 1
            return first - 1
        return self.read_unsigned_varint() - 1

    def read_text(self, length: int) -> str:
        """Read a string of `length` bytes."""
        if length > MAX_STRING_BYTES:
            raise DecodeError(f"the string at {self.position} claims to have {length} bytes")
        start = self.position
        try:
            return str(self.read_view(length), "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"the string at {start} is not UTF-8: {error.reason}") from None
