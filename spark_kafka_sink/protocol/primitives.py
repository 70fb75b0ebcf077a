"""The types that every Kafka message is made of, one at a time.

A `Writer` gathers small values in one buffer and takes large ones (`append`) as they are, never
copied. A `Reader` walks over a memoryview and hands out slices of it, never copied either. Each
knows the plain forms and the compact ones (KIP-482), where a length is an unsigned varint of
length + 1.

Whatever bytes a `Reader` is given, it raises DecodeError or answers; it never reads past the end
and never sets memory aside for more than is there. An element of an array may take a single byte on
the wire and a thousand times that as an object, so a reader also counts elements, and refuses a
message that has too many. A value that does not fit its field is the
caller's mistake: a `Writer` raises ValueError or struct.error.

Sources: org.apache.kafka.common.protocol.types.Type, org.apache.kafka.common.utils.ByteUtils.
"""

from __future__ import annotations

import struct
from typing import TypeAlias
from uuid import UUID

from spark_kafka_sink.errors import DecodeError

#: Bytes that go to a socket as they are.
Buffer: TypeAlias = bytes | memoryview

#: The id that stands for "none".
ZERO_UUID = UUID(int=0)
#: Strings are shorter than 32 KiB, in the compact form too.
MAX_STRING_BYTES = 0x7FFF

#: Elements of arrays, and tagged fields, that a message may have where nothing else is said: the
#: metadata of more than 100,000 partitions on three brokers each.
MAX_ELEMENTS = 1_000_000

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")
_UUID_BYTES = 16
_MAX_UINT32 = 2**32 - 1
#: A varint's groups: seven bits, and one that says whether more follow.
_GROUP_BITS = 0x7F
_MORE = 0x80
#: 32 bits are five groups, the last of which has four bits.
_LAST_VARINT_SHIFT = 28
_LAST_VARINT_MAX = 0x0F


class Writer:
    """Builds a message as a list of buffers."""

    __slots__ = ("_buffers", "_tail")

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._tail = bytearray()

    def finish(self) -> list[Buffer]:
        """Give everything written, in order; the writer must not be used afterwards."""
        if self._tail:
            self._buffers.append(bytes(self._tail))
        return self._buffers

    def append(self, buffer: Buffer) -> None:
        """Write bytes without copying them."""
        if self._tail:
            self._buffers.append(bytes(self._tail))
            self._tail = bytearray()
        self._buffers.append(buffer)

    def write_bytes(self, data: Buffer) -> None:
        """Write a few bytes, by copying them; their length is the caller's to write."""
        self._tail += data

    def write_bool(self, value: bool) -> None:  # noqa: FBT001 - it is the value itself
        """Write one byte, 1 or 0."""
        self._tail.append(1 if value else 0)

    def write_int8(self, value: int) -> None:
        """Write a signed byte."""
        self._tail += _INT8.pack(value)

    def write_int16(self, value: int) -> None:
        """Write two bytes, the highest first."""
        self._tail += _INT16.pack(value)

    def write_int32(self, value: int) -> None:
        """Write four bytes, the highest first."""
        self._tail += _INT32.pack(value)

    def write_int64(self, value: int) -> None:
        """Write eight bytes, the highest first."""
        self._tail += _INT64.pack(value)

    def write_float64(self, value: float) -> None:
        """Write an IEEE 754 double, the highest byte first."""
        self._tail += _FLOAT64.pack(value)

    def write_uuid(self, value: UUID) -> None:
        """Write the 16 bytes of an id."""
        self._tail += value.bytes

    def write_unsigned_varint(self, value: int) -> None:
        """Write seven bits per byte, the lowest first; the high bit says that more follow."""
        if not 0 <= value <= _MAX_UINT32:
            raise ValueError(f"{value} is no unsigned 32-bit number")
        tail = self._tail
        while value > _GROUP_BITS:
            tail.append((value & _GROUP_BITS) | _MORE)
            value >>= 7
        tail.append(value)

    def write_compact_length(self, length: int) -> None:
        """Write a length of a compact form; -1 stands for null."""
        self.write_unsigned_varint(length + 1)


class Reader:
    """Reads values one after the other; raises DecodeError where the bytes do not hold them."""

    __slots__ = ("_view", "elements_left", "end", "position")

    def __init__(self, buffer: Buffer | bytearray, max_elements: int = MAX_ELEMENTS) -> None:
        self._view = memoryview(buffer)
        #: How many more elements the message may have.
        self.elements_left = max_elements
        #: Index of the next byte to read.
        self.position = 0
        #: How many bytes there are.
        self.end = self._view.nbytes

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return self.end - self.position

    def expect_end(self, what: str) -> None:
        """Raise DecodeError when `what` has been read and bytes are left over."""
        if self.position != self.end:
            raise DecodeError(f"{self.remaining} bytes too many after {what}")

    def count_elements(self, count: int) -> None:
        """Count elements about to be read. Raises DecodeError when they are too many."""
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
            raise DecodeError(f"{length} bytes wanted at {start}, {self.end - start} left")
        self.position = end
        return self._view[start:end]

    def _unpack(self, layout: struct.Struct) -> int:
        start = self.position
        try:
            (value,) = layout.unpack_from(self._view, start)
        except struct.error:
            raise DecodeError(
                f"{layout.size} bytes wanted at {start}, {self.end - start} left"
            ) from None
        self.position = start + layout.size
        return value  # type: ignore[no-any-return] # the layout is one of integers

    def read_bool(self) -> bool:
        """Read one byte; as in Kafka, whatever is not zero is true."""
        return self._unpack(_INT8) != 0

    def read_int8(self) -> int:
        """Read a signed byte."""
        return self._unpack(_INT8)

    def read_int16(self) -> int:
        """Read two bytes, the highest first."""
        return self._unpack(_INT16)

    def read_int32(self) -> int:
        """Read four bytes, the highest first."""
        return self._unpack(_INT32)

    def read_int64(self) -> int:
        """Read eight bytes, the highest first."""
        return self._unpack(_INT64)

    def read_float64(self) -> float:
        """Read an IEEE 754 double, the highest byte first."""
        return self._unpack(_FLOAT64)

    def read_uuid(self) -> UUID:
        """Read the 16 bytes of an id."""
        return UUID(bytes=self.read_view(_UUID_BYTES).tobytes())

    def read_unsigned_varint(self) -> int:
        """Read seven bits per byte, at most 32 in all."""
        view = self._view
        position = self.position
        value = 0
        shift = 0
        while True:
            if position >= self.end:
                raise DecodeError(f"a varint at {self.position} has no end")
            byte = view[position]
            position += 1
            if shift == _LAST_VARINT_SHIFT and byte > _LAST_VARINT_MAX:
                raise DecodeError(f"a varint at {self.position} has more than 32 bits")
            value |= (byte & _GROUP_BITS) << shift
            if byte < _MORE:
                self.position = position
                return value
            shift += 7

    def read_compact_length(self) -> int:
        """Read a length of a compact form; -1 stands for null."""
        return self.read_unsigned_varint() - 1

    def read_text(self, length: int) -> str:
        """Read a string of so many bytes."""
        if length > MAX_STRING_BYTES:
            raise DecodeError(f"a string at {self.position} claims to have {length} bytes")
        start = self.position
        try:
            return str(self.read_view(length), "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"the string at {start} is not UTF-8: {error.reason}") from None
