"""Compression and decompression with Kafka's codecs, in the framing of its Java client.

- gzip: zlib with a gzip header.
- snappy: the framing of snappy-java (`SnappyOutputStream`): a header, then blocks of at most 32 KB,
  each preceded by its length. A payload without that header is one raw block, as librdkafka writes
  it.
- lz4: an LZ4 frame with independent blocks of 64 KB and no checksum, as Kafka's
  `Lz4BlockOutputStream` writes it. (Larger blocks take 10 to 25 % more time on rows of JSON, for
  the same size.) Kafka rejects frames whose blocks depend on each other, and so does `decompress`.
- zstd: frames without checksums; the content size is in the frame header. The default level has
  smaller tables than zstd's own, see `_ZSTD_LARGE_TABLES`.

Levels are Kafka's (KIP-390). `decompress` accepts untrusted bytes: it raises nothing but
CorruptRecordError, and stops as soon as the output exceeds its limit. It accepts what the streams
of Kafka's Java client accept, which also ignore some bytes: after a gzip member, after an lz4 frame
(and the value of its content checksum), and in frames of zstd that are to be skipped.
"""

from __future__ import annotations

import struct
import threading
import zlib
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cramjam
import lz4.frame
import zstandard

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import COMPRESSION_LEVELS, CompressionLevels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer


class CompressionType(IntEnum):
    """The codecs, with their numbers in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> CompressionType:
        """Return the codec that `compression.type` names; raise ValueError if there is none."""
        for codec in cls:
            if name == codec.name.lower():
                return codec
        raise ValueError(f"unknown compression type {name!r}")

    @property
    def levels(self) -> CompressionLevels | None:
        """The levels of the codec; None if it has none."""
        return COMPRESSION_LEVELS.get(self.name.lower())


_GZIP_WBITS: Final = 31
#: For zlib: a stream without a header. The header and the trailer are read as Java reads them.
_RAW_DEFLATE: Final = -15
_GZIP_MAGIC_AND_METHOD: Final = b"\x1f\x8b\x08"
_GZIP_HEADER_BYTES: Final = 10
_GZIP_HEADER_CRC: Final = 0x02
_GZIP_EXTRA: Final = 0x04
_GZIP_NAME: Final = 0x08
_GZIP_COMMENT: Final = 0x10
#: The checksum and the size of what a member decompresses to.
_GZIP_TRAILER: Final = struct.Struct("<II")
#: Java looks for another member only if more bytes follow (GZIPInputStream.readTrailer).
_GZIP_IGNORED_BYTES: Final = 18
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
#: A magic number, the version of the framing, and the oldest version that can read it.
_SNAPPY_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_SNAPPY_MAGIC: Final = _SNAPPY_HEADER[:8]
_SNAPPY_LENGTH_BYTES: Final = 4
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
#: The magic number, flags, block size and header checksum.
_LZ4_SHORTEST_HEADER: Final = 7
#: Version, independent blocks, and reserved bits.
_LZ4_FIXED_FLAGS: Final = 0xE3
_LZ4_SUPPORTED_FLAGS: Final = 0x60
_LZ4_BLOCK_CHECKSUM_FLAG: Final = 0x10
_LZ4_CONTENT_SIZE_FLAG: Final = 0x08
_LZ4_CONTENT_CHECKSUM_FLAG: Final = 0x04
#: The first bit of a block's length says whether it is compressed.
_LZ4_LENGTH_MASK: Final = 0x7FFFFFFF
#: The lowest level of the library's high-compression mode, and its highest.
_LZ4_MIN_HIGH_COMPRESSION: Final = 3
_LZ4_MAX_HIGH_COMPRESSION: Final = 12
#: Larger payloads are compressed with these tables at zstd's default level. zstd's own level 3 has
#: such tables up to this size, and for more bytes larger ones, which do not fit into a core's cache
#: any more. Compared with it, batches of JSON, log lines and numbers take 5 to 20 % less time and
#: at most 0.2 % more bytes (often fewer); batches of source code 10 % less time and 2 % more bytes.
_ZSTD_SMALL_BYTES: Final = 128 * 1024
_ZSTD_LARGE_TABLES: Final = MappingProxyType({"hash_log": 16, "chain_log": 15, "min_match": 6})
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: The lowest number of a frame to skip.
_ZSTD_SKIPPED_MAGIC: Final = b"\x50\x2a\x4d\x18"
_ZSTD_CHECKSUM_FLAG: Final = 0x04
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_CHECKSUM_BYTES: Final = 4
_ZSTD_RLE_BLOCK: Final = 1
#: The size of the buffer into which Java's readers decompress.
_JAVA_BUFFER_BYTES: Final = 16 * 1024
#: How many bytes are decompressed at a time, so that a decompression bomb is detected early.
_CHUNK_BYTES: Final = 1 << 20


class Compressor:
    """A codec with a level; thread-safe.

    `level` None means Kafka's default level. Raises ValueError for a level that the codec does not
    have.
    """

    def __init__(self, compression: CompressionType, level: int | None = None) -> None:
        levels = compression.levels
        if level is not None:
            _check_level(compression, levels, level)
        elif levels is not None:
            level = levels.default
        self.compression = compression
        self.level = level
        self._compress = self._compress_function()

    def compress(self, payload: Buffer) -> bytes | memoryview:
        """Return the compressed payload; with `NONE`, a view of the payload itself."""
        return self._compress(payload)

    def _compress_function(self) -> Callable[[Buffer], bytes | memoryview]:
        level = self.level or 0
        match self.compression:
            case CompressionType.NONE:
                return memoryview
            case CompressionType.GZIP:
                return lambda payload: zlib.compress(payload, level, _GZIP_WBITS)
            case CompressionType.SNAPPY:
                return _compress_snappy
            case CompressionType.LZ4:
                return _lz4_compress_function(level)
            case CompressionType.ZSTD:
                return _ZstdCompress(level)


class _ZstdCompress:
    """A compress function with one context per thread: a new one costs as much as a small batch.

    Large batches have contexts of their own at the default level, see `_ZSTD_LARGE_TABLES`.
    """

    def __init__(self, level: int) -> None:
        self._level = level or COMPRESSION_LEVELS["zstd"].default  # 0 is zstd's name for it
        self._local = threading.local()

    def __call__(self, payload: Buffer) -> bytes:
        view = memoryview(payload)
        is_large = (
            self._level == COMPRESSION_LEVELS["zstd"].default and view.nbytes > _ZSTD_SMALL_BYTES
        )
        name = "for_large" if is_large else "for_small"
        context = getattr(self._local, name, None)
        if context is None:
            context = self._context(is_large=is_large)
            setattr(self._local, name, context)
        compressed: bytes = context.compress(view)
        return compressed

    def _context(self, *, is_large: bool) -> zstandard.ZstdCompressor:
        if not is_large:
            return zstandard.ZstdCompressor(level=self._level)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            self._level, **_ZSTD_LARGE_TABLES
        )
        return zstandard.ZstdCompressor(compression_params=parameters)


def decompress(compression: CompressionType, payload: Buffer, max_bytes: int) -> bytes | memoryview:
    """Return the decompressed payload; with `NONE`, a view of the payload itself.

    Raises CorruptRecordError if Kafka's Java client could not read the payload, or if it would
    decompress to more than `max_bytes`.
    """
    chunks = list(decompressed_chunks(compression, payload, max_bytes))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decompressed_chunks(
    compression: CompressionType, payload: Buffer, max_bytes: int
) -> Iterator[bytes | memoryview]:
    """Yield the decompressed payload in chunks, which may be empty.

    A chunk has at most 1 MiB, but a block of snappy is one chunk, and so is a payload that is not
    compressed. Raises CorruptRecordError as `decompress` does, when it comes to the error.
    """
    view = memoryview(payload).cast("B")
    limit = _Limit(max_bytes)
    match compression:
        case CompressionType.NONE:
            limit.count(view.nbytes)
            yield view
        case CompressionType.GZIP:
            yield from _gunzip(view, limit)
        case CompressionType.SNAPPY:
            yield from _filled(_decompress_snappy(view, limit))
        case CompressionType.LZ4:
            yield from _decompress_lz4(view, limit)
        case CompressionType.ZSTD:
            yield from _decompress_zstd(view, limit)


def _check_level(
    compression: CompressionType, levels: CompressionLevels | None, level: int
) -> None:
    name = compression.name.lower()
    if levels is None:
        raise ValueError(f"{name} has no compression levels")
    if not levels.lowest <= level <= levels.highest and level != levels.default:
        raise ValueError(f"{name} has levels from {levels.lowest} to {levels.highest}, not {level}")


def _compress_snappy(payload: Buffer) -> bytes:
    view = memoryview(payload).cast("B")
    parts: list[Any] = [_SNAPPY_HEADER]
    for start in range(0, view.nbytes, _SNAPPY_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _lz4_compress_function(level: int) -> Callable[[Buffer], bytes]:
    # As in Lz4BlockOutputStream, the default level means the fast compressor, and any other level
    # the high-compression mode. Levels outside the range of that mode become the nearest one.
    library_level = (
        0
        if level == COMPRESSION_LEVELS["lz4"].default
        else min(max(level, _LZ4_MIN_HIGH_COMPRESSION), _LZ4_MAX_HIGH_COMPRESSION)
    )

    def compress(payload: Buffer) -> bytes:
        compressed: bytes = lz4.frame.compress(
            payload,
            compression_level=library_level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return compressed

    return compress


class DecompressedTooLargeError(CorruptRecordError):
    """A payload would decompress to more than the limit."""


class _Limit:
    """The number of bytes that a payload may still decompress to."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = max_bytes

    def next_bytes(self) -> int:
        """Return how many bytes to request next: one over the limit suffices to detect excess."""
        return min(_CHUNK_BYTES, self._rest + 1)

    def count(self, size: int) -> None:
        """Count the bytes of a chunk; raise DecompressedTooLargeError if they are too many."""
        self._rest -= size
        if self._rest < 0:
            raise DecompressedTooLargeError(
                f"the records of a batch decompress to more than {self._max_bytes} bytes"
            )


def _gunzip(view: memoryview, limit: _Limit) -> Iterator[bytes]:
    position: int | None = _gzip_header_end(view, 0)
    while position is not None:
        member = zlib.decompressobj(_RAW_DEFLATE)
        rest: Buffer = view[position:]
        crc, size = 0, 0
        try:
            while not member.eof:
                chunk = member.decompress(rest, limit.next_bytes())
                rest = member.unconsumed_tail
                if not chunk and not member.eof:
                    raise CorruptRecordError("gzip: the payload is truncated")
                limit.count(len(chunk))
                crc, size = zlib.crc32(chunk, crc), size + len(chunk)
                yield chunk
        except zlib.error as error:
            raise CorruptRecordError(f"gzip: {error}") from error
        trailer = view.nbytes - len(member.unused_data)
        end = trailer + _GZIP_TRAILER.size
        if end > view.nbytes:
            raise CorruptRecordError("gzip: the payload is truncated")
        if (crc, size & 0xFFFFFFFF) != _GZIP_TRAILER.unpack_from(view, trailer):
            raise CorruptRecordError("gzip: the payload does not match its checksum or its size")
        position = _next_gzip_member(view, end)


def _next_gzip_member(view: memoryview, position: int) -> int | None:
    """Return where the data of the next member begins; None if no other member follows.

    As in Java, bytes after a member that do not begin another one are ignored.
    """
    if view.nbytes - position <= _GZIP_IGNORED_BYTES:
        return None
    try:
        return _gzip_header_end(view, position)
    except CorruptRecordError:
        return None


def _gzip_header_end(view: memoryview, position: int) -> int:
    """Return where the header of a member ends (GZIPInputStream.readHeader)."""
    start = position
    if bytes(view[start : start + 3]) != _GZIP_MAGIC_AND_METHOD:
        raise CorruptRecordError("gzip: the payload is not in gzip's format")
    flags = view[start + 3] if view.nbytes > start + 3 else 0
    position += _GZIP_HEADER_BYTES
    if flags & _GZIP_EXTRA:
        position += 2 + int.from_bytes(view[position : position + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            position += bytes(view[position:]).find(b"\0") + 1 or view.nbytes
    if flags & _GZIP_HEADER_CRC:
        stated = int.from_bytes(view[position : position + 2], "little")
        if stated != zlib.crc32(view[start:position]) & 0xFFFF:
            raise CorruptRecordError("gzip: the header does not match its checksum")
        position += 2
    if position > view.nbytes:
        raise CorruptRecordError("gzip: the payload is truncated")
    return position


def _decompress_snappy(view: memoryview, limit: _Limit) -> Iterator[bytes]:
    for block in _snappy_blocks(view):
        try:
            # The stated length is counted before memory is allocated for it.
            limit.count(cramjam.snappy.decompress_raw_len(block))
            yield bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise CorruptRecordError(f"snappy: {error}") from error


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of a payload (SnappyInputStream.hasNextChunk)."""
    if bytes(view[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        yield view
        return
    position = _snappy_header_end(view, 0)
    # Fewer bytes than a length has are ignored.
    while view.nbytes - position >= _SNAPPY_LENGTH_BYTES:
        start = position + _SNAPPY_LENGTH_BYTES
        length = bytes(view[position:start])
        if length == _SNAPPY_MAGIC[:_SNAPPY_LENGTH_BYTES]:
            # Another stream follows this one.
            position = _snappy_header_end(view, position)
            continue
        position = start + int.from_bytes(length, "big")
        if position > view.nbytes:
            raise CorruptRecordError("snappy: the payload is truncated")
        yield view[start:position]


def _snappy_header_end(view: memoryview, position: int) -> int:
    end = position + len(_SNAPPY_HEADER)
    if end > view.nbytes:
        raise CorruptRecordError("snappy: the payload is truncated")
    if int.from_bytes(view[end - 4 : end], "big", signed=True) < 1:
        raise CorruptRecordError("snappy: the payload is of a version that does not exist")
    return end


def _decompress_lz4(view: memoryview, limit: _Limit) -> Iterator[bytes]:
    if view.nbytes < _LZ4_SHORTEST_HEADER or bytes(view[:4]) != _LZ4_MAGIC:
        raise CorruptRecordError("lz4: the payload is not an lz4 frame")
    if view[4] & _LZ4_FIXED_FLAGS != _LZ4_SUPPORTED_FLAGS:
        raise CorruptRecordError(
            "lz4: the frame has an unsupported version, reserved flags or dependent blocks"
        )
    frame = lz4.frame.LZ4FrameDecompressor()
    # Kafka ignores a content size, the value of a content checksum and all bytes after them, so
    # the library gets none of them to check.
    end, is_truncated = _lz4_blocks_end(view)
    rest: Buffer = view[:end]
    is_full = True
    try:
        while is_full or not frame.needs_input:
            most = limit.next_bytes()
            chunk = frame.decompress(rest, max_length=most)
            rest, is_full = b"", len(chunk) == most
            limit.count(len(chunk))
            yield chunk
    except RuntimeError as error:
        raise CorruptRecordError(f"lz4: {error}") from error
    if is_truncated:
        raise CorruptRecordError("lz4: the payload is truncated")


def _lz4_blocks_end(view: memoryview) -> tuple[int, bool]:
    """Return where the whole blocks of a frame end, and whether the frame is truncated."""
    flags = view[4]
    position = _LZ4_SHORTEST_HEADER + (8 if flags & _LZ4_CONTENT_SIZE_FLAG else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM_FLAG else 0
    while True:
        start = position + 4
        length = int.from_bytes(view[position:start], "little") & _LZ4_LENGTH_MASK
        if length == 0:
            end = start + (4 if flags & _LZ4_CONTENT_CHECKSUM_FLAG else 0)
            return position, end > view.nbytes
        end = start + length + checksum_bytes
        if end > view.nbytes:
            return position, True
        position = end


#: A context for each thread: a new one costs more than to decompress a small batch.
_ZSTD_CONTEXTS: Final = threading.local()


def _zstd_context() -> zstandard.ZstdDecompressor:
    context = getattr(_ZSTD_CONTEXTS, "context", None)
    if context is None:
        context = _ZSTD_CONTEXTS.context = zstandard.ZstdDecompressor()
    return context


def _decompress_zstd(view: memoryview, limit: _Limit) -> Iterator[bytes]:
    position = 0
    while position < view.nbytes:
        frame = _zstd_frame(view, position)
        if not frame.is_skipped:
            yield from _filled(_zstd_blocks(view, position, frame, limit))
        # As in Java, what is truncated after a whole frame is ignored.
        if frame.is_truncated and position == 0:
            raise CorruptRecordError("zstd: the payload is truncated")
        position = frame.ends[-1]


class _ZstdFrame(NamedTuple):
    """The ends of the header and the blocks of a frame, or of what is there of it."""

    ends: list[int]
    #: Whether it is a frame without content, which readers skip.
    is_skipped: bool = False
    is_truncated: bool = False


def _zstd_frame(view: memoryview, position: int) -> _ZstdFrame:
    """Find the blocks of the frame at `position`.

    A block never decompresses to more than 128 KB, so reading block by block respects the limit.
    The library's own readers cannot be used: they also accept a truncated frame as complete.
    """
    start = position + len(_ZSTD_MAGIC)
    magic = bytes(view[position:start])
    # The first byte of a frame to skip has four bits of its own.
    is_skipped = _ZSTD_SKIPPED_MAGIC.startswith(bytes([magic[0] & 0xF0]) + magic[1:])
    if not is_skipped and not _ZSTD_MAGIC.startswith(magic):
        raise CorruptRecordError("zstd: the payload is not a zstd frame")
    ends: list[int] = []
    truncated = _ZstdFrame([view.nbytes], is_skipped=is_skipped, is_truncated=True)
    if start >= view.nbytes:
        return truncated
    if is_skipped:
        end = start + 4 + int.from_bytes(view[start : start + 4], "little")
        return truncated if end > view.nbytes else _ZstdFrame([end], is_skipped=True)
    has_checksum = view[start] & _ZSTD_CHECKSUM_FLAG
    try:
        position += zstandard.frame_header_size(view[position:])
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: {error}") from error
    last = False
    while not last:
        start = position + _ZSTD_BLOCK_HEADER_BYTES
        block_header = int.from_bytes(view[position:start], "little")
        last = bool(block_header & 1)
        # A run is stored as one byte; the header's length is that of the output.
        is_run = block_header >> 1 & 3 == _ZSTD_RLE_BLOCK
        position = start + (1 if is_run else block_header >> 3)
        if last and has_checksum:
            ends.append(position)
            position += _ZSTD_CHECKSUM_BYTES
        ends.append(position)
        if position > view.nbytes:
            ends[-1] = view.nbytes
            return _ZstdFrame(ends, is_truncated=True)
    return _ZstdFrame(ends)


def _zstd_blocks(
    view: memoryview, position: int, frame: _ZstdFrame, limit: _Limit
) -> Iterator[bytes]:
    decompressor = _zstd_context().decompressobj()
    try:
        for end in frame.ends:
            chunk = decompressor.decompress(view[position:end])
            limit.count(len(chunk))
            yield chunk
            position = end
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: {error}") from error


def _filled(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small chunks, as Java's readers fill a buffer before they look at its first byte.

    Otherwise another of two errors would be found first.
    """
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _JAVA_BUFFER_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
