"""Batches that a broker may send and that few producers write: old formats, and bombs.

They are for the fault `AlterRecords`, which sends them in place of the records in the log; a bomb
can be appended, too.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from io import BytesIO
from typing import TYPE_CHECKING

import lz4.frame
import zstandard

from spark_kafka_sink.record.compression import CompressionType
from tests.support.record.plain_batches import PlainRecord, plain_batch, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CHUNK = 1 << 20


def old_messages(records: Sequence[PlainRecord], *, magic: int, base_offset: int = 0) -> bytes:
    """Encode a message set of format 0 or 1, each record as a message of its own."""
    return b"".join(
        _message(record, magic, offset) for offset, record in enumerate(records, base_offset)
    )


def _message(record: PlainRecord, magic: int, offset: int) -> bytes:
    timestamp = struct.pack(">q", record.timestamp) if magic else b""
    covered = struct.pack(">bb", magic, 0) + timestamp + _sized(record.key) + _sized(record.value)
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


def _sized(content: bytes | None) -> bytes:
    return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content


def bomb(
    size: int = 1 << 30,
    *,
    compression: CompressionType = CompressionType.ZSTD,
    base_offset: int = 0,
) -> bytes:
    """Encode a valid batch, small itself, with one record whose value is `size` zeros.

    The codecs are gzip, lz4 and zstd.
    """
    return plain_batch(
        1,
        base_offset=base_offset,
        compression=compression,
        payload=_compressed(_record_of_zeros(size), compression),
    )


def _record_of_zeros(size: int) -> Iterator[bytes]:
    before = b"\0" + varint(0) + varint(0) + varint(-1) + varint(size)
    after = varint(0)
    yield varint(len(before) + size + len(after)) + before
    zeros = bytes(_CHUNK)
    for start in range(0, size, _CHUNK):
        yield zeros[: size - start]
    yield after


def _compressed(chunks: Iterator[bytes], compression: CompressionType) -> bytes:
    if compression is CompressionType.GZIP:
        target = BytesIO()
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1, mtime=0) as file:
            for chunk in chunks:
                file.write(chunk)
        return target.getvalue()
    if compression is CompressionType.LZ4:
        lz4_frame = lz4.frame.LZ4FrameCompressor(block_linked=False)
        frame = lz4_frame.begin()
        return frame + b"".join(map(lz4_frame.compress, chunks)) + lz4_frame.flush()
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(map(compressor.compress, chunks)) + compressor.flush()
