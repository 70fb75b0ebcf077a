"""LZ4 and Snappy as a part of compiled kernels, for batches so small that a call costs more.

Only the common case is handled: LZ4 frames as Kafka's clients write them, and content that fits
into a small buffer. For everything else, and for anything that looks damaged, nothing is unpacked,
and the library decides. So these functions never accept what `record.compression` refuses: in
doubt, their checks are stricter.

Rules:
- Nothing is read outside of the source. Up to `UNPACK_SLACK` bytes are written past the end of the
  target, since short strings are copied in blocks.
- Functions return the address after the unpacked bytes, or 0 if nothing was unpacked.
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.record.kernel.kernel_support import (
    copy_bytes,
    kernel_part,
    load_big_int64,
    load_big_uint32,
    load_byte,
    load_uint32,
    move_8_bytes,
    move_16_bytes,
    move_byte,
)

#: The memory after the target that may be overwritten.
UNPACK_SLACK: Final = 16
_BLOCK: Final = 16
_WORD: Final = 8
_MORE: Final = 0x80

# The header of an LZ4 frame: a magic number, flags for independent blocks without checksums or
# sizes, blocks of at most 64 KB, and a checksum of these flags. An empty block is the last one.
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_FLAGS: Final = (0x60, 0x40, 0x82)
_LZ4_HEADER_BYTES: Final = 7
_LZ4_SIZE_BYTES: Final = 4
_LZ4_PLAIN_FLAG: Final = 0x80000000
_LZ4_BLOCK_BYTES: Final = 65_536
_LZ4_LONG: Final = 15
_LZ4_MORE: Final = 255
_LZ4_SHORTEST_MATCH: Final = 4
#: A block ends with at least five literals after its last match; offset and token take three bytes.
_LZ4_LAST_LITERALS: Final = 5
_LZ4_LAST_SEQUENCE: Final = 8
#: The library is more careful near the end of a full block.
_LZ4_MOST_BYTES: Final = _LZ4_BLOCK_BYTES - 64

#: The header of snappy-java's framing: a magic number of eight bytes, and two versions.
_SNAPPY_MAGIC: Final = -0x7DACB1BEAFAFA700
_SNAPPY_VERSIONS: Final = 0x1_0000_0001
_SNAPPY_HEADER_BYTES: Final = 16
_SNAPPY_SIZE_BYTES: Final = 4
_SNAPPY_MOST_SIZE_BITS: Final = 32
#: The kinds of a tag in its lowest bits; longer literals have their length in 1 to 4 bytes.
_SNAPPY_LITERAL: Final = 0
_SNAPPY_SHORT_MATCH: Final = 1
_SNAPPY_MATCH: Final = 2
_SNAPPY_LONG: Final = 60


@kernel_part
def _copy_literals(target: int, source: int, count: int, source_end: int) -> None:
    if count <= _BLOCK <= source_end - source:
        move_16_bytes(target, source)
    elif count > 0:
        copy_bytes(target, source, count)


@kernel_part
def _copy_match(target: int, offset: int, count: int) -> None:
    """Copy bytes from before the target, which may include bytes that are being written."""
    end = target + count
    if offset >= _BLOCK:
        while target < end:
            move_16_bytes(target, target - offset)
            target += _BLOCK
    elif offset >= _WORD:
        while target < end:
            move_8_bytes(target, target - offset)
            target += _WORD
    else:
        while target < end:
            move_byte(target, target - offset)
            target += 1


@kernel_part
def _read_lz4_length(source: int, end: int, length: int) -> tuple[int, int]:
    """Return a length and the address after it, 0 if it does not end; most are in the token."""
    if length < _LZ4_LONG:
        return length, source
    while source < end:
        byte = load_byte(source)
        source += 1
        length += byte
        if byte != _LZ4_MORE:
            return length, source
    return 0, 0


@kernel_part
def _unpack_lz4_block(source: int, source_end: int, start: int, target_end: int) -> int:
    target = start
    while source < source_end:
        token = load_byte(source)
        length, source = _read_lz4_length(source + 1, source_end, token >> 4)
        if source == 0 or length > min(source_end - source, target_end - target):
            return 0
        _copy_literals(target, source, length, source_end)
        source += length
        target += length
        if source == source_end:
            return target
        if source_end - source < _LZ4_LAST_SEQUENCE:
            return 0
        offset = load_byte(source) | load_byte(source + 1) << 8
        length, source = _read_lz4_length(source + 2, source_end - _LZ4_LAST_LITERALS, token & 15)
        length += _LZ4_SHORTEST_MATCH
        if source == 0 or not 0 < offset <= target - start or length > target_end - target:
            return 0
        _copy_match(target, offset, length)
        target += length
    return 0


@kernel_part
def unpack_lz4(source: int, source_end: int, target: int, target_end: int) -> int:
    """Decode a frame with the header that Kafka's clients write."""
    if (
        source_end - source < _LZ4_HEADER_BYTES + _LZ4_SIZE_BYTES
        or load_uint32(source) != _LZ4_MAGIC
        or load_byte(source + 4) != _LZ4_FLAGS[0]
        or load_byte(source + 5) != _LZ4_FLAGS[1]
        or load_byte(source + 6) != _LZ4_FLAGS[2]
    ):
        return 0
    source += _LZ4_HEADER_BYTES
    while source_end - source >= _LZ4_SIZE_BYTES:
        size = int(load_uint32(source))
        source += _LZ4_SIZE_BYTES
        if size == 0:
            return target if source == source_end else 0
        is_plain = size & _LZ4_PLAIN_FLAG != 0
        size &= ~_LZ4_PLAIN_FLAG
        if size > min(source_end - source, _LZ4_BLOCK_BYTES):
            return 0
        if is_plain:
            if size > target_end - target:
                return 0
            copy_bytes(target, source, size)
            target += size
        else:
            block_end = min(target_end, target + _LZ4_MOST_BYTES)
            target = _unpack_lz4_block(source, source + size, target, block_end)
            if target == 0:
                return 0
        source += size
    return 0


@kernel_part
def _unpack_snappy_block(  # noqa: C901, PLR0912  one loop, where each call costs
    source: int, source_end: int, start: int, target_end: int
) -> int:
    size, shift, more = 0, 0, True
    while more:
        if source >= source_end or shift >= _SNAPPY_MOST_SIZE_BITS:
            return 0
        byte = load_byte(source)
        source += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        more = byte >= _MORE
    if size > target_end - start:
        return 0
    target, target_end = start, start + size
    while source < source_end:
        tag = load_byte(source)
        source += 1
        kind, length = tag & 3, (tag >> 2) + 1
        operand_bytes = kind
        if kind == _SNAPPY_LITERAL:
            operand_bytes = max(length - _SNAPPY_LONG, 0)
        elif kind > _SNAPPY_MATCH:
            operand_bytes = 4
        if operand_bytes > source_end - source:
            return 0
        operand = 0
        for index in range(operand_bytes):
            operand |= load_byte(source + index) << (8 * index)
        source += operand_bytes
        if kind == _SNAPPY_LITERAL:
            if operand_bytes:
                length = operand + 1
            if length > min(source_end - source, target_end - target):
                return 0
            _copy_literals(target, source, length, source_end)
            source += length
        else:
            offset = operand
            if kind == _SNAPPY_SHORT_MATCH:
                offset |= tag >> 5 << 8
                length = (tag >> 2 & 7) + 4
            if not 0 < offset <= target - start or length > target_end - target:
                return 0
            _copy_match(target, offset, length)
        target += length
    return target if target == target_end else 0


@kernel_part
def unpack_snappy(source: int, source_end: int, target: int, target_end: int) -> int:
    """Decode a block, or several in the framing of snappy-java."""
    if source_end - source < _SNAPPY_HEADER_BYTES or load_big_int64(source) != _SNAPPY_MAGIC:
        return _unpack_snappy_block(source, source_end, target, target_end)
    if load_big_int64(source + _WORD) != _SNAPPY_VERSIONS:
        return 0
    source += _SNAPPY_HEADER_BYTES
    while source < source_end:
        if source_end - source < _SNAPPY_SIZE_BYTES:
            return 0
        size = load_big_uint32(source)
        source += _SNAPPY_SIZE_BYTES
        if size > source_end - source:
            return 0
        target = _unpack_snappy_block(source, source + size, target, target_end)
        if target == 0:
            return 0
        source += size
    return target
