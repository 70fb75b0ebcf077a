"""The reports of writes, in the session that wrote: batches and streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.observability import EventKind, KafkaStreamListener, SessionReports


def numbers(spark, count):
    return spark.range(count, numPartitions=2).selectExpr("cast(id as string) value")


def test_the_session_that_wrote_has_the_report(topics, spark):
    """The last report is that of the write which has just returned, with offsets and rates."""
    topic = topics.create(2)
    topics.write(numbers(spark, 1000), topic, report="none")
    report = KafkaSink.last_report(spark)
    assert (1000, 2, (topic,)) == (report.rows, report.tasks, report.topics)
    assert 1000 == sum(acks.records for _, acks in report.partitions)
    assert {0} == {acks.first_offset for _, acks in report.partitions}
    assert report.rows_per_second == report.rows / report.elapsed
    topics.write(numbers(spark, 3), topic, report="none")
    # The session that is active is the default.
    assert [1000, 3] == [each.rows for each in KafkaSink.last_reports(limit=2)]


def test_writes_at_the_same_time_are_told_apart(topics, spark):
    """Each of two writes that run at the same time is found by its report id."""
    topic = topics.create()

    def write(count):
        # It makes the session active in this thread: Spark looks for data sources in no other.
        df = spark.createDataFrame([(str(number),) for number in range(count)], "value string")
        topics.write(df, topic, report="none", reportId=f"of {count}")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, (5, 7)))
    found = [KafkaSink.last_report(spark, report_id=f"of {count}").rows for count in (5, 7)]
    assert [5, 7] == found
    assert KafkaSink.last_report(spark, report_id="of nothing") is None


class Events:
    """An exporter that keeps what it is told of the query "reported"."""

    def __init__(self):
        """Start without events."""
        self.told = []
        self.ended = Event()

    def export(self, event):
        """Keep an event, with the rows of its report."""
        if event.query != "reported":
            return
        if event.kind is not EventKind.PROGRESS or event.wrote_batch:
            self.told.append((event.kind, event.report and event.report["rows"]))
        if event.kind is EventKind.TERMINATED:
            self.ended.set()


@pytest.fixture
def events(spark):
    """Return the events of a listener that gets its reports from the session."""
    events = Events()
    listener = KafkaStreamListener(events, reports=SessionReports(spark))
    spark.streams.addListener(listener)
    yield events
    spark.streams.removeListener(listener)


def test_a_stream_has_the_reports_of_its_batches(topics, spark, tmp_path, events):
    """The reports of a query are found by it, in order, and a listener gets each in time."""
    topic = topics.create()
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        numbers(spark, 10 + number).coalesce(1).write.mode("append").text(str(source))
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(source))
        .writeStream.format("pykafka")
        .queryName("reported")
        .options(**topics.servers, topic=topic, report="none")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    reports = KafkaSink.last_reports(spark, query=query)
    assert [(0, 10), (1, 11)] == [(report.batch_id, report.rows) for report in reports]
    assert {query.id} == {report.query_id for report in reports}
    assert all(report.elapsed > 0 for report in reports)
    assert reports[1] == KafkaSink.last_report(spark, query=query.id)
    assert events.ended.wait(120)
    assert [
        (EventKind.STARTED, None),
        (EventKind.PROGRESS, 10),
        (EventKind.PROGRESS, 11),
        (EventKind.TERMINATED, None),
    ] == events.told
    with pytest.raises(ValueError, match="must be a streaming query or its id"):
        KafkaSink.last_report(spark, query="my query")
