"""The batches with which tests try the limits of readers."""

from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.devbroker.odd_batches import bomb, old_messages
from tests.support.record.plain_batches import PlainRecord

CODECS = [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD]


@pytest.mark.parametrize("compression", CODECS)
def test_a_bomb_is_a_valid_batch(compression):
    """A small bomb decodes to the record that it claims to have, at its offset."""
    size = 3_000_001

    (record,) = decode_record_batch(bomb(size, compression=compression, base_offset=7)).records

    assert (7, size, True) == (record.offset, len(record.value), not any(record.value))


@pytest.mark.parametrize("compression", CODECS)
def test_a_bomb_is_small(compression):
    """The batch has a hundredth of the size to which it decompresses."""
    batch = bomb(16 << 20, compression=compression)

    assert len(batch) < (16 << 20) / 100
    assert len(batch) == decode_header(batch).size_in_bytes


@pytest.mark.parametrize(("magic", "size"), [(0, 28), (1, 36)])
def test_old_messages_are_of_their_format(magic, size):
    """Offset, size and format are those of each message, and no reader of batches accepts them."""
    messages = old_messages([PlainRecord(b"a", b"k")] * 2, magic=magic, base_offset=5)

    assert 2 * size == len(messages)
    assert [(5, size - 12, magic), (6, size - 12, magic)] == [
        struct.unpack_from(">qi4xb", messages, at) for at in (0, size)
    ]
    with pytest.raises(CorruptRecordError, match=f"format {magic}"):
        list(split_record_batches(messages + bytes(100)))
