"""Dry runs of a sample, by jobs of Spark."""

from __future__ import annotations

import pytest

from spark_kafka_sink import ConfigError, KafkaSink


def numbers(spark, count, partitions):
    """Return rows with a key each; one of them has a partition that no topic has."""
    return spark.range(count, numPartitions=partitions).selectExpr(
        "cast(id % 7 as string) key",
        "cast(id as string) value",
        "if(id = 42, 99, null) partition",
    )


def test_a_dry_run_finds_what_a_write_would(topics, spark):
    """Rows have the numbers of their tasks, keys are compared, and the topic stays empty."""
    topic = topics.create(3)
    df = numbers(spark, 80, partitions=2)
    checked = KafkaSink.check(df, topics.servers, topic=topic, onError="skip", sample=1_000)
    found = checked.dry_run
    assert (80, 2, 7, 7) == (found.rows, found.tasks, found.sampled_keys, found.spread_keys)
    assert [(1, 2, "partition")] == [(bad.task, bad.row, bad.kind) for bad in found.bad_rows.first]
    assert 79 == sum(found.rows_by_partition.values())
    assert [] == topics.read(topic)
    topics.write(df, topic, onError="skip")
    written = KafkaSink.last_report(spark)
    assert {place: count for place, count in found.rows_by_partition.items() if count} == {
        place: acks.records for place, acks in written.partitions
    }


def test_a_dry_run_tries_the_rows_of_a_limit(topics, spark):
    """Of sorted rows it tries the first ones; a stream has none to try."""
    topic = topics.create(1)
    df = numbers(spark, 1_000, partitions=3).sort("value")
    found = KafkaSink.check(df, topics.servers, topic=topic, sample=50).dry_run
    assert (50, 1, 3) == (found.rows, found.tasks, found.value_sizes.maximum)
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    with pytest.raises(ConfigError, match="this DataFrame is a stream"):
        KafkaSink.check(stream, topics.servers, topic=topic, sample=50)
