"""The decoder of a partition: what it makes of Kafka's records, and what it refuses."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import CorruptRecordError, SchemaError
from spark_kafka_sink.record.arrow.record_decoder import RecordDecoder
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from tests.support.record.plain_batches import PlainRecord, encode_record, plain_batch, varint
from tests.support.record.reading.decoding import NO_END, column_of, decode_all, decoder_of, rows_of

GOLDEN = Path(__file__).parents[1] / "golden" / "java_batches.json"
BATCHES = json.loads(GOLDEN.read_text())
LOG_APPEND_TIME = 8
MAX_MILLIS = 9_223_372_036_854_775
#: Batches below and above the size from which on the library computes the checksum.
SIZES = pytest.mark.parametrize("value", [b"v", b"v" * 100_000], ids=["small", "large"])
CODECS = pytest.mark.parametrize("codec", CompressionType, ids=str)


def name_of(batch: dict) -> str:
    return f"{batch['kind']}-{batch['compression']}"


@pytest.mark.parametrize("golden", BATCHES, ids=name_of)
def test_javas_batches_are_decoded(golden):
    """Every batch that Java wrote has the rows that the slow decoder sees; markers have none."""
    data = bytes.fromhex(golden["batch"])
    header, records = decode_record_batch(data).header, decode_record_batch(data).records
    expected = [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(header.log_append_time),
            "headers": [header._asdict() for header in record.headers] or None,
        }
        for record in records
        if not header.is_control
    ]
    assert expected == rows_of(decoder_of(), data)


def test_records_without_headers_have_null():
    """A record without headers has null, not an empty list; a header may have no value."""
    data = plain_batch([PlainRecord(), PlainRecord(headers=((b"a", None), (b"a", b"1")))])
    expected = [None, [{"key": "a", "value": None}, {"key": "a", "value": b"1"}]]
    assert expected == column_of("headers", data)


def test_header_keys_that_are_not_utf8_are_replaced():
    """Invalid UTF-8 in header keys is replaced, as in Java; that makes them longer."""
    keys = (b"\xff" * 50, "größe".encode(), b"\xed\xa0\x80")
    data = plain_batch([PlainRecord(headers=tuple((key, b"1") for key in keys))])
    (headers,) = column_of("headers", data)
    assert ["\ufffd" * 50, "größe", "\ufffd"] == [header["key"] for header in headers]


def test_log_append_time_applies_to_all_records():
    """With LogAppendTime, the batch's timestamp replaces those of the records."""
    data = plain_batch(
        [PlainRecord(timestamp=5), PlainRecord(timestamp=7)],
        attributes=LOG_APPEND_TIME,
        max_timestamp=99,
    )
    rows = rows_of(decoder_of("timestamp", "timestampType"), data)
    assert [{"timestamp": 99_000, "timestampType": 1}] * 2 == rows


def test_rows_of_one_record_batch_have_one_timestamp_type():
    """A topic whose timestamp type was changed is read correctly."""
    data = b"".join(
        plain_batch(2, base_offset=2 * number, attributes=attributes, max_timestamp=9)
        for number, attributes in enumerate((0, LOG_APPEND_TIME, 0))
    )
    assert [0, 0, 1, 1, 0, 0] == column_of("timestampType", data)
    assert [0, 0, 9000, 9000, 0, 0] == column_of("timestamp", data)
    assert 1 == len(decode_all(decoder_of("timestamp"), data))


@pytest.mark.parametrize("millis", [-1, 0, MAX_MILLIS, -MAX_MILLIS])
def test_timestamps_are_microseconds(millis):
    """A timestamp of -1, which means none, is a millisecond before 1970, as in Spark."""
    assert [millis * 1000] == column_of("timestamp", plain_batch([PlainRecord(timestamp=millis)]))


@pytest.mark.parametrize("millis", [MAX_MILLIS + 1, -MAX_MILLIS - 1, 2**63 - 1])
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_timestamps_that_overflow_are_errors(millis, attributes):
    """A timestamp that does not fit is an error with its offset, unless it is not asked for."""
    records = [PlainRecord(timestamp=0), PlainRecord(timestamp=millis)]
    data = plain_batch(records, base_offset=7, attributes=attributes, max_timestamp=millis)
    offset = 7 if attributes else 8
    with pytest.raises(CorruptRecordError, match=rf"partition 3, offset {offset}: the timestamp "):
        column_of("timestamp", data)
    assert [7, 8] == column_of("offset", data)
    assert [] == column_of("timestamp", data, start=9)


def test_the_sum_of_base_and_delta_may_not_wrap():
    """A timestamp whose sum wraps around is an error, although the wrapped one would fit."""
    body = b"\0" + varint(2**63 - 1) + varint(0) + varint(-1) + varint(-1) + varint(0)
    payload = varint(len(body)) + body
    data = bytearray(plain_batch([PlainRecord(timestamp=2**63 - 1)], payload=payload))
    with pytest.raises(CorruptRecordError, match="offset 0: the timestamp does not fit"):
        column_of("timestamp", bytes(data))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused(magic):
    """Batches of the old formats are refused in a sentence with topic, partition and offset."""
    data = plain_batch(1) + plain_batch(1, base_offset=41, magic=magic)
    with pytest.raises(
        CorruptRecordError,
        match=rf"topic 'orders', partition 3, offset 41: the records have format {magic}, which",
    ):
        decoder_of().index(data, 0)


def test_a_format_that_changes_after_the_index_is_that_of_its_batch():
    """The error of a later batch names its own format, not that of the first one."""
    data = bytearray(plain_batch(1) + plain_batch(1, base_offset=41))
    decoder = decoder_of()
    index = decoder.index(data, 0)
    data[len(data) // 2 + 16] = 1
    with pytest.raises(CorruptRecordError, match=r"the records have format 1, which"):
        list(decoder.decode(data, index, start=0, end=NO_END))


def test_unknown_formats_are_refused():
    """A batch of a format that does not exist yet is refused."""
    with pytest.raises(CorruptRecordError, match="offset 0: the record batch has the unknown form"):
        decoder_of().index(plain_batch(1, magic=3), 0)


@CODECS
def test_batches_that_decompress_to_too_much_are_refused(codec):
    """A batch that is larger than the limit is refused with the setting that raises the limit."""
    data = plain_batch([PlainRecord(bytes(100_000))], base_offset=5, compression=codec)
    if codec is CompressionType.NONE:
        assert [bytes(100_000)] == rows_values(data, 1000)
        return
    with pytest.raises(
        CorruptRecordError,
        match="offset 5: the records of a batch decompress to more than 1000 bytes: raise "
        r"max\.uncompressed\.batch\.bytes to read it",
    ):
        rows_values(data, 1000)
    assert [bytes(100_000)] == rows_values(data, 200_000)


def rows_values(data: bytes, limit: int) -> list[bytes]:
    return [
        row["value"] for row in rows_of(decoder_of("value", max_uncompressed_bytes=limit), data)
    ]


@SIZES
@CODECS
def test_wrong_checksums_are_refused(codec, value):
    """A wrong checksum is refused, whatever the size and the codec, unless it is not checked."""
    data = plain_batch([PlainRecord(value)], base_offset=9, compression=codec, crc=1)
    with pytest.raises(CorruptRecordError, match=r"offset 9: the record batch has .*checksum"):
        rows_of(decoder_of(), data)
    decoder = decoder_of("value", check_crcs=False)
    assert [{"value": value}] == rows_of(decoder, data)


@SIZES
@CODECS
def test_batches_before_the_start_are_not_decoded(codec, value):
    """Of a batch before the start, the checksum is checked, and its records are not decoded."""
    broken = plain_batch([PlainRecord(value)], compression=codec, payload=b"\xff" * len(value))
    data = broken + plain_batch(1, base_offset=10)
    assert [10] == column_of("offset", data, start=10)
    with pytest.raises(CorruptRecordError, match="offset 0: "):
        column_of("offset", data)
    damaged = broken[:-1] + b"\xfe" + plain_batch(1, base_offset=10)
    with pytest.raises(CorruptRecordError, match=r"offset 0: .*checksum"):
        column_of("offset", damaged, start=10)


def test_only_rows_of_the_range_are_returned():
    """The start is inclusive, the end exclusive, and either may be within a batch or a gap."""
    data = plain_batch(5) + plain_batch(5, base_offset=10)
    every = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    for start in range(16):
        for end in range(16):
            expected = [offset for offset in every if start <= offset < end]
            assert expected == column_of("offset", data, start=start, end=end)


def test_batches_from_the_end_on_are_not_looked_at():
    """A batch from the end of the range on is not decoded: it belongs to somebody else's range."""
    data = plain_batch(2) + plain_batch(1, base_offset=2, crc=1)
    assert [0, 1] == column_of("offset", data, end=2)


def test_the_index_leaves_out_a_batch_that_is_cut_off():
    """The last batch of an answer may be cut off anywhere."""
    first, second = plain_batch(3), plain_batch(2, base_offset=3, last_offset_delta=6)
    decoder = decoder_of("offset")
    for length in range(len(second)):
        index = decoder.index(first + second[:length], 0)
        assert (1, 3, len(first)) == (index.batch_count, index.next_offset, index.size)
    index = decoder.index(first + second, 0)
    assert (2, 10, len(first + second)) == (index.batch_count, index.next_offset, index.size)
    assert [0, 1, 2] == column_of("offset", first + second[:-1])


@pytest.mark.parametrize("data", [b"", plain_batch(1)[:-1]])
def test_an_index_without_batches_keeps_the_position(data):
    """Without a complete batch, the next offset is the position that was asked for."""
    index = decoder_of().index(data, 41)
    assert (0, 41, -1) == (index.batch_count, index.next_offset, index.leader_epoch)


def test_the_index_has_the_leader_epoch():
    """The index has the leader epoch of the last batch."""
    data = bytearray(plain_batch(1))
    struct.pack_into(">i", data, 12, 7)
    assert 7 == decoder_of().index(plain_batch(1) + bytes(data), 0).leader_epoch


def test_rows_are_gathered_over_answers():
    """Rows of several answers come in one record batch; `flush` returns the rest, then nothing."""
    decoder = decoder_of("offset", max_rows=4)
    assert None is decoder.flush()
    first = bytearray(plain_batch(3))
    assert [] == list(decoder.decode(first, decoder.index(first, 0), start=0, end=NO_END))
    first[:] = bytes(len(first))  # The rows are copies.
    second = plain_batch(3, base_offset=3)
    (full,) = decoder.decode(second, decoder.index(second, 3), start=0, end=NO_END)
    assert [0, 1, 2, 3] == full.column("offset").to_pylist()
    assert [4, 5] == decoder.flush().column("offset").to_pylist()
    assert None is decoder.flush()


@CODECS
@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 9, 100])
def test_outputs_are_full_within_a_batch(codec, max_rows):
    """A record batch has at most so many rows, wherever a batch of Kafka's is interrupted."""
    records = [PlainRecord(b"v%d" % number, None if number % 3 else b"k") for number in range(30)]
    batches = decode_all(decoder_of(max_rows=max_rows), plain_batch(records, compression=codec))
    assert [max_rows] * (30 // max_rows) == [
        batch.num_rows for batch in batches if batch.num_rows == max_rows
    ]
    table = pa.Table.from_batches(batches)
    assert [record.value for record in records] == table.column("value").to_pylist()
    assert [record.key for record in records] == table.column("key").to_pylist()


def test_outputs_are_bounded_in_bytes():
    """A record batch has at most so many bytes; a record that is larger comes alone and whole."""
    values = [b"a" * 40, b"b" * 60, b"c" * 61, b"d" * 1_000_000, b"", b"e" * 100, b"f"]
    data = plain_batch([PlainRecord(value) for value in values])
    batches = decode_all(decoder_of("value", max_bytes=100), data)
    expected = [values[:2], values[2:3], values[3:4], values[4:6], values[6:]]
    assert expected == [batch.column("value").to_pylist() for batch in batches]


def test_headers_count_as_the_objects_that_they_become():
    """An empty header has two bytes in a record, and counts 200."""
    records = [PlainRecord(headers=((b"", b""),) * 10)] * 5
    decoder = decoder_of("headers", max_bytes=4000)
    batches = decode_all(decoder, plain_batch(records))
    assert [2, 2, 1] == [batch.num_rows for batch in batches]
    assert 2000 <= decoder.finished_bytes < 2100


def test_a_record_with_more_headers_than_fit_into_memory_is_refused():
    """The error names its offset, and the rows before it remain; other columns can be read."""
    most = 128 * 1024 * 1024 // 200
    records = [PlainRecord(headers=((b"", b""),) * count) for count in (most, most + 1)]
    data = plain_batch(records, base_offset=5, compression=CompressionType.ZSTD)
    assert len(data) < 1000
    decoder = decoder_of("offset", "headers")
    with pytest.raises(CorruptRecordError, match="offset 6: the record has too many headers"):
        decode_all(decoder, data)
    assert [5] == decoder.flush().column("offset").to_pylist()
    assert [5, 6] == column_of("offset", data)
    roomy = decoder_of("offset", "headers", max_uncompressed_bytes=(most + 1) * 200)
    assert 2 == sum(batch.num_rows for batch in decode_all(roomy, data))
    strict = decoder_of("headers", max_uncompressed_bytes=100)
    assert [[{"key": "", "value": b""}] * 10] == [
        row["headers"]
        for row in rows_of(strict, plain_batch([records[0]._replace(headers=((b"", b""),) * 10)]))
    ]


def test_bytes_that_are_not_asked_for_do_not_count():
    """Keys and headers that nobody asked for do not fill an output."""
    data = plain_batch([PlainRecord(b"v", b"k" * 90, headers=((b"h" * 90, b"v"),))] * 10)
    assert 1 == len(decode_all(decoder_of("value", max_bytes=100), data))


def test_many_headers_are_read():
    """A record may have more headers than there is room for at first."""
    headers = tuple((b"key-%d" % number, b"x" * (number % 50)) for number in range(5000))
    data = plain_batch([PlainRecord(headers=headers), PlainRecord(), PlainRecord(headers=headers)])
    first, none, last = column_of("headers", data)
    assert None is none
    assert first == last == [{"key": key.decode(), "value": value} for key, value in headers]


def test_rows_before_a_corrupt_record_remain():
    """The error names the first record that cannot be read, and the rows before it are kept."""
    records = [
        encode_record(PlainRecord(), offset_delta=delta, base_timestamp=0) for delta in (0, 1)
    ]
    data = plain_batch(1) + plain_batch(
        3, base_offset=10, payload=b"".join(records) + varint(1000) + b"\0" * 20
    )
    decoder = decoder_of("offset")
    with pytest.raises(CorruptRecordError, match="offset 12: a record does not fit into its batch"):
        list(decoder.decode(data, decoder.index(data, 0), start=0, end=NO_END))
    assert [0, 10, 11] == decoder.flush().column("offset").to_pylist()
    assert [0] == [row["offset"] for row in rows_of(decoder, plain_batch(1))]


def test_a_decoder_that_was_left_can_be_used_again():
    """If nobody takes the rest of an answer, the next one is decoded from its beginning."""
    decoder = decoder_of("offset", max_rows=2)
    data = plain_batch(9)
    batches = decoder.decode(data, decoder.index(data, 0), start=0, end=NO_END)
    next(batches)
    batches.close()
    decoder.flush()
    assert [0, 1, 2] == [row["offset"] for row in rows_of(decoder, plain_batch(3))]


def test_an_index_of_a_longer_answer_is_refused():
    """An index that does not belong to the answer cannot lead outside of it."""
    decoder = decoder_of()
    index = decoder.index(plain_batch(3), 0)
    with pytest.raises(ValueError, match="the index belongs to another answer"):
        list(decoder.decode(plain_batch(1), index, start=0, end=NO_END))
    shifted = b"\0" * 9 + plain_batch(3)
    with pytest.raises(CorruptRecordError):
        list(decoder.decode(shifted, index, start=0, end=NO_END))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_rows": 0}, "max_rows"), ({"max_bytes": 0}, "max_bytes"), ({"max_bytes": 2**31}, "max")],
)
def test_limits_outside_of_their_range_are_refused(settings, message):
    """Limits must be positive, and offsets in bytes must fit into 32 bits."""
    with pytest.raises(ValueError, match=message):
        decoder_of(**settings)


def test_columns_that_do_not_exist_are_refused():
    """A schema with another column is refused."""
    with pytest.raises(SchemaError, match="no column 'price'"):
        RecordDecoder(pa.schema([("price", pa.int64())]), "orders", 0)


def test_any_buffer_is_decoded():
    """Answers may be any buffer of bytes, also a read-only one or a part of one."""
    data = plain_batch(2)
    for buffer in (data, bytearray(data), memoryview(b"x" + data)[1:], pa.py_buffer(data)):
        assert [0, 1] == column_of("offset", buffer)


def test_gzip_members_may_follow_each_other():
    """A payload that Java would read in several parts is one payload."""
    records = [
        encode_record(PlainRecord(), offset_delta=delta, base_timestamp=0) for delta in (0, 1)
    ]
    payload = b"".join(zlib.compress(record, wbits=31) for record in records)
    data = plain_batch(2, compression=CompressionType.GZIP, payload=payload)
    assert [0, 1] == column_of("offset", data)


def test_non_nullable_columns_keep_their_fields():
    """Record batches have exactly the schema that was asked for."""
    schema = pa.schema([pa.field("offset", pa.int64(), nullable=False, metadata={"a": "b"})])
    (batch,) = decode_all(RecordDecoder(schema, "orders", 0), plain_batch(1))
    assert schema.equals(batch.schema, check_metadata=True)


def test_all_columns_have_the_types_of_the_schema():
    """The record batch of all columns is valid and has the default schema."""
    (batch,) = decode_all(decoder_of(), plain_batch(3))
    batch.validate(full=True)
    assert arrow_schema(include_headers=True) == batch.schema


@pytest.mark.parametrize("shift", range(16))
def test_batches_may_begin_at_any_address(shift):
    """In an answer a batch begins wherever the one before it has ended."""
    records = [PlainRecord(b"value-%d" % number, headers=((b"h", b"1"),)) for number in range(3)]
    data = plain_batch(records)
    memory = np.zeros(len(data) + 32, np.uint8)
    begin = -memory.ctypes.data % 16 + shift
    memory[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
    moved = memoryview(memory)[begin : begin + len(data)]
    assert shift == np.frombuffer(moved, np.uint8).ctypes.data % 16
    assert rows_of(decoder_of(), data) == rows_of(decoder_of(), moved)
