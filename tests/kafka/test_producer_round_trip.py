"""Other clients read what the producer writes to a real Kafka, record for record."""

from __future__ import annotations

import itertools
import time

import pyarrow as pa
import pytest

from spark_kafka_sink.model import PartitionAcks, TopicPartition
from tests.support.kafka.readers import READERS, read_with_confluent
from tests.support.producer.producing import produce
from tests.support.record.rows import Row, arrow_batch, batches_of, expected_records, mixed_rows

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def now_ms():
    return int(time.time() * 1000)


@pytest.fixture(params=READERS)
def read(request):
    return READERS[request.param]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_kind_of_row_is_read_back(kafka, create_topic, read, codec):
    """With each codec, null, empty and long keys, values and headers arrive unchanged."""
    rows = mixed_rows(3000, PARTITIONS, now_ms=now_ms())
    topic = create_topic(PARTITIONS)
    produce(kafka, batches_of(rows, 700), topic=topic, **{"compression.type": codec})
    assert expected_records(rows, topic, PARTITIONS) == read(kafka.bootstrap_servers, topic)


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 1), ("gzip", 9), ("lz4", 1), ("lz4", 17), ("zstd", -5), ("zstd", 19)],
)
def test_every_compression_level_is_read_back(kafka_4, read, codec, level):
    """Batches compressed with each codec's lowest and highest levels are read by other clients."""
    rows = mixed_rows(500, 1, now_ms=now_ms())
    topic = kafka_4.create_topic()
    settings = {"compression.type": codec, f"compression.{codec}.level": level}
    produce(kafka_4, batches_of(rows, 500), topic=topic, **settings)
    assert expected_records(rows, topic, 1) == read(kafka_4.bootstrap_servers, topic)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(4),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_every_arrow_type_of_key_and_value_is_read_back(kafka_4, kind):
    """Strings and binaries of every Arrow layout arrive as the same bytes."""
    texts = [b"abcd", b"0123", None, b"wxyz"] * 50
    rows = [Row(key=b"key!", value=text, timestamp=now_ms() * 1000) for text in texts]
    topic = kafka_4.create_topic(PARTITIONS)
    batch = arrow_batch(
        rows, columns=("key", "value", "timestamp"), types={"key": kind, "value": kind}
    )
    produce(kafka_4, [batch.slice(3, 100), batch.slice(103)], topic=topic)
    expected = expected_records(rows[3:], topic, PARTITIONS)
    assert expected == read_with_confluent(kafka_4.bootstrap_servers, topic)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_timestamps_of_every_unit_are_floored_to_milliseconds(kafka_4, unit, zone):
    """A timestamp of any unit and time zone is the same instant in Kafka, in milliseconds."""
    whole_seconds = now_ms() // 1000 * 1000
    rows = [
        Row(key=b"k", value=b"v", timestamp=(whole_seconds - i * 1000) * 1000) for i in range(9)
    ]
    topic = kafka_4.create_topic()
    batch = arrow_batch(
        rows,
        columns=("key", "value", "timestamp"),
        types={"timestamp": pa.timestamp(unit, tz=zone)},
    )
    produce(kafka_4, [batch], topic=topic)
    expected = expected_records(rows, topic, 1)
    assert expected == read_with_confluent(kafka_4.bootstrap_servers, topic)


def test_a_row_without_a_timestamp_gets_the_time_of_writing(kafka, create_topic):
    """With a null timestamp or without the column, a record gets the time of appending."""
    topic = create_topic()
    before = now_ms()
    produce(kafka, [arrow_batch([Row(key=b"k", value=b"null")])], topic=topic)
    produce(kafka, [pa.record_batch({"value": pa.array(["missing"])})], topic=topic)
    after = now_ms()
    first, second = read_with_confluent(kafka.bootstrap_servers, topic)
    assert before <= first.timestamp <= second.timestamp <= after


def test_each_row_can_name_its_topic(kafka, create_topic):
    """Rows of one batch go to the topics in their column, in order within each partition."""
    topics = [create_topic(PARTITIONS) for _ in range(3)]
    rows = [
        Row(key=b"%d" % i, value=b"%d" % i, timestamp=now_ms() * 1000, topic=topics[i * i % 3])
        for i in range(1000)
    ]
    columns = ("key", "value", "timestamp", "topic")
    produce(kafka, batches_of(rows, 300, columns=columns), topic=None)
    for topic in topics:
        own_rows = [row for row in rows if row.topic == topic]
        expected = expected_records(own_rows, topic, PARTITIONS)
        assert expected == read_with_confluent(kafka.bootstrap_servers, topic)


def test_rows_without_a_key_are_spread_over_all_partitions(kafka, create_topic):
    """Rows without key and partition are spread over all partitions, in order within each."""
    topic = create_topic(PARTITIONS)
    values = [b"%06d" % i for i in range(20_000)]
    batches = [
        pa.record_batch({"value": pa.array(values[start : start + 5000], pa.binary())})
        for start in range(0, len(values), 5000)
    ]
    produce(kafka, batches, topic=topic)
    by_partition = {partition: [] for partition in range(PARTITIONS)}
    for record in read_with_confluent(kafka.bootstrap_servers, topic):
        by_partition[record.partition].append(record.value)
    assert all(by_partition.values())
    assert all(read == sorted(read) for read in by_partition.values())
    assert values == sorted(itertools.chain(*by_partition.values()))


def test_a_batch_too_large_for_its_topic_is_split(kafka, create_topic):
    """A batch that exceeds the topic's max.message.bytes is split until the parts fit."""
    topic = create_topic(config={"max.message.bytes": "5000"})
    rows = mixed_rows(300, 1, now_ms=now_ms())
    rows = [row for row in rows if len(row.key or b"") + len(row.value or b"") < 3000]
    produce(kafka, batches_of(rows, 300), topic=topic)
    expected = expected_records(rows, topic, 1)
    assert expected == read_with_confluent(kafka.bootstrap_servers, topic)


def test_the_acknowledgements_agree_with_the_log(kafka, create_topic):
    """The acknowledgements agree with the log in offsets, number of records and bytes."""
    topic = create_topic(2)
    rows = [Row(key=b"k", value=b"v", partition=1)] * 250
    earlier = produce(kafka, [arrow_batch(rows)], topic=topic)
    later = produce(kafka, [arrow_batch(rows)], topic=topic)
    assert [TopicPartition(topic, 1)] == list(earlier) == list(later)
    (first,), (second,) = earlier.values(), later.values()
    expected = PartitionAcks(first_offset=0, last_offset=249, records=250, bytes=first.bytes)
    assert expected == first
    assert (250, 499) == (second.first_offset, second.last_offset)


def test_log_append_time_is_reported(kafka, create_topic):
    """The acknowledgement says whether the topic has replaced timestamps with LogAppendTime."""
    topic = create_topic(config={"message.timestamp.type": "LogAppendTime"})
    (acks,) = produce(kafka, [arrow_batch([Row(value=b"v", timestamp=1000)])], topic=topic).values()
    assert acks.log_append_time
    (record,) = read_with_confluent(kafka.bootstrap_servers, topic)
    assert abs(record.timestamp - now_ms()) < 60_000
