"""Writes with `maxRecordsPerSecond`, and with `keyOrder`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_kafka_sink import KafkaSink
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.streams import (
    PATIENCE_SECONDS,
    Checkpoint,
    NumberedFiles,
    run_to_end,
    to_kafka,
)


def numbers(spark, count, partitions=2):
    return spark.range(count, numPartitions=partitions).selectExpr("cast(id as string) value")


def tasks_with_a_pace():
    """Return the ids of the processes whose tasks follow a pace now."""
    found = []
    for files in Path("/proc").glob("[0-9]*/fd"):
        try:
            links = [str(file.readlink()) for file in files.iterdir()]
        except OSError:  # it has ended, or closed one of them
            continue
        if any("spark-kafka-sink-pace" in link for link in links):
            found.append(files.parent.name)
    return found


def test_a_batch_is_paced_and_reports_its_pauses(topics, spark):
    """Tasks find out by themselves how many executors there are, and all rows arrive."""
    topic = topics.create(2)
    topics.write(numbers(spark, 100), topic, maxRecordsPerSecond="500")
    assert sorted(map(str, range(100))) == topics.values(topic)
    report = KafkaSink.last_report(spark)
    assert (100, False) == (report.rows, report.paced_seconds is None)


def test_an_exactly_once_stream_is_paced(topics, spark, tmp_path):
    """Each micro-batch follows the pace, and is committed as a whole."""
    topic = topics.create(2)
    files = NumberedFiles(tmp_path)
    files.add(30, files=2)
    query = run_to_end(
        to_kafka(
            files.read(spark),
            Checkpoint(tmp_path),
            **topics.servers,
            topic=topic,
            deliveryGuarantee="exactly_once",
            transactionalIdPrefix="paced",
            maxRecordsPerSecond="500",
            maxBytesPerSecond="100000",
        )
    )
    assert files.numbers == topics.values(topic)
    reports = KafkaSink.last_reports(spark, query=query)
    assert [(30, False)] * 2 == [(each.rows, each.paced_seconds is None) for each in reports]


def test_a_cancelled_task_ends_in_its_pause(topics, spark):
    """Spark ends its Python process, which would pause for hours."""
    topic = topics.create()
    df = numbers(spark, 10_000, partitions=1)
    processes = []

    def cancel():
        wait_until(
            lambda: topics.broker.records(topic).count,
            seconds=PATIENCE_SECONDS,
            what="the first row",
        )
        processes.extend(tasks_with_a_pace())
        return spark.interruptAll()

    with ThreadPoolExecutor(1) as thread:
        cancelled = thread.submit(cancel)
        with pytest.raises(Exception, match="cancelled"):
            topics.write(df, topic, maxRecordsPerSecond="1")
    assert [1, 1] == [len(processes), len(cancelled.result())]
    wait_until(
        lambda: not tasks_with_a_pace(), seconds=PATIENCE_SECONDS, what="the end of the worker"
    )


def test_keys_in_several_tasks_are_found_and_those_of_repartitioned_data_are_not(topics, spark):
    """The same rows are refused as they come, and accepted with all rows of a key in one task."""
    topic = topics.create(2)
    df = spark.range(400, numPartitions=4).selectExpr(
        "cast(id % 50 as string) key", "cast(id as string) value"
    )
    options = {
        "keyOrder": "fail",
        "deliveryGuarantee": "exactly_once",
        "transactionalIdPrefix": "ordered",
    }
    with pytest.raises(Exception, match="keyOrder=fail: 50 of 50 sampled keys"):
        topics.write(df, topic, **options)
    topics.write(df.repartition(4, "key"), topic, **options)
    report = KafkaSink.last_report(spark)
    assert (400, 50, 0) == (report.rows, report.sampled_keys, report.spread_keys)
    assert sorted(map(str, range(400))) == topics.values(topic)
