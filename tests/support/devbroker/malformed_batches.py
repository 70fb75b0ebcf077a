"""Record batches with errors that a checksum does not reveal, and the answers of Kafka to them.

All have the right checksum. `MALFORMED` has them in groups, by what is wrong, with the error codes
of Kafka 4.4.0. Those of 4.3.1 and 3.9.1 are the same, but for `REFUSED_SINCE_4_4`. NONE is the
answer to batches that are well-formed, and to malformed ones that Kafka accepts.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING

import cramjam
import lz4.frame
import zstandard

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType, Compressor
from tests.support.record.plain_batches import PlainRecord, plain_batch, varint

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_RECORD
#: The code for exceptions that Kafka does not handle.
UNEXPECTED = ErrorCode.UNKNOWN_SERVER_ERROR
TIMESTAMP, NO_ID = ErrorCode.INVALID_TIMESTAMP, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
GZIP, SNAPPY = CompressionType.GZIP, CompressionType.SNAPPY
LZ4, ZSTD = CompressionType.LZ4, CompressionType.ZSTD

_RECORD = PlainRecord(b"value", b"key", 0, ((b"h", b"1"),))
#: Two varints that end too late: the second has bits beyond those of an int.
_ENDLESS, _OVERLONG = b"\x80" * 11, b"\x80\x80\x80\x80\x7f"
_MAX_INT = 2**31 - 1
#: What older versions accept in a compressed batch.
REFUSED_SINCE_4_4 = ("a record of length -1", "a record of the greatest length")


def record(
    delta: int | bytes = 0,
    *,
    length: int | bytes | None = None,
    longer: int = 0,
    attributes: int = 0,
    timestamp: int | bytes = 0,
    key_length: int | bytes = 3,
    key: bytes = b"key",
    value_length: int | bytes = 5,
    value: bytes = b"value",
    headers: int | bytes = 1,
    header_key_length: int | bytes = 1,
    header_key: bytes = b"h",
    header_value_length: int | bytes = 1,
    header_value: bytes = b"1",
    tail: bytes = b"",
) -> bytes:
    """Encode a record from its fields; numbers are written as varints, bytes as they are."""
    fields = (
        bytes([attributes]),
        timestamp,
        delta,
        key_length,
        key,
        value_length,
        value,
        headers,
        header_key_length,
        header_key,
        header_value_length,
        header_value,
        tail,
    )
    body = b"".join(varint(field) if isinstance(field, int) else field for field in fields)
    if length is None:
        length = len(body) + longer
    return (varint(length) if isinstance(length, int) else length) + body


def _pair(first: bytes | None = None, second: bytes | None = None) -> bytes:
    return (record(0) if first is None else first) + (record(1) if second is None else second)


#: The records of a batch whose header says that there are two, by what is wrong; and the answers if
#: they are not compressed, and if they are.
PAYLOADS: dict[str, tuple[bytes, ErrorCode, ErrorCode]] = {
    "nothing": (_pair(), NONE, NONE),
    "no records": (b"", INVALID, INVALID),
    "one record too few": (record(0), INVALID, INVALID),
    "a record too many": (_pair() + record(2), INVALID, INVALID),
    "a zero after the records": (_pair() + b"\0", INVALID, INVALID),
    "garbage after the records": (_pair() + b"\xff\xfe\xfd", INVALID, INVALID),
    "no records but garbage": (b"\x7f not records at all", INVALID, INVALID),
    "a longer last record": (_pair(second=record(1, longer=1)), INVALID, NONE),
    "a shorter last record": (_pair(second=record(1, longer=-1)), INVALID, NONE),
    "a longer first record": (_pair(record(0, longer=1)), INVALID, NONE),
    "a shorter first record": (_pair(record(0, longer=-1)), INVALID, NONE),
    "a byte after the headers": (_pair(record(0, tail=b"\0")), INVALID, INVALID),
    "a byte after the headers, not counted": (
        _pair(record(0, tail=b"\0", longer=-1)),
        INVALID,
        INVALID,
    ),
    "a record of length 0": (_pair(second=record(1, length=0)), INVALID, NONE),
    "a record of length -1": (_pair(second=record(1, length=-1)), INVALID, INVALID),
    "a record of the greatest length": (_pair(second=record(1, length=_MAX_INT)), INVALID, INVALID),
    "an endless length": (_pair(second=record(1, length=_ENDLESS)), UNEXPECTED, INVALID),
    "an overlong length": (_pair(second=record(1, length=_OVERLONG)), INVALID, NONE),
    "an endless timestamp": (_pair(record(0, timestamp=_ENDLESS)), INVALID, INVALID),
    "an overlong timestamp": (_pair(record(0, timestamp=b"\x80" * 9 + b"\x7f")), NONE, NONE),
    "an endless offset": (_pair(record(_ENDLESS)), INVALID, INVALID),
    "an overlong offset": (_pair(record(_OVERLONG)), NONE, UNEXPECTED),
    "an endless key length": (_pair(record(0, key_length=_ENDLESS)), INVALID, INVALID),
    "an overlong value length": (_pair(record(0, value_length=_OVERLONG)), INVALID, INVALID),
    "an endless header count": (_pair(record(0, headers=_ENDLESS)), INVALID, INVALID),
    "an overlong header length": (_pair(record(0, header_key_length=_OVERLONG)), INVALID, INVALID),
    "used attributes": (_pair(record(0, attributes=0xFF)), NONE, NONE),
    "equal offsets": (_pair(second=record(0)), NONE, UNEXPECTED),
    "falling offsets": (record(1) + record(0), NONE, UNEXPECTED),
    "offsets with a gap": (_pair(second=record(2)), NONE, UNEXPECTED),
    "offsets from 1": (record(1) + record(2), NONE, UNEXPECTED),
    "a negative offset": (record(-1) + record(0), NONE, UNEXPECTED),
    "the greatest offset": (_pair(second=record(_MAX_INT)), NONE, UNEXPECTED),
    "a key beyond its record": (_pair(record(0, key_length=25)), INVALID, INVALID),
    "a key beyond the records": (_pair(record(0, key_length=500)), INVALID, INVALID),
    "a key of the greatest length": (_pair(record(0, key_length=_MAX_INT)), INVALID, INVALID),
    "a key of length -2": (_pair(record(0, key_length=-2, key=b"")), NONE, NONE),
    "a null key with bytes": (_pair(record(0, key_length=-1)), INVALID, INVALID),
    "a value beyond its record": (_pair(record(0, value_length=15)), INVALID, INVALID),
    "a value beyond the records": (_pair(record(0, value_length=500)), INVALID, INVALID),
    "a value of length -2": (_pair(record(0, value_length=-2, value=b"")), NONE, NONE),
    "a value of the least length": (_pair(record(0, value_length=-(2**31), value=b"")), NONE, NONE),
    "a header too few": (_pair(record(0, headers=0)), INVALID, INVALID),
    "a header too many": (_pair(record(0, headers=2)), INVALID, INVALID),
    "-1 headers": (_pair(record(0, headers=-1)), INVALID, INVALID),
    "more headers than bytes": (_pair(record(0, headers=500)), INVALID, INVALID),
    "the greatest number of headers": (_pair(record(0, headers=_MAX_INT)), INVALID, INVALID),
    "a null header key": (_pair(record(0, header_key_length=-1, header_key=b"")), INVALID, INVALID),
    "a header key of length -2": (
        _pair(record(0, header_key_length=-2, header_key=b"")),
        INVALID,
        INVALID,
    ),
    "a header key beyond its record": (_pair(record(0, header_key_length=9)), INVALID, INVALID),
    "a header key beyond the records": (_pair(record(0, header_key_length=500)), INVALID, INVALID),
    "a header key that is not UTF-8": (_pair(record(0, header_key=b"\xff")), NONE, NONE),
    "a null header value": (_pair(record(0, header_value_length=-1, header_value=b"")), NONE, NONE),
    "a header value of length -2": (
        _pair(record(0, header_value_length=-2, header_value=b"")),
        NONE,
        NONE,
    ),
    "a header value beyond its record": (
        _pair(record(0, header_value_length=9)),
        INVALID,
        UNEXPECTED,
    ),
    "a header value beyond the records": (
        _pair(record(0, header_value_length=500)),
        INVALID,
        INVALID,
    ),
    "a timestamp before 1970": (_pair(record(0, timestamp=-5)), NONE, NONE),
} | {
    f"records that end after {size} bytes": (_pair()[:size], INVALID, INVALID)
    for size in range(len(record(0)), 2 * len(record(0)))
}


def batch(payload: bytes, codec: CompressionType = CompressionType.NONE, **header: int) -> bytes:
    """Encode a batch whose header says that there are two records, from their bytes."""
    return plain_batch(
        [_RECORD] * 2,
        payload=bytes(Compressor(codec).compress(payload)),
        compression=codec,
        **header,
    )


_GOOD = _pair()
_ZIPPED = gzip.compress(_GOOD, mtime=0)
_SNAPPY_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_RAW_SNAPPY = bytes(cramjam.snappy.compress_raw(_GOOD))
_SNAPPED = _SNAPPY_HEADER + struct.pack(">i", len(_RAW_SNAPPY)) + _RAW_SNAPPY
_LZ4ED = lz4.frame.compress(_GOOD, block_linked=False, store_size=False)
_ZSTD = zstandard.ZstdCompressor().compress(_GOOD)
_LZ4_SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"


_LZ4_LINKED_HEADER = lz4.frame.compress(
    bytes(200_000), block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=False
)[:7]


def _with_byte(data: bytes, at: int, changed: int) -> bytes:
    copy = bytearray(data)
    copy[at] ^= changed
    return bytes(copy)


def _lz4(**options: object) -> bytes:
    return lz4.frame.compress(_GOOD, **({"block_linked": False, "store_size": False} | options))


#: Compressed records of a batch with two records, by codec and what is wrong.
COMPRESSED: dict[CompressionType, dict[str, tuple[bytes, ErrorCode]]] = {
    GZIP: {
        "nothing": (_ZIPPED, NONE),
        "no bytes": (b"", UNEXPECTED),
        "another format": (b"not a member of gzip at all", UNEXPECTED),
        "a cut header": (_ZIPPED[:5], UNEXPECTED),
        "a cut member": (_ZIPPED[:-12], UNEXPECTED),
        "no trailer": (_ZIPPED[:-8], UNEXPECTED),
        "a cut trailer": (_ZIPPED[:-1], UNEXPECTED),
        "a wrong checksum": (_with_byte(_ZIPPED, -8, 1), UNEXPECTED),
        "a wrong size": (_with_byte(_ZIPPED, -1, 1), UNEXPECTED),
        "another method": (_with_byte(_ZIPPED, 2, 1), UNEXPECTED),
        "a damaged block": (_with_byte(_ZIPPED, 10, 0x06), UNEXPECTED),
        "a zero after the member": (_ZIPPED + b"\0", NONE),
        "40 zeros after the member": (_ZIPPED + bytes(40), NONE),
        "garbage after the member": (_ZIPPED + b"garbage", NONE),
        "much garbage after the member": (_ZIPPED + b"garbage" * 10, NONE),
        "a cut member after the member": (_ZIPPED + _ZIPPED[:-12], INVALID),
        "a cut header after the member": (_ZIPPED + _ZIPPED[:5], NONE),
        "an empty member after the member": (_ZIPPED + gzip.compress(b"", mtime=0), NONE),
        "a second member": (_ZIPPED + _ZIPPED, INVALID),
        "two members": (
            gzip.compress(_GOOD[:9], mtime=0) + gzip.compress(_GOOD[9:], mtime=0),
            NONE,
        ),
        "a file name": (_ZIPPED[:3] + b"\x08" + _ZIPPED[4:10] + b"name\0" + _ZIPPED[10:], NONE),
        "reserved flags": (_with_byte(_ZIPPED, 3, 0xE0), NONE),
        "zlib's format": (zlib.compress(_GOOD), UNEXPECTED),
    },
    SNAPPY: {
        "nothing": (_SNAPPED, NONE),
        "no bytes": (b"", UNEXPECTED),
        "a raw block": (_RAW_SNAPPY, NONE),
        "a cut raw block": (_RAW_SNAPPY[:-1], UNEXPECTED),
        "a byte after a raw block": (_RAW_SNAPPY + b"\0", UNEXPECTED),
        "another format": (b"not a block of snappy at all", UNEXPECTED),
        "a cut header": (_SNAPPED[:10], UNEXPECTED),
        "a header alone": (_SNAPPY_HEADER, INVALID),
        "another version": (_with_byte(_SNAPPED, 11, 2), NONE),
        "a newer version": (_with_byte(_SNAPPED, 15, 2), NONE),
        "a cut block": (_SNAPPED[:-1], UNEXPECTED),
        "a block of length -1": (_SNAPPY_HEADER + b"\xff" * 4 + _RAW_SNAPPY, UNEXPECTED),
        "a block beyond the bytes": (
            _SNAPPY_HEADER + struct.pack(">i", 999) + _RAW_SNAPPY,
            UNEXPECTED,
        ),
        "a damaged block": (_with_byte(_SNAPPED, 20, 0x40), UNEXPECTED),
        "an empty block": (_SNAPPED + bytes(4), UNEXPECTED),
        "a block without bytes": (_SNAPPED + struct.pack(">i", 1) + b"\0", NONE),
        "a byte after the blocks": (_SNAPPED + b"\0", NONE),
        "three bytes after the blocks": (_SNAPPED + b"abc", NONE),
        "garbage after the blocks": (_SNAPPED + b"garbage", UNEXPECTED),
        "a second stream": (_SNAPPED + _SNAPPED, INVALID),
        "an empty stream after the blocks": (_SNAPPED + _SNAPPY_HEADER, NONE),
    },
    LZ4: {
        "nothing": (_LZ4ED, NONE),
        "no bytes": (b"", UNEXPECTED),
        "another format": (b"not a frame of lz4 at all", UNEXPECTED),
        "a cut header": (_LZ4ED[:6], UNEXPECTED),
        "a header alone": (_LZ4ED[:7], UNEXPECTED),
        "a cut block": (_LZ4ED[:-6], UNEXPECTED),
        "no end mark": (_LZ4ED[:-4], UNEXPECTED),
        "a cut end mark": (_LZ4ED[:-1], UNEXPECTED),
        "a wrong header checksum": (_with_byte(_LZ4ED, 6, 1), UNEXPECTED),
        "another version": (_with_byte(_LZ4ED, 4, 0x80), UNEXPECTED),
        "dependent blocks": (_LZ4_LINKED_HEADER + _LZ4ED[7:], UNEXPECTED),
        "a damaged block": (_with_byte(_LZ4ED, 11, 0xF0), UNEXPECTED),
        "block checksums": (_lz4(block_checksum=True), NONE),
        "a wrong block checksum": (_with_byte(_lz4(block_checksum=True), -5, 1), UNEXPECTED),
        "a content checksum": (_lz4(content_checksum=True), NONE),
        "a wrong content checksum": (_with_byte(_lz4(content_checksum=True), -1, 1), NONE),
        "no content checksum": (_lz4(content_checksum=True)[:-4], UNEXPECTED),
        "a content size": (_lz4(store_size=True), NONE),
        "blocks of 4 MB": (_lz4(block_size=lz4.frame.BLOCKSIZE_MAX4MB), NONE),
        "a zero after the frame": (_LZ4ED + b"\0", NONE),
        "garbage after the frame": (_LZ4ED + b"garbage", NONE),
        "a second frame": (_LZ4ED + _LZ4ED, NONE),
        "a frame to skip after the frame": (_LZ4ED + _LZ4_SKIPPABLE, NONE),
        "a frame to skip before the frame": (_LZ4_SKIPPABLE + _LZ4ED, UNEXPECTED),
    },
    ZSTD: {
        "nothing": (_ZSTD, NONE),
        "no bytes": (b"", INVALID),
        "another format": (b"not a frame of zstd at all", UNEXPECTED),
        "a cut magic number": (_ZSTD[:3], UNEXPECTED),
        "a cut header": (_ZSTD[:5], UNEXPECTED),
        "a header alone": (_ZSTD[:6], UNEXPECTED),
        "a cut block": (_ZSTD[:-3], UNEXPECTED),
        "a checksum": (zstandard.ZstdCompressor(write_checksum=True).compress(_GOOD), NONE),
        "a wrong checksum": (
            _with_byte(zstandard.ZstdCompressor(write_checksum=True).compress(_GOOD), -1, 1),
            UNEXPECTED,
        ),
        "no checksum": (
            zstandard.ZstdCompressor(write_checksum=True).compress(_GOOD)[:-4],
            UNEXPECTED,
        ),
        "a wrong content size": (_with_byte(_ZSTD, 5, 1), UNEXPECTED),
        "no content size": (
            zstandard.ZstdCompressor(write_content_size=False).compress(_GOOD),
            NONE,
        ),
        "a damaged block": (_with_byte(_ZSTD, 9, 0xFF), UNEXPECTED),
        "a reserved block": (_with_byte(_ZSTD, 6, 0x06), UNEXPECTED),
        "a zero after the frame": (_ZSTD + b"\0", UNEXPECTED),
        "garbage after the frame": (_ZSTD + b"garbage", UNEXPECTED),
        "four zeros after the frame": (_ZSTD + bytes(4), UNEXPECTED),
        "a second frame": (_ZSTD + _ZSTD, INVALID),
        "an empty frame after the frame": (_ZSTD + zstandard.ZstdCompressor().compress(b""), NONE),
        "a cut frame after the frame": (_ZSTD + _ZSTD[:-3], NONE),
        "two frames": (
            zstandard.ZstdCompressor().compress(_GOOD[:9])
            + zstandard.ZstdCompressor().compress(_GOOD[9:]),
            NONE,
        ),
        "a frame to skip after the frame": (_ZSTD + _LZ4_SKIPPABLE, NONE),
        "a frame to skip before the frame": (_LZ4_SKIPPABLE + _ZSTD, NONE),
        "a cut frame to skip": (_ZSTD + _LZ4_SKIPPABLE[:-1], NONE),
        "a frame to skip without bytes": (_ZSTD + _LZ4_SKIPPABLE[:4] + bytes(4), NONE),
    },
}

#: Batches whose headers are odd, and their records are not.
HEADERS: dict[str, tuple[bytes, ErrorCode]] = {
    "a record count of 0": (batch(_GOOD, record_count=0), INVALID),
    "a record count of -1": (batch(_GOOD, record_count=-1), INVALID),
    "a record count too small": (batch(_GOOD, record_count=1), INVALID),
    "a record count too large": (batch(_GOOD, record_count=3), INVALID),
    "one record less than there are": (batch(_GOOD, record_count=1, last_offset_delta=0), INVALID),
    "one record more than there are": (batch(_GOOD, record_count=3, last_offset_delta=2), INVALID),
    "the greatest record count": (
        batch(_GOOD, record_count=_MAX_INT, last_offset_delta=_MAX_INT - 1),
        INVALID,
    ),
    "the greatest delta": (batch(_GOOD, last_offset_delta=_MAX_INT), INVALID),
    "a delta of -1": (batch(_GOOD, last_offset_delta=-1), INVALID),
    "a delta too small": (batch(_GOOD, last_offset_delta=0), INVALID),
    "a delta too large": (batch(_GOOD, last_offset_delta=2), INVALID),
    "a base offset": (batch(_GOOD, base_offset=1), INVALID),
    "a wrong largest timestamp": (batch(_GOOD, max_timestamp=5), NONE),
    "no largest timestamp": (batch(_GOOD, max_timestamp=-1), NONE),
    "control": (batch(_GOOD, attributes=0x20), INVALID),
    "transactional control": (
        batch(_GOOD, attributes=0x30, producer_id=4_000_000, producer_epoch=0, base_sequence=0),
        NO_ID,
    ),
    "control of a producer": (
        batch(_GOOD, attributes=0x20, producer_id=4_000_000, producer_epoch=0, base_sequence=-1),
        INVALID,
    ),
    "transactional without a producer": (batch(_GOOD, attributes=0x10), NO_ID),
    "LogAppendTime": (batch(_GOOD, attributes=0x08), NONE),
    "LogAppendTime without a timestamp": (
        batch(_GOOD, attributes=0x08, max_timestamp=-1),
        TIMESTAMP,
    ),
    "a delete horizon": (batch(_GOOD, attributes=0x40), NONE),
    "unused attributes": (batch(_GOOD, attributes=0x80), NONE),
    "unused attributes in the other byte": (batch(_GOOD, attributes=0x7F00), NONE),
    "codec 5": (plain_batch(2, attributes=5), UNEXPECTED),
    "codec 6": (plain_batch(2, attributes=6), UNEXPECTED),
    "codec 7": (plain_batch(2, attributes=7), UNEXPECTED),
    "a producer without sequence": (batch(_GOOD, producer_id=4_000_001, producer_epoch=0), INVALID),
    "a producer of epoch -1": (batch(_GOOD, producer_id=4_000_002, base_sequence=0), NONE),
    "a producer id of -2": (batch(_GOOD, producer_id=-2, producer_epoch=0, base_sequence=0), NONE),
    "a sequence without a producer": (batch(_GOOD, base_sequence=5), NONE),
    "an epoch without a producer": (batch(_GOOD, producer_epoch=5), NONE),
}


def _groups() -> Iterator[tuple[str, dict[str, tuple[bytes, ErrorCode]]]]:
    yield (
        "uncompressed",
        {name: (batch(payload), code) for name, (payload, code, _) in PAYLOADS.items()},
    )
    for codec, payloads in COMPRESSED.items():
        yield (
            codec.name.lower(),
            {name: (batch(payload, codec), code) for name, (payload, _, code) in PAYLOADS.items()},
        )
        yield (
            f"{codec.name.lower()} itself",
            {
                name: (plain_batch([_RECORD] * 2, payload=payload, compression=codec), code)
                for name, (payload, code) in payloads.items()
            },
        )
    yield "headers", HEADERS


MALFORMED = dict(_groups())
