"""The decoder, on batches built byte by byte by an independent encoder."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.decode import (
    ControlRecord,
    DecodeBudget,
    Header,
    Record,
    decode_control_record,
    decode_record_batch,
    decode_records,
    decode_within,
)
from spark_kafka_sink.record.record_batch import ControlRecordType, validate_record_batch
from tests.support.devbroker.malformed_batches import MALFORMED
from tests.support.record.plain_batches import PlainRecord, encode_record, plain_batch, varint

BYTES = st.none() | st.binary(max_size=100)
RECORDS = st.lists(
    st.builds(
        PlainRecord,
        value=BYTES,
        key=BYTES,
        timestamp=st.integers(0, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=5).map(str.encode), BYTES), max_size=3).map(
            tuple
        ),
    ),
    max_size=20,
)


def decoded(records: list[PlainRecord], base_offset: int = 0) -> list[Record]:
    """Return the records that the decoder should return."""
    return [
        Record(
            base_offset + index,
            record.timestamp,
            record.key,
            record.value,
            tuple(Header(key.decode(), value) for key, value in record.headers),
        )
        for index, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", CompressionType, ids=str)
@given(records=RECORDS, base_offset=st.integers(0, 2**62))
def test_records_round_trip(codec, records, base_offset):
    """Any record is decoded correctly with every codec."""
    batch = plain_batch(records, base_offset=base_offset, compression=codec)
    result = decode_record_batch(batch)
    assert decoded(records, base_offset) == result.records
    assert validate_record_batch(batch) == result.header


def test_a_log_append_time_applies_to_all_records():
    """With LogAppendTime, the batch's timestamp replaces those of the records."""
    batch = plain_batch(
        [PlainRecord(timestamp=5), PlainRecord(timestamp=7)], attributes=8, max_timestamp=99
    )
    assert [99, 99] == [record.timestamp for record in decode_record_batch(batch).records]


def test_header_keys_that_are_not_utf8_are_replaced():
    """Invalid UTF-8 in header keys is replaced, as in Java."""
    batch = plain_batch([PlainRecord(headers=((b"\xffa", b"1"),))])
    assert (Header("\ufffda", b"1"),) == decode_record_batch(batch).records[0].headers


def test_offsets_may_have_gaps():
    """Offsets may have gaps, since compaction removes records but keeps the last offset."""
    kept = [encode_record(PlainRecord(), offset_delta=delta, base_timestamp=0) for delta in (2, 5)]
    batch = plain_batch(
        payload=b"".join(kept), base_offset=100, record_count=2, last_offset_delta=9
    )
    assert [102, 105] == [record.offset for record in decode_record_batch(batch).records]


def test_a_compacted_batch_may_be_empty():
    """A batch may be empty, since compaction keeps the header of a producer's last batch."""
    batch = plain_batch(payload=b"", record_count=0, last_offset_delta=9)
    assert [] == decode_record_batch(batch).records


@pytest.mark.parametrize("delta_bytes", [b"\x80\x00", b"\x80\x80\x80\x80\x00"])
def test_padded_varints_are_accepted(delta_bytes):
    """Numbers may take more bytes than they need, as in Java."""
    body = b"\0\0" + delta_bytes + b"\x01\x01\0"
    payload = varint(len(body)) + body
    assert [Record(0, 0, None, None)] == decode_record_batch(plain_batch(payload=payload)).records


# --- many batches


def marker(kind: int, **changes) -> bytes:
    record = PlainRecord(key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 12))
    return plain_batch([record], attributes=0x30, **changes)


def test_consecutive_batches_are_decoded_in_order():
    """Batches are read in order, without markers and without a truncated batch at the end."""
    buffer = (
        plain_batch(2)
        + marker(1, base_offset=2)
        + plain_batch(1, base_offset=3, compression=CompressionType.LZ4)
        + plain_batch(5, base_offset=4)[:-1]
    )
    assert [0, 1, 3] == [record.offset for record in decode_records(buffer)]


def test_the_limit_applies_to_each_batch():
    """The limit applies to each batch, not to their sum."""
    batch = plain_batch(1, compression=CompressionType.GZIP)
    assert 3 == len(list(decode_records(batch * 3, max_uncompressed_bytes=10)))
    with pytest.raises(CorruptRecordError, match="more than 5 bytes"):
        list(decode_records(batch, max_uncompressed_bytes=5))


# --- control records


@pytest.mark.parametrize("kind", ControlRecordType)
def test_markers_are_decoded_to_commit_or_abort(kind):
    """A marker is decoded to commit or abort, and to its coordinator's epoch."""
    batch = decode_record_batch(marker(kind))
    assert batch.header.is_control
    assert ControlRecord(kind, 12) == decode_control_record(batch.records[0])


def test_unknown_markers_keep_their_number():
    """Control records of unknown types keep their number, so that clients can ignore them."""
    (record,) = decode_record_batch(marker(7)).records
    assert ControlRecord(7, 12) == decode_control_record(record)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"\0" * 6), (b"\0\0\0", b"\0" * 6), (b"\0" * 4, None), (b"\0" * 4, b"\0" * 5)],
)
def test_a_control_record_too_short_for_a_marker_is_corrupt(key, value):
    """A control record that is too short for a marker is corrupt."""
    with pytest.raises(
        CorruptRecordError, match="the record at offset 5 is not a transaction marker"
    ):
        decode_control_record(Record(5, 0, key, value))


# --- hostile bytes

GOOD = encode_record(
    PlainRecord(b"value", b"key", 0, ((b"h", b"v"),)), offset_delta=0, base_timestamp=0
)


def record_of(body: bytes) -> bytes:
    return varint(len(body)) + body


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "truncated"),
        (GOOD[:-1], "does not fit into its batch"),
        (varint(-1) + GOOD[1:], "does not fit into its batch"),
        (varint(2**31 - 1) + GOOD[1:], "does not fit into its batch"),
        (GOOD + b"\0", "^1 bytes after the last record"),
        (GOOD + GOOD, f"^{len(GOOD)} bytes after the last record"),
        (b"\x80" * 5 + GOOD, "32 bits"),
        (record_of(b""), "truncated"),
        (record_of(b"\0"), "truncated"),
        (record_of(b"\0\0"), "truncated"),
        (record_of(b"\0\0\0"), "truncated"),
        (record_of(b"\0" + b"\x80" * 10 + b"\0\x01\x01\0"), "64 bits"),
        (record_of(b"\0\0\x02\x01\x01\0"), "offset delta 1 after -1"),
        (record_of(b"\0\0\x01\x01\x01\0"), "offset delta -1 after -1"),
        (record_of(b"\0\0\0\x04k\x01\0"), r"truncated|does not fit"),
        (record_of(b"\0\0\0\x01\x08val"), "a field of 4 bytes does not fit into its record"),
        (record_of(b"\0\0\0\x01\x01"), "truncated"),
        (record_of(b"\0\0\0\x01\x01\x01"), "-1 headers"),
        (record_of(b"\0\0\0\x01\x01\x08\x02k"), "4 headers"),
        (record_of(b"\0\0\0\x01\x01\x06\x02k"), "3 headers"),
        (record_of(b"\0\0\0\x01\x01\x04\x02k"), "truncated"),
        (record_of(b"\0\0\0\x01\x01\x02\x01\x02v"), "the key of a header is null"),
        (record_of(b"\0\0\0\x01\x01\x02\x02k\x06v"), "does not fit into its record"),
        (record_of(b"\0\0\0\x01\x01\0\0"), "^a record is 1 bytes longer than its fields"),
    ],
)
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP], ids=str)
def test_inconsistent_records_are_corrupt(codec, payload, complaint):
    """Invalid lengths and numbers are corrupt, even with a correct checksum."""
    compressed = bytes(Compressor(codec).compress(payload))
    with pytest.raises(CorruptRecordError, match=complaint):
        decode_record_batch(plain_batch(compression=codec, payload=compressed))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_bytes_are_read_if_kafka_reads_them(codec):
    """Frames, members and blocks are read, ignored or corrupt as in Kafka's Java client."""

    def is_read(batch):
        try:
            return len(decode_record_batch(batch).records) == 2
        except CorruptRecordError:
            return False

    group = MALFORMED[f"{codec} itself"]
    assert {name: code is ErrorCode.NONE for name, (_, code) in group.items()} == {
        name: is_read(batch) for name, (batch, _) in group.items()
    }


@pytest.mark.parametrize("count", [1, 3, 2**31 - 1])
def test_a_wrong_number_of_records_is_corrupt(count):
    """A batch with more or fewer records than its header states is corrupt."""
    batch = plain_batch(2, record_count=count, last_offset_delta=2**31 - 1)
    with pytest.raises(CorruptRecordError, match=r"after the last record|truncated"):
        decode_record_batch(batch)


def test_duplicate_offsets_are_corrupt():
    """A batch with two records of the same offset is corrupt."""
    with pytest.raises(CorruptRecordError, match="offset delta 0 after 0"):
        decode_record_batch(plain_batch(2, payload=GOOD + GOOD))


def test_an_offset_past_the_last_one_is_corrupt():
    """A record with an offset past the last one in the header is corrupt."""
    second = encode_record(PlainRecord(), offset_delta=2, base_timestamp=0)
    with pytest.raises(
        CorruptRecordError, match="offset delta 2 after 0, in a batch that ends with 1"
    ):
        decode_record_batch(plain_batch(2, payload=GOOD + second))


def test_the_checksum_is_checked_first():
    """A wrong checksum is reported before any other fault."""
    with pytest.raises(CorruptRecordError, match="checksum"):
        decode_record_batch(plain_batch(crc=1, payload=b"nonsense"))


def test_a_decompression_bomb_is_rejected():
    """A batch that would decompress to more than the limit is rejected."""
    payload = Compressor(CompressionType.ZSTD).compress(bytes(10_000_000))
    batch = plain_batch(compression=CompressionType.ZSTD, payload=payload)
    with pytest.raises(CorruptRecordError, match="more than 1000000 bytes"):
        decode_record_batch(batch, max_uncompressed_bytes=1_000_000)


@given(st.binary(max_size=100), st.integers(0, 20), st.sampled_from(CompressionType))
def test_garbage_is_corrupt_or_decoded(payload, count, codec):
    """With a valid header and checksum, random bytes raise nothing but CorruptRecordError."""
    batch = plain_batch(
        payload=payload, record_count=count, last_offset_delta=50, compression=codec
    )
    with suppress(CorruptRecordError):
        assert count == len(decode_record_batch(batch).records)


@given(st.data())
def test_a_changed_batch_is_corrupt(data):
    """Any change other than to the base offset or leader epoch is detected."""
    batch = bytearray(plain_batch([PlainRecord(b"value", b"key", 5)] * 3))
    position = data.draw(st.sampled_from([*range(8, 12), *range(16, len(batch))]))
    batch[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecordError):
        decode_record_batch(batch)


@given(st.binary(max_size=200))
def test_random_bytes_contain_no_batch(garbage):
    """Random bytes are rejected, or contain no complete batch."""
    with pytest.raises(CorruptRecordError):
        decode_record_batch(garbage)
    with suppress(CorruptRecordError):
        assert [] == list(decode_records(garbage))


@pytest.mark.parametrize("codec", CompressionType, ids=str)
def test_decoding_charges_bytes_records_and_headers_to_the_budget(codec):
    """Decoding charges decompressed bytes, records and headers to the budget."""
    record = PlainRecord(headers=((b"a", b"1"), (b"b", None)))
    size = len(encode_record(record, offset_delta=0, base_timestamp=0))
    budget = DecodeBudget(uncompressed_bytes=3 * size, elements=10)

    decode_within(plain_batch([record] * 2, compression=codec), budget)

    assert DecodeBudget(uncompressed_bytes=size, elements=4) == budget


@pytest.mark.parametrize("records", [5, [PlainRecord(headers=((b"a", b"1"),) * 4)]])
def test_a_batch_beyond_the_budget_is_not_decoded(records):
    """A batch with more records, or headers in one record, than the budget allows is rejected."""
    with pytest.raises(CorruptRecordError, match="too many to decode"):
        decode_within(plain_batch(records), DecodeBudget(uncompressed_bytes=1000, elements=4))


@pytest.mark.parametrize(
    ("elements", "complaint"), [(6, "^7 more records .* too many to decode"), (7, "truncated")]
)
def test_no_more_records_are_charged_than_the_bytes_can_hold(elements, complaint):
    """No more records are charged than the bytes can hold, at seven bytes each, and one more."""
    batch = plain_batch([PlainRecord(None)] * 6, record_count=1000, last_offset_delta=999)
    with pytest.raises(CorruptRecordError, match=complaint):
        decode_within(batch, DecodeBudget(uncompressed_bytes=42, elements=elements))


@pytest.mark.parametrize("decode", [decode_record_batch, lambda batch: list(decode_records(batch))])
def test_the_default_limit_of_a_batch_is_128_mib(decode):
    """The default limit for the decompressed records of a batch is 128 MiB."""
    batch = plain_batch(compression=CompressionType.SNAPPY, payload=b"\xff\xff\xff\xff\x0f\0")
    with pytest.raises(CorruptRecordError, match="decompress to more than 134217728 bytes"):
        decode(batch)


def test_a_failed_decompression_uses_up_the_byte_budget():
    """A failed decompression uses up the budget's bytes, since its output size is unknown."""
    budget = DecodeBudget(uncompressed_bytes=1000, elements=4)
    batch = plain_batch(1, payload=b"x" * 1001, compression=CompressionType.GZIP)

    with pytest.raises(CorruptRecordError):
        decode_within(batch, budget)

    assert 0 == budget.uncompressed_bytes
