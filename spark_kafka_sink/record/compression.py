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
CorruptRecordError, and stops as soon as the output exceeds its limit.
"""

from __future__ import annotations

import threading
import zlib
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import cramjam
import lz4.frame
import zstandard

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import COMPRESSION_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from spark_kafka_sink.model import CompressionLevels


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
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
#: A magic number, the version of the framing, and the oldest version that can read it.
_SNAPPY_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_SNAPPY_MAGIC: Final = _SNAPPY_HEADER[:8]
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
#: The magic number, flags, block size and header checksum.
_LZ4_SHORTEST_HEADER: Final = 7
_LZ4_VERSION_MASK: Final = 0xC0
_LZ4_VERSION: Final = 0x40
_LZ4_INDEPENDENT_BLOCKS_FLAG: Final = 0x20
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
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_CHECKSUM_BYTES: Final = 4
_ZSTD_RLE_BLOCK: Final = 1
_ZSTD_RESERVED_BLOCK: Final = 3
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

    Raises CorruptRecordError if the payload is not exactly the complete output of the codec, or if
    it would decompress to more than `max_bytes`.
    """
    view = memoryview(payload).cast("B")
    match compression:
        case CompressionType.NONE:
            if view.nbytes > max_bytes:
                raise _too_large(max_bytes)
            return view
        case CompressionType.GZIP:
            return _decompress_gzip(view, max_bytes)
        case CompressionType.SNAPPY:
            return _decompress_snappy(view, max_bytes)
        case CompressionType.LZ4:
            return _decompress_lz4(view, max_bytes)
        case CompressionType.ZSTD:
            return _decompress_zstd(view, max_bytes)


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


def _too_large(max_bytes: int) -> CorruptRecordError:
    return DecompressedTooLargeError(
        f"the records of a batch decompress to more than {max_bytes} bytes"
    )


def _decompress_gzip(view: memoryview, max_bytes: int) -> bytes:
    output = _BoundedOutput(max_bytes)
    rest: Buffer = view
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        try:
            while not member.eof:
                chunk = member.decompress(rest, output.room())
                rest = member.unconsumed_tail
                if not chunk and not member.eof:
                    raise CorruptRecordError("gzip: the payload is truncated")
                output.append(chunk)
        except zlib.error as error:
            raise CorruptRecordError(f"gzip: {error}") from error
        rest = member.unused_data
        if not rest:
            return output.finish()


def _decompress_snappy(view: memoryview, max_bytes: int) -> bytes:
    output = _BoundedOutput(max_bytes)
    for block in _snappy_blocks(view):
        # The stated length is checked against the limit before memory is allocated for it.
        try:
            if cramjam.snappy.decompress_raw_len(block) > max_bytes - output.size:
                raise _too_large(max_bytes)
            output.append(bytes(cramjam.snappy.decompress_raw(block)))
        except cramjam.DecompressionError as error:
            raise CorruptRecordError(f"snappy: {error}") from error
    return output.finish()


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if bytes(view[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        yield view
        return
    position = len(_SNAPPY_HEADER)
    if view.nbytes < position:
        raise CorruptRecordError("snappy: the payload is truncated")
    while position < view.nbytes:
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if position > view.nbytes:
            raise CorruptRecordError("snappy: the payload is truncated")
        yield view[start:position]


def _decompress_lz4(view: memoryview, max_bytes: int) -> bytes:
    if view.nbytes < _LZ4_SHORTEST_HEADER or bytes(view[:4]) != _LZ4_MAGIC:
        raise CorruptRecordError("lz4: the payload is not an lz4 frame")
    if view[4] & _LZ4_VERSION_MASK != _LZ4_VERSION or not view[4] & _LZ4_INDEPENDENT_BLOCKS_FLAG:
        raise CorruptRecordError("lz4: the frame has an unsupported version or dependent blocks")
    output = _BoundedOutput(max_bytes)
    frame = lz4.frame.LZ4FrameDecompressor()
    rest: Buffer = view
    try:
        while not frame.eof:
            chunk = frame.decompress(rest, max_length=output.room())
            rest = b""
            output.append(chunk)
            if not chunk and not frame.eof:
                raise CorruptRecordError("lz4: the payload is truncated")
    except RuntimeError as error:
        raise CorruptRecordError(f"lz4: {error}") from error
    if frame.unused_data:
        raise CorruptRecordError("lz4: there are bytes after the end of the frame")
    return output.finish()


#: A context for each thread: a new one costs more than to decompress a small batch.
_ZSTD_CONTEXTS: Final = threading.local()


def _zstd_context() -> zstandard.ZstdDecompressor:
    context = getattr(_ZSTD_CONTEXTS, "context", None)
    if context is None:
        context = _ZSTD_CONTEXTS.context = zstandard.ZstdDecompressor()
    return context


def _decompress_zstd(view: memoryview, max_bytes: int) -> bytes:
    output = _BoundedOutput(max_bytes)
    context = _zstd_context()
    position = 0
    try:
        while True:
            frame = context.decompressobj()
            for end in _zstd_block_ends(view, position):
                output.append(frame.decompress(view[position:end]))
                position = end
            if not frame.eof:
                raise CorruptRecordError("zstd: the payload is truncated")
            if position >= view.nbytes:
                return output.finish()
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: {error}") from error


def _zstd_block_ends(view: memoryview, position: int) -> Iterator[int]:
    """Yield the end of each block of the frame at `position`, and then the end of the frame.

    A block never decompresses to more than 128 KB, so reading block by block respects the limit.
    The library's own readers cannot be used: they also accept a truncated frame as complete.
    """
    if bytes(view[position : position + len(_ZSTD_MAGIC)]) != _ZSTD_MAGIC:
        raise CorruptRecordError("zstd: the payload is not a zstd frame")
    frame = zstandard.get_frame_parameters(view[position:])
    position += zstandard.frame_header_size(view[position:])
    last = False
    while not last:
        start = position + _ZSTD_BLOCK_HEADER_BYTES
        block_header = int.from_bytes(view[position:start], "little")
        last = bool(block_header & 1)
        block_type = block_header >> 1 & 3
        # A run is stored as one byte; the header's length is that of the output.
        position = start + (1 if block_type == _ZSTD_RLE_BLOCK else block_header >> 3)
        if block_type == _ZSTD_RESERVED_BLOCK or position > view.nbytes:
            raise CorruptRecordError("zstd: the payload is truncated or not a frame")
        yield position
    if frame.has_checksum:
        yield position + _ZSTD_CHECKSUM_BYTES


class _BoundedOutput:
    """Chunks of output with a limit on their total size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self.size = 0

    def room(self) -> int:
        """Return how many bytes to request next: one over the limit suffices to detect excess."""
        return min(_CHUNK_BYTES, self._max_bytes - self.size + 1)

    def append(self, chunk: bytes) -> None:
        """Append the next chunk; raise CorruptRecordError if the output exceeds the limit."""
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._chunks.append(chunk)

    def finish(self) -> bytes:
        """Return the whole output."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
