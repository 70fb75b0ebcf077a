from __future__ import annotations

import json
import logging
import pickle
import re
import time
from dataclasses import replace

import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.plan import Job, Plan
from spark_kafka_sink.model import PartitionAcks, TopicPartition
from spark_kafka_sink.spark.report_store import ReportStore
from spark_kafka_sink.spark.sink import writers
from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage
from spark_kafka_sink.spark.sink.write_report import WriteReport
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from spark_kafka_sink.spark.user_errors import may_be_bug

OPTIONS = SinkOptions.from_mapping(
    {"kafka.bootstrap.servers": "localhost:9092", "kafka.client.id": "name"}
)
MESSAGE = KafkaCommitMessage(
    partition_id=0,
    task_attempt_id=1,
    rows=2,
    acks=(
        (
            TopicPartition("t", 0),
            PartitionAcks(first_offset=5, last_offset=6, records=2, bytes=80),
        ),
    ),
)


LINE = re.compile(
    r"Kafka: wrote 2 rows \(80 bytes\) to topic t from 1 task in \d+\.\d s"
    r"( \([\d,]+ rows/s, \d+\.\d MB/s\))?"
)


def writer(report_path=None, **options):
    given = {"kafka.bootstrap.servers": "localhost:9092", "kafka.client.id": "name", **options}
    return KafkaBatchWriter(SinkOptions.from_mapping(given), topic="t", report_path=report_path)


@pytest.fixture(autouse=True)
def lines(monkeypatch):
    """Collect what is printed, as in a process in which no logging is configured."""
    printed = []
    monkeypatch.setattr(writers, "announce", lambda logger, line: printed.append(line))
    return printed


def test_a_commit_prints_one_line(lines):
    """By default, one line says what was written, and how fast."""
    writer().commit([MESSAGE])
    assert LINE.fullmatch(*lines)


def test_a_full_report_has_the_partitions(lines):
    """With report=full, a table of the partitions and their offsets follows."""
    writer(report="FULL").commit([MESSAGE])
    first, *table = lines[0].splitlines()
    assert LINE.fullmatch(first)
    assert [
        "  topic  partition  first offset  last offset  records  bytes",
        "  t              0             5            6        2     80",
    ] == table


def test_no_report_is_printed_on_request(lines, tmp_path):
    """With report=none nothing is printed, but the report is written where it is wanted."""
    path = tmp_path / "report.json"
    writer(str(path), report="none").commit([MESSAGE])
    assert [] == lines
    assert 2 == json.loads(path.read_text())["rows"]


def test_the_report_is_kept_for_the_session(monkeypatch, tmp_path):
    """A commit keeps the report, with its id and its times, where the driver finds it."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    clock = iter([1000.0, 1004.0])
    monkeypatch.setattr(time, "time", lambda: next(clock))
    writer(reportId="nightly").commit([MESSAGE])
    [kept] = ReportStore.of_driver().newest(None, limit=9)
    report = WriteReport.from_record(kept)
    assert (2, 4.0, 1004.0, "nightly", 0.5) == (
        report.rows,
        report.elapsed,
        report.ended_at,
        report.report_id,
        report.rows_per_second,
    )


def test_a_report_that_cannot_be_kept_does_not_fail_the_write(monkeypatch, tmp_path, caplog):
    """A full or missing directory is a warning: the rows must not be written again."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        writer(str(tmp_path / "report.json")).commit([MESSAGE])
    assert 1 == len(caplog.messages)
    assert (
        "the write succeeded, but its report could not be kept for last_report: "
        in (caplog.messages[0])
    )
    assert (tmp_path / "report.json").exists()


def test_messages_that_cannot_be_merged_do_not_fail_the_write(caplog):
    """Whatever is wrong with a report, the rows of its write are in Kafka."""
    with caplog.at_level(logging.WARNING):
        writer().commit([replace(MESSAGE, metrics=None)])
    assert 1 == len(caplog.messages)
    assert "the write succeeded, but there is no report of it: " in caplog.messages[0]


def test_progress_is_only_for_those_who_ask():
    """Without the option, a task's batches are passed on as they are."""
    batches = iter([])
    assert batches is writer()._with_progress(batches, 0)
    assert batches is not writer(progress="true")._with_progress(batches, 0)


def test_a_commit_writes_the_report(tmp_path):
    """The report is written to reportPath as JSON."""
    path = tmp_path / "report.json"
    writer(str(path)).commit([MESSAGE, MESSAGE])
    report = json.loads(path.read_text())
    assert (2, 4) == (report["tasks"], report["rows"])


def test_a_report_that_cannot_be_written_does_not_fail_the_write(tmp_path, lines, caplog):
    """A report that cannot be written is a warning: the rows must not be written again."""
    with caplog.at_level(logging.WARNING):
        writer(str(tmp_path / "gone" / "report.json")).commit([MESSAGE])
    assert 1 == len(caplog.messages)
    assert (
        "the write succeeded, but its report could not be written to reportPath: "
        in (caplog.messages[0])
    )
    assert LINE.fullmatch(*lines)


@pytest.mark.parametrize("error", [BrokenPipeError("nobody reads"), ValueError("nobody reads")])
def test_a_closed_console_does_not_fail_the_write(monkeypatch, caplog, error):
    """A closed standard output is a warning: the rows must not be written again."""

    def announce(logger, line):
        raise error

    monkeypatch.setattr(writers, "announce", announce)
    with caplog.at_level(logging.WARNING):
        writer().commit([MESSAGE])
    assert ["the write succeeded, but its report could not be printed: nobody reads"] == (
        caplog.messages
    )


def test_a_commit_without_messages_prints_an_empty_report(lines):
    """A DataFrame without partitions is committed without messages."""
    writer().commit([])
    assert ["Kafka: there were no rows to write (0 tasks)"] == lines


@pytest.mark.parametrize(
    ("write_id", "retention_ms"),
    [({}, 0), ({"writeId": "nightly"}, 3_600_000)],
)
def test_a_job_is_batch_0_and_its_record_expires_with_its_write_id(
    monkeypatch, capsys, write_id, retention_ms
):
    """Without a write id the record may be dropped at once: the same job cannot run again."""
    committed = []
    monkeypatch.setattr(ExactlyOnceWrite, "plan", lambda *_: Plan("orders", 3, 1, {}))
    monkeypatch.setattr(
        ExactlyOnceWrite,
        "commit",
        lambda _, plan, write_id, batch_id, *_others, job: committed.append(
            (plan.generation, batch_id, job)
        ),
    )
    options = SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": "orders",
            **write_id,
            **({"writeIdRetentionMs": "3600000"} if write_id else {}),
        }
    )
    made = KafkaBatchWriter(options, topic="t", report_path=None)
    pickle.dumps(made)
    made.commit([MESSAGE])
    assert [(3, 0, Job(retention_ms, "t"))] == committed


def test_an_abort_logs_how_many_rows_are_in_kafka(caplog, capsys):
    """An abort logs how many rows are in Kafka; None messages are ignored."""
    with caplog.at_level(logging.WARNING):
        writer().abort([None, MESSAGE, None])
    assert 1 == len(caplog.messages)
    assert "2 rows of tasks that had finished remain in Kafka" in caplog.messages[0]
    assert "" == capsys.readouterr().out


@pytest.mark.parametrize("messages", [[], [None], [None, None]])
def test_an_abort_without_finished_tasks_logs_nothing(messages, caplog, capsys):
    """If no task has finished, nothing is logged."""
    with caplog.at_level(logging.DEBUG):
        writer().abort(messages)
    assert [] == caplog.messages
    assert "" == capsys.readouterr().out


def test_an_abort_writes_no_report(tmp_path):
    """A failed write has no report."""
    writer(str(tmp_path / "report.json")).abort([MESSAGE])
    assert [] == list(tmp_path.iterdir())


def test_the_repr_of_a_writer_has_no_settings():
    """The repr of a writer, which Spark may log, contains no settings."""
    assert "name" not in repr(writer()).replace("__name__", "")


def test_writing_outside_a_task_is_rejected():
    """A write outside of a Spark task raises KafkaError."""
    with pytest.raises(KafkaError, match=r"write\(\) must be called in a Spark task"):
        writer().write(iter([]))


SPREAD = [replace(MESSAGE, partition_id=task, keys=(1, 2 + task)) for task in range(2)]


def test_keys_in_several_tasks_are_an_error_if_the_user_says_so(lines):
    """The rows of an at-least-once write are in the topic: the error says so, in one sentence."""
    with pytest.raises(
        KafkaError, match=r"^keyOrder=fail: 1 of 3 sampled keys .* The rows are in the topic, since"
    ) as caught:
        writer(keyOrder="fail").commit(SPREAD)
    assert not may_be_bug(caught.value)
    assert [] == lines
    writer(keyOrder="fail").commit(SPREAD[:1])
    assert 1 == len(lines)


def test_keys_in_several_tasks_are_a_warning_by_default(lines):
    """It follows the line of the report."""
    writer().commit(SPREAD)
    assert "\n  1 of 3 sampled keys are in more than one task, so" in lines[0]


def test_an_exactly_once_write_with_keys_in_several_tasks_is_not_committed(monkeypatch):
    """Nothing is decided, so that Spark aborts the write, and none of its rows is visible."""
    committed = []
    monkeypatch.setattr(ExactlyOnceWrite, "commit", lambda *_, **__: committed.append("it"))
    exactly_once = writer(
        keyOrder="fail", deliveryGuarantee="exactly_once", transactionalIdPrefix="p"
    )
    exactly_once._planned = writers.PlannedWrite(exactly_once._exactly_once, Plan("p", 1, 0, {}))
    with pytest.raises(KafkaError, match="None of the rows is visible"):
        exactly_once.commit(SPREAD)
    assert [] == committed
