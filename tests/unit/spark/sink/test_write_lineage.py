from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.admin.cluster_check import TopicDescription
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.exactly_once.plan import Plan
from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, TopicPartition
from spark_kafka_sink.spark import lineage
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.lineage import LineageStore, PlannedRead
from spark_kafka_sink.spark.lineage_events import (
    OFFSET_RANGES,
    OffsetRange,
    SparkApplication,
    input_dataset,
    schema_fields,
)
from spark_kafka_sink.spark.sink import driver_checks, write_lineage
from spark_kafka_sink.spark.sink.bad_rows import BadRows
from spark_kafka_sink.spark.sink.driver_checks import TrustedChecks
from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage
from spark_kafka_sink.spark.sink.write_lineage import (
    BatchLineage,
    application_of,
    due_report,
)
from spark_kafka_sink.spark.sink.write_report import WriteReport, report_of
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from spark_kafka_sink.spark.source.columns import default_columns
from tests.support.spark.lineage_backend import datasets, edges

KAFKA = "kafka://localhost:9092"
SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
VALUE = StructType([StructField("value", StringType())])
RUN_ID = "5f6b9a30-0000-4000-8000-000000000000"
APPLICATION = SparkApplication("Copy orders", "local-1", RUN_ID)


def partition_acks(first, last, records, size):
    return PartitionAcks(first_offset=first, last_offset=last, records=records, bytes=size)


ACKS = (
    (TopicPartition("copies", 0), partition_acks(5, 6, 2, 80)),
    (TopicPartition("copies", 1), partition_acks(0, 0, 1, 70)),
)
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "openlineage_spark.json").read_text())


def message(application=APPLICATION, query_id=None, acks=ACKS, started_at=None):
    return KafkaCommitMessage(
        partition_id=0,
        task_attempt_id=1,
        rows=sum(partition.records for _, partition in acks),
        acks=acks,
        query_id=query_id,
        started_at=started_at,
        application=application,
    )


@pytest.fixture
def sent(monkeypatch, tmp_path):
    """Make this process one of Spark's driver; return what it sends, with the wait for each."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    events = []
    monkeypatch.setattr(write_lineage, "send", lambda event, wait=0.0: events.append((event, wait)))
    return events


@pytest.fixture
def cluster(monkeypatch):
    """Make every topic exist."""
    monkeypatch.setattr(
        "spark_kafka_sink.admin.cluster_check.describe_topics",
        lambda config, topics, *, is_dry_run, timeout: {
            topic: TopicDescription(topic, 2, True) for topic in topics
        },
    )
    monkeypatch.setattr(driver_checks, "_trusted_checks", TrustedChecks())


def source(**options):
    given = {**SERVERS, "topic": "copies", "lineage": "openlineage", "report": "none", **options}
    return KafkaSink(CaseInsensitiveDict(given))


def batch(**options):
    """Return a writer as tasks and the commit get it."""
    writer = source(**options).writer(VALUE, overwrite=False)
    return pickle.loads(pickle.dumps(writer))  # noqa: S301 -- our own bytes


def planned_read(topic="orders", job=None, at=1.0, process_id=None):
    fields = schema_fields(default_columns(include_headers=False))
    inputs = [input_dataset(KAFKA, topic, fields, [OffsetRange(0, 0, 3)])]
    return PlannedRead(job, inputs, at, process_id)


def kinds(sent):
    return [(event["eventType"], wait) for event, wait in sent]


def outputs(event):
    """Return rows, bytes and offsets of each output dataset of an event, by topic."""
    return {
        one["name"]: (
            one["outputFacets"]["outputStatistics"]["rowCount"],
            one["outputFacets"]["outputStatistics"]["size"],
            [
                (shown["partition"], shown["startOffset"], shown["endOffset"])
                for shown in one["outputFacets"].get(OFFSET_RANGES, {"ranges": []})["ranges"]
            ],
        )
        for one in event["outputs"]
    }


# --- batches


def test_a_batch_starts_and_completes(sent, cluster):
    """A batch has START without a wait and COMPLETE with two seconds at most, as one run."""
    batch().commit([message()])
    assert [("START", 0.0), ("COMPLETE", 2.0)] == kinds(sent)
    started, completed = (event for event, _ in sent)
    assert started["run"]["runId"] == completed["run"]["runId"]
    assert {"pykafka_write.copies"} == {event["job"]["name"] for event in (started, completed)}
    assert {"copies": (3, 150, [(0, 5, 7), (1, 0, 1)])} == outputs(completed)
    assert schema_fields(VALUE) == completed["outputs"][0]["facets"]["schema"]["fields"]
    assert [(KAFKA, "copies")] == [(one["namespace"], one["name"]) for one in started["outputs"]]
    details = completed["run"]["facets"]["spark_applicationDetails"]
    assert ("Copy orders", "local-1") == (details["appName"], details["applicationId"])


def test_a_copy_has_the_graph_of_the_jvm_integration(sent, cluster):
    """A batch copied from a topic has the datasets and edges of Spark's own format."""
    LineageStore.of_driver().add_read(planned_read())
    batch().commit([message()])
    [copy] = [run for run in GOLDEN["runs"] if run["outputs"][0]["name"] == "copies"]
    ours = [event for event, _ in sent]
    assert edges([copy]) == edges(ours) == edges(ours[:1])
    assert datasets([copy]) == datasets(ours)
    assert copy["inputs"][0]["schema"] == ours[-1]["inputs"][0]["facets"]["schema"]["fields"]


def test_a_failed_batch_fails(sent, cluster):
    """An aborted write is a failed run, whether or not a task has finished."""
    for messages in ([None], [message(), None]):
        sent.clear()
        batch().abort(messages)
        assert [("START", 0.0), ("FAIL", 2.0)] == kinds(sent)
        assert sent[0][0]["run"]["runId"] == sent[1][0]["run"]["runId"]


def test_a_job_is_named_by_an_option(sent, cluster):
    """With lineageJob the job has that name, and its inputs are the reads with the same name."""
    store = LineageStore.of_driver()
    store.add_read(planned_read("other"))
    store.add_read(planned_read("mine", job="nightly"))
    batch(lineageJob="nightly").commit([message()])
    event = sent[-1][0]
    assert ("nightly", ["mine"]) == (
        event["job"]["name"],
        [one["name"] for one in event["inputs"]],
    )


def test_topics_of_a_column_are_outputs_when_they_are_known(sent, cluster):
    """If a column names the topics, they are outputs when the write has completed."""
    columns = StructType([StructField("value", StringType()), StructField("topic", StringType())])
    given = {**SERVERS, "lineage": "openlineage", "report": "none"}
    writer = KafkaSink(CaseInsensitiveDict(given)).writer(columns, overwrite=False)
    pickle.loads(pickle.dumps(writer)).commit([message()])  # noqa: S301 -- our own bytes
    started, completed = (event for event, _ in sent)
    assert ([], "pykafka_write") == (started["outputs"], started["job"]["name"])
    assert ["copies"] == list(outputs(completed))


def test_dead_letters_are_an_output_without_the_columns_of_the_rows(sent, cluster):
    """The topic of dead letters is an output, whose columns are not those of the rows."""
    acks = (*ACKS, (TopicPartition("letters", 0), partition_acks(0, 0, 1, 60)))
    bad = BadRows(counts=(("size", 1),), first=(), dlq_topic="letters")
    told = replace(message(acks=acks), rows=3, bad_rows=bad)
    batch(onError="dlq", dlqTopic="letters").commit([told])
    by_name = {one["name"]: one for one in sent[-1][0]["outputs"]}
    assert ["copies", "letters"] == sorted(by_name)
    assert "schema" not in by_name["letters"]["facets"]


def test_offsets_that_brokers_did_not_return_are_left_out(sent, cluster):
    """With acks=0 there are rows and bytes, and no offsets."""
    unknown = partition_acks(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 2, 80)
    batch().commit([message(acks=((TopicPartition("copies", 0), unknown),))])
    assert {"copies": (2, 80, [])} == outputs(sent[-1][0])


def test_a_write_without_rows_has_its_topic(sent, cluster):
    """A batch without rows completes with its topic as output."""
    batch().commit([message(acks=())])
    assert ("COMPLETE", ["copies"]) == (
        sent[-1][0]["eventType"],
        [one["name"] for one in sent[-1][0]["outputs"]],
    )


def test_a_write_that_is_refused_has_not_started(sent, monkeypatch, cluster):
    """An exactly-once write whose plan is refused has no events: Spark would not end its run."""

    def refuse(*_):
        raise KafkaError("fenced")

    monkeypatch.setattr(ExactlyOnceWrite, "plan", refuse)
    with pytest.raises(KafkaError, match="fenced"):
        batch(deliveryGuarantee="exactly_once", transactionalIdPrefix="p")
    assert [] == sent


def test_a_write_that_was_committed_before_completes(sent, monkeypatch, cluster):
    """A replay writes nothing, and its run completes without numbers."""
    plan = Plan("p", 1, 0, {})
    monkeypatch.setattr(ExactlyOnceWrite, "plan", lambda *_: plan)
    monkeypatch.setattr(Plan, "must_write", lambda *_: False)
    batch(deliveryGuarantee="exactly_once", transactionalIdPrefix="p").commit([message(acks=())])
    assert ["START", "COMPLETE"] == [kind for kind, _ in kinds(sent)]
    assert "outputFacets" not in sent[-1][0]["outputs"][0]


def test_no_event_has_an_option_or_a_secret(sent, cluster):
    """Settings, such as passwords, and values of rows are in no event and in no file."""
    writer = batch(
        **{
            "kafka.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="alice" password="secret";'
            ),
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.client.id": "my-client",
        }
    )
    writer.commit([message()])
    text = json.dumps([event for event, _ in sent])
    assert [] == [word for word in ("secret", "alice", "my-client", "sasl") if word in text.lower()]


def test_without_the_option_nothing_is_sent_or_imported(monkeypatch, cluster):
    """A write without lineage imports none of its modules."""
    for name in [name for name in sys.modules if "lineage" in name and "spark_kafka" in name]:
        monkeypatch.delitem(sys.modules, name)
    writer = batch(lineage="none")
    writer.commit([message(None)])
    writer.abort([None])
    loaded = [name for name in sys.modules if "lineage" in name and "spark_kafka" in name]
    assert [] == loaded


def test_an_error_of_lineage_is_no_error_of_the_write(sent, cluster, monkeypatch, caplog):
    """Whatever fails while events are made, the write succeeds, and a line says so once."""

    def fail(*_):
        raise OSError("full")

    monkeypatch.setattr(LineageStore, "take_reads", fail)
    with caplog.at_level(logging.WARNING):
        writer = batch()
        writer.commit([message()])
        writer.abort([])
    assert [] == sent
    assert ["Kafka: lineage is incomplete: OSError."] == [
        told.partition(" Reads")[0] for told in caplog.messages
    ]


def test_a_missing_library_is_refused_before_a_task_runs(cluster, monkeypatch):
    """Without the extra, a write with lineage is refused on the driver; a check is not."""
    monkeypatch.setattr(lineage, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="requires the library openlineage"):
        batch()
    with pytest.raises(KafkaError, match="requires the library openlineage"):
        pickle.dumps(stream())


def test_a_batch_without_lineage_begins_none():
    """Without the option there is nothing to send."""
    assert BatchLineage.begin(SinkOptions.from_mapping(SERVERS), VALUE, "t", at=0) is None


def test_a_writer_without_columns_has_no_lineage(sent):
    """A writer that was not made for a DataFrame sends nothing."""
    options = SinkOptions.from_mapping({**SERVERS, "lineage": "openlineage", "report": "none"})
    writer = KafkaBatchWriter(options, topic="t", report_path=None)
    pickle.loads(pickle.dumps(writer)).commit([message()])  # noqa: S301 -- our own bytes
    assert [] == sent


# --- streams


def stream(**options):
    return source(checkpointLocation="/c", **options).streamWriter(VALUE, overwrite=False)


def of_query(started_at=100.0, **values):
    return message(query_id="q", started_at=started_at, **values)


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that a test sets: `clock.now`, in seconds since 1970."""

    class Clock:
        now = 100.0

    monkeypatch.setattr("spark_kafka_sink.spark.sink.stream_writer.time.time", lambda: Clock.now)
    return Clock


def test_a_stream_starts_and_runs_at_most_once_a_minute(sent, cluster, clock):
    """START and RUNNING follow the first micro-batch, and each minute has one RUNNING."""
    for batch_id, now in enumerate((101.0, 130.0, 160.9, 161.0, 200.0)):
        clock.now = now
        stream().commit([of_query(now - 1)], batch_id)
    assert [("START", 2.0), ("RUNNING", 0.0), ("RUNNING", 0.0)] == kinds(sent)
    assert {RUN_ID} == {event["run"]["runId"] for event, _ in sent}
    assert {"pykafka_stream.copies"} == {event["job"]["name"] for event, _ in sent}
    assert "1970-01-01T00:01:40.000+00:00" == sent[0][0]["eventTime"]
    assert [3, 9] == [outputs(event)["copies"][0] for event, _ in sent[1:]]


def test_a_streams_job_is_named_by_its_query(sent, cluster):
    """The job of a stream is its query's name, unless lineageJob names it."""
    stream(queryName="orders to copies").commit([of_query()], 0)
    stream(queryName="q", lineageJob="nightly").abort([of_query()], 1)
    assert ["orders to copies", "orders to copies", "nightly"] == [
        event["job"]["name"] for event, _ in sent
    ]


def test_a_stream_has_the_graph_of_the_jvm_integration(sent, cluster):
    """A stream that copies a topic has the datasets and edges of Spark's own format."""
    read = planned_read(at=99.0, process_id=os.getpid())
    LineageStore.of_driver().set_stream("s", read)
    acks = ((TopicPartition("stream-copies", 0), partition_acks(0, 1, 2, 80)),)
    stream(topic="stream-copies").commit([of_query(acks=acks)], 0)
    [copy] = [run for run in GOLDEN["runs"] if run["outputs"][0]["name"] == "stream-copies"]
    ours = [event for event, _ in sent]
    assert edges([copy]) == edges(ours[:1]) == edges(ours[1:])
    assert datasets([copy]) == datasets(ours)


def test_streams_side_by_side_have_inputs_only_if_they_are_named(sent, cluster, clock):
    """Nothing tells which of several streams reads what, unless lineageJob does."""
    store = LineageStore.of_driver()
    for name, job in (("a", None), ("b", "named")):
        store.set_stream(name, planned_read(name, job, 99.0, os.getpid()))
    stream().commit([of_query()], 0)
    of_other = APPLICATION._replace(run_id="6f6b9a30-0000-4000-8000-000000000000")
    stream().commit([of_query(application=of_other)], 0)
    of_named = APPLICATION._replace(run_id="7f6b9a30-0000-4000-8000-000000000000")
    stream(lineageJob="named").commit([of_query(application=of_named)], 0)
    inputs = [[one["name"] for one in event["inputs"]] for event, _ in sent]
    assert [["a"], ["a"], [], [], ["b"], ["b"]] == inputs


def test_a_failed_micro_batch_ends_the_run(sent, cluster):
    """FAIL has the run of a task that has finished, or else of the last micro-batch."""
    writer = stream()
    writer.abort([None], 0)
    assert [] == sent
    writer.commit([of_query()], 0)
    sent.clear()
    for messages in ([None], [of_query()]):
        writer.abort(messages, 1)
    assert [("FAIL", 2.0), ("FAIL", 2.0)] == kinds(sent)
    assert {RUN_ID} == {event["run"]["runId"] for event, _ in sent}
    assert {} == LineageStore.of_driver().runs()


def test_a_micro_batch_without_tasks_has_no_event(sent, cluster):
    """Without a task not even the run is known."""
    stream().commit([], 0)
    assert [] == sent


def test_outside_of_spark_a_stream_has_events_without_inputs(sent, cluster, monkeypatch):
    """Where there are no files, nothing is known of other processes."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    writer = stream()
    writer.commit([of_query()], 0)
    writer.abort([None], 1)
    writer.abort([of_query()], 1)
    assert ["START", "RUNNING", "FAIL"] == [kind for kind, _ in kinds(sent)]
    assert [[], [], []] == [event["inputs"] for event, _ in sent]


def test_an_error_of_a_streams_lineage_is_no_error_of_the_batch(sent, cluster, monkeypatch, caplog):
    """Whatever fails, the micro-batch is committed or aborted."""

    def fail(*_):
        raise OSError("full")

    monkeypatch.setattr(LineageStore, "runs", fail)
    stream().commit([of_query()], 0)
    stream().abort([None], 1)
    assert [] == sent
    assert 1 == len(caplog.messages)


def test_a_run_without_an_id_of_spark_follows_from_the_query(sent, cluster):
    """If Spark's job group is no run id, the query's id decides, and it is always the same."""
    for run_id in (None, "my group"):
        stream().commit([of_query(application=APPLICATION._replace(run_id=run_id))], 0)
    assert 1 == len({event["run"]["runId"] for event, _ in sent})


def test_a_clock_that_was_set_back_does_not_silence_a_stream():
    """RUNNING is due after a minute, or if the last one seems to be in the future."""
    report = report_of([message()])
    assert [True, False, True, True] == [
        due_report({"sent_at": 100.0} if before else {}, report, now=now)[0] is not None
        for before, now in ((False, 100.0), (True, 159.0), (True, 160.0), (True, 99.0))
    ]


def test_what_was_written_since_the_last_event_is_kept():
    """The state has the sum of all micro-batches that no event has reported yet."""
    report = report_of([message()])
    _, state = due_report({"sent_at": 100.0}, report, now=101.0)
    _, state = due_report(json.loads(json.dumps(state)), report, now=102.0)
    assert 6 == WriteReport.from_record(state["waiting"]).rows
    total, state = due_report(state, report, now=160.0)
    assert (9, {"sent_at": 160.0}) == (total.rows, state)


def test_tasks_tell_the_driver_what_they_know():
    """Tasks read the application and the run from Spark's properties."""
    properties = {
        "spark.app.name": "Copy orders",
        "spark.app.id": "local-1",
        "spark.jobGroup.id": RUN_ID,
    }
    assert APPLICATION == application_of(properties.get)
