"""Batches from our kernels, read by independent clients."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from spark_kafka_sink.record.compression import CompressionType
from tests.support.record.kernel_batches import columns_of, write_records
from tests.support.record.plain_batches import PlainRecord

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords as KafkaPythonRecords

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType
BYTES = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        PlainRecord,
        value=BYTES,
        key=BYTES,
        timestamp=st.integers(0, 253_402_300_799_999),
        headers=st.lists(st.tuples(st.text(max_size=5).map(str.encode), BYTES), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=200,
)


def fields(record) -> tuple:
    return (
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        [(key, value) for key, value in record.headers],
    )


def expected(records: list[PlainRecord]) -> list[tuple]:
    return [
        (
            offset,
            record.timestamp,
            record.key,
            record.value,
            [(key.decode(), value) for key, value in record.headers],
        )
        for offset, record in enumerate(records)
    ]


@pytest.mark.parametrize("compression", CompressionType, ids=str)
@given(records=RECORDS)
def test_aiokafka_reads_our_batches(compression, records):
    """In aiokafka, every record is read, and the checksum is accepted."""
    batch = write_records(columns_of(records)).batch(compression)
    reader = AiokafkaRecords(batch)
    read = reader.next_batch()
    assert read.validate_crc()
    assert expected(records) == [fields(record) for record in read]
    assert not reader.has_next()


# kafka-python needs another library for snappy.
@pytest.mark.parametrize("compression", [NONE, GZIP, LZ4, ZSTD], ids=str)
@given(records=RECORDS)
def test_kafka_python_reads_our_batches(compression, records):
    """In kafka-python, every record is read, and the checksum is accepted."""
    batch = write_records(columns_of(records)).batch(compression)
    reader = KafkaPythonRecords(batch)
    read = reader.next_batch()
    assert read.validate_crc()
    assert expected(records) == [fields(record) for record in read]
    assert not reader.has_next()


@given(records=RECORDS)
def test_kio_reads_our_batches(records):
    """In kio, which truncates timestamps to seconds and has no codecs, every record is read."""
    batch = write_records(columns_of(records)).batch(
        producer_id=4711, producer_epoch=7, base_sequence=5
    )
    read, size = read_batch(batch, 0)
    assert len(batch) == size
    assert (4711, 7, 5) == (read.producer_id, read.producer_epoch, read.base_sequence)
    assert [
        (offset, record.timestamp // 1000, record.key, record.value, list(record.headers))
        for offset, record in enumerate(records)
    ] == [
        (
            record.offset,
            int(record.timestamp.timestamp()),
            record.key,
            record.value,
            [(header.key, header.value) for header in record.headers],
        )
        for record in read.records
    ]
