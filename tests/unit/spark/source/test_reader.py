from __future__ import annotations

import logging

import pytest
from pyspark.sql.datasource import InputPartition

from spark_kafka_sink.consumer import range_reader
from spark_kafka_sink.consumer.fetch.range_fetch import DataLoss, PartitionRange
from spark_kafka_sink.errors import BrokerError, ConfigError, DataLossError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source import reader as reader_module
from spark_kafka_sink.spark.source import source_cluster
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
    monkeypatch.setattr(source_cluster, "_cache", FakeClients(fake))
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
    assert 1 == client.calls.count("earliest_offsets") == client.calls.count("log_ends")


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


ZERO_TO_FOUR = '{"t": {"0": 4, "1": 0}}'


@pytest.mark.parametrize(
    "settings",
    [{}, {"failOnDataLoss": "false"}, {"kafka.isolation.level": "read_committed"}],
    ids=str,
)
@pytest.mark.parametrize(
    ("starting", "ending", "offsets"),
    [
        ({"startingTimestamp": "7"}, {"endingOffsets": ZERO_TO_FOUR}, (6, 4)),
        ({"startingOffsets": '{"t": {"0": 8, "1": 0}}'}, {"endingTimestamp": "7"}, (8, 6)),
        ({"startingTimestamp": "9"}, {"endingTimestamp": "7"}, (8, 6)),
        (
            {"startingTimestamp": "11", "startingOffsetsByTimestampStrategy": "latest"},
            {"endingOffsets": ZERO_TO_FOUR},
            (10, 4),
        ),
    ],
    ids=["time and offset", "offset and time", "times", "late time and offset"],
)
def test_an_end_before_the_start_is_an_error(client, starting, ending, offsets, settings):
    """Bounds are compared once their offsets are known, whether or not losses are accepted."""
    client.times = {A: {7: 6, 9: 8}, B: {7: 0, 9: 0, 11: 0}}
    with pytest.raises(ConfigError) as caught:
        plan(**starting, **ending, **settings)
    first, last = offsets
    assert (
        f"t-0: the read starts at offset {first} ({next(iter(starting))}), after its end, offset "
        f"{last} ({next(iter(ending))}): choose an end that is not before the start"
    ) == str(caught.value)


def test_an_end_before_the_earliest_offset_is_a_loss(client):
    """The records up to that end were deleted."""
    end = {"endingOffsets": '{"t": {"0": 2, "1": -1}}'}
    with pytest.raises(
        DataLossError, match=r"t-0: the read ends at offset 2, .*starts at offset 3"
    ):
        plan(**end)
    assert [(1, 0, 5)] == plan(**end, failOnDataLoss="false")


def test_a_start_beyond_the_log_is_a_loss_although_the_end_is_before_it(client):
    """The log that ends too early is named, rather than the order of the offsets."""
    start = {"startingOffsets": '{"t": {"0": 50, "1": 2}}'}
    with pytest.raises(DataLossError, match=r"t-0: the read starts at offset 50, .* ends at .* 10"):
        plan(**start)
    assert [(1, 2, 5)] == plan(**start, failOnDataLoss="false")


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
    monkeypatch.setattr(reader_module, "freeze_imported_objects", lambda: None)
    wanted = InputPartition(PartitionRange("t", 0, 1, 5))
    with caplog.at_level(logging.INFO):
        assert [] == list(reader(failOnDataLoss="false").read(wanted))
    warning, line = caplog.messages
    assert warning.startswith("t-0: 2 offsets are lost: offset 1 was wanted, and offset 3 is the")
    assert line.startswith("read t-0 from offset 1 to 5: 0 rows, 0 bytes in ")
