"""Headers of record batches, and records that are encoded without the kernels."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_records
from spark_kafka_sink.record.default_record import encode_record
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    RecordBatchHeader,
    decode_header,
    split_record_batches,
    uncompressed_transactional_batch,
    validate_record_batch,
    write_header,
)
from tests.support.record.plain_batches import plain_batch

FIELDS = {
    "base_offset": 0x0102030405060708,
    "compression": CompressionType.ZSTD,
    "base_timestamp": 1_700_000_000_000,
    "max_timestamp": 1_700_000_000_009,
    "producer_id": 4711,
    "producer_epoch": 7,
    "base_sequence": 2_147_483_640,
    "record_count": 10,
    "transactional": True,
    "partition_leader_epoch": 5,
}


def written(payload: bytes = b"payload", **changes) -> bytes:
    target = bytearray(RECORD_BATCH_OVERHEAD)
    write_header(target, payload, **FIELDS | changes)
    return bytes(target) + payload


def test_the_header_has_61_bytes():
    """A batch has 61 bytes before its records."""
    assert 61 == RECORD_BATCH_OVERHEAD


def test_every_field_has_its_position():
    """Every header field has its position and is big-endian."""
    assert (
        "0102030405060708"  # baseOffset
        "00000038"  # batchLength: 49 of the header, 7 of the payload
        "00000005"  # partitionLeaderEpoch
        "02"  # magic
        "152077c1"  # crc
        "0014"  # attributes: zstd, transactional
        "00000009"  # lastOffsetDelta
        "0000018bcfe56800"  # baseTimestamp
        "0000018bcfe56809"  # maxTimestamp
        "0000000000001267"  # producerId
        "0007"  # producerEpoch
        "7ffffff8"  # baseSequence
        "0000000a"  # recordsCount
    ) + b"payload".hex() == written().hex()


def test_headers_round_trip():
    """A written header is decoded to the same values, and the batch is valid."""
    header = validate_record_batch(written())
    assert (
        RecordBatchHeader(
            base_offset=0x0102030405060708,
            batch_length=56,
            partition_leader_epoch=5,
            magic=2,
            crc=0x152077C1,
            attributes=0x14,
            last_offset_delta=9,
            base_timestamp=1_700_000_000_000,
            max_timestamp=1_700_000_000_009,
            producer_id=4711,
            producer_epoch=7,
            base_sequence=2_147_483_640,
            record_count=10,
        )
        == header
    )
    assert (68, 0x0102030405060711) == (header.size_in_bytes, header.last_offset)


def test_the_default_header_is_that_of_a_plain_batch():
    """By default, a header is that of a plain batch at the start of a log."""
    target = bytearray(RECORD_BATCH_OVERHEAD)
    write_header(
        target,
        b"",
        compression=CompressionType.NONE,
        base_timestamp=1,
        max_timestamp=2,
        producer_id=3,
        producer_epoch=4,
        base_sequence=5,
        record_count=6,
    )
    header = decode_header(target)
    assert (0, -1, 0) == (header.base_offset, header.partition_leader_epoch, header.attributes)


@pytest.mark.parametrize("control", [{}, {"control": False}, {"control": True}])
def test_a_transactional_batch_is_a_control_batch_only_on_request(control):
    """A transactional batch is a control batch only on request."""
    header = validate_record_batch(
        uncompressed_transactional_batch(
            b"records",
            timestamp_ms=1,
            producer_id=2,
            producer_epoch=3,
            base_sequence=4,
            record_count=5,
            **control,
        )
    )
    assert (True, bool(control.get("control"))) == (header.is_transactional, header.is_control)
    assert CompressionType.NONE is header.compression
    assert (1, 1, 2, 3, 4, 5) == (
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )


@pytest.mark.parametrize("compression", CompressionType)
@pytest.mark.parametrize("flag", ["transactional", "log_append_time", "control", None])
def test_attributes_do_not_affect_each_other(compression, flag):
    """Codec and flags share a field without affecting each other."""
    changes = {"transactional": False, "compression": compression} | ({flag: True} if flag else {})
    header = decode_header(written(**changes))
    assert compression is header.compression
    assert [flag == "transactional", flag == "log_append_time", flag == "control", False] == [
        header.is_transactional,
        header.log_append_time,
        header.is_control,
        header.has_delete_horizon,
    ]


def test_the_delete_horizon_is_a_separate_flag():
    """The log cleaner's delete horizon is a separate flag."""
    assert decode_header(plain_batch(attributes=0x40)).has_delete_horizon


@pytest.mark.parametrize(
    ("base_sequence", "count", "expected"),
    [
        (-1, 5, -1),
        (0, 1, 0),
        (5, 3, 7),
        (2**31 - 1, 1, 2**31 - 1),
        (2**31 - 1, 2, 0),
        (2**31 - 2, 5, 2),
    ],
)
def test_sequence_numbers_wrap_to_zero(base_sequence, count, expected):
    """Sequence 2^31 - 1 is followed by 0 (DefaultRecordBatch.incrementSequence)."""
    batch = written(base_sequence=base_sequence, record_count=count)
    assert expected == decode_header(batch).last_sequence


def test_a_header_can_be_written_in_front_of_its_records():
    """A header can be written in front of its records, which avoids a copy."""
    buffer = bytearray(RECORD_BATCH_OVERHEAD + 7 + 3)
    buffer[RECORD_BATCH_OVERHEAD : RECORD_BATCH_OVERHEAD + 7] = b"payload"
    view = memoryview(buffer)
    write_header(view, view[RECORD_BATCH_OVERHEAD : RECORD_BATCH_OVERHEAD + 7], **FIELDS)
    assert written() + b"\0\0\0" == bytes(buffer)


def test_the_broker_can_change_base_offset_and_leader_epoch():
    """Base offset and leader epoch can be changed without affecting the checksum."""
    batch = bytearray(written())
    struct.pack_into(">q", batch, 0, 99)
    struct.pack_into(">i", batch, 12, 6)
    header = validate_record_batch(batch)
    assert (99, 6) == (header.base_offset, header.partition_leader_epoch)


@pytest.mark.parametrize("size", range(RECORD_BATCH_OVERHEAD))
def test_a_truncated_header_is_corrupt(size):
    """A truncated header is corrupt."""
    with pytest.raises(CorruptRecordError, match="has 61 bytes"):
        decode_header(written()[:size])


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        (plain_batch(magic=1), "format 1, not 2"),
        (plain_batch(magic=3), "format 3, not 2"),
        (plain_batch(magic=-1), "format -1"),
        (plain_batch(batch_length=48), "batch length 48"),
        (plain_batch(batch_length=-1), "batch length -1"),
        (plain_batch(attributes=5), "unknown compression 5"),
        (plain_batch(attributes=7), "unknown compression 7"),
        (plain_batch(attributes=0x35), "unknown compression 5"),
        (plain_batch(record_count=-1), "-1 records"),
        (plain_batch(2, record_count=3), "3 records do not fit"),
        (plain_batch(2, last_offset_delta=-1), "2 records do not fit"),
    ],
)
def test_an_inconsistent_header_is_corrupt(batch, complaint):
    """A header with an unknown format or codec, or inconsistent numbers, is corrupt."""
    with pytest.raises(CorruptRecordError, match=complaint):
        decode_header(batch)


def test_a_batch_may_be_empty():
    """A batch may have no records, since compaction may remove them all."""
    assert 0 == validate_record_batch(plain_batch(5, record_count=0, payload=b"")).record_count


@pytest.mark.parametrize("position", range(21, 68))
def test_the_checksum_covers_everything_from_the_attributes_on(position):
    """A changed bit anywhere from the attributes on is detected."""
    batch = bytearray(written(record_count=1, compression=CompressionType.NONE))
    batch[position] ^= 0x20
    with pytest.raises(CorruptRecordError):
        validate_record_batch(batch)


@pytest.mark.parametrize("crc", [0, 1, 2**32 - 1])
def test_a_wrong_checksum_is_reported_with_both_values(crc):
    """The error for a wrong checksum names both checksums."""
    with pytest.raises(CorruptRecordError, match=f"checksum {crc:#010x}, its content 0x"):
        validate_record_batch(plain_batch(crc=crc))


@pytest.mark.parametrize("batch", [written() + b"\0", written()[:-1]])
def test_the_length_must_equal_that_of_the_buffer(batch):
    """A truncated batch, or one with extra bytes, is not valid."""
    with pytest.raises(CorruptRecordError, match="the record batch has 68 bytes, its buffer"):
        validate_record_batch(batch)


def test_batches_are_split_without_a_copy():
    """Each batch is a view of the buffer."""
    first, second = plain_batch(2), plain_batch(1, base_offset=2)
    buffer = bytearray(first + second)
    batches = list(split_record_batches(buffer))
    assert [first, second] == [bytes(batch) for batch in batches]
    buffer[-1] ^= 0xFF
    assert buffer[-1] == batches[1][-1]


@pytest.mark.parametrize("size", range(len(plain_batch())))
def test_a_truncated_last_batch_is_skipped(size):
    """A batch that is truncated by the limit of a Fetch response is left out."""
    whole, partial = plain_batch(2), plain_batch()[:size]
    assert [whole] == [bytes(batch) for batch in split_record_batches(whole + partial)]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (plain_batch(magic=0), "format 0"),
        (plain_batch(magic=3), "format 3"),
        (plain_batch(batch_length=48), "batch length 48"),
        (plain_batch(batch_length=-13), "batch length -13"),
    ],
)
def test_batches_before_an_invalid_one_are_returned(wrong, complaint):
    """The batches before an invalid one are still returned."""
    batches = split_record_batches(plain_batch(2) + wrong)
    assert plain_batch(2) == bytes(next(batches))
    with pytest.raises(CorruptRecordError, match=complaint):
        next(batches)


def test_a_header_is_immutable():
    """A decoded header is immutable."""
    with pytest.raises(AttributeError):
        decode_header(written()).base_offset = 1


# --- records

CONTENT = st.none() | st.binary(max_size=200)
NOW_MS = 2**41
HEADERS = st.lists(st.tuples(st.text(max_size=70), CONTENT), max_size=3)


RECORDS = st.lists(st.tuples(CONTENT, CONTENT, HEADERS, st.integers(-(2**40), 2**40)), min_size=1)


@given(RECORDS)
def test_encoded_records_are_decoded_again(records):
    """The decoder finds every field of every encoded record."""
    encoded = [
        encode_record(key, value, offset_delta=number, timestamp_delta=delta, headers=headers)
        for number, (key, value, headers, delta) in enumerate(records)
    ]
    batch = uncompressed_transactional_batch(
        b"".join(encoded),
        timestamp_ms=NOW_MS,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        record_count=len(records),
    )
    decoded = [
        (each.key, each.value, [tuple(header) for header in each.headers], each.timestamp - NOW_MS)
        for each in decode_records(bytes(batch))
    ]
    assert records == decoded
