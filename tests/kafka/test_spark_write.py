"""Spark writes DataFrames to a real Kafka, and other clients read them record for record."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from tests.support.kafka.readers import READERS, read_with_confluent
from tests.support.record.rows import Row, expected_records, mixed_rows

PARTITIONS = 3
SCHEMA = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "timestamp timestamp, partition int, topic string"
)


def now_ms():
    return int(time.time() * 1000)


def data_frame(spark, rows, columns=("key", "value", "headers", "timestamp", "partition")):
    """Return a DataFrame with one Spark partition, so that rows and records have the same order."""
    data = [
        row._replace(timestamp=datetime.fromtimestamp(row.timestamp / 1e6, UTC)) for row in rows
    ]
    ordered = [
        (row.key, row.value, row.headers, row.timestamp, row.partition, row.topic) for row in data
    ]
    return spark.createDataFrame(ordered, SCHEMA).select(*columns).coalesce(1)


def save(df, kafka, **options):
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers} | options
    df.write.format("pykafka").mode("append").options(**options).save()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_kind_of_row_is_read_back(kafka, create_topic, spark, codec):
    """Every kind of row arrives unchanged with each codec, according to both readers."""
    rows = mixed_rows(1500, PARTITIONS, now_ms=now_ms())
    topic = create_topic(PARTITIONS)
    save(data_frame(spark, rows), kafka, topic=topic, **{"kafka.compression.type": codec})
    expected = expected_records(rows, topic, PARTITIONS)
    for read in READERS.values():
        assert expected == read(kafka.bootstrap_servers, topic)


def test_string_columns_are_read_back(kafka_4, spark):
    """Key and value columns of type string are written as UTF-8."""
    topic = kafka_4.create_topic(PARTITIONS)
    df = spark.range(200).selectExpr(
        "concat('schlüssel-', id) as key", "concat('größe ', id) as value"
    )
    save(df, kafka_4, topic=topic)
    expected = sorted((f"schlüssel-{i}".encode(), f"größe {i}".encode()) for i in range(200))
    records = read_with_confluent(kafka_4.bootstrap_servers, topic)
    assert expected == sorted((record.key, record.value) for record in records)


def test_rows_go_to_the_topics_that_they_name(kafka, create_topic, spark):
    """Without the option `topic`, each row goes to the topic in its column."""
    topics = [create_topic(PARTITIONS) for _ in range(2)]
    timestamp = now_ms() * 1000
    rows = [
        Row(key=b"%d" % i, value=b"%d" % i, timestamp=timestamp, topic=topics[i % 2])
        for i in range(300)
    ]
    save(data_frame(spark, rows, ("key", "value", "timestamp", "topic")), kafka)
    for topic in topics:
        expected = expected_records([row for row in rows if row.topic == topic], topic, PARTITIONS)
        assert expected == read_with_confluent(kafka.bootstrap_servers, topic)


def test_the_report_agrees_with_the_offsets_in_kafka(kafka, create_topic, spark, tmp_path):
    """The report's offsets and record counts of each partition are those that a consumer finds."""
    topic = create_topic(PARTITIONS)
    df = spark.range(0, 50_000, 1, 4).selectExpr("cast(id as string) key", "'value' value")
    for name in ("first.json", "second.json"):
        save(df, kafka, topic=topic, reportPath=str(tmp_path / name))
    report = json.loads((tmp_path / "second.json").read_text())
    records = read_with_confluent(kafka.bootstrap_servers, topic)
    for partition in report["topics"][topic]:
        offsets = [
            record.offset for record in records if record.partition == partition["partition"]
        ]
        assert len(offsets) == 2 * partition["records"]
        assert (len(offsets) // 2, offsets[-1]) == (
            partition["first_offset"],
            partition["last_offset"],
        )
    assert 50_000 == report["rows"]


def test_one_huge_row_and_a_thousand_partitions_are_written(kafka_4, spark):
    """A row just below max.request.size arrives, and so do keys for a thousand partitions."""
    topic = kafka_4.create_topic(1000)
    df = spark.range(20_000).selectExpr(
        "cast(id as string) as key", "if(id = 7, repeat('x', 1000000), 'x') as value"
    )
    save(df, kafka_4, topic=topic)
    records = read_with_confluent(kafka_4.bootstrap_servers, topic)
    assert 20_000 == len({record.key for record in records})
    assert 20_000 == len(records)
    assert 1000 == len({record.partition for record in records})
    assert [1_000_000] == [len(record.value) for record in records if record.key == b"7"]
    # Others use the broker at the same time, and list its topics.
    kafka_4.delete_topics([topic])
