"""At-least-once streams: triggers, output modes, restarts, the report."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException

from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.faults.recreated_topic import AFTER, BEFORE, recreate_topic
from tests.support.spark.idle_workers import end_idle_workers
from tests.support.spark.streams import (
    PATIENCE_SECONDS,
    Checkpoint,
    NumberedFiles,
    run_to_end,
    to_kafka,
    wait_for_batch,
)


@pytest.fixture
def files(tmp_path):
    return NumberedFiles(tmp_path)


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)


@pytest.fixture
def writer(topics, spark, files, checkpoint):
    """Return a function that creates the writer of a stream from the files to a topic."""

    def make(topic, df=None, **options):
        df = files.read(spark) if df is None else df
        return to_kafka(df, checkpoint, **topics.servers, topic=topic, **options)

    return make


def report_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_available_now_writes_and_reports_all_rows(topics, files, writer, tmp_path):
    """With availableNow, each row arrives once, and the report has a line for each micro-batch."""
    topic = topics.create(3)
    path = tmp_path / "report.jsonl"
    files.add(10, files=3)
    query = run_to_end(writer(topic, reportPath=str(path)))
    assert files.numbers == topics.values(topic)
    assert [(query.id, batch, 10) for batch in range(3)] == [
        (line["query_id"], line["batch_id"], line["rows"]) for line in report_of(path)
    ]
    records = topics.read(topic)
    assert len(records) == sum(
        partition["last_offset"] - partition["first_offset"] + 1
        for line in report_of(path)
        for partition in line["topics"][topic]
    )


@pytest.mark.filterwarnings("ignore:Trigger.Once:FutureWarning")
def test_the_trigger_once_writes_one_batch(topics, files, writer):
    """With the trigger once, one micro-batch is written, and the query ends by itself."""
    topic = topics.create()
    files.add(10)
    query = writer(topic).trigger(once=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert files.numbers == topics.values(topic)


def test_micro_batches_share_producers(topics, files, writer):
    """While a query runs, its workers reuse their producers across micro-batches."""
    topic = topics.create(2)
    ids = []
    hook = topics.broker.on(ApiKey.INIT_PRODUCER_ID, lambda request, _: ids.append(request))
    files.add(10)
    query = writer(topic).trigger(processingTime="0 seconds").start()
    try:
        for batch in range(1, 8):
            wait_for_batch(query, batch - 1)
            files.add(10)
        wait_for_batch(query, 7)
    finally:
        query.stop()
        hook.remove()
    assert files.numbers == topics.values(topic)
    # Two tasks in each of eight batches; the number of workers is up to Spark.
    assert 1 <= len(ids) < 16


def test_a_stream_follows_a_topic_recreated_with_fewer_partitions(topics, spark, files, writer):
    """The same producers write the rows of the next micro-batch only to existing partitions."""
    topic = topics.create(BEFORE)
    files.add(100)
    keyed = files.read(spark).selectExpr("value", "value as key")
    query = writer(topic, keyed).trigger(processingTime="0 seconds").start()
    try:
        wait_for_batch(query, 0)
        assert set(range(BEFORE)) == {record.partition for record in topics.read(topic)}
        recreate_topic(topics.broker.bootstrap_servers, topic, AFTER)
        files.add(100)
        wait_for_batch(query, 1)
    finally:
        query.stop()
    assert files.numbers[100:] == topics.values(topic)
    assert set(range(AFTER)) == {record.partition for record in topics.read(topic)}


@pytest.mark.parametrize(
    "guarantee",
    [
        {"deliveryGuarantee": "at_least_once"},
        {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": "long-trigger"},
    ],
    ids=lambda options: options["deliveryGuarantee"],
)
def test_a_stream_continues_after_its_idle_workers_have_ended(
    topics, spark, files, writer, guarantee
):
    """A stream survives that Spark ends workers without tasks, as with a trigger over a minute."""
    topic = topics.create(2)
    files.add(10)
    query = writer(topic, **guarantee).trigger(processingTime="0 seconds").start()
    try:
        wait_for_batch(query, 0)
        assert end_idle_workers(spark)
        files.add(10)
        wait_for_batch(query, 1)
    finally:
        query.stop()
    assert files.numbers == topics.values(topic)


def test_complete_mode_writes_all_rows_of_the_result(topics, spark, files, writer):
    """In complete mode, each micro-batch writes the whole result again."""
    topic = topics.create()
    files.add(10, files=2)
    counts = files.read(spark).groupBy().count().selectExpr("cast(count as string) value")
    run_to_end(writer(topic, counts).outputMode("complete"))
    assert ["10", "20"] == topics.values(topic)


def test_update_mode_is_rejected(topics, spark, files, writer):
    """Spark does not support update mode for Python data sources, and fails before any task."""
    topic = topics.create()
    files.add(10)
    counts = files.read(spark).groupBy("value").count().selectExpr("value")
    with pytest.raises(StreamingQueryException, match="pykafka does not support Update mode"):
        run_to_end(writer(topic, counts).outputMode("update"))
    assert [] == topics.read(topic)


def test_a_query_continues_where_it_was_stopped(topics, files, writer):
    """After a restart, only new rows are written."""
    topic = topics.create()
    for _ in range(2):
        files.add(10)
        run_to_end(writer(topic))
    assert files.numbers == topics.values(topic)


def test_a_replayed_batch_is_written_again_and_reported_once(
    topics, files, writer, checkpoint, tmp_path
):
    """A batch that is not in Spark's commit log is written again, but reported only once."""
    topic = topics.create()
    path = tmp_path / "report.jsonl"
    files.add(10, files=2)
    run_to_end(writer(topic, reportPath=str(path)))
    assert 1 == checkpoint.forget_last_commit()
    run_to_end(writer(topic, reportPath=str(path)))
    values = topics.values(topic)
    assert (30, files.numbers) == (len(values), sorted(set(values)))
    assert [0, 1] == [line["batch_id"] for line in report_of(path)]


def test_a_missing_topic_stops_the_query_before_a_task(writer, files):
    """An error that the driver can detect stops a stream with the same message as a batch write."""
    files.add(10)
    with pytest.raises(StreamingQueryException, match="topic 'missing' does not exist in the clu"):
        run_to_end(writer("missing"))


def test_a_failed_query_continues_once_the_cause_is_fixed(topics, spark, files, writer):
    """A row that cannot be sent fails the query with its number; a restart writes all rows."""
    topic = topics.create(2)
    files.add(10)
    rows = files.read(spark).selectExpr(
        "value", "cast(if(value = '0000000007', 99, 0) as int) partition"
    )
    with pytest.raises(StreamingQueryException, match=r"row \d of task \d, .*partition 99"):
        run_to_end(writer(topic, rows))
    run_to_end(writer(topic))
    assert files.numbers == sorted(set(topics.values(topic)))
