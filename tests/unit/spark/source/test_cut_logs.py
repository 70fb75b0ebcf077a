"""Streams whose logs are cut by a leader that was not in sync when it was elected (KIP-320)."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import DataLossError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from spark_kafka_sink.spark.source.stream_reader import StreamDriver
from tests.support.consumer.reading import fill, numbered
from tests.support.spark.fake_source import FakeClient, FakeClients, source_options
from tests.support.spark.read_stream import read_stream

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST, SECOND, OTHER = numbered(60), numbered(40, 60), numbered(100, 1000)


@pytest.fixture
def broker():
    """Yield a broker with the records of a topic in two batches."""
    with DevBroker(brokers=2, topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", FIRST)
        fill(broker.bootstrap_servers, "t", SECOND)
        yield broker


def cut(broker):
    """Elect a leader without the second batch, which gets more records than the old one had."""
    broker.elect_unclean_leader("t", 0, len(FIRST))
    fill(broker.bootstrap_servers, "t", OTHER)


def test_a_log_that_was_cut_and_is_longer_by_now_is_a_loss(broker):
    """The query fails, and so it does when it is restarted; or it reads from the cut on."""
    servers = broker.bootstrap_servers
    with read_stream(servers, "t") as query:
        found, checkpoint = query.read()
        assert [*FIRST, *SECOND] == found
        cut(broker)
        message = "^t-0: the log was cut at offset 60, before offset 100, which was to be read next"
        with pytest.raises(DataLossError, match=message):
            query.read(checkpoint)
    with read_stream(servers, "t") as restarted, pytest.raises(DataLossError, match=message):
        restarted.read(checkpoint)
    with read_stream(servers, "t", failOnDataLoss="false") as tolerant:
        found, checkpoint = tolerant.read(checkpoint)
        assert OTHER == found
        assert ([], checkpoint) == tolerant.read(checkpoint)


def test_a_log_that_is_cut_after_a_batch_was_planned_is_a_loss(broker):
    """The first Fetch of the task carries the epoch up to which the log was read."""
    servers = broker.bootstrap_servers
    with read_stream(servers, "t") as query:
        _, checkpoint = query.read()
        fill(servers, "t", numbered(20, 100))
        planned, _ = query.plan(checkpoint)
        cut(broker)
        message = "^t-0: .* truncated to offset 60 after records up to offset 100 had been read"
        with pytest.raises(DataLossError, match=message):
            query.run(planned)


def test_a_leader_in_sync_is_asked_once_and_nothing_is_lost(broker):
    """An election without a loss takes one question, and the stream goes on."""
    servers = broker.bootstrap_servers
    asked = []
    broker.on(ApiKey.OFFSET_FOR_LEADER_EPOCH, lambda request, _: asked.append(request))
    with read_stream(servers, "t") as query:
        _, checkpoint = query.read()
        broker.move_leader("t", 0, 2)
        for number in (1, 2):
            more = numbered(5, number * 1000)
            fill(servers, "t", more)
            found, checkpoint = query.read(checkpoint)
            assert (more, 1) == (found, len(asked))


@pytest.fixture
def client():
    fake = FakeClient()
    fake.logs = {A: (0, 100), B: (0, 10)}
    return fake


@pytest.fixture
def driver(client):
    """Return a function that starts the driver of a query."""

    def start(**options):
        given = source_options(**options)
        cluster = SourceCluster(
            given, is_stream=True, clients=FakeClients(client), sleep=lambda _: None
        )
        return StreamDriver(given, cluster=cluster)

    return start


def ranges(partitions):
    return [
        (it.partition, it.start, it.end, it.start_epoch)
        for it in (each.value for each in partitions)
    ]


def elect(client, *, cut_at):
    """Make partition 0 end at an offset, and give it a leader in a later epoch."""
    client.epochs[A] = 4
    client.epoch_ends_of[A, 3] = cut_at


@pytest.fixture
def read(driver):
    """Return the offsets up to which a query has read both partitions."""
    query = driver(startingOffsets="earliest")
    return query.next_end(query.initial())


@pytest.mark.parametrize("end", [160, 80, 60], ids=["longer", "shorter", "without other records"])
def test_a_log_is_read_from_the_cut_on_if_the_loss_is_accepted(driver, client, read, caplog, end):
    """A warning says where the log was cut, however long it is by now."""
    elect(client, cut_at=60)
    client.logs[A] = (0, end)
    query = driver(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        found = ranges(query.divide(read, query.next_end(read)))
    assert [(0, 60, end, 3)][: end - 60] == found
    assert (
        "t-0: the log was cut at offset 60, before offset 100, which was to be read next, since a "
        "leader that was not in sync was elected: later records are others; records are lost, and "
        "the read goes on without them (failOnDataLoss=false)"
    ) == caplog.messages[-1]


def test_a_cut_log_that_has_its_old_length_is_a_loss(driver, client, read):
    """A later epoch makes the query look, although there is no offset that it has not read."""
    elect(client, cut_at=60)
    query = driver()
    with pytest.raises(DataLossError, match="t-0: the log was cut at offset 60"):
        query.divide(read, query.next_end(read))
    tolerant = driver(failOnDataLoss="false")
    end = tolerant.next_end(read)
    assert [(0, 60, 100, 3)] == ranges(tolerant.divide(read, end))
    assert end is tolerant.next_end(end)


def test_a_leader_with_the_same_log_makes_one_batch_without_rows(driver, client, read):
    """The checkpoint then has its epoch, so that the next trigger asks nothing."""
    elect(client, cut_at=100)
    query = driver()
    end = query.next_end(read)
    assert ([], {A: 4, B: 3}) == (query.divide(read, end), end.epochs)
    assert end is query.next_end(end)
    assert 1 == client.calls.count("epoch_ends")


@pytest.mark.parametrize("epoch", [2, None], ids=["earlier", "unknown"])
def test_an_epoch_that_is_not_later_is_nothing_new(driver, client, read, epoch):
    """Metadata may be out of date, and brokers before 2.1 have no epochs."""
    client.epochs[A] = epoch
    if epoch is None:
        del client.epochs[A]
    query = driver()
    assert read is query.next_end(read)


@pytest.mark.parametrize("cut_at", [100, 130, None], ids=["at the end", "later", "unknown"])
def test_a_later_epoch_is_no_loss_in_itself(driver, client, read, cut_at):
    """A leader that has all records, or cannot tell, is read from where the query is."""
    elect(client, cut_at=cut_at)
    client.logs[A] = (0, 160)
    query = driver()
    end = query.next_end(read)
    assert [(0, 100, 160, 3)] == ranges(query.divide(read, end))
    assert {A: 4, B: 3} == end.epochs
    assert 1 == client.calls.count("epoch_ends")


def test_an_epoch_that_has_not_changed_needs_no_question(driver, client, read):
    """A stream asks the brokers no more than before as long as no leader changes."""
    client.logs[A] = (0, 160)
    query = driver()
    query.divide(read, query.next_end(read))
    assert 0 == client.calls.count("epoch_ends")


def test_offsets_without_epochs_are_read_as_they_are(driver, client):
    """Spark's own source stores none, and neither have brokers before 2.1."""
    elect(client, cut_at=60)
    client.logs[A] = (0, 160)
    query = driver()
    start = StreamOffsets({A: 100, B: 10})
    assert [(0, 100, 160, -1)] == ranges(query.divide(start, query.next_end(start)))


def test_a_start_at_latest_has_the_epoch_in_which_it_was_found(driver, client):
    """A log that is cut while the first, empty batch runs is noticed by the second."""
    query = driver()
    start = query.initial()
    elect(client, cut_at=60)
    client.logs = {A: (0, 160), B: (0, 11)}
    end = query.next_end(start)
    assert ([], {A: 3, B: 3}) == (query.divide(start, end), end.epochs)
    with pytest.raises(DataLossError, match="t-0: the log was cut at offset 60"):
        query.divide(end, query.next_end(end))


def test_a_first_batch_is_read_from_its_start_although_the_log_was_cut(driver, client):
    """Nothing has been read before, and the log is compared again before the second batch."""
    query = driver(startingOffsets='{"t": {"0": -1, "1": 0}}')
    start = query.initial()
    elect(client, cut_at=60)
    client.logs[A] = (0, 160)
    end = query.next_end(start)
    assert [(1, 0, 10, -1)] == ranges(query.divide(start, end))
    with pytest.raises(DataLossError, match="t-0: the log was cut at offset 60"):
        query.divide(end, query.next_end(end))


def test_only_the_first_part_of_a_range_has_the_epoch_of_its_start(driver, client, read):
    """The records before the others may be of later epochs."""
    client.logs[A] = (0, 160)
    query = driver(minPartitions="3")
    found = ranges(query.divide(read, query.next_end(read)))
    assert [(0, 100, 120, 3), (0, 120, 140, -1), (0, 140, 160, -1)] == found
