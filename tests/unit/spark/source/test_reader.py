from __future__ import annotations

import logging

import pytest
from pyspark.sql.datasource import InputPartition

from spark_kafka_sink.consumer import range_reader
from spark_kafka_sink.consumer.fetching.range_values import DataLoss, PartitionRange
from spark_kafka_sink.errors import BrokerError, ConfigError, DataLossError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source import client_cache, task_read
from spark_kafka_sink.spark.source.columns import default_columns
from spark_kafka_sink.spark.source.reader import KafkaBatchReader
from spark_kafka_sink.spark.source.stream_reader import KafkaStreamReader
from tests.support.spark.fake_source import FakeClient, FakeClients, source_options

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
COLUMNS = default_columns(include_headers=False)


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()
    fake.logs = {A: (3, 10), B: (0, 5)}
    monkeypatch.setattr(client_cache, "_cache", FakeClients(fake))
    return fake


def reader(**options):
    return KafkaBatchReader(source_options(is_stream=False, **options), COLUMNS)


def plan(**options):
    return [
        (one.value.partition, one.value.start, one.value.end)
        for one in reader(**options).partitions()
    ]


def test_a_batch_reads_everything(client):
    """By default a batch reads from the earliest to the latest offsets."""
    assert [(0, 3, 10), (1, 0, 5)] == plan()
    assert 1 == client.calls.count("earliest_offsets") == client.calls.count("latest_offsets")


def test_a_batch_without_rows_has_no_partitions(client):
    """Empty ranges are no tasks."""
    client.logs = {A: (7, 7)}
    assert [] == plan()


def test_chosen_offsets_must_be_in_the_logs(client):
    """An offset that was deleted, or not written yet, fails on the driver with both offsets."""
    start = {"startingOffsets": '{"t": {"0": 1, "1": 2}}'}
    with pytest.raises(
        DataLossError, match=r"t-0: the read starts at offset 1, .*starts at offset 3"
    ):
        plan(**start)
    assert [(0, 3, 10), (1, 2, 5)] == plan(**start, failOnDataLoss="false")
    with pytest.raises(DataLossError, match=r"t-1: the read ends at offset 6, .* ends at offset 5"):
        plan(endingOffsets='{"t": {"0": -1, "1": 6}}')


def test_with_read_committed_the_end_of_the_log_is_left_to_the_tasks(client):
    """Beyond the last stable offset there may be transactions that are still open."""
    end = {"endingOffsets": '{"t": {"0": -1, "1": 6}}', "kafka.isolation.level": "read_committed"}
    assert [(0, 3, 10), (1, 0, 6)] == plan(**end)


def test_a_batch_fails_with_one_frame(client):
    """Spark prints one frame and the message of what is wrong."""
    client.errors = [BrokerError("no right", code=29, name="TOPIC_AUTHORIZATION_FAILED")]
    with pytest.raises(BrokerError, match="no right") as caught:
        reader().partitions()
    assert "partitions" == caught.traceback[-1].name
    with pytest.raises(ConfigError, match="must name exactly the partitions"):
        plan(startingOffsets='{"t": {"0": 1}}')


def test_options_without_effect_are_logged_when_a_read_is_planned(client, caplog):
    """The sentences of the options are logged once."""
    with caplog.at_level(logging.WARNING):
        plan(groupIdPrefix="mine")
    assert 1 == len(caplog.messages)
    assert "groupIdPrefix has no effect" in caplog.messages[0]


@pytest.mark.parametrize(
    "partition",
    [None, InputPartition(None), InputPartition(PartitionRange("t", 0, 5, 5))],
    ids=["none", "no value", "no offsets"],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_nothing_to_read_is_empty(client, partition, is_stream):
    """What Spark passes for a batch without partitions reads as empty, without a client."""
    kind = KafkaStreamReader if is_stream else KafkaBatchReader
    found = kind(source_options(is_stream=is_stream), COLUMNS).read(partition)
    assert [] == list(found)
    assert [] == client.calls


def test_a_task_warns_about_lost_offsets(client, monkeypatch, caplog):
    """A loss that is accepted is a warning with the number of offsets."""

    def read_range(_, wanted, schema, *, fail_on_data_loss, on_data_loss, poll_timeout):
        assert (False, 120.0, COLUMNS.names) == (fail_on_data_loss, poll_timeout, schema.names)
        on_data_loss(DataLoss("t", 0, wanted=1, available=3, lost=2, reason="it was deleted"))
        yield from ()

    monkeypatch.setattr(range_reader, "read_range", read_range)
    # The test run itself must not keep its objects.
    monkeypatch.setattr(task_read, "freeze_imported_objects", lambda: None)
    wanted = InputPartition(PartitionRange("t", 0, 1, 5))
    with caplog.at_level(logging.INFO):
        assert [] == list(reader(failOnDataLoss="false").read(wanted))
    warning, line = caplog.messages
    assert warning.startswith("t-0: 2 offsets are lost: offset 1 was wanted, and offset 3 is the")
    assert line.startswith("read t-0 from offset 1 to 5: 0 rows, 0 bytes in ")
