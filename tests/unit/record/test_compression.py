"""The codecs; golden batches and real brokers show that Kafka reads their output."""

from __future__ import annotations

import gzip
import os
import struct
import threading
import tracemalloc
import zlib
from contextlib import suppress

import cramjam
import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType, Compressor, decompress

GZIP, SNAPPY, LZ4, ZSTD = CODECS = list(CompressionType)[1:]
MIB = 1 << 20
SNAPPY_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
PAYLOADS = {
    "empty": b"",
    "one byte": b"x",
    "text": b"some text, some text, some more text",
    "several blocks": b"0123456789abcdef" * 50_000,
    "incompressible": os.urandom(300_000),
}

#: Sizes around the border above which zstd's default level has smaller tables.
BORDER = (128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1)

with_codecs = pytest.mark.parametrize("codec", CODECS, ids=str)


def records(size: int) -> bytes:
    """Return so many bytes of rows that are alike, but not equal."""
    rows = (b'{"id": %d, "square": %d};' % (i, i * i % 97_711) for i in range(size // 20))
    return b"".join(rows)[:size]


@pytest.mark.parametrize("codec", CompressionType, ids=str)
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_payloads_round_trip(codec, payload):
    """A payload survives compression and decompression, with the lowest possible limit."""
    compressed = Compressor(codec).compress(payload)
    assert payload == bytes(decompress(codec, compressed, len(payload)))


@with_codecs
@given(payload=st.binary(max_size=2000), times=st.integers(0, 100))
def test_any_payload_round_trips(codec, payload, times):
    """Any payload survives compression and decompression."""
    payload *= times
    assert payload == decompress(codec, Compressor(codec).compress(payload), len(payload))


def test_none_copies_nothing():
    """Without compression, both functions return a view of the payload itself."""
    payload = bytearray(b"payload")
    assert payload is Compressor(CompressionType.NONE).compress(payload).obj
    assert payload is decompress(CompressionType.NONE, payload, 7).obj


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview], ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("codec", CompressionType, ids=str)
def test_any_type_of_buffer_is_accepted(codec, wrap):
    """Both functions accept any type of buffer."""
    compressed = Compressor(codec).compress(wrap(b"payload" * 9))
    assert b"payload" * 9 == bytes(decompress(codec, wrap(bytes(compressed)), 100))


# --- names and levels


@pytest.mark.parametrize("codec", CompressionType, ids=str)
def test_codecs_have_names(codec):
    """The codecs have the names of compression.type."""
    assert codec is CompressionType.from_name(codec.name.lower())


@pytest.mark.parametrize("name", ["", "GZIP", "lzma", "producer"])
def test_unknown_codec_names_are_rejected(name):
    """Any other name is an error."""
    with pytest.raises(ValueError, match="unknown compression type"):
        CompressionType.from_name(name)


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(GZIP, [-1, *range(1, 10)]), (LZ4, range(1, 18)), (ZSTD, [-131_072, -5, 0, 1, 3, 22])],
    ids=str,
)
def test_all_levels_of_kip_390_are_accepted(codec, levels):
    """Every level that Kafka has is accepted and yields a valid payload."""
    for level in levels:
        compressed = Compressor(codec, level).compress(PAYLOADS["text"])
        assert PAYLOADS["text"] == decompress(codec, compressed, 100)


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (GZIP, 0),
        (GZIP, 10),
        (GZIP, -2),
        (LZ4, 0),
        (LZ4, 18),
        (LZ4, -1),
        (ZSTD, 23),
        (ZSTD, -131_073),
    ],
    ids=str,
)
def test_other_levels_are_rejected(codec, level):
    """A level that Kafka does not have is an error."""
    with pytest.raises(ValueError, match="has levels from"):
        Compressor(codec, level)


@pytest.mark.parametrize("codec", [CompressionType.NONE, SNAPPY], ids=str)
def test_a_level_is_rejected_for_codecs_without_levels(codec):
    """A level is an error for a codec without levels."""
    with pytest.raises(ValueError, match="no compression levels"):
        Compressor(codec, 1)


@pytest.mark.parametrize(("codec", "level"), [(GZIP, -1), (LZ4, 9), (ZSTD, 3)], ids=str)
def test_no_level_means_kafkas_default(codec, level):
    """The default level may be given explicitly or left out."""
    payload = PAYLOADS["several blocks"]
    default = Compressor(codec)
    assert level == default.level
    assert Compressor(codec, level).compress(payload) == default.compress(payload)


@pytest.mark.parametrize(("codec", "best"), [(GZIP, 9), (LZ4, 12), (ZSTD, 19)], ids=str)
def test_a_higher_level_compresses_better(codec, best):
    """A higher level yields a smaller result."""
    payload = b"".join(b"%d %d;" % (i, i * i % 977) for i in range(20_000))
    low = {GZIP: 1, LZ4: 9, ZSTD: -5}[codec]  # with lz4, Kafka's default is the fastest
    assert len(Compressor(codec, best).compress(payload)) < len(
        Compressor(codec, low).compress(payload)
    )


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        *((None, 0), (9, 0)),
        *((1, 3), (2, 3), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8)),
        *((10, 10), (11, 11), (12, 12), (13, 12), (14, 12), (15, 12), (16, 12), (17, 12)),
    ],
)
def test_lz4_levels_are_mapped_as_in_kafka(monkeypatch, level, expected):
    """The default means the fast compressor, other levels the nearest high-compression level."""
    compress, used = lz4.frame.compress, []

    def recording(payload, **options):
        used.append(options["compression_level"])
        return compress(payload, **options)

    monkeypatch.setattr("lz4.frame.compress", recording)
    compressed = Compressor(LZ4, level).compress(PAYLOADS["text"])
    assert [expected] == used
    assert PAYLOADS["text"] == decompress(LZ4, compressed, 100)


def test_level_0_of_zstd_is_its_default():
    """Level 0 of zstd means its default level, as in zstd itself."""
    payload = b"".join(b"%d %d;" % (i, i * i % 977) for i in range(20_000))
    assert Compressor(ZSTD).compress(payload) == Compressor(ZSTD, 0).compress(payload)
    assert Compressor(ZSTD).compress(payload) != Compressor(ZSTD, -1).compress(payload)


# --- formats


def test_lz4_frames_have_the_format_that_kafka_requires():
    """LZ4 frames have independent blocks, no content size and no checksum (KIP-57)."""
    frame = Compressor(LZ4).compress(PAYLOADS["several blocks"])
    assert "04224d186040" == frame[:6].hex()
    info = lz4.frame.get_frame_info(frame)
    assert [False, False, False, 0, 64 * 1024] == [
        info[name]
        for name in (
            "block_linked",
            "content_checksum",
            "block_checksum",
            "content_size",
            "block_size",
        )
    ]


def test_snappy_payloads_are_framed_as_by_snappy_java():
    """A header of 16 bytes precedes blocks of at most 32 KB, each after its length."""
    payload = PAYLOADS["several blocks"][:70_000]
    compressed = Compressor(SNAPPY).compress(payload)
    assert SNAPPY_HEADER == compressed[:16]
    blocks, position = [], 16
    while position < len(compressed):
        (length,) = struct.unpack_from(">i", compressed, position)
        block = compressed[position + 4 : position + 4 + length]
        blocks.append(bytes(cramjam.snappy.decompress_raw(block)))
        position += 4 + length
    assert [32_768, 32_768, 4_464] == [len(block) for block in blocks]
    assert payload == b"".join(blocks)


def test_gzip_payloads_are_standard_gzip():
    """Any gzip reader can decompress gzip payloads."""
    assert b"payload" == gzip.decompress(Compressor(GZIP).compress(b"payload"))


def test_zstd_frames_contain_the_content_size():
    """The frame header of zstd contains the content size."""
    frame = Compressor(ZSTD).compress(PAYLOADS["several blocks"])
    assert 800_000 == zstandard.get_frame_parameters(frame).content_size


@pytest.mark.parametrize("make", [bytes, os.urandom, records], ids=["zeros", "random", "records"])
@pytest.mark.parametrize("size", BORDER)
def test_zstd_payloads_around_the_border_round_trip(size, make):
    """At the border of zstd's smaller tables, frames are complete, sized and without checksum."""
    payload = make(size)
    frame = Compressor(ZSTD).compress(payload)
    assert payload == decompress(ZSTD, frame, size)
    header = zstandard.get_frame_parameters(frame)
    assert (size, False, 0) == (header.content_size, header.has_checksum, header.dict_id)


@pytest.mark.parametrize("level", [None, 3, 0])
def test_large_payloads_have_smaller_tables_at_the_default_level(level):
    """Frames above 128 KB are zstandard's with exactly these tables, smaller ones its own."""
    tables = zstandard.ZstdCompressionParameters.from_level(
        3, hash_log=16, chain_log=15, min_match=6
    )
    compressor = Compressor(ZSTD, level)
    # Its contexts are used again, for payloads of changing sizes.
    for size in (*BORDER, 900_000, *reversed(BORDER)):
        own = zstandard.ZstdCompressor(level=3)
        small = zstandard.ZstdCompressor(compression_params=tables)
        expected = (small if size > 128 * 1024 else own).compress(records(size))
        assert expected == compressor.compress(records(size))
        # Otherwise the test would see no difference.
        assert own.compress(records(size)) != small.compress(records(size))


@pytest.mark.parametrize("level", [-131_072, -5, -1, 1, 2, 4, 9])
def test_other_levels_of_zstd_are_its_own(level):
    """At any other level, large payloads are compressed exactly as zstd itself does."""
    for size in (*BORDER, 900_000):
        expected = zstandard.ZstdCompressor(level=level).compress(records(size))
        assert expected == Compressor(ZSTD, level).compress(records(size))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_items_of_several_bytes_count_as_bytes(codec):
    """A buffer of few, but large items is compressed like its bytes."""
    numbers = np.arange(20_000).reshape(100, 200)
    compressed = Compressor(codec).compress(numbers)
    assert Compressor(codec).compress(numbers.tobytes()) == compressed
    assert numbers.tobytes() == decompress(codec, compressed, numbers.nbytes)


@pytest.mark.parametrize("codec", CompressionType, ids=str)
def test_a_buffer_with_gaps_is_rejected(codec):
    """A buffer that is not contiguous is an error, and not compressed as something else."""
    with pytest.raises((BufferError, TypeError, ValueError), match="contiguous"):
        bytes(Compressor(codec).compress(memoryview(bytes(400_000))[::2]).cast("B"))


def test_threads_share_a_compressor():
    """Several threads may use one compressor at the same time, with small and large payloads."""
    compressor = Compressor(ZSTD)
    payloads = [bytes([i]) * 30_000 * i + PAYLOADS["text"] * i for i in range(8)]
    results = {}

    def work(payload):
        results[payload] = [compressor.compress(payload) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(payload,), daemon=True) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for payload in payloads:
        assert {payload} == {decompress(ZSTD, frame, 1 << 20) for frame in results[payload]}


# --- formats that others write


def test_raw_snappy_is_read():
    """A raw block without snappy-java's framing is read, as librdkafka writes it."""
    raw = bytes(cramjam.snappy.compress_raw(b"payload" * 9))
    assert b"payload" * 9 == decompress(SNAPPY, raw, 63)


def test_gzip_members_are_joined():
    """A gzip payload may have several members, as in Java."""
    assert b"onetwo" == decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6)


def test_the_checksum_of_a_gzip_header_is_checked():
    """A header with FHCRC (RFC 1952) is skipped if its checksum is right, and else an error."""
    member = gzip.compress(b"payload", mtime=0)
    header = member[:3] + b"\x02" + member[4:10]
    right = zlib.crc32(header) & 0xFFFF
    stated = [right.to_bytes(2, "little"), (right ^ 1).to_bytes(2, "little")]
    good, bad = (header + checksum + member[10:] for checksum in stated)
    assert b"payload" == decompress(GZIP, good, 7)
    with pytest.raises(CorruptRecordError, match=r"^gzip: the header does not match its checksum$"):
        decompress(GZIP, bad, 7)


def test_zstd_frames_are_joined():
    """Several frames, with checksums and without sizes, are read as one payload."""
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    frame = stream.compress(b"one" * 100_000) + stream.flush()
    assert b"one" * 100_000 + b"two" == decompress(
        ZSTD, frame + zstandard.compress(b"two"), 300_003
    )


@pytest.mark.parametrize(
    "options",
    [
        {"content_checksum": True},
        {"block_checksum": True},
        {"store_size": True},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
    ],
    ids=str,
)
def test_other_lz4_frames_are_read(options):
    """LZ4 frames may have checksums, a content size or larger blocks."""
    frame = lz4.frame.compress(
        PAYLOADS["several blocks"], **{"block_linked": False, "store_size": False} | options
    )
    assert PAYLOADS["several blocks"] == decompress(LZ4, frame, MIB)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"a" * 300_000, "rle"),
        (PAYLOADS["incompressible"], "raw"),
        (b"".join(b"%d," % i for i in range(50_000)), "compressed"),
    ],
    ids=["runs", "raw", "compressed"],
)
def test_zstd_blocks_of_every_type_are_read(payload, expected):
    """Frames without a content size are read for every block type: raw, run and compressed."""
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(payload) + stream.flush()
    types, position = [], zstandard.frame_header_size(frame)
    while position < len(frame):
        header = int.from_bytes(frame[position : position + 3], "little")
        types.append(["raw", "rle", "compressed"][header >> 1 & 3])
        position += 3 + (1 if types[-1] == "rle" else header >> 3)
    assert expected in types
    assert payload == decompress(ZSTD, frame, 300_000)


# --- hostile bytes


@with_codecs
def test_a_truncated_payload_is_corrupt(codec):
    """A truncated payload is corrupt, wherever it ends."""
    compressed = Compressor(codec).compress(PAYLOADS["text"])
    starts = range(len(compressed))
    if codec is SNAPPY:
        # A payload may end between two blocks: the framing has no total length. Java ignores a
        # part of the next length.
        starts = [start for start in starts if start and not 16 <= start < 20]
    elif codec is ZSTD:
        # No frame at all is an empty payload.
        starts = starts[1:]
    for size in starts:
        with pytest.raises(CorruptRecordError):
            decompress(codec, compressed[:size], 1000)


@pytest.mark.parametrize("missing", [1, 3, 4])
def test_a_truncated_zstd_checksum_is_corrupt(missing):
    """A frame is corrupt if its checksum is missing or truncated."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(PAYLOADS["text"])
    with pytest.raises(CorruptRecordError, match="truncated"):
        decompress(ZSTD, frame[:-missing], 1000)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4], ids=str)
def test_a_byte_after_the_end_is_ignored(codec):
    """Java's readers of these codecs ignore a byte after the end."""
    compressed = Compressor(codec).compress(PAYLOADS["text"])
    assert PAYLOADS["text"] == decompress(codec, compressed + b"\x01", 1000)


def test_a_byte_after_a_zstd_frame_is_corrupt():
    """A byte that begins no other frame is an error after a frame of zstd."""
    with pytest.raises(CorruptRecordError, match="not a zstd frame"):
        decompress(ZSTD, Compressor(ZSTD).compress(b"payload") + b"\x01", 1000)


@with_codecs
@given(data=st.data())
def test_a_changed_payload_is_corrupt_or_decompressed(codec, data):
    """A payload with a changed byte raises CorruptRecordError or nothing."""
    compressed = bytearray(Compressor(codec).compress(PAYLOADS["text"] * 50))
    position = data.draw(st.integers(0, len(compressed) - 1))
    compressed[position] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptRecordError):
        assert len(decompress(codec, compressed, 10_000)) <= 10_000


@with_codecs
@given(garbage=st.binary(max_size=200))
def test_garbage_is_corrupt_or_decoded(codec, garbage):
    """Random bytes, after any header, raise nothing but CorruptRecordError."""
    valid = Compressor(codec).compress(PAYLOADS["text"])
    for front in (b"", bytes(valid[:8]), bytes(valid[:16])):
        with suppress(CorruptRecordError):
            assert len(decompress(codec, front + garbage, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", CompressionType, ids=str)
def test_a_payload_above_the_limit_is_rejected(codec):
    """A payload that is one byte larger than the limit is an error."""
    compressed = Compressor(codec).compress(PAYLOADS["several blocks"])
    with pytest.raises(CorruptRecordError, match="more than 799999 bytes"):
        decompress(codec, compressed, 799_999)


@pytest.mark.parametrize("size", [5 * MIB // 2, 5 * MIB // 2 - 1])
def test_output_is_requested_in_chunks_of_1_mib(monkeypatch, size):
    """Output is requested in chunks of 1 MiB, and finally one byte more than the limit allows."""
    make, requested = lz4.frame.LZ4FrameDecompressor, []

    class Recording:
        def __init__(self):
            self._frame = make()

        def __getattr__(self, name):
            return getattr(self._frame, name)

        def decompress(self, data, max_length):
            requested.append(max_length)
            return self._frame.decompress(data, max_length=max_length)

    monkeypatch.setattr("lz4.frame.LZ4FrameDecompressor", Recording)
    assert bytes(size) == decompress(LZ4, Compressor(LZ4).compress(bytes(size)), size)
    assert [MIB, MIB, size - 2 * MIB + 1] == requested[:3]


def zstd_bomb(size: int) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return b"".join(stream.compress(bytes(MIB)) for _ in range(size // MIB)) + stream.flush()


def gzip_bomb(size: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(size // MIB)) + stream.flush()


def snappy_bomb(size: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    return SNAPPY_HEADER + (len(block).to_bytes(4, "big") + block) * (size // MIB)


def lz4_bomb(size: int) -> bytes:
    return lz4.frame.compress(bytes(size), block_linked=False)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [(GZIP, gzip_bomb), (SNAPPY, snappy_bomb), (LZ4, lz4_bomb), (ZSTD, zstd_bomb)],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_decompression_bombs_are_stopped_at_the_limit(codec, bomb):
    """Decompression stops near the limit, whatever the size of the output."""
    compressed = bomb(256 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="more than 2097152 bytes"):
            decompress(codec, compressed, 2 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(compressed) + 8 * MIB


def test_a_snappy_block_with_a_false_length_takes_no_memory():
    """A block that states a length of 4 GB is rejected without decompressing it."""
    lie = b"\xff\xff\xff\xff\x0f" + b"\0" * 8
    for payload in (lie, SNAPPY_HEADER + len(lie).to_bytes(4, "big") + lie):
        with pytest.raises(CorruptRecordError, match="more than"):
            decompress(SNAPPY, payload, 2 * MIB)


def test_the_limit_applies_to_the_sum_of_snappy_blocks():
    """A block that would exceed the limit in total is rejected before it is decompressed."""
    first = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    damaged = bytes(cramjam.snappy.compress_raw(bytes(MIB)))[:-1]
    payload = b"".join(len(block).to_bytes(4, "big") + block for block in (first, damaged))
    for max_bytes, complaint in ((2 * MIB - 1, "more than 2097151 bytes"), (2 * MIB, "snappy: ")):
        with pytest.raises(CorruptRecordError, match=complaint):
            decompress(SNAPPY, SNAPPY_HEADER + payload, max_bytes)


def test_linked_lz4_blocks_are_rejected():
    """LZ4 blocks that depend on each other are rejected, since Kafka cannot read them."""
    frame = lz4.frame.compress(PAYLOADS["several blocks"], block_linked=True)
    with pytest.raises(CorruptRecordError, match="dependent blocks"):
        decompress(LZ4, frame, MIB)


def test_linked_lz4_blocks_with_a_dictionary_are_rejected():
    """Dependent blocks are rejected even if the dictionary flag is set."""
    frame = bytearray(Compressor(LZ4).compress(b"payload"))
    frame[4] = 0x41
    with pytest.raises(CorruptRecordError, match="dependent blocks"):
        decompress(LZ4, frame, MIB)


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        (4, "is not an lz4 frame"),
        (5, "is not an lz4 frame"),
        (6, "is not an lz4 frame"),
        (7, "truncated"),
    ],
)
def test_an_lz4_frame_has_at_least_seven_bytes(size, complaint):
    """The shortest header of an LZ4 frame has seven bytes."""
    with pytest.raises(CorruptRecordError, match=complaint):
        decompress(LZ4, Compressor(LZ4).compress(b"payload")[:size], MIB)


def test_a_damaged_snappy_header_is_corrupt():
    """A payload with a damaged framing header is read as a raw block, and is corrupt."""
    framed = Compressor(SNAPPY).compress(b"payload")
    with pytest.raises(CorruptRecordError, match="snappy"):
        decompress(SNAPPY, framed[:7] + b"\1" + framed[8:], MIB)


@pytest.mark.parametrize("version", [0x20, 0xA0, 0xE0])
def test_other_lz4_versions_are_rejected(version):
    """An unknown version of the LZ4 frame format is rejected."""
    frame = bytearray(Compressor(LZ4).compress(b"payload"))
    frame[4] = version
    with pytest.raises(CorruptRecordError, match="an unsupported version"):
        decompress(LZ4, frame, MIB)


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=str)
@pytest.mark.parametrize("payload", [b"\0" * 16, b"0123456789abcdef", b"\xff" * 16], ids=repr)
def test_a_payload_of_another_format_is_rejected(codec, payload):
    """Bytes without the codec's magic number are rejected."""
    with pytest.raises(
        CorruptRecordError, match=f"the payload is not an? {codec.name.lower()} frame"
    ):
        decompress(codec, payload, MIB)


def test_a_reserved_zstd_block_is_corrupt():
    """A zstd block of the reserved type 3 is corrupt."""
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=False).compress(b"payload"))
    header = zstandard.frame_header_size(frame)
    frame[header] |= 0x06
    with pytest.raises(CorruptRecordError, match="zstd: "):
        decompress(ZSTD, frame, MIB)
