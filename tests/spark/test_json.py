"""Keys and values as JSON in Spark, beside Spark's own `to_json` and `from_json`."""

from __future__ import annotations

import json
import math
import re

import pytest
from pyspark.sql import functions as sql

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.errors import ConfigError, SchemaError
from tests.spark.conftest import Topics
from tests.support.formats.spark_json import in_milliseconds, plain, read_cases, written_texts

pytestmark = [pytest.mark.spark, pytest.mark.slow]

VALUE = """struct(
    id, if(id % 2 = 0, null, concat('n', id)) as name, id / 3 as third,
    cast(id / 4 as decimal(10, 2)) as price, cast(cast(id as string) as binary) as data,
    date_add(date'1969-12-30', cast(id as int)) as day, timestamp_millis(id * 1001 - 3000) as at,
    cast(timestamp_millis(id * 999) as timestamp_ntz) as local, array('a', null) as tags,
    map('x', id, 'y', null) as counts, if(id = 3, null, named_struct('b', id % 2 = 0)) as inner
) as value"""
DDL = """id bigint, name string, third double, price decimal(10, 2), data binary, day date,
    at timestamp, local timestamp_ntz, tags array<string>, counts map<string, bigint>,
    inner struct<b: boolean>"""


class JsonTopics(Topics):
    """Topics with values in JSON."""

    @property
    def servers(self):
        """The options of every read and write."""
        return {**super().servers, "valueFormat": "json"}

    def source(self, spark, topic, **options):
        """Return a read of a topic."""
        options = {**self.servers, "subscribe": topic, **options}
        return spark.read.format("pykafka").options(**options)


@pytest.fixture
def topics(topics):
    """Return the topics of the shared broker, whose numbers go on."""
    own = JsonTopics(topics.broker)
    own.create = topics.create
    return own


def test_values_are_written_as_to_json_does_and_read_as_from_json_does(topics, spark):
    """All types, in a struct; other columns select some of the fields."""
    topic = topics.create()
    df = spark.range(0, 30, 1, 1).selectExpr("cast(id as string) as key", VALUE)
    assert str(KafkaSink.check(df, {**topics.servers, "topic": topic})).startswith("OK")
    topics.write(df, topic)
    expected = [row.j.encode() for row in df.select(sql.to_json("value").alias("j")).collect()]
    assert expected == [record.value for record in topics.read(topic)]
    for schema in (DDL, df.schema["value"].dataType.json()):
        read = topics.source(spark, topic, valueSchema=schema).load()
        rows = [row.value for row in read.orderBy("offset").collect()]
        assert [row.value for row in df.collect()] == rows
    some = topics.source(spark, topic).schema(
        "offset long, value struct<inner: struct<b: boolean>>"
    )
    assert ([True, False, True, None], [0, 1, 2, 3]) == (
        [row.value.inner and row.value.inner.b for row in some.load().limit(4).collect()],
        [row.offset for row in some.load().limit(4).collect()],
    )


def test_a_stream_reads_and_writes_json(topics, spark, tmp_path):
    """Keys and values, from one topic to another; malformed payloads are shown with their bytes."""
    source, target = topics.create(), topics.create()
    df = spark.range(0, 20, 1, 1).selectExpr("array(id) as key", "struct(id) as value")
    topics.write(df, source, keyFormat="json")
    text = "struct(concat('x', id) as id) as value"
    topics.write(spark.range(1).selectExpr("array(id) as key", text), source, keyFormat="json")
    options = {**topics.servers, "keyFormat": "json", "onDecodeError": "null"}
    types = {"keySchema": "array<bigint>", "valueSchema": "id bigint"}
    reader = spark.readStream.format("pykafka").options(**options, **types)
    stream = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    shown = stream.selectExpr("key", "struct(value.id, decodeError, rawValue) as value")
    writer = shown.writeStream.format("pykafka").options(**topics.servers, keyFormat="json")
    query = (
        writer.option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    records = sorted(topics.read(target), key=lambda record: (record.key, record.value))
    values = [json.loads(record.value) for record in records]
    assert [*range(20)] == sorted(value["id"] for value in values if "id" in value)
    [bad] = [value for value in values if "id" not in value]
    assert {
        "decodeError": "value.id: '\"x0\"}' instead of an integer",
        "rawValue": "eyJpZCI6IngwIn0=",
    } == bad
    assert {b"[0]", b"[19]"} < {record.key for record in records}


def test_a_read_without_a_type_is_refused_before_it_starts(topics, spark):
    """So are columns that JSON does not have, of a read or a write."""
    topic = topics.create()
    with pytest.raises(Exception, match="valueFormat=json needs the type of the column"):
        topics.source(spark, topic).load()
    with pytest.raises(Exception, match=r"value\.a' must be nullable"):
        topics.source(spark, topic).schema("value struct<a: int not null>").load().collect()
    reader = topics.source(spark, topic, valueSchema="a int").schema("value struct<b: int>")
    with pytest.raises(Exception, match="the schema has no field 'b'; it has a"):
        reader.load().collect()
    df = spark.range(1).selectExpr("struct(interval '1' day as i) as value")
    with pytest.raises(SchemaError, match=r"column 'value\.i' is duration.*cast it"):
        KafkaSink.check(df, {**topics.servers, "topic": topic})
    with pytest.raises(ConfigError, match="valueFraming=confluent is not supported yet"):
        KafkaSink.check(df, {**topics.servers, "topic": topic, "valueFraming": "confluent"})


#: What is stricter here, as the guide says: texts of reasons.
STRICTER = (
    "instead of",
    "is left behind the value",
    "is not UTF-8",
    "half of a surrogate pair",
    "does not fit into",
    "is not a date",
    "is not a timestamp",
    "has no time zone",
    "has a time zone",
    "is not base64",
    "a string is not a number",
    "is not written as an integer",
)


def compare_reads(spark, seeds):
    """Compare what both read, and return how many payloads they agree about."""
    agreed = 0
    for seed in seeds:
        for case in read_cases(spark, seed, 40):
            if case.problem is not None:
                assert case.is_refused_by_spark or any(each in case.problem for each in STRICTER)
            elif not case.is_refused_by_spark:
                assert plain(case.row) == plain(case.spark_row), case.payload
                agreed += 1
            else:
                # A timestamp without seconds, which has a time zone; an exponent that Java's
                # numbers do not have.
                assert re.search(rb"2024-01-02T03:04|[0-9]e-?9{18}", case.payload), case
    return agreed


def are_same(one, other):
    """Return whether two values of JSON are the same, with numbers of 32 bits at least."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=2**-24, abs_tol=2**-149)
    return one == other


def compare_writes(spark, seeds):
    """Compare what both write, and return how many texts are the same."""
    equal = 0
    for seed in seeds:
        for text, expected in written_texts(spark, seed, 20):
            # Java 17 has more digits than it needs for some numbers.
            if in_milliseconds(text) != expected:
                assert are_same(json.loads(in_milliseconds(text)), json.loads(expected)), text
            else:
                equal += 1
    return equal


def test_random_payloads_are_read_as_from_json_reads_them(spark):
    """Where both read a value it is the same; what only one of them reads is in the guide."""
    assert compare_reads(spark, range(8)) > 100


def test_random_values_are_written_as_to_json_writes_them(spark):
    """But for microseconds, and digits that a number does not need."""
    assert compare_writes(spark, range(8)) > 100


@pytest.mark.soak
def test_thousands_of_payloads_are_read_and_written_as_spark_does(spark):
    """The same, with many types."""
    assert compare_reads(spark, range(100, 400)) > 3000
    assert compare_writes(spark, range(100, 400)) > 3000
