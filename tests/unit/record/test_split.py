"""Splitting a batch into smaller batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.default_record import split_payload
from tests.support.record.kernel_batches import RECORDS, Written, columns_of, write_records
from tests.support.record.plain_batches import PlainRecord


def split(written: Written, max_bytes: int) -> list[Written]:
    parts = split_payload(
        memoryview(written.payload),
        record_count=written.record_count,
        base_timestamp=written.base_timestamp,
        max_bytes=max_bytes,
    )
    assert [len(part.payload) for part in parts] == [part.uncompressed_bytes for part in parts]
    return [
        Written(bytes(part.payload), part.record_count, part.base_timestamp, part.max_timestamp)
        for part in parts
    ]


def contents(written: Written) -> list[tuple]:
    batch = decode_record_batch(written.batch(CompressionType.NONE))
    assert list(range(written.record_count)) == [record.offset for record in batch.records]
    assert batch.header.max_timestamp == max(record.timestamp for record in batch.records)
    assert batch.header.base_timestamp == batch.records[0].timestamp
    return [record[1:] for record in batch.records]


@given(RECORDS, st.integers(1, 1000))
def test_the_parts_contain_the_same_records(records, max_bytes):
    """The parts contain the same records in order, each with at most the maximum size."""
    written = write_records(columns_of(records))
    parts = split(written, max_bytes)
    assert contents(written) == [record for part in parts for record in contents(part)]
    assert all(len(part.payload) <= max_bytes or part.record_count == 1 for part in parts)


@given(RECORDS)
def test_the_number_of_parts_is_minimal(records):
    """A part ends only if the next record would make it too large."""
    written = write_records(columns_of(records))
    first, *rest = split(written, 500)
    for part in rest:
        (alone, *_) = split(part, 1)
        # In the previous part the record may be up to 13 bytes larger, because of its deltas.
        assert len(first.payload) + len(alone.payload) + 13 > 500
        first = part


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [(209, [1] * 6), (210, [2, 2, 2]), (314, [2, 2, 2]), (315, [3, 3]), (10_000, [6])],
)
def test_a_part_may_have_the_maximum_size(max_bytes, expected):
    """A part may be exactly as large as the maximum."""
    written = write_records(columns_of([PlainRecord(b"v" * 96)] * 6))
    assert 630 == len(written.payload)
    assert expected == [part.record_count for part in split(written, max_bytes)]


def test_a_small_batch_is_unchanged():
    """A batch that is small enough is not changed."""
    written = write_records(columns_of([PlainRecord(timestamp=5), PlainRecord(timestamp=3)]))
    (part,) = split(written, len(written.payload))
    assert written == part


def test_a_payload_without_records_has_no_parts():
    """A payload without records has no parts."""
    assert [] == split_payload(b"", record_count=0, base_timestamp=0, max_bytes=10)


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_truncated_payload_is_corrupt(cut):
    """A payload that ends within a record is corrupt."""
    written = write_records(columns_of([PlainRecord()] * 3))
    with pytest.raises(CorruptRecordError, match="a record of 7 bytes does not fit"):
        split(written._replace(payload=written.payload[:-cut]), 10)


def test_bytes_after_the_last_record_are_corrupt():
    """A payload with more records than stated is corrupt."""
    written = write_records(columns_of([PlainRecord()] * 3))
    third = len(split(written, 1)[2].payload)
    with pytest.raises(CorruptRecordError, match=f"^{third} bytes after the last record$"):
        split(written._replace(record_count=2), 10)


def test_an_empty_record_is_corrupt():
    """An empty record is corrupt, since it has no timestamp."""
    with pytest.raises(CorruptRecordError, match="a variable-length number is truncated"):
        split_payload(b"\0", record_count=1, base_timestamp=0, max_bytes=10)


def test_a_negative_length_is_corrupt():
    """A record of negative length is corrupt."""
    written = write_records(columns_of([PlainRecord()]))
    with pytest.raises(CorruptRecordError, match="does not fit"):
        split(written._replace(payload=b"\x01" + written.payload[1:]), 10)
