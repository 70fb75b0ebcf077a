from __future__ import annotations

import logging
import os
import pickle
import sys

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from spark_kafka_sink.consumer.fetch.range_fetch import PartitionRange
from spark_kafka_sink.errors import ConfigError, DataLossError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark import lineage
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.lineage import LineageStore
from spark_kafka_sink.spark.lineage_events import OFFSET_RANGES
from spark_kafka_sink.spark.source import read_lineage, source_cluster
from spark_kafka_sink.spark.source.columns import default_columns
from spark_kafka_sink.spark.source.read_lineage import ReadLineage
from spark_kafka_sink.spark.source.reader import KafkaBatchReader
from spark_kafka_sink.spark.source.stream_reader import KafkaStreamReader41
from tests.support.spark.fake_source import SERVERS, FakeClient, FakeClients, source_options
from tests.support.spark.lineage_backend import key

COLUMNS = default_columns(include_headers=False)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
KAFKA = "kafka://localhost:9092"


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()
    fake.logs = {A: (3, 10), B: (0, 5)}
    monkeypatch.setattr(source_cluster, "_cache", FakeClients(fake))
    return fake


@pytest.fixture
def sent(monkeypatch, tmp_path):
    """Make this process one of Spark's driver; return what it sends, with the wait for each."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    events = []
    monkeypatch.setattr(read_lineage, "send", lambda event, wait=0.0: events.append((event, wait)))
    return events


def batch(**options):
    given = {"lineage": "openlineage", **options}
    return KafkaBatchReader(source_options(is_stream=False, **given), COLUMNS)


def kinds(sent):
    return [(event["eventType"], wait) for event, wait in sent]


def offsets(event):
    """Return the offsets of each input of an event, by topic."""
    return {
        one["name"]: [
            (shown["partition"], shown["startOffset"], shown["endOffset"])
            for shown in one["inputFacets"].get(OFFSET_RANGES, {"ranges": []})["ranges"]
        ]
        for one in event["inputs"]
    }


# --- batches


def test_a_batch_starts_and_completes_when_it_is_planned(client, sent):
    """Both events have the topic, its columns and its offsets; neither is waited for."""
    batch(minPartitions="4").partitions()
    assert [("START", 0.0), ("COMPLETE", 0.0)] == kinds(sent)
    started, completed = (event for event, _ in sent)
    assert started["run"]["runId"] == completed["run"]["runId"]
    assert {"t": [(0, 3, 10), (1, 0, 5)]} == offsets(started) == offsets(completed)
    assert ("pykafka_read.t", []) == (completed["job"]["name"], completed["outputs"])
    [source] = completed["inputs"]
    assert (KAFKA, "t") == key(source)
    assert COLUMNS.names == [field["name"] for field in source["facets"]["schema"]["fields"]]


def test_a_write_gets_to_know_the_read(client, sent):
    """What a batch reads is kept for the write that reads it, with the name of its job."""
    batch().partitions()
    batch(lineageJob="nightly").partitions()
    store = LineageStore.of_driver()
    assert [[(KAFKA, "t")], [(KAFKA, "t")]] == [
        [key(one) for one in read.inputs]
        for job in (None, "nightly")
        for read in store.take_reads(job)
    ]
    assert "nightly.read" == sent[-1][0]["job"]["name"]


def test_a_batch_that_cannot_be_read_fails(client, sent):
    """A read whose offsets are lost has FAIL, with the reason, and is no input of a write."""
    with pytest.raises(DataLossError):
        batch(startingOffsets='{"t": {"0": 1, "1": 2}}').partitions()
    assert [("START", 0.0), ("FAIL", 0.0)] == kinds(sent)
    assert "starts at offset 1" in sent[1][0]["run"]["facets"]["errorMessage"]["message"]
    assert {"t": []} == offsets(sent[1][0])
    assert [] == LineageStore.of_driver().take_reads(None)


def test_an_empty_topic_is_an_input(client, sent):
    """A topic without records to read is an input nevertheless, if the read names it."""
    client.logs = {A: (7, 7)}
    for options in ({}, {"assign": '{"t": [0]}'}):
        batch(**options).partitions()
    assert [{"t": []}] * 4 == [offsets(event) for event, _ in sent]


def test_each_topic_is_an_input(client, sent):
    """Each topic of subscribe is a dataset, and a pattern has the topics that it matches."""
    client.logs = {A: (0, 1), TopicPartition("u", 0): (0, 2)}
    batch(subscribe="t,u").partitions()
    batch(subscribePattern="[tu]").partitions()
    assert [{"t": [(0, 0, 1)], "u": [(0, 0, 2)]}] * 4 == [offsets(event) for event, _ in sent]
    assert {"pykafka_read"} == {event["job"]["name"] for event, _ in sent}


def test_without_the_option_nothing_is_sent_or_imported(client, sent, monkeypatch):
    """A read without lineage imports none of its modules."""
    for name in [name for name in sys.modules if "lineage" in name and "spark_kafka" in name]:
        monkeypatch.delitem(sys.modules, name)
    batch(lineage="none").partitions()
    stream(lineage="none").partitions({"t": {"0": 3}}, {"t": {"0": 10}})
    assert [] == sent
    loaded = [name for name in sys.modules if "lineage" in name and "spark_kafka" in name]
    assert [] == loaded


def test_a_missing_library_is_refused(monkeypatch):
    """Without the extra, a read with lineage is refused on the driver."""
    monkeypatch.setattr(lineage, "find_spec", lambda name: None)
    given = CaseInsensitiveDict({**SERVERS, "subscribe": "t", "lineage": "openlineage"})
    with pytest.raises(ConfigError, match="requires the library openlineage"):
        KafkaSink(given).reader(COLUMNS)
    with pytest.raises(KafkaError, match="requires the library openlineage"):
        KafkaSink(given).streamReader(COLUMNS).initialOffset()


def test_an_error_of_lineage_is_no_error_of_the_read(client, sent, monkeypatch, caplog):
    """Whatever fails while events are made, the read is planned, and a line says so once."""

    def fail(*_):
        raise OSError("full")

    monkeypatch.setattr(LineageStore, "add_read", fail)
    with caplog.at_level(logging.WARNING):
        assert 2 == len(batch().partitions())
        batch().partitions()
    assert [] == sent
    assert 1 == len(caplog.messages)


# --- streams


def stream(**options):
    given = {"lineage": "openlineage", **options}
    return KafkaStreamReader41(source_options(**given), COLUMNS)


def partition(start, end, number=0):
    return InputPartition(PartitionRange("t", number, start, end))


@pytest.fixture
def clock():
    """Return a clock that a test sets: `clock.now`, in seconds since 1970."""

    class Clock:
        now = 100.0

    return Clock


def test_a_stream_starts_and_runs_at_most_once_a_minute(sent, clock):
    """START and RUNNING come with the first micro-batch, and each minute has one RUNNING."""
    options = source_options(lineage="openlineage")
    read = ReadLineage(options, COLUMNS, is_stream=True, clock=lambda: clock.now)
    for now in (100.0, 159.0, 160.0, 99.0):
        clock.now = now
        read.planned_micro_batch({"t"}, [partition(0, 4), partition(4, 6)])
    read.stop()
    assert ["START", "RUNNING", "RUNNING", "RUNNING", "COMPLETE"] == [
        event["eventType"] for event, _ in sent
    ]
    assert [0.0, 2.0, 0.0, 0.0, 2.0] == [wait for _, wait in sent]
    assert {"t": [(0, 0, 6)]} == offsets(sent[1][0])
    assert 1 == len({event["run"]["runId"] for event, _ in sent})
    assert "STREAMING" == sent[0][0]["job"]["facets"]["jobType"]["processingType"]


def test_a_sink_gets_to_know_the_stream_while_it_runs(client, sent):
    """The last micro-batch of a stream is kept, with its process, until the stream stops."""
    reader = stream()
    for end in (5, 10):
        reader.partitions({"t": {"0": 3, "1": 0}}, {"t": {"0": end, "1": 0}})
    store, now = LineageStore.of_driver(), read_lineage.time.time()
    [read] = store.streams(None, at=now, is_alive=lambda process_id: process_id == os.getpid())
    assert [(KAFKA, "t")] == [key(one) for one in read.inputs]
    reader.stop()
    assert [] == store.streams(None, at=now, is_alive=lambda _: True)
    assert ["START", "RUNNING", "COMPLETE"] == [kind for kind, _ in kinds(sent)]


def test_a_stream_without_a_micro_batch_has_no_events(client, sent):
    """A stream that stops before its first micro-batch has neither begun nor ended."""
    reader = stream()
    reader.stop()
    read = ReadLineage(source_options(lineage="openlineage"), COLUMNS, is_stream=True)
    read.stop()
    assert [] == sent


def test_tasks_get_no_lineage(client, sent):
    """What the driver remembers of lineage stays there."""
    reader = stream()
    reader.partitions({"t": {"0": 3}}, {"t": {"0": 10}})
    again = pickle.loads(pickle.dumps(reader))  # noqa: S301 -- our own bytes
    assert again._lineage is None
    assert reader._lineage is not None
