"""Every column, from a DataFrame to a consumer."""

from __future__ import annotations

import time

import pytest

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture
def sql(spark):
    """Return a function that builds a DataFrame of one partition from rows in SQL."""

    def make(columns, *rows):
        selects = " union all ".join(f"select {row}" for row in rows)
        query = f"select * from ({selects}) as t({columns})"  # noqa: S608 -- of this file's texts
        return spark.sql(query).coalesce(1)

    return make


def test_keys_and_values_arrive_as_they_are(topics, sql):
    """Strings, binaries, empty values and nulls arrive byte for byte, in order."""
    topic = topics.create()
    topics.write(
        sql(
            "key, value",
            "cast('k' as binary), 'ünï'",
            "cast('' as binary), ''",
            "null, null",
            "x'00ff', 'z'",
        ),
        topic,
    )
    assert [
        (b"k", "ünï".encode()),
        (b"", b""),
        (None, None),
        (b"\x00\xff", b"z"),
    ] == [(record.key, record.value) for record in topics.read(topic)]


def test_without_a_key_column_there_are_no_keys(topics, spark):
    """A DataFrame with only a value column is written as records without keys."""
    topic = topics.create()
    topics.write(spark.sql("select cast('v' as binary) value"), topic)
    assert [(None, b"v")] == [(record.key, record.value) for record in topics.read(topic)]


def test_columns_with_64_bit_offsets_are_accepted(topics, spark):
    """Columns are accepted with spark.sql.execution.arrow.useLargeVarTypes=true as well."""
    topic = topics.create()
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(setting, "true")
    try:
        df = spark.range(10).selectExpr("cast(id as string) key", "cast(id as string) value")
        topics.write(df, topic)
    finally:
        spark.conf.unset(setting)
    assert [str(number) for number in range(10)] == topics.values(topic)


def test_other_columns_are_ignored(topics, spark):
    """A column that is not part of a record may have any type."""
    topic = topics.create()
    topics.write(spark.sql("select 'v' value, map('a', 1) extra, 5 offset"), topic)
    assert ["v"] == topics.values(topic)


def test_rows_go_to_the_topics_that_their_column_names(topics, sql):
    """Each row goes to the topic in its column; one task can write to several topics."""
    first, second = topics.create(), topics.create()
    topics.write(sql("topic, value", f"'{first}', 'a'", f"'{second}', 'b'", f"'{first}', 'c'"))
    assert (["a", "c"], ["b"]) == (topics.values(first), topics.values(second))


def test_the_topic_option_takes_precedence_over_the_column(topics, sql):
    """With the option `topic`, all rows go to that topic, whatever the column says."""
    topic, other = topics.create(), topics.create()
    topics.write(sql("topic, value", f"'{other}', 'a'", "null, 'b'"), topic)
    assert (["a", "b"], []) == (topics.values(topic), topics.values(other))


def test_rows_go_to_the_partitions_that_their_column_names(topics, sql):
    """A row goes to its given partition, whatever the key; with null, the producer chooses."""
    topic = topics.create(4)
    topics.write(
        sql("key, value, partition", "'k', 'a', 3", "'k', 'b', 0", "'k', 'c', 3", "'k', 'd', null"),
        topic,
    )
    placed = {record.value: record.partition for record in topics.read(topic)}
    assert (3, 0, 3) == (placed[b"a"], placed[b"b"], placed[b"c"])
    assert {b"a", b"b", b"c", b"d"} == placed.keys()


def test_headers_arrive_in_order(topics, sql):
    """Headers keep order, repeated names, and null and empty values; null means no headers."""
    topic = topics.create()
    topics.write(
        sql(
            "value, headers",
            "'a', array(struct('h' as key, x'01' as value), struct('h' as key, x'' as value), "
            "struct('i' as key, cast(null as binary) as value))",
            f"'b', cast(array() as {HEADERS})",
            f"'c', cast(null as {HEADERS})",
        ),
        topic,
    )
    assert [
        (b"a", (("h", b"\x01"), ("h", b""), ("i", None))),
        (b"b", ()),
        (b"c", ()),
    ] == [(record.value, record.headers) for record in topics.read(topic)]


@pytest.mark.parametrize("include", ["true", "false"])
def test_include_headers_does_not_affect_writing(topics, sql, include):
    """A headers column is written whatever includeHeaders says, as by Spark's own sink."""
    topic = topics.create()
    df = sql("value, headers", "'a', array(struct('h' as key, x'01' as value))")
    topics.write(df, topic, includeHeaders=include)
    assert [(("h", b"\x01"),)] == [record.headers for record in topics.read(topic)]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_timestamps_are_floored_to_milliseconds(topics, spark, sql, zone):
    """Timestamps do not depend on the session's time zone; one without a time zone is UTC."""
    with_zone, without_zone = topics.create(), topics.create()
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        instant = "timestamp'2024-05-06 07:08:09.123999 UTC'"
        topics.write(sql("value, timestamp", f"'a', {instant}"), with_zone)
        local = "timestamp_ntz'2024-05-06 07:08:09.123999'"
        topics.write(sql("value, timestamp", f"'a', {local}"), without_zone)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    expected = 1_714_979_289_123
    assert [expected] == [record.timestamp for record in topics.read(with_zone)]
    assert [expected] == [record.timestamp for record in topics.read(without_zone)]


def test_timestamp_zero_is_valid(topics, sql):
    """Zero is a valid timestamp, and does not stand for the time of writing."""
    topic = topics.create()
    topics.write(sql("value, timestamp", "'a', timestamp_micros(999)"), topic)
    assert [0] == [record.timestamp for record in topics.read(topic)]


def test_a_null_timestamp_is_the_time_of_writing(topics, sql):
    """A record with a null timestamp gets the time at which it was appended."""
    topic = topics.create()
    before = int(time.time() * 1000)
    topics.write(
        sql("value, timestamp", "'a', cast(null as timestamp)", "'b', timestamp_millis(5)"), topic
    )
    first, second = topics.read(topic)
    assert before <= first.timestamp <= int(time.time() * 1000)
    assert 5 == second.timestamp
