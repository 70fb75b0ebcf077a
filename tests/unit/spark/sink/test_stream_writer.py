from __future__ import annotations

import json
import logging
import pickle
from dataclasses import replace

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_kafka_sink.admin.cluster_check import TopicDescription
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    SchemaError,
)
from spark_kafka_sink.exactly_once.plan import Plan
from spark_kafka_sink.model import PartitionAcks, TopicPartition
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.report_store import ReportStore
from spark_kafka_sink.spark.sink import driver_checks
from spark_kafka_sink.spark.sink.driver_checks import TrustedChecks
from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage, TransactionalPart

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "topic": "events"}
VALUE = StructType([StructField("value", StringType())])


class _Cluster:
    """A stand-in for `describe_topics` that records its calls."""

    def __init__(self):
        self.asked = 0
        self.timeouts = []
        self.dry_runs = []
        self.can_write = True
        self.error = None

    def describe_topics(self, config, topics, *, is_dry_run, timeout):
        self.asked += 1
        self.timeouts.append(timeout)
        self.dry_runs.append(is_dry_run)
        if self.error is not None:
            raise self.error
        return {topic: TopicDescription(topic, 7, self.can_write) for topic in topics}


@pytest.fixture
def cluster(monkeypatch):
    fake = _Cluster()
    monkeypatch.setattr(
        "spark_kafka_sink.admin.cluster_check.describe_topics", fake.describe_topics
    )
    monkeypatch.setattr(driver_checks, "_trusted_checks", TrustedChecks())
    return fake


def stream_writer(schema=VALUE, *, overwrite=False, **options):
    source = KafkaSink(CaseInsensitiveDict({**OPTIONS, "checkpointLocation": "/c", **options}))
    return source.streamWriter(schema, overwrite=overwrite)


def travel(writer):
    return pickle.loads(pickle.dumps(writer))  # noqa: S301 -- our own bytes


def message(rows=2, query_id="q", transactional=None):
    acks = PartitionAcks(first_offset=5, last_offset=4 + rows, records=rows, bytes=80)
    return KafkaCommitMessage(
        partition_id=0,
        task_attempt_id=1,
        rows=rows,
        acks=((TopicPartition("events", 0), acks),) if rows else (),
        query_id=query_id,
        transactional=transactional,
    )


def test_creating_a_writer_contacts_no_broker(cluster, tmp_path):
    """Spark creates writers before each commit and abort, so creating one does nothing."""
    stream_writer(reportPath=str(tmp_path / "nowhere" / "r.jsonl"))
    stream_writer(overwrite=True)
    assert 0 == cluster.asked
    assert [] == list(tmp_path.iterdir())


def test_the_cluster_is_checked_when_the_writer_is_pickled_for_the_tasks(cluster):
    """The cluster is queried before the tasks, only once however often the writer is pickled."""
    writer = stream_writer()
    again = travel(travel(writer))
    travel(writer)
    assert 1 == cluster.asked
    # Tasks get the columns with the rows.
    assert {**vars(again), "_columns": VALUE} == vars(writer)


def test_the_cluster_is_not_checked_before_each_batch(cluster):
    """A successful check of a topic is trusted for a while."""
    for _ in range(3):
        travel(stream_writer())
    assert 1 == cluster.asked
    travel(stream_writer(topic="another"))
    assert 2 == cluster.asked


def test_a_check_is_trusted_for_five_minutes():
    """A successful check is trusted for 300 seconds."""
    trusted = TrustedChecks()
    trusted.record("a", now=0)
    assert (True, False, False) == (
        trusted.is_fresh("a", 299),
        trusted.is_fresh("a", 300),
        trusted.is_fresh("b", 1),
    )


def test_checks_are_trusted_independently_of_each_other():
    """A later check of something else does not end the trust in an earlier one."""
    trusted = TrustedChecks()
    trusted.record("a", now=0)
    trusted.record("b", now=299)
    assert trusted.is_fresh("a", 299)
    trusted.record("c", now=300)
    assert (False, True) == (trusted.is_fresh("a", 299), trusted.is_fresh("b", 300))


def checkpoint_at(directory, *, commits):
    """Create a checkpoint as it is before a micro-batch, after `commits` finished ones."""
    for name, count in (("offsets", commits + 1), ("commits", commits)):
        (directory / name).mkdir()
        for batch_id in range(count):
            (directory / name / str(batch_id)).write_text("v1\n")
            (directory / name / f".{batch_id}.crc").write_bytes(b"")
    return {"checkpointLocation": str(directory)}


@pytest.mark.parametrize("commits", [0, 1])
def test_the_check_of_a_stream_may_create_its_topic(cluster, tmp_path, commits):
    """The check is not a dry run, neither at the start nor later."""
    travel(stream_writer(**checkpoint_at(tmp_path, commits=commits)))
    assert [False] == cluster.dry_runs


def test_a_failed_check_is_repeated(cluster):
    """A failed check is repeated, since the problem may be fixed by the next start."""
    cluster.can_write = False
    for _ in range(2):
        with pytest.raises(
            pickle.PickleError, match="is not authorized to write to it; grant it WRITE"
        ):
            travel(stream_writer())
    assert 2 == cluster.asked


@pytest.mark.parametrize("error", [NetworkError("nobody there"), KafkaTimeoutError("too slow")])
def test_unavailable_brokers_do_not_fail_a_running_stream(cluster, tmp_path, caplog, error):
    """The tasks wait longer for brokers themselves; the driver checks again each time."""
    options = checkpoint_at(tmp_path, commits=1)
    cluster.error = error
    for _ in range(2):
        travel(stream_writer(**options))
    warning = (
        f"could not check the cluster; the tasks of this micro-batch will wait for it: {error}"
    )
    assert [warning] * 2 == caplog.messages
    assert [3.0] * 2 == cluster.timeouts


def test_unavailable_brokers_fail_a_stream_that_never_wrote(cluster, tmp_path):
    """Before its first micro-batch a stream fails at once, as a job does."""
    cluster.error = NetworkError("nobody there")
    with pytest.raises(pickle.PickleError, match=r"^nobody there$"):
        travel(stream_writer(**checkpoint_at(tmp_path, commits=0)))
    assert [15.0] == cluster.timeouts


@pytest.mark.parametrize("location", ["s3a://bucket/checkpoint", "/no/such/directory", None])
def test_a_stream_that_may_have_written_counts_as_running(cluster, location):
    """A checkpoint that the driver cannot read may be that of a running stream."""
    cluster.error = NetworkError("nobody there")
    travel(stream_writer(checkpointLocation=location or ""))
    assert 1 == cluster.asked


def test_a_missing_topic_fails_a_running_stream_too(cluster, tmp_path):
    """An error from a broker is not an outage."""
    cluster.error = BrokerError("no topic", code=3, name="UNKNOWN_TOPIC_OR_PARTITION")
    with pytest.raises(pickle.PickleError, match="no topic"):
        travel(stream_writer(**checkpoint_at(tmp_path, commits=3)))


def test_a_missing_write_permission_is_reported_before_the_tasks(cluster):
    """A topic that the client may not write to fails the stream before a task starts."""
    cluster.can_write = False
    with pytest.raises(pickle.PickleError, match="topic 'events': this client is not authorized"):
        travel(stream_writer())


def test_a_missing_report_directory_is_reported_before_the_tasks(cluster):
    """A missing directory fails the stream before a task starts or a broker is queried."""
    with pytest.raises(pickle.PickleError, match=r"the directory .* does not exist"):
        travel(stream_writer(reportPath="/nowhere/to/be/found/r.jsonl"))
    assert 0 == cluster.asked


@pytest.mark.parametrize("is_link", [False, True])
def test_a_report_path_of_another_file_is_rejected_before_the_tasks(cluster, tmp_path, is_link):
    """A file that is not a stream's report fails the stream and is not changed."""
    other = tmp_path / "other"
    other.write_text("no newline")
    path = tmp_path / "link" if is_link else other
    if is_link:
        path.symlink_to(other)
    problem = "is a symbolic link" if is_link else "not a micro-batch's report"
    with pytest.raises(
        pickle.PickleError, match=rf"reportPath '{path}': .*{problem}.*: choose a new"
    ):
        travel(stream_writer(reportPath=str(path)))
    assert "no newline" == other.read_text()
    assert 0 == cluster.asked


def test_a_restarted_stream_continues_its_report(cluster, tmp_path):
    """A restarted stream continues its report."""
    path = tmp_path / "r.jsonl"
    stream_writer(reportPath=str(path)).commit([message()], 0)
    travel(stream_writer(reportPath=str(path))).commit([message()], 1)
    assert 2 == len(path.read_text().splitlines())


@pytest.mark.parametrize(
    ("options", "schema", "error", "sentence"),
    [
        ({"kafka.ack": "1"}, VALUE, ConfigError, "did you mean 'kafka.acks'"),
        ({}, StructType([StructField("id", LongType())]), SchemaError, "no column 'value'"),
    ],
)
def test_options_and_columns_are_checked_at_once(cluster, options, schema, error, sentence):
    """Checks that need no broker run when the writer is requested."""
    with pytest.raises(error, match=sentence):
        stream_writer(schema, **options)


def test_options_of_write_stream_itself_are_ignored(cluster, caplog):
    """Options of `writeStream` itself are ignored without a warning."""
    with caplog.at_level(logging.DEBUG):
        travel(stream_writer(queryName="name", asyncProgressTrackingEnabled="true"))
    assert [] == caplog.messages


def test_options_of_the_source_are_ignored_with_one_warning(cluster, caplog):
    """Options of Spark's Kafka source are ignored with one warning, not one per batch."""
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            travel(stream_writer(startingOffsets="earliest"))
    assert 1 == len(caplog.messages)
    assert "startingOffsets" in caplog.messages[0]


@pytest.fixture
def lines(monkeypatch):
    """Collect what is printed, as in a process in which no logging is configured."""
    printed = []
    monkeypatch.setattr(
        "spark_kafka_sink.spark.sink.stream_writer.announce",
        lambda logger, line: printed.append(line),
    )
    return printed


def test_a_commit_reports_what_the_batch_wrote(cluster, lines, tmp_path):
    """A micro-batch is printed in one line and recorded by one line of the report."""
    path = tmp_path / "r.jsonl"
    stream_writer(reportPath=str(path)).commit([message(), message(3)], 7)
    assert ["Kafka: batch 7 wrote 5 rows (160 bytes) to topic events from 2 tasks"] == lines
    [line] = map(json.loads, path.read_text().splitlines())
    assert ("q", 7, 5) == (line["query_id"], line["batch_id"], line["rows"])


def test_batches_are_kept_for_the_session(cluster, lines, monkeypatch, tmp_path):
    """Each batch is kept by its query id, and only the first of a minute is printed."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    for number in range(3):
        stream_writer(reportId="mine").commit([message(number)], number)
    found = ReportStore.of_driver().newest("q", limit=9)
    assert [(0, 0), (1, 1), (2, 2)] == [(each["batch_id"], each["rows"]) for each in found]
    assert {"mine"} == {each["report_id"] for each in found}
    assert ["batch 1 wrote 1 row"] == [line[7:26] for line in lines]


def test_the_start_of_a_batch_travels_with_its_tasks(cluster):
    """The writer notes when it is pickled for the tasks, and keeps that when pickled again."""
    writer = stream_writer()
    first = travel(writer)
    assert first._started_at is not None
    assert first._started_at == travel(first)._started_at


def test_a_stream_prints_nothing_on_request(cluster, lines):
    """With report=none, a stream prints nothing."""
    stream_writer(report="none").commit([message()], 7)
    assert [] == lines


REPLAYED = TransactionalPart(generation=1, planned_at_ms=0, is_replay=True)
WRITTEN = TransactionalPart(generation=1, planned_at_ms=0)


@pytest.mark.parametrize(
    "parts",
    [[REPLAYED, REPLAYED], [REPLAYED, WRITTEN], [WRITTEN, REPLAYED]],
    ids=["all", "the first", "the last"],
)
def test_a_batch_with_a_replayed_task_does_not_replace_its_line(cluster, tmp_path, parts):
    """A replayed task does not know what it wrote before, so an existing line has more detail."""
    path = tmp_path / "r.jsonl"
    stream = stream_writer(reportPath=str(path))
    stream.commit([message(9)], 7)
    again = [message(0 if part.is_replay else 2, transactional=part) for part in parts]
    stream.commit(again, 7)
    stream.commit(again, 8)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = sum(each.rows for each in again)
    assert [(7, 9, None), (8, rows, True)] == [
        (line["batch_id"], line["rows"], line.get("replayed")) for line in lines
    ]


def test_a_batch_without_a_replayed_task_replaces_its_line(cluster, tmp_path):
    """A batch that was written again replaces its line."""
    path = tmp_path / "r.jsonl"
    stream = stream_writer(reportPath=str(path))
    stream.commit([message(9)], 7)
    stream.commit([message(2, transactional=WRITTEN)], 7)
    [line] = map(json.loads, path.read_text().splitlines())
    assert (2, False) == (line["rows"], "replayed" in line)


@pytest.mark.parametrize("step", ["commit", "abort"])
def test_an_exactly_once_batch_ends_under_its_query_id_and_batch_id(monkeypatch, step):
    """The query id and the plan come from the tasks' messages."""
    ended = []
    monkeypatch.setattr(
        ExactlyOnceWrite,
        step,
        lambda _, plan, write_id, batch_id, messages, _observe: ended.append(
            (plan, write_id, batch_id, messages)
        ),
    )
    writer = stream_writer(deliveryGuarantee="exactly_once", transactionalIdPrefix="orders")
    messages = [message(transactional=TransactionalPart(generation=3, planned_at_ms=1_000))] * 2
    getattr(writer, step)(messages, 7)
    assert [(Plan("orders", 3, 1_000, {}), "q", 7, messages)] == ended
    getattr(writer, step)([None, None], 8)
    assert 1 == len(ended)


def test_an_empty_commit_prints_nothing(cluster, lines):
    """A micro-batch without rows prints nothing, and may have no tasks."""
    stream_writer().commit([], 0)
    stream_writer().commit([message(0)], 1)
    assert [] == lines


def test_a_report_that_cannot_be_written_does_not_fail_the_batch(cluster, caplog, tmp_path):
    """A report that cannot be written is a warning: the rows must not be written again."""
    path = tmp_path / "gone" / "r.jsonl"
    with caplog.at_level(logging.WARNING):
        stream_writer(reportPath=str(path)).commit([message()], 3)
    assert 1 == len(caplog.messages)
    assert "batch 3 was written, but its report was not: " in caplog.messages[0]


def test_messages_that_cannot_be_merged_do_not_fail_the_batch(cluster, caplog):
    """Whatever is wrong with a report, the rows of its batch are in Kafka."""
    with caplog.at_level(logging.WARNING):
        stream_writer().commit([replace(message(), metrics=None)], 3)
    assert 1 == len(caplog.messages)
    assert "batch 3 was written, but there is no report of it: " in caplog.messages[0]


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"no newline"])
def test_a_report_replaced_by_another_file_does_not_fail_the_batch(
    cluster, caplog, tmp_path, content
):
    """A report that was replaced meanwhile is a warning, and the file is not changed."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        stream_writer(reportPath=str(path)).commit([message()], 3)
    assert 1 == len(caplog.messages)
    assert "batch 3 was written, but its report was not: " in caplog.messages[0]
    assert content == path.read_bytes()


def test_an_abort_logs_how_many_rows_are_in_kafka(cluster, caplog):
    """An abort logs how many rows are in Kafka; None messages are ignored."""
    with caplog.at_level(logging.WARNING):
        stream_writer().abort([None, message(), None], 4)
        stream_writer().abort([None], 5)
    assert 1 == len(caplog.messages)
    assert "batch 4 failed; 2 rows of tasks that had finished remain in Kafka" in caplog.messages[0]


def test_a_worker_of_the_driver_hides_its_imports_from_the_collector(cluster, monkeypatch):
    """Both steps do so, once they have imported what they need: some workers do one only."""
    seen = []
    monkeypatch.setattr(
        "spark_kafka_sink.spark.sink.stream_writer.freeze_imported_objects",
        lambda: seen.append(cluster.asked),
    )
    writer = stream_writer()
    assert [] == seen
    travel(writer)
    assert [1] == seen
    stream_writer().commit([message()], 3)
    assert [1, 1] == seen


def test_writing_outside_a_task_is_rejected(cluster):
    """A write outside of a Spark task raises KafkaError."""
    with pytest.raises(KafkaError, match=r"write\(\) must be called in a Spark task"):
        stream_writer().write(iter([]))
