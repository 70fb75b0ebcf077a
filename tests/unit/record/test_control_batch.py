"""Transaction markers, compared with those that Kafka writes."""

from __future__ import annotations

import pytest

from spark_kafka_sink.record.decode import decode_control_record, decode_record_batch
from spark_kafka_sink.record.record_batch import ControlRecordType, transaction_marker

#: The output of MemoryRecords.withEndTransactionMarker in Kafka 4.3.1, with partition leader epoch
#: -1, and with the same producer, coordinator epoch and time as below.
JAVA = {
    ControlRecordType.COMMIT: (
        "000000000000000000000042ffffffff0288f9e13a0030000000000000018bcfe5687b0000018bcf"
        "e5687b0000001cbe991a140007ffffffff000000012000000008000000010c00000000002a00"
    ),
    ControlRecordType.ABORT: (
        "000000000000000000000042ffffffff027cc737720030000000000000018bcfe5687b0000018bcf"
        "e5687b0000001cbe991a140007ffffffff000000012000000008000000000c00000000002a00"
    ),
}


def marker(marker_type):
    return transaction_marker(
        marker_type,
        producer_id=123_456_789_012,
        producer_epoch=7,
        coordinator_epoch=42,
        timestamp_ms=1_700_000_000_123,
    )


@pytest.mark.parametrize("marker_type", list(ControlRecordType))
def test_markers_equal_javas(marker_type):
    """Markers are byte for byte what Kafka's broker appends."""
    assert JAVA[marker_type] == marker(marker_type).hex()


@pytest.mark.parametrize("marker_type", list(ControlRecordType))
def test_markers_round_trip(marker_type):
    """A marker decodes to a control batch whose only record tells how the transaction ended."""
    batch = decode_record_batch(marker(marker_type))

    assert (True, True, 123_456_789_012, 7, -1, 1) == (
        batch.header.is_control,
        batch.header.is_transactional,
        batch.header.producer_id,
        batch.header.producer_epoch,
        batch.header.base_sequence,
        batch.header.record_count,
    )
    (record,) = batch.records
    assert (marker_type, 42, 1_700_000_000_123) == (
        decode_control_record(record).type,
        decode_control_record(record).coordinator_epoch,
        record.timestamp,
    )
