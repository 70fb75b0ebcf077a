"""Batch reads: columns, the selection of rows, tasks, and errors before a task runs."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from pyspark.errors import AnalysisException

from tests.support.spark.kafka_rows import add_partitions, delete_records, produce

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS = "headers array<struct<key:string,value:binary>>"
#: 2023-11-14 22:13:20 UTC, in milliseconds.
THEN = 1_700_000_000_000


@pytest.fixture
def read(topics, spark):
    """Return a function that reads a topic, or what other options select."""

    def load(topic=None, schema=None, **options):
        reader = spark.read.format("pykafka").options(**topics.servers, **options)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def produced(topics):
    """Return a function that creates a topic with values in its partitions."""

    def create(*values, start=THEN):
        topic = topics.create(len(values))
        for partition, some in enumerate(values):
            for index, value in enumerate(some):
                produce(
                    topics.broker.bootstrap_servers,
                    topic,
                    [value],
                    partition,
                    timestamp=start + 1000 * index,
                )
        return topic

    return create


def values_of(df):
    return sorted(bytes(row.value).decode() for row in df.select("value").collect())


def test_a_record_is_a_row(topics, read):
    """All parts of a record are columns, as of Spark's own source; what it lacks is null."""
    servers = topics.broker.bootstrap_servers
    topic = topics.create()
    headers = [("trace", b"1"), ("trace", None), ("empty", b"")]
    produce(servers, topic, ["one"], key="a", timestamp=THEN + 123, headers=headers)
    produce(servers, topic, [None, ""], timestamp=THEN)
    df = read(topic, includeHeaders="true")
    assert f"{COLUMNS}, {HEADERS}" == ", ".join(f"{name} {kind}" for name, kind in df.dtypes)
    assert [field.nullable for field in df.schema] == [True] * 8
    rows = df.orderBy("offset").collect()
    then = datetime(2023, 11, 14, 22, 13, 20)  # noqa: DTZ001 -- as Spark returns it
    times = [
        row.timestamp
        for row in df.selectExpr("offset", "cast(timestamp as string) timestamp")
        .orderBy("offset")
        .collect()
    ]
    assert [f"{then:%Y-%m-%d %H:%M:%S}{part}" for part in (".123", "", "")] == times
    found = [
        (row.key, row.value, row.topic, row.partition, row.offset, row.headers) for row in rows
    ]
    assert [
        (b"a", b"one", topic, 0, 0, headers),
        (None, None, topic, 0, 1, None),
        (None, b"", topic, 0, 2, None),
    ] == found
    assert {0} == {row.timestampType for row in rows}


def test_columns_are_selected_by_a_schema(read, produced):
    """A schema of the user's selects columns, in its order; headers need no option then."""
    topic = produced(["a", "b"], ["c"])
    df = read(topic, schema=f"{HEADERS}, offset long, value binary")
    assert ["headers", "offset", "value"] == df.columns
    assert [(None, 0, b"a"), (None, 0, b"c"), (None, 1, b"b")] == sorted(
        (tuple(row) for row in df.collect()), key=lambda row: row[1:]
    )
    assert 3 == read(topic, schema="partition int").count()


def test_rows_are_selected_by_offsets_and_timestamps(topics, read, produced):
    """Starts and ends are offsets, timestamps, or the ends of the log."""
    topic = produced(["a0", "a1", "a2"], ["b0", "b1"])

    def values(**options):
        return values_of(read(topic, schema="value binary", **options))

    some = json.dumps({topic: {"0": 1, "1": -2}})
    most = json.dumps({topic: {"0": 2, "1": -1}})
    assert ["a1", "b0", "b1"] == values(startingOffsets=some, endingOffsets=most)
    assert ["a1", "a2", "b1"] == values(startingTimestamp=str(THEN + 1000))
    assert ["a0", "b0"] == values(endingTimestamp=str(THEN + 1))
    times = json.dumps({topic: {"0": THEN + 2000, "1": THEN + 2000}})
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert ["a2"] == values(startingOffsetsByTimestamp=times, **latest)
    with pytest.raises(AnalysisException, match="no record has the timestamp or a later one"):
        values(startingOffsetsByTimestamp=times)


def test_topics_are_selected_by_pattern_or_partition(read, produced):
    """A pattern selects topics, an assignment partitions."""
    first, second = produced(["a"], ["b"]), produced(["c"])
    assert ["a", "b", "c"] == values_of(read(subscribePattern=f"{first}|{second}"))
    assert ["a", "b", "c"] == values_of(read(f"{first},{second}"))
    assert ["b"] == values_of(read(assign=json.dumps({first: [1]})))


def test_ranges_are_divided_among_tasks(topics, read, produced):
    """There is a task for each partition with rows, or as many as the options say."""
    topic = produced([f"a{number}" for number in range(10)], [], ["b"])
    assert 2 == read(topic).rdd.getNumPartitions()
    split = read(topic, minPartitions="5")
    assert (5, 11) == (split.rdd.getNumPartitions(), split.count())
    assert 5 == read(topic, maxRecordsPerPartition="3").rdd.getNumPartitions()


def test_an_empty_topic_has_no_rows(topics, read):
    """Without rows there is nothing to read, and no error."""
    assert [] == read(topics.create(2)).collect()


def test_a_read_that_ends_early_harms_no_other(read, produced):
    """After LIMIT, the same workers read other ranges in full."""
    topic = produced([f"a{number:03d}" for number in range(100)])
    for _ in range(3):
        assert 1 == len(
            read(topic, **{"kafka.max.partition.fetch.bytes": "200"}).limit(1).collect()
        )
        assert 100 == read(topic).count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "missing"}, "missing"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"topic": "events"}, "topic is an option of writes"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "must name exactly the partitions"),
        ({"kafka.bootstrap.servers": "localhost:1", "kafka.default.api.timeout.ms": "1000",
          "kafka.request.timeout.ms": "900"}, "localhost:1"),
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_read_fails_before_a_task(topics, spark, jobs_of, options, message):
    """What the driver can detect fails without a job, and without stack frames."""
    topic = topics.create()
    given = {**topics.servers, "subscribe": topic, **options}
    with jobs_of() as jobs, pytest.raises(AnalysisException, match=message) as caught:
        spark.read.format("pykafka").options(**given).load().collect()
    assert [] == jobs()
    assert 0 == str(caught.value).count('  File "')


def test_a_column_that_does_not_exist_lists_those_that_do(topics, read):
    """An invalid schema fails with the columns there are."""
    with pytest.raises(
        AnalysisException, match=r"no column 'id'\. The columns of a Kafka record are"
    ):
        read(topics.create(), schema="id long").collect()


def test_lost_rows_fail_a_read_unless_they_may(topics, read, produced):
    """If the start was deleted, failOnDataLoss decides between an error and the remaining rows."""
    topic = produced([f"a{number}" for number in range(5)])
    delete_records(topics.broker.bootstrap_servers, topic, before=3)
    start = {"startingOffsets": json.dumps({topic: {"0": 1}})}
    with pytest.raises(
        AnalysisException, match="starts at offset 1, but the log starts at offset 3"
    ):
        read(topic, **start).collect()
    assert ["a3", "a4"] == values_of(read(topic, failOnDataLoss="false", **start))
    assert ["a3", "a4"] == values_of(read(topic))


def test_a_new_load_sees_new_rows_and_partitions(topics, read, produced):
    """What a DataFrame reads is fixed by its first action; a new one reads what is there then."""
    servers = topics.broker.bootstrap_servers
    topic = produced(["a"])
    df = read(topic)
    assert 1 == df.count()
    add_partitions(servers, topic, 2)
    produce(servers, topic, ["b"], partition=1)
    assert ["a", "b"] == values_of(read(topic))
