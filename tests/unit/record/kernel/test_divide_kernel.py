"""Dividing the records of a batch into two batches."""

from __future__ import annotations

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.default_record import PayloadPart
from spark_kafka_sink.record.kernel import divide_kernel
from spark_kafka_sink.record.kernel.divide_kernel import divide_payload
from tests.support.record.kernel_batches import (
    GUARD,
    GUARD_BYTES,
    RECORDS,
    Written,
    columns_of,
    write_records,
)
from tests.support.record.plain_batches import PlainRecord, varint


def divide(written: Written, taken):
    return divide_payload(
        written.payload,
        record_count=written.record_count,
        base_timestamp=written.base_timestamp,
        taken=taken,
    )


def check(records, is_taken):
    """Compare each part with a batch that was written from its records alone."""
    taken = [index for index, is_one in enumerate(is_taken) if is_one]
    parts = divide(write_records(columns_of(records)), taken)
    for part, wanted in zip(parts, (True, False), strict=True):
        chosen = [record for record, has in zip(records, is_taken, strict=True) if has is wanted]
        assert len(chosen) == part.record_count
        if chosen:
            expected = write_records(columns_of(chosen))
            found = part._replace(payload=bytes(part.payload))
            assert PayloadPart(expected.payload, len(expected.payload), *expected[1:]) == found
        else:
            assert (b"", 0) == (bytes(part.payload), part.uncompressed_bytes)


@given(RECORDS, st.data())
def test_each_part_is_the_batch_of_its_records(records, data):
    """It has the bytes, the timestamps and the number of a batch without the other records."""
    count = len(records)
    check(records, data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))


def test_any_records_of_a_few_can_be_taken():
    """Each combination of four is in one part, and the others in the other, in order."""
    rows = [PlainRecord(value=bytes([n]), timestamp=[3, 1, 4, 1][n]) for n in range(4)]
    for mask in product((True, False), repeat=4):
        check(rows, mask)


def test_records_may_grow():
    """A part has room for offsets and timestamps that take more bytes than in their batch."""
    body = b"\0" + varint(0) + varint(0)
    far = b"\0" + varint(2**62) + varint(0) + bytes(58)
    records = varint(len(far)) + far + (varint(len(body)) + body) * 20_000
    with patch.object(divide_kernel.np, "empty", guarded):
        taken, rest = divide_payload(records, record_count=20_001, base_timestamp=5, taken=())
    assert (0, 20_001, 2**62 + 5) == (taken.record_count, rest.record_count, rest.base_timestamp)
    assert rest.uncompressed_bytes > 2 * len(records)


def guarded(size, kind):
    """Return memory of this size in front of a guard, which is checked at once when it is read."""
    return _Guarded(np.full(size + GUARD_BYTES, GUARD, kind))


class _Guarded:
    def __init__(self, whole):
        self.__array_interface__ = whole.__array_interface__
        self._whole = whole

    def __getitem__(self, part):
        assert (self._whole[-GUARD_BYTES:] == GUARD).all()
        return self._whole[:-GUARD_BYTES][part]


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_truncated_payload_is_corrupt(cut):
    """A payload that ends within a record, or lacks one, is corrupt."""
    written = write_records(columns_of([PlainRecord()] * 3))
    assert 24 == len(written.payload)
    with pytest.raises(CorruptRecordError, match=f"^record {(24 - cut) // 8} of a batch of 3 is"):
        divide(written._replace(payload=written.payload[:-cut]), {0})


def test_bytes_after_the_last_record_are_corrupt():
    """A payload with more records than stated is corrupt."""
    written = write_records(columns_of([PlainRecord()] * 3))
    with pytest.raises(CorruptRecordError, match=r"^bytes follow the last of 2 records$"):
        divide(written._replace(record_count=2), {0})


@pytest.mark.parametrize(
    "record",
    [
        varint(-1),
        varint(0),
        varint(1) + b"\0",
        varint(2) + b"\0" + varint(0),
        varint(2) + b"\0\x80" + varint(0),
        varint(3) + b"\0\0\x80" + varint(0),
        b"\x80" * 6,
        varint(20) + b"\0" + b"\xff" * 11 + bytes(8),
        varint(20) + b"\0\0" + b"\xff" * 6 + bytes(12),
    ],
)
def test_a_malformed_record_is_corrupt(record):
    """Its numbers must be there, within the record, and not too long."""
    with pytest.raises(CorruptRecordError, match=r"^record 0 of a batch of 1 is malformed$"):
        divide_payload(record, record_count=1, base_timestamp=0, taken={0})


@given(st.binary(max_size=60), st.integers(0, 6), st.sets(st.integers(0, 5)))
def test_any_bytes_are_divided_or_corrupt(payload, count, taken):
    """Nothing is read or written outside of the memory, whatever the payload says."""
    with patch.object(divide_kernel.np, "empty", guarded):
        try:
            parts = divide_payload(
                payload,
                record_count=count,
                base_timestamp=0,
                taken=[index for index in taken if index < count],
            )
        except CorruptRecordError:
            return
    assert count == sum(part.record_count for part in parts)
