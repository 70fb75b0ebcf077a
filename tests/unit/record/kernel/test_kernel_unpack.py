"""The compiled decompression of small batches, compared with the library's."""

from __future__ import annotations

import random

import cramjam
import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType, Compressor, decompress
from spark_kafka_sink.record.kernel.kernel_support import kernel
from spark_kafka_sink.record.kernel.kernel_unpack import UNPACK_SLACK, unpack_lz4, unpack_snappy
from tests.support.fuzzing.random_bytes import changed
from tests.support.record.reading.guarded_memory import guarded_array

CODECS = pytest.mark.parametrize("codec", [CompressionType.LZ4, CompressionType.SNAPPY], ids=str)
SEEDS = st.integers(0, 2**64 - 1).map(random.Random)
LZ4_HEADER = bytes.fromhex("04224d18604082")
SNAPPY_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@kernel(1, int, int, int, int)
def _unpack_lz4(source, source_end, target, target_end):
    return unpack_lz4(source, source_end, target, target_end)


@kernel(1, int, int, int, int)
def _unpack_snappy(source, source_end, target, target_end):
    return unpack_snappy(source, source_end, target, target_end)


KERNELS = {CompressionType.LZ4: _unpack_lz4, CompressionType.SNAPPY: _unpack_snappy}


def unpacked(codec: CompressionType, packed: bytes, room: int = 65_536) -> bytes | None:
    """Return what the kernel unpacks between guarded pages; None if it unpacks nothing."""
    source = guarded_array(len(packed))
    source[:] = np.frombuffer(packed, np.uint8)
    target = guarded_array(room + UNPACK_SLACK)
    start, address = target.ctypes.data, source.ctypes.data
    end = KERNELS[codec](address, address + len(packed), start, start + room)
    return target[: end - start].tobytes() if end else None


def random_content(random_: random.Random) -> bytes:
    """Return bytes with literals and matches of all lengths and distances."""
    content = bytearray()
    while len(content) < random_.choice((0, 1, 20, 300, 5000, 40_000)):
        if content and random_.random() < 0.6:
            distance = random_.randint(1, min(len(content), random_.choice((1, 3, 8, 20, 5000))))
            for _ in range(random_.choice((4, 5, 16, 17, 70, 300, 2000))):
                content.append(content[-distance])
        else:
            content += random_.randbytes(random_.choice((1, 3, 14, 15, 16, 60, 61, 270, 3000)))
    return bytes(content)


@CODECS
@settings(max_examples=300)
@given(random_=SEEDS)
def test_small_batches_are_unpacked(codec, random_):
    """Everything that our own compressor writes is unpacked, if there is room for it."""
    content = random_content(random_)
    packed = bytes(Compressor(codec).compress(content))
    assert content == unpacked(codec, packed)
    if content:
        assert None is unpacked(codec, packed, room=len(content) - 1)
    assert content == unpacked(codec, packed, room=max(len(content), 1))


@CODECS
@settings(max_examples=500)
@given(random_=SEEDS)
def test_nothing_is_unpacked_that_the_library_refuses(codec, random_):
    """Of damaged bytes, the kernel unpacks what the library does, or leaves them to it."""
    packed = bytes(Compressor(codec).compress(random_content(random_)))
    damaged = changed(random_, packed)
    result = unpacked(codec, damaged)
    if result is not None:
        assert result == bytes(decompress(codec, damaged, 1 << 20))


def lz4_frame(block: bytes) -> bytes:
    """Return a frame with one block."""
    return LZ4_HEADER + len(block).to_bytes(4, "little") + block + bytes(4)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x00\x01\x00", id="a match without content before it"),
        pytest.param(b"\x10a\x02\x00\x50bbbbb", id="a match further back than there is content"),
        pytest.param(b"\x10a\x01\x00", id="no last literals"),
        pytest.param(b"\x10a\x01\x00\x40bbbb", id="too few last literals"),
        pytest.param(b"\x1fa\x01\x00\xff\xff\xff\xff\xff", id="a match without end"),
        pytest.param(b"\xf0\xff\xff", id="literals without end"),
        pytest.param(b"\x20a", id="fewer literals than stated"),
    ],
)
def test_damaged_lz4_blocks_are_not_unpacked(block):
    """Sequences that end too early, or refer to bytes before the block, are refused by both."""
    packed = lz4_frame(block)
    assert None is unpacked(CompressionType.LZ4, packed)
    with pytest.raises(CorruptRecordError):
        decompress(CompressionType.LZ4, packed, 1 << 20)


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        (lz4_frame(b"\x10a\x01\x00\x50bbbbb"), b"aaaaabbbbb"),
        (LZ4_HEADER + bytes(4), b""),
        (LZ4_HEADER + b"\x02\x00\x00\x80ab" + bytes(4), b"ab"),
        (lz4_frame(b"\x20ab") + b"x", None),
        (lz4_frame(b"\x20ab")[:-1], None),
        (b"\x05" + lz4_frame(b"\x20ab")[1:], None),
        (LZ4_HEADER[:6] + b"\x83" + lz4_frame(b"\x20ab")[7:], None),
        (b"", None),
    ],
    ids=str,
)
def test_lz4_frames_must_be_complete(packed, expected):
    """A frame is unpacked if it has the usual header, and nothing follows its last block."""
    assert expected == unpacked(CompressionType.LZ4, packed)


@pytest.mark.parametrize(
    "options",
    [{"block_linked": True}, {"content_checksum": True}, {"store_size": True}, {"block_size": 7}],
    ids=str,
)
def test_other_lz4_frames_are_left_to_the_library(options):
    """Frames with dependent or larger blocks, checksums or a size are not unpacked."""
    options = {"block_linked": False, "store_size": False} | options
    frame = lz4.frame.compress(b"value" * 50_000, **options)
    assert None is unpacked(CompressionType.LZ4, frame, room=300_000)


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        (b"\x05\x10hello", b"hello"),
        (b"\x06\x04ab\x01\x02", b"ababab"),
        (b"\x06\x04ab\x0e\x02\x00", b"ababab"),
        (b"\x06\x04ab\x0f\x02\x00\x00\x00", b"ababab"),
        (b"\x03\xf0\x02abc", b"abc"),
        (b"\x03\xfc\x02\x00\x00\x00abc", b"abc"),
        (b"\x00", b""),
        (SNAPPY_HEADER, b""),
        (SNAPPY_HEADER + b"\0\0\0\x03\x01\x00a" * 2, b"aa"),
        (SNAPPY_HEADER + b"\0\0\0\x04\x01\x00a", None),
        (SNAPPY_HEADER + b"\0\0\0", None),
        (b"\x04\x10hello", None),
        (b"\x06\x10hello", None),
        (b"\x06\x04ab\x01\x03", None),
        (b"\x06\x04ab\x01\x00", None),
        (b"\x05\x04ab\x01\x02", None),
        (b"\x06\x04ab\x01", None),
        (b"\x80\x80\x80\x80\x80\x00", None),
        (b"\x80", None),
        (b"", None),
    ],
    ids=str,
)
def test_snappy_blocks_must_be_complete(packed, expected):
    """A block is unpacked if its literals and matches yield exactly the stated length."""
    assert expected == unpacked(CompressionType.SNAPPY, packed)
    if expected is not None:
        assert expected == bytes(decompress(CompressionType.SNAPPY, packed, 1 << 20))


def test_snappy_without_framing_is_unpacked():
    """A raw block, as librdkafka writes it, is unpacked."""
    content = b"a value " * 100
    assert content == unpacked(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(content)))
