"""Records of format v2 one at a time, without the compiled kernels (Kafka's `DefaultRecord`).

For a few records this is faster than building columns for a kernel, and it does not load any.

Variable-length numbers are those of Kafka's `ByteUtils`. Signed numbers are zigzag-encoded, so that
small negative numbers remain short, and written seven bits at a time, the lowest bits first. Java
accepts numbers that take more bytes than they need, up to 5 for an int and 10 for a long, and so
does this module. A number that is longer than that, or does not fit its type, is corrupt.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

_MORE: Final = 0x80
_LOW_BITS: Final = 0x7F
_INT_BITS: Final = 32
_LONG_BITS: Final = 64


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a signed 32-bit number that ends by `end`; return it and the position after it."""
    if position < end:
        byte = data[position]
        if byte < _MORE:
            return (byte >> 1) ^ -(byte & 1), position + 1
    return _read(data, position, end, _INT_BITS)


def read_varlong(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a signed 64-bit number that ends by `end`; return it and the position after it."""
    return _read(data, position, end, _LONG_BITS)


def encode_varint(number: int) -> bytes:
    """Encode a signed number of at most 64 bits."""
    rest = number << 1 if number >= 0 else ~(number << 1)
    encoded = bytearray()
    while rest >= _MORE:
        encoded.append(rest & _LOW_BITS | _MORE)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read(data: bytes, position: int, end: int, bits: int) -> tuple[int, int]:
    folded = 0
    for shift in range(0, bits, 7):
        if position >= end:
            raise CorruptRecordError("a variable-length number is truncated")
        byte = data[position]
        position += 1
        folded |= (byte & _LOW_BITS) << shift
        if byte < _MORE:
            if folded >> bits:
                break
            return (folded >> 1) ^ -(folded & 1), position
    raise CorruptRecordError(f"a variable-length number does not fit into {bits} bits")


#: Sizes repeat from record to record.
_encode_size = lru_cache(maxsize=1024)(encode_varint)
_NULL = encode_varint(-1)


def encode_record(
    key: bytes | None,
    value: bytes | None,
    *,
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    r"""Encode a record in format v2; its deltas count from the batch's first record.

    >>> encode_record(None, b"a")
    b'\x0e\x00\x00\x00\x01\x02a\x00'
    """
    body = b"".join(
        (
            b"\0",  # the attributes
            _encode_size(timestamp_delta),
            _encode_size(offset_delta),
            _sized(key),
            _sized(value),
            _encode_size(len(headers)),
            *[_sized(name.encode()) + _sized(content) for name, content in headers],
        )
    )
    return _encode_size(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return _NULL if content is None else _encode_size(len(content)) + content


class PayloadPart(NamedTuple):
    """Records of a batch, compressed or not, and values for the header of a batch of them."""

    payload: memoryview
    uncompressed_bytes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int


class _SplitRecord(NamedTuple):
    timestamp: int
    #: Key, value and headers, as encoded in the batch.
    content: bytes


def split_payload(
    payload: Buffer, *, record_count: int, base_timestamp: int, max_bytes: int
) -> list[PayloadPart]:
    """Split `payload`, the uncompressed records of a batch, into parts of at most `max_bytes`.

    This is Kafka's `ProducerBatch.split`, for a batch that turns out to be larger than the broker
    accepts, or much larger than batch.size. Offsets and timestamps of records are relative to their
    batch, so both are rewritten. Splits are rare: this takes some microseconds per record.

    A record larger than `max_bytes` gets its own part; every record is in exactly one part, in
    order. Raises CorruptRecordError if the payload is malformed or has another number of records.
    """
    parts: list[PayloadPart] = []
    part = _OpenPart()
    for record in _records(bytes(payload), record_count, base_timestamp):
        if not part.try_append(record, max_bytes):
            parts.append(part.finish())
            part = _OpenPart()
            part.try_append(record, max_bytes)
    if part.record_count:
        parts.append(part.finish())
    return parts


class _OpenPart:
    def __init__(self) -> None:
        self._payload = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = 0
        self.record_count = 0

    def try_append(self, record: _SplitRecord, max_bytes: int) -> bool:
        """Append a record and return True, if there is room or if it is the first record."""
        if not self.record_count:
            self._base_timestamp = self._max_timestamp = record.timestamp
        deltas = encode_varint(record.timestamp - self._base_timestamp) + encode_varint(
            self.record_count
        )
        length = encode_varint(1 + len(deltas) + len(record.content))
        size = len(length) + 1 + len(deltas) + len(record.content)
        if self.record_count and len(self._payload) + size > max_bytes:
            return False
        self._payload += length + b"\0" + deltas + record.content
        self._max_timestamp = max(self._max_timestamp, record.timestamp)
        self.record_count += 1
        return True

    def finish(self) -> PayloadPart:
        return PayloadPart(
            memoryview(bytes(self._payload)),
            len(self._payload),
            self.record_count,
            self._base_timestamp,
            self._max_timestamp,
        )


def _records(data: bytes, record_count: int, base_timestamp: int) -> Iterator[_SplitRecord]:
    position = 0
    for _ in range(record_count):
        length, position = read_varint(data, position, len(data))
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptRecordError(f"a record of {length} bytes does not fit into its batch")
        timestamp_delta, position = read_varlong(data, position + 1, end)
        _, position = read_varint(data, position, end)
        yield _SplitRecord(base_timestamp + timestamp_delta, data[position:end])
        position = end
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes after the last record")
