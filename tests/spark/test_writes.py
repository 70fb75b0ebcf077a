"""Successful writes: how Spark finds the sink, empty and large DataFrames, the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spark_kafka_sink
from spark_kafka_sink import KafkaSink

with warnings.catch_warnings():
    # kafka-python reads its schemas with functions that Python 3.11 has deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.partitioner.default import murmur2


def numbers(spark, count, partitions=2):
    return spark.range(count, numPartitions=partitions).selectExpr("cast(id as string) value")


def test_spark_finds_the_sink_by_its_name(topics, spark):
    """The format is found without registration, and every row arrives once."""
    topic = topics.create(3)
    topics.write(numbers(spark, 1000), topic)
    assert sorted(str(number) for number in range(1000)) == topics.values(topic)


def test_the_sink_can_be_registered(topics, spark):
    """The sink can be registered with a session, for when the automatic lookup is disabled."""
    topic = topics.create()
    session = spark.newSession()
    session.dataSource.register(KafkaSink)
    topics.write(numbers(session, 5), topic)
    assert ["0", "1", "2", "3", "4"] == topics.values(topic)


def test_threads_can_write_once_they_have_an_active_session(topics, spark, jobs_of):
    """A thread that first creates an empty DataFrame, which runs no job, finds the format."""
    first, second = topics.create(), topics.create()

    def write(topic, low):
        with jobs_of() as jobs:
            spark.createDataFrame([], "x int")
        topics.write(spark.range(low, low + 2).selectExpr("cast(id as string) value"), topic)
        return jobs()

    with ThreadPoolExecutor(2) as threads:
        assert [[], []] == list(threads.map(write, (first, second), (0, 7)))
    assert (["0", "1"], ["7", "8"]) == (topics.values(first), topics.values(second))


def test_option_names_are_case_insensitive(topics, spark, tmp_path):
    """Option names are case-insensitive, as in Spark."""
    topic = topics.create()
    path = tmp_path / "report.json"
    (
        numbers(spark, 3)
        .write.format("PyKafka")
        .mode("append")
        .option("KAFKA.bootstrap.Servers", topics.broker.bootstrap_servers)
        .option("TOPIC", topic)
        .option("reportpath", str(path))
        .save()
    )
    assert 3 == json.loads(path.read_text())["rows"]


def test_options_of_the_source_are_accepted(topics, spark):
    """The same options can be used for reading and for writing."""
    topic = topics.create()
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": "g"}
    topics.write(numbers(spark, 3), topic, **options)
    assert ["0", "1", "2"] == topics.values(topic)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_other_clients(topics, spark, codec):
    """Records written with each codec are read back by librdkafka's consumer."""
    topic = topics.create(2)
    topics.write(numbers(spark, 500), topic, **{"kafka.compression.type": codec})
    assert sorted(str(number) for number in range(500)) == topics.values(topic)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_level_delivers(topics, spark, tmp_path, acks):
    """With each level of acks the rows arrive, and the report has the offsets that are known."""
    topic = topics.create()
    path = tmp_path / "report.json"
    options = {"kafka.acks": acks, "reportPath": str(path)}
    topics.write(numbers(spark, 100, partitions=1), topic, **options)
    assert 100 == len(topics.read(topic))
    report = json.loads(path.read_text())
    first, last = (0, 99) if acks != "0" else (None, None)
    assert (acks != "0") == report["offsets_known"]
    (written,) = report["topics"][topic]
    assert (first, last, 100) == tuple(
        written[name] for name in ("first_offset", "last_offset", "records")
    )


def test_an_empty_dataframe_is_written(topics, spark, tmp_path):
    """Writing a DataFrame without rows succeeds, and the report says so."""
    topic = topics.create()
    path = tmp_path / "report.json"
    topics.write(numbers(spark, 0), topic, reportPath=str(path))
    assert [] == topics.read(topic)
    report = json.loads(path.read_text())
    assert (0, {}) == (report["rows"], report["topics"])


def test_a_dataframe_without_partitions_is_written(topics, spark):
    """Writing a DataFrame without partitions succeeds."""
    topic = topics.create()
    topics.write(spark.createDataFrame([], "value string"), topic)
    assert [] == topics.read(topic)


def test_empty_partitions_are_written(topics, spark, tmp_path):
    """Partitions without rows count as tasks, and write nothing."""
    topic = topics.create()
    path = tmp_path / "report.json"
    df = spark.range(8, numPartitions=8).where("id in (2, 5)").selectExpr("string(id) value")
    topics.write(df, topic, reportPath=str(path))
    assert ["2", "5"] == topics.values(topic)
    report = json.loads(path.read_text())
    assert (8, 2) == (report["tasks"], report["rows"])


def test_one_huge_row_is_written(topics, spark):
    """A row just below the default max.request.size arrives."""
    topic = topics.create()
    size = 1_048_576 - 200
    topics.write(spark.sql(f"select repeat('x', {size}) value"), topic)
    assert [size] == [len(record.value) for record in topics.read(topic)]


def test_a_row_of_many_megabytes_is_written_if_allowed(topics, spark):
    """A larger row arrives when max.request.size and the topic allow it."""
    topic = topics.create(max_message_bytes="20000000")
    options = {"kafka.max.request.size": "20000000", "kafka.compression.type": "none"}
    topics.write(spark.sql("select repeat('0123456789', 1500000) value"), topic, **options)
    assert [15_000_000] == [len(record.value) for record in topics.read(topic)]


def test_keys_for_a_thousand_partitions_are_partitioned_as_in_java(topics, spark, tmp_path):
    """Fifty thousand keys go to the partitions that murmur2 selects, and none is lost."""
    topic = topics.create(1000)
    path = tmp_path / "report.json"
    df = spark.range(50_000, numPartitions=2).selectExpr(
        "concat('key-', id) key", "cast(id as string) value"
    )
    topics.write(df, topic, reportPath=str(path))
    records = topics.read(topic)
    assert 50_000 == len({record.key for record in records}) == len(records)
    assert [] == [
        record
        for record in records
        if (murmur2(record.key) & 0x7FFFFFFF) % 1000 != record.partition
    ]
    assert 1000 == len(json.loads(path.read_text())["topics"][topic])


def test_order_is_kept_within_a_task_and_a_partition(topics, spark):
    """Rows of one task with the same key arrive in the order of the task."""
    topic = topics.create(3)
    df = spark.range(100_000, numPartitions=1).selectExpr(
        "cast(id % 7 as string) key", "cast(id as string) value"
    )
    topics.write(df, topic, **{"kafka.batch.size": "5000"})
    by_key = {}
    for record in topics.read(topic):
        by_key.setdefault(record.key, []).append(int(record.value))
    assert {str(key).encode(): list(range(key, 100_000, 7)) for key in range(7)} == by_key


def test_a_missing_topic_is_created_with_the_option(auto_created_topics, spark):
    """With autoCreateTopics=true, writing creates missing topics, also those in a topic column."""
    option = {"autoCreateTopics": "true"}
    auto_created_topics.write(numbers(spark, 10), "new", **option)
    auto_created_topics.write(numbers(spark, 10).selectExpr("*", "'newer' topic"), **option)
    expected = [str(number) for number in range(10)]
    assert expected == auto_created_topics.values("new") == auto_created_topics.values("newer")


def test_the_report_has_the_offsets_of_this_write(topics, spark, tmp_path):
    """The report lists what this write added to each partition: rows, bytes and offsets."""
    topic = topics.create(2)
    df = spark.sql("select 'v' value, cast(p as int) partition from values (0), (0), (1) as t(p)")
    path = tmp_path / "report.json"
    topics.write(df, topic)
    topics.write(df.repartition(2), topic, reportPath=str(path))
    report = json.loads(path.read_text())
    assert 3 == report["rows"]
    assert [(0, 2, 3, 2), (1, 1, 1, 1)] == [
        tuple(written[name] for name in ("partition", "first_offset", "last_offset", "records"))
        for written in report["topics"][topic]
    ]
    assert report["bytes"] == sum(written["bytes"] for written in report["topics"][topic]) > 0
    assert [path] == list(tmp_path.iterdir())


def test_the_report_says_that_timestamps_were_replaced(topics, spark, tmp_path):
    """The report marks a topic with LogAppendTime."""
    topic = topics.create(message_timestamp_type="LogAppendTime")
    path = tmp_path / "report.json"
    df = spark.sql("select 'v' value, timestamp_millis(5) timestamp")
    topics.write(df, topic, reportPath=str(path))
    (record,) = topics.read(topic)
    assert record.timestamp > 1_600_000_000_000
    assert json.loads(path.read_text())["topics"][topic][0]["log_append_time"]


def test_a_check_runs_no_job(topics, spark, jobs_of):
    """KafkaSink.check looks up the topic in the cluster and runs no Spark job."""
    topic = topics.create(5)
    df = numbers(spark, 10)
    with jobs_of() as jobs:
        checked = KafkaSink.check(df, topics.servers, topic=topic)
    assert (5, None) == (checked.partitions, checked.warning)
    assert [] == jobs()
    assert [] == topics.read(topic)


@pytest.mark.slow
def test_a_check_finds_that_workers_lack_the_package(topics, tmp_path):
    """KafkaSink.check says that Spark starts a Python without the package, and what to do."""
    venv.create(tmp_path / "bare")
    package = str(Path(spark_kafka_sink.__file__).parents[1])
    script = f"""
        import sys
        sys.path.insert(0, {package!r})
        from pyspark.sql import SparkSession
        from spark_kafka_sink import KafkaSink
        from spark_kafka_sink.errors import ConfigError
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        df = spark.getOrCreate().range(1).selectExpr("cast(id as string) value")
        try:
            KafkaSink.check(df, {topics.servers!r}, topic={topics.create()!r})
        except ConfigError as error:
            print(error)
    """
    bare = str(tmp_path / "bare" / "bin" / "python")
    environ = os.environ | {"PYSPARK_PYTHON": bare, "PYSPARK_DRIVER_PYTHON": bare}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(  # noqa: S603 -- our own interpreter and script
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        env=environ,
        # Spark's Python would find the package in the current directory.
        cwd=tmp_path,
    )
    assert "Spark does not find this format, so a write would fail. Either the Python that" in (
        done.stdout
    )
    assert f"PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON set to {sys.executable}" in done.stdout


@pytest.mark.spark
def test_a_user_sees_the_report(topics):
    """An application sees the table and the warning on its console, and what makes tasks faster."""
    topic = topics.create()
    script = f"""
        from pyspark.sql import SparkSession
        from spark_kafka_sink import KafkaSink
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            # Each task has a worker of its own, and loses no row when that ends with it.
            .config("spark.python.worker.reuse", "false")
            .getOrCreate()
        )
        (
            spark.range(1000, numPartitions=2).selectExpr("cast(id as string) value")
            .write.format("pykafka").mode("append")
            .option("kafka.bootstrap.servers", {topics.broker.bootstrap_servers!r})
            .option("report", "full")
            .option("topic", {topic!r}).option("startingOffsets", "earliest").save()
        )
        # Spark reads it for each task.
        spark.sparkContext._jsc.sc().conf().set("spark.python.worker.reuse", "true")
        for _ in range(2):
            (
                spark.range(60, numPartitions=60).selectExpr("cast(id as string) value")
                .write.format("pykafka").mode("append")
                .option("kafka.bootstrap.servers", {topics.broker.bootstrap_servers!r})
                .option("topic", {topic!r}).save()
            )
        print("slots of 60 tasks:", KafkaSink.last_report(spark).task_slots)
        spark.stop()
    """
    done = subprocess.run(  # noqa: S603 -- our own interpreter and script
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    output = done.stdout + done.stderr
    assert (
        "these options are for reading from Kafka and have no effect on a write: starting" in output
    )
    assert "Kafka: wrote 1,000 rows (" in output
    row = next(line for line in output.splitlines() if line.startswith(f"  {topic} "))
    assert [topic, "0", "0", "999", "1,000"] == row.split()[:5]
    assert "slots of 60 tasks: 1\n" in output
    # It is said once in an application.
    assert 1 == output.count("set spark.python.unix.domain.socket.enabled=true before the session")
