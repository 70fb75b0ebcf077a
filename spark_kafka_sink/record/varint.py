"""Variable-length numbers of record format v2 (Kafka's `ByteUtils`), for code that is not compiled.

Signed numbers are zigzag-encoded, so that small negative numbers remain short, and written seven
bits at a time, the lowest bits first. Java accepts numbers that take more bytes than they need, up
to 5 for an int and 10 for a long, and so does this module. A number that is longer than that, or
does not fit its type, is corrupt.
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.errors import CorruptRecordError

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
