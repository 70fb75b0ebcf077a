"""The levels of acks, and records that a real Kafka rejects."""

from __future__ import annotations

import time

import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.model import UNKNOWN_OFFSET
from tests.support.kafka.real_kafka import wait_until
from tests.support.producer.producing import append_all, produce, producer_for
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.record.rows import Row, arrow_batch
from tests.support.record.text_rows import numbered_batches

ROWS = 50_000


@pytest.mark.parametrize("acks", ["all", "1"])
def test_acknowledged_rows_are_readable(kafka, create_topic, acks):
    """With acks=1 and acks=all, every row is readable when flush() returns."""
    topic = create_topic(3)
    settings = {"acks": acks, "enable.idempotence": acks == "all"}
    acknowledged = produce(kafka, numbered_batches(ROWS), topic=topic, **settings)
    assert RowCheck() == check_rows(read_numbers(kafka.bootstrap_servers, topic), ROWS)
    assert ROWS == sum(partition.records for partition in acknowledged.values())


def test_without_acknowledgements_rows_arrive_and_offsets_are_unknown(kafka, create_topic):
    """With acks=0, a healthy broker receives every row, and the reported offsets are unknown."""
    topic = create_topic(3)
    settings = {"acks": "0", "enable.idempotence": False}
    acknowledged = produce(kafka, numbered_batches(ROWS), topic=topic, **settings)
    assert {(UNKNOWN_OFFSET, UNKNOWN_OFFSET)} == {
        (partition.first_offset, partition.last_offset) for partition in acknowledged.values()
    }
    # Nothing signals that the broker has handled the last request.
    wait_until(
        lambda: check_rows(read_numbers(kafka.bootstrap_servers, topic), ROWS) == RowCheck(),
        seconds=120,
        what="rows sent without acknowledgement",
    )


def test_without_idempotence_rows_arrive_once_from_a_healthy_broker(kafka, create_topic):
    """With enable.idempotence=false, every row is written once, in order, if nothing fails."""
    topic = create_topic(3)
    produce(kafka, numbered_batches(ROWS), topic=topic, **{"enable.idempotence": False})
    assert RowCheck() == check_rows(read_numbers(kafka.bootstrap_servers, topic), ROWS)


def test_a_compacted_topic_rejects_a_row_without_a_key(kafka, create_topic):
    """The error for a null key in a compacted topic names topic, partition and error code."""
    topic = create_topic(config={"cleanup.policy": "compact"})
    rows = [Row(key=b"k", value=b"v"), Row(value=b"no key", partition=0)]
    with producer_for(kafka) as producer:
        append_all(producer, [arrow_batch(rows)], topic=topic)
        with pytest.raises(DeliveryError, match=rf"{topic}-0.*INVALID_RECORD"):
            producer.flush()
        producer.close(timeout=0)


def test_a_timestamp_far_in_the_future_is_rejected_by_kafka_4(kafka_4):
    """A timestamp over an hour in the future, the broker's limit, fails with INVALID_TIMESTAMP."""
    topic = kafka_4.create_topic()
    tomorrow = int((time.time() + 86_400) * 1_000_000)
    with producer_for(kafka_4) as producer:
        append_all(producer, [arrow_batch([Row(value=b"v", timestamp=tomorrow)])], topic=topic)
        with pytest.raises(DeliveryError, match="INVALID_TIMESTAMP"):
            producer.flush()
        producer.close(timeout=0)
