"""Writes that fail: on the driver before any task runs, or in the task with the bad row."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaError
from tests.support.security.secure_listeners import listener

VALUE = "cast(id as string) value"
HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture
def refused(topics, spark, jobs_of):
    """Return a function that expects a write to fail without a job, and returns the message."""

    def write(*columns, mode="append", format_options=None, topic=None, **options):
        df = spark.range(10).selectExpr(*columns)
        given = {**topics.servers, **(format_options or {}), **options}
        if topic is not None:
            given["topic"] = topic
        with jobs_of() as jobs, pytest.raises(AnalysisException) as caught:
            df.write.format("pykafka").mode(mode).options(**given).save()
        assert [] == jobs()
        return str(caught.value)

    return write


def test_the_job_of_a_successful_write_is_found(topics, spark, jobs_of):
    """The function with which these tests list jobs finds the job of a successful write."""
    topic = topics.create()
    with jobs_of() as jobs:
        topics.write(spark.range(10).selectExpr(VALUE), topic)
    assert [] != jobs()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id"], "the columns are 'id'): add it, or rename the column with the values"),
        ([VALUE, "array('a') headers"], "column 'headers' is array<string>, but must be array<str"),
    ],
)
def test_wrong_columns_fail_on_the_driver(refused, topics, columns, message):
    """Missing and mistyped columns are rejected before any task, with an error the user sees."""
    assert f"SchemaError: {message}" in refused(*columns, topic=topics.create()).replace(
        "SchemaError: there is no column 'value' (", "SchemaError: "
    )


def test_overwriting_is_rejected(refused, topics):
    """Mode overwrite is rejected with an error that names the supported mode."""
    message = refused(VALUE, mode="overwrite", topic=topics.create())
    assert "Kafka topics cannot be overwritten, only appended to: use mode('append')" in message


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_other_modes_are_rejected_by_spark(refused, topics, mode):
    """Spark itself rejects the other modes, including its default, and names the supported one."""
    message = refused(VALUE, mode=mode, topic=topics.create())
    assert '[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "pykafka" cannot be' in message
    assert '"Append"' in message


def test_a_path_is_rejected(topics, spark, jobs_of):
    """The error for save(path) names the option to use instead."""
    df = spark.range(1).selectExpr(VALUE)
    writer = df.write.format("pykafka").mode("append").options(**topics.servers)
    with (
        jobs_of() as jobs,
        pytest.raises(AnalysisException, match="set the topic with the option"),
    ):
        writer.save("events")
    assert [] == jobs()


def test_unreachable_brokers_fail_on_the_driver(refused, unused_port):
    """If no broker answers, no task is run, and the message names the bootstrap servers."""
    servers = {
        "kafka.bootstrap.servers": f"127.0.0.1:{unused_port}",
        "kafka.max.block.ms": "1000",
    }
    message = refused(VALUE, topic="t", format_options=servers)
    assert "NetworkError: topic 't' is not known after" in message
    assert f"no broker answered through 127.0.0.1:{unused_port}" in message


def test_unreachable_brokers_fail_on_the_driver_for_topics_of_a_column(refused, unused_port):
    """If no broker answers, no task is run, even if a column names the topics."""
    servers = {
        "kafka.bootstrap.servers": f"127.0.0.1:{unused_port}",
        "kafka.max.block.ms": "1000",
    }
    message = refused(VALUE, "'t' topic", format_options=servers)
    assert f"NetworkError: no broker answered through 127.0.0.1:{unused_port}" in message


def test_a_missing_topic_fails_on_the_driver(refused):
    """A topic that does not exist is rejected before any task."""
    message = refused(VALUE, topic="missing")
    assert "BrokerError: topic 'missing' does not exist in the cluster at" in message


def test_a_missing_topic_is_not_created(auto_created_topics, spark, jobs_of):
    """A mistyped topic is rejected before any task, although the brokers auto-create topics."""
    df = spark.range(10).selectExpr(VALUE)
    auto_created_topics.create()
    with jobs_of() as jobs, pytest.raises(AnalysisException, match="similar names: 'topic-1'"):
        auto_created_topics.write(df, "topc-1")
    assert [] == jobs()


def test_a_check_finds_what_a_write_would(topics, spark, jobs_of):
    """KafkaSink.check raises the original error, and runs no job."""
    df = spark.range(1).selectExpr(VALUE)
    with jobs_of() as jobs, pytest.raises(KafkaError, match="topic 'missing' does not exist"):
        KafkaSink.check(df, topics.servers, topic="missing")
    assert [] == jobs()


def test_the_error_on_the_driver_is_short(refused, topics):
    """The error of a rejected write shows its message in the first line, and no stack frame."""
    message = refused(VALUE, topic=topics.create(), format_options={"kafka.ack": "1"})
    assert "ConfigError: unknown option 'kafka.ack'" in message.splitlines()[0]
    assert 'File "' not in message


def test_the_error_of_a_users_function_is_shown(refused):
    """The error that a function for tokens raised on the driver is shown as the cause."""
    with DevBroker(listeners=[listener("SASL_PLAINTEXT")], topics={"events": 1}) as broker:
        message = refused(
            VALUE,
            topic="events",
            format_options={
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.login.callback.handler.class": "builtins:next",  # lacks its argument
                "kafka.max.block.ms": "1000",
            },
        )
    assert "builtins:next' raised TypeError instead of returning a token" in message
    assert "\nTypeError: next expected at least 1 argument, got 0" in message


@pytest.fixture
def failed(topics, spark):
    """Return a function that expects row 12,345 of a task to fail, and returns the message."""

    def write(*columns, topic=None, **options):
        df = spark.range(25_000, numPartitions=1).selectExpr(VALUE, *columns)
        with pytest.raises(PythonException) as caught:
            topics.write(df, topic, **options)
        return str(caught.value)

    return write


def test_a_null_topic_names_the_row(failed, topics):
    """A row without a topic fails its task, with the number of the row in the task."""
    topic = topics.create()
    message = failed(f"if(id = 12345, null, '{topic}') topic")
    assert (
        "InvalidTopicError: row 12345 of task 0: the topic is null. Set a topic in every row"
        in message
    )


def test_a_partition_out_of_range_names_row_topic_and_partition(failed, topics):
    """A row for a partition that does not exist fails its task, naming row, topic and partition."""
    topic = topics.create(3)
    message = failed("cast(if(id = 12345, 3, id % 3) as int) partition", topic=topic)
    assert f"InvalidPartitionError: row 12345 of task 0, topic {topic!r}, partition 3: " in message
    assert "leave it null to let the producer choose. To go on without such rows, set" in message


def test_a_negative_partition_names_row_topic_and_partition(failed, topics):
    """A negative partition fails its task, naming row, topic and partition."""
    topic = topics.create(3)
    message = failed("cast(if(id = 12345, -1, 0) as int) partition", topic=topic)
    assert f"InvalidPartitionError: row 12345 of task 0, topic {topic!r}, partition -1: " in message


def test_a_record_too_large_names_row_topic_and_partition(failed, topics):
    """A record above max.request.size fails its task, naming row, topic, partition and setting."""
    topic = topics.create(2)
    message = failed(
        "if(id = 12345, repeat('x', 5000), '') key",
        "1 partition",
        topic=topic,
        **{"kafka.max.request.size": "4000"},
    )
    assert f"RecordTooLargeError: row 12345 of task 0, topic {topic!r}, partition 1: " in message
    assert "Raise kafka.max.request.size (and the topic's max.message.bytes), or write a" in message


def test_a_negative_timestamp_names_the_row(failed, topics):
    """A timestamp before 1970 fails its task, naming the row and what to do."""
    topic = topics.create()
    message = failed("timestamp_millis(if(id = 12345, -1, id)) timestamp", topic=topic)
    assert (
        f"RecordError: row 12345 of task 0, topic {topic!r}: the timestamp is before 1970. "
        in message
    )


@pytest.mark.parametrize(
    ("element", "what"),
    [
        ("cast(null as struct<key:string,value:binary>)", "a header is null"),
        ("struct(cast(null as string) as key, x'00' as value)", "the key of a header is null"),
    ],
)
def test_a_null_header_names_the_row(failed, topics, element, what):
    """A header that is null, or has a null key, fails its task, naming the row."""
    good = "struct('h' as key, x'00' as value)"
    column = f"array({good}, if(id = 12345, {element}, {good})) headers"
    topic = topics.create()
    message = failed(column, topic=topic)
    assert (
        f"RecordError: row 12345 of task 0, topic {topic!r}: {what}. Remove the header" in message
    )


def test_a_missing_topic_in_a_column_fails_the_task(failed):
    """A nonexistent topic in a column fails the task, naming the topic."""
    # Long enough for the answer that the topic is missing, on a slow machine.
    message = failed("'missing' topic", **{"kafka.max.block.ms": "5000"})
    assert "topic 'missing' is not known to the cluster" in message


def test_a_batch_rejected_by_the_topic_fails_the_task(failed, topics):
    """A compacted topic rejects a record without a key; the error names the topic and the code."""
    topic = topics.create(cleanup_policy="compact")
    message = failed("if(id = 12345, null, 'k') key", topic=topic)
    assert "DeliveryError: " in message
    assert topic in message
    assert "INVALID_RECORD" in message


def test_rows_of_finished_tasks_remain(topics, spark, tmp_path):
    """When one task fails, the rows of finished tasks are there once, and no report is written."""
    topic = topics.create()
    path = tmp_path / "report.json"
    df = spark.range(4, numPartitions=4).selectExpr(
        VALUE, "cast(if(id = 3, 99, 0) as int) partition"
    )
    with pytest.raises(PythonException, match="partition 99"):
        topics.write(df, topic, reportPath=str(path))
    # The session runs two tasks at a time, so the fourth started after two others had ended.
    values = topics.values(topic)
    assert 2 <= len(set(values)) == len(values)
    assert {"0", "1", "2"} >= set(values)
    assert not path.exists()
