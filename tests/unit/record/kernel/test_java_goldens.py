"""Batches and partitions from Kafka's own Java classes; see golden/RecordGoldens.java."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spark_kafka_sink.record.columns import BytesColumn
from spark_kafka_sink.record.compression import CompressionType, Compressor, decompress
from spark_kafka_sink.record.decode import (
    ControlRecord,
    Header,
    Record,
    decode_control_record,
    decode_record_batch,
)
from spark_kafka_sink.record.kernel.kernel import SlotStatus, assign_slots
from spark_kafka_sink.record.kernel.kernel_hashes import murmur2
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    ControlRecordType,
    decode_header,
)
from tests.support.record.kernel_batches import columns_of, write_records
from tests.support.record.plain_batches import PlainRecord
from tests.support.record.record_columns import bytes_column, columns

GOLDEN = Path(__file__).parents[1] / "golden"
BATCHES = json.loads((GOLDEN / "java_batches.json").read_text())
PARTITIONS = json.loads((GOLDEN / "java_partitions.json").read_text())
KEYS = [bytes.fromhex(row["key"]) for row in PARTITIONS["keys"]]

#: The producer of Java's batches.
PRODUCER = {"producer_id": 4711, "producer_epoch": 7, "base_sequence": 2_147_483_600}


def name_of(batch: dict) -> str:
    return f"{batch['kind']}-{batch['compression']}"


def unhex(described) -> bytes | None:
    match described:
        case None:
            return None
        case str():
            return bytes.fromhex(described)
        case repeated, times:
            return bytes.fromhex(repeated) * times


def records_of(batch: dict) -> list[PlainRecord]:
    return [
        PlainRecord(
            value=unhex(record["value"]),
            key=unhex(record["key"]),
            timestamp=record["timestamp"],
            headers=tuple((unhex(key), unhex(value)) for key, value in record["headers"]),
        )
        for record in batch["records"]
    ]


from_producers = pytest.mark.parametrize(
    "golden",
    [b for b in BATCHES if b["kind"] not in ("log append time", "commit", "abort")],
    ids=name_of,
)


@from_producers
def test_java_batches_are_decoded(golden):
    """Every record that Java wrote is decoded, with every codec."""
    batch = decode_record_batch(bytes.fromhex(golden["batch"]))
    expected = [
        Record(
            offset,
            record.timestamp,
            record.key,
            record.value,
            tuple(Header(key.decode(), value) for key, value in record.headers),
        )
        for offset, record in enumerate(records_of(golden))
    ]
    assert expected == batch.records
    assert CompressionType.from_name(golden["compression"]) is batch.header.compression
    assert batch.header.is_transactional


@from_producers
def test_records_and_batches_equal_javas(golden):
    """Our records, and our uncompressed batches, are byte for byte equal to Java's."""
    compression = CompressionType.from_name(golden["compression"])
    theirs = bytes.fromhex(golden["batch"])
    written = write_records(columns_of(records_of(golden)))
    payload = decompress(compression, theirs[RECORD_BATCH_OVERHEAD:], 1 << 20)
    assert bytes(payload) == written.payload
    ours = written.batch(compression, transactional=True, **PRODUCER)
    if compression is CompressionType.NONE:
        assert theirs == ours
    their_header, our_header = decode_header(theirs), decode_header(ours)
    for field in ("last_offset_delta", "base_timestamp", "max_timestamp", "attributes"):
        assert getattr(their_header, field) == getattr(our_header, field)
    assert decode_record_batch(theirs).records == decode_record_batch(ours).records


def test_a_log_append_time_of_java_is_decoded():
    """The broker's timestamp replaces those of the records."""
    (golden,) = [b for b in BATCHES if b["kind"] == "log append time"]
    batch = decode_record_batch(bytes.fromhex(golden["batch"]))
    assert {1_800_000_000_000} == {record.timestamp for record in batch.records}
    assert [1000, 1001, 1002, 1003, 1004] == [record.offset for record in batch.records]
    assert (True, 3) == (batch.header.log_append_time, batch.header.partition_leader_epoch)


@pytest.mark.parametrize("kind", ControlRecordType)
def test_transaction_markers_of_java_are_decoded(kind):
    """Markers that Java's broker writes are decoded."""
    (golden,) = [b for b in BATCHES if b["kind"] == kind.name.lower()]
    batch = decode_record_batch(bytes.fromhex(golden["batch"]))
    (record,) = batch.records
    assert batch.header.is_control
    assert (77, ControlRecord(kind, 12)) == (record.offset, decode_control_record(record))


def test_snappy_blocks_equal_those_of_snappy_java():
    """Snappy payloads have the same header and the same number of blocks as snappy-java's."""
    (golden,) = [b for b in BATCHES if name_of(b) == "several blocks-snappy"]
    theirs = bytes.fromhex(golden["batch"])[RECORD_BATCH_OVERHEAD:]
    payload = decompress(CompressionType.SNAPPY, theirs, 1 << 20)
    ours = Compressor(CompressionType.SNAPPY).compress(payload)
    assert theirs[:16] == ours[:16]
    assert _block_count(theirs) == _block_count(ours) == -(-len(payload) // 32_768)


def _block_count(stream) -> int:
    count, position = 0, 16
    while position < len(stream):
        position += 4 + int.from_bytes(stream[position : position + 4], "big")
        count += 1
    return count


@pytest.mark.parametrize("row", PARTITIONS["keys"], ids=lambda row: row["key"] or "empty")
def test_murmur2_equals_javas(row):
    """Keys of every length have the hash of Utils.murmur2, including negative ones."""
    assert row["murmur2"] == murmur2(bytes.fromhex(row["key"]))


@pytest.mark.parametrize("index", range(len(PARTITIONS["partition_counts"])))
@pytest.mark.parametrize("slice_offset", [0, 1, 3])
def test_keys_are_placed_as_in_java(index, slice_offset):
    """Keys get the partition of BuiltInPartitioner.partitionForKey, at any position in memory."""
    count = PARTITIONS["partition_counts"][index]
    moved = bytes_column([b"x" * slice_offset, *KEYS])
    made = columns([b""] * len(KEYS), keys=KEYS)
    sliced = BytesColumn(np.ascontiguousarray(moved.offsets[1:]), moved.data)
    made = type(made)(
        num_rows=len(KEYS),
        key=sliced,
        value=made.value,
        topics=made.topics,
        topic_index=made.topic_index,
        partition=made.partition,
        timestamp=made.timestamp,
    )
    result = assign_slots(made, np.array([50], np.int32), np.array([count], np.int32))
    assert SlotStatus.ALL_ASSIGNED is result.status
    assert [50 + row["partitions"][index] for row in PARTITIONS["keys"]] == list(result.row_slots)
