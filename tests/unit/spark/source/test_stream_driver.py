"""A stream's driver, called as Spark calls it, over logs that a test changes."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from spark_kafka_sink.errors import DataLossError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets, offsets_json, parse_offsets
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from spark_kafka_sink.spark.source.stream_reader import StreamDriver
from tests.support.spark.fake_source import FakeClient, FakeClients, source_options

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def client():
    fake = FakeClient()
    fake.logs = {A: (0, 100), B: (0, 10)}
    return fake


@pytest.fixture
def driver(client):
    """Return a function that starts the driver of a query, as each start of Spark does."""

    def start(clock=lambda: 0.0, **options):
        given = source_options(**options)
        cluster = SourceCluster(
            given, is_stream=True, clients=FakeClients(client), sleep=lambda _: None
        )
        return StreamDriver(given, cluster=cluster, clock=clock)

    return start


def first_batch(driver, **limits):
    """Run the first batch of a new query in Spark's order of calls; return its bounds."""
    start = driver.initial()
    end = driver.next_end(start, **limits)
    assert start == driver.initial()
    return start, end, ranges(driver.divide(start, end))


def next_batch(driver, start, **limits):
    """Run another batch; return its end and its ranges."""
    end = driver.next_end(start, **limits)
    return end, ranges(driver.divide(start, end))


def ranges(partitions):
    return [(one.value.partition, one.value.start, one.value.end) for one in partitions]


def grow(client, **sizes):
    """Append records: `grow(client, a=5)` to partition 0."""
    for name, size in sizes.items():
        partition = TopicPartition("t", "abc".index(name))
        first, end = client.logs.get(partition, (0, 0))
        client.logs[partition] = (first, end + size)


def test_a_stream_from_latest_has_an_empty_first_batch(driver, client):
    """The first batch ends where it starts; rows written before the second are read by it."""
    query = driver()
    start, end, found = first_batch(query)
    assert (start, []) == (end, found)
    grow(client, a=5)
    assert ({A: 105, B: 10}, [(0, 100, 105)]) == next_batch(query, end)


def test_rows_are_not_lost_if_the_driver_dies_in_the_first_batch(driver, client):
    """A replay of the first batch is empty, and the second reads what was written meanwhile."""
    start, end, _ = first_batch(driver())
    grow(client, a=5)
    again = driver()
    newer = again.initial()
    assert newer != start
    assert [] == again.divide(newer, end)
    assert ({A: 105, B: 10}, [(0, 100, 105)]) == next_batch(again, end)


def test_rows_of_a_new_partition_are_not_lost_if_the_driver_dies_in_the_first_batch(driver, client):
    """A partition that appears after the start is read by the second batch, which has no replay."""
    query = driver()
    start = query.initial()
    grow(client, c=7)
    end = query.next_end(start)
    again = driver()
    assert [] == again.divide(again.initial(), end)
    assert [(2, 0, 7)] == next_batch(again, end)[1]


def test_rows_of_the_first_partition_are_not_lost_if_the_driver_dies_in_the_first_batch(
    driver, client
):
    """Nor does it matter whether the pattern matched anything when the query started."""
    client.logs = {}
    query = driver(subscribePattern="t")
    start = query.initial()
    grow(client, a=7)
    end = query.next_end(start)
    again = driver(subscribePattern="t")
    assert [] == again.divide(again.initial(), end)
    assert [(0, 0, 7)] == next_batch(again, end)[1]


def test_rows_are_not_lost_if_the_driver_dies_in_the_second_batch(driver, client):
    """A replayed later batch starts in the checkpoint."""
    query = driver()
    _, first_end, _ = first_batch(query)
    grow(client, a=5)
    second_end, _ = next_batch(query, first_end)
    grow(client, a=5)
    again = driver()
    assert [(0, 100, 105)] == ranges(again.divide(first_end, second_end))
    assert ({A: 110, B: 10}, [(0, 105, 110)]) == next_batch(again, second_end)


def test_a_stream_from_earliest_reads_at_once(driver):
    """A start at earliest is not pinned."""
    start, end, found = first_batch(driver(startingOffsets="earliest"), reads_all=True)
    assert ({A: 0, B: 0}, {A: 100, B: 10}) == (start, end)
    assert [(0, 0, 100), (1, 0, 10)] == found


def test_given_offsets_are_read_at_once_and_latest_ones_are_pinned(driver):
    """With JSON, each partition follows its own rule."""
    query = driver(startingOffsets='{"t": {"0": 40, "1": -1}}')
    start, end, found = first_batch(query)
    assert ({A: 40, B: 10}, {A: 100, B: 10}, [(0, 40, 100)]) == (start, end, found)


@pytest.mark.parametrize("is_available_now", [False, True])
@pytest.mark.parametrize("limits", [{}, {"max_offsets": 7}, {"reads_all": True}], ids=str)
def test_a_given_start_beyond_the_end_is_a_loss(driver, limits, is_available_now):
    """A new query does not wait until its log has reached the start, but says so, as Spark does."""
    query = driver(startingOffsets='{"t": {"0": 1000, "1": 0}}')
    query.is_available_now = is_available_now
    with pytest.raises(DataLossError, match=r"^t-0: the query starts at offset 1000, but ") as it:
        first_batch(query, **limits)
    assert "but the log ended at offset 100. To go on without" in str(it.value)
    assert (1000, 100, 900) == (it.value.wanted, it.value.available, it.value.lost)


def test_a_given_start_beyond_the_end_is_a_loss_again_after_a_restart(driver, client):
    """The failed batch is replayed, and fails again, although its log has grown meanwhile."""
    options = {"startingOffsets": '{"t": {"0": 101, "1": 0}}'}
    query = driver(**options)
    start = query.initial()
    end = query.next_end(start)
    grow(client, a=5)
    again = driver(**options)
    with pytest.raises(DataLossError, match="t-0: the query starts at offset 101, but the log"):
        again.divide(again.initial(), end)


def test_a_given_start_beyond_the_end_may_be_accepted(driver, client, caplog):
    """With failOnDataLoss=false, a warning says so, and the query continues at the log's end."""
    query = driver(startingOffsets='{"t": {"0": 1000, "1": 4}}', failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        _, end, found = first_batch(query)
    assert ({A: 100, B: 10}, [(1, 4, 10)]) == (end, found)
    assert (
        "t-0: the query starts at offset 1000, but the log ended at offset 100; 900 offsets are "
        "lost, and the read goes on without them (failOnDataLoss=false)"
    ) == caplog.messages[-1]
    grow(client, a=5)
    assert ({A: 105, B: 10}, [(0, 100, 105)]) == next_batch(query, end)


def test_a_given_start_beyond_the_end_is_a_loss_where_the_end_is_asked_for_first(driver):
    """PySpark 4.1 asks for the latest offsets before the start, which changes nothing."""
    query = driver(startingOffsets='{"t": {"0": 1000, "1": -1}}')
    end = query.end_of_all()
    with pytest.raises(DataLossError, match="t-0: the query starts at offset 1000, but the log"):
        query.divide(query.initial(), end)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (None, "the query starts at offset 1000, but the last stable offset was 100"),
        ({A: 120, B: 0}, "the last stable offset is 100, before offset 120, which was to be read"),
    ],
    ids=["new query", "checkpoint"],
)
def test_the_last_stable_offset_is_named_as_what_it_is(driver, start, reason):
    """The log may be longer: with read_committed, an open transaction holds back its records."""
    query = driver(
        startingOffsets='{"t": {"0": 1000, "1": 0}}', **{"kafka.isolation.level": "read_committed"}
    )
    begin = query.initial() if start is None else StreamOffsets(start)
    with pytest.raises(DataLossError) as caught:
        query.divide(begin, query.next_end(begin))
    message = str(caught.value)
    assert message.startswith(f"t-0: {reason}")
    assert ": an open transaction may hold back the records after it. To go on" in message


def test_a_given_start_at_the_end_is_no_loss(driver):
    """A query may start at the offset of the next record."""
    _, end, found = first_batch(driver(startingOffsets='{"t": {"0": 100, "1": 10}}'))
    assert ({A: 100, B: 10}, []) == (end, found)


@pytest.mark.parametrize(
    "options", [{"startingOffsets": "earliest"}, {"startingTimestamp": "77"}], ids=str
)
def test_a_start_that_has_moved_before_a_replay_is_named(driver, client, caplog, options):
    """Records that were deleted before the first batch is replayed are skipped with a warning."""
    client.times = {A: 0, B: 0}
    _, end, _ = first_batch(driver(**options))
    client.logs[A] = (30, 100)
    client.times[A] = 30
    again = driver(**options)
    assert [(0, 30, 100), (1, 0, 10)] == ranges(again.divide(again.initial(), end))
    [message] = caplog.messages
    assert (
        "the first micro-batch is replayed, and Spark has not stored where it started, so that was "
        "looked up again: t-0 (offset 30). Records that were deleted since the first attempt are "
        "not read"
    ) == message


def test_a_warning_about_a_replay_names_a_few_partitions(driver, client, caplog):
    """The warning stays short, however many partitions there are."""
    client.logs = {TopicPartition("t", number): (number, 100) for number in range(8)}
    options = {"startingOffsets": "earliest"}
    _, end, _ = first_batch(driver(**options))
    again = driver(**options)
    again.divide(again.initial(), end)
    [message] = caplog.messages
    assert ": t-1 (offset 1), t-2 (offset 2), " in message
    assert ", t-5 (offset 5) and 2 more. Records" in message


@pytest.mark.parametrize(
    "start", ["latest", '{"t": {"0": 40, "1": 4}}', '{"t": {"0": -1, "1": -2}}'], ids=str
)
def test_a_start_that_cannot_have_lost_records_is_not_named(driver, caplog, start):
    """A replay from given or latest offsets, or from 0, is as good as the first attempt."""
    options = {"startingOffsets": start}
    _, end, found = first_batch(driver(**options))
    again = driver(**options)
    assert found == ranges(again.divide(again.initial(), end))
    assert [] == caplog.messages


def test_a_new_first_batch_may_begin_anywhere(driver, client, caplog):
    """Where an earliest start lies is only worth a warning in a replay."""
    client.logs[A] = (30, 100)
    first_batch(driver(startingOffsets="earliest"))
    assert [] == caplog.messages


def test_nothing_new_is_the_start_again(driver):
    """Without new rows, the end equals the start."""
    query = driver()
    _, end, _ = first_batch(query)
    assert (end, []) == next_batch(query, end)


def test_a_batch_is_limited(driver):
    """The maximum is divided in proportion, until everything is read."""
    query = driver(startingOffsets="earliest")
    _, end, found = first_batch(query, max_offsets=11)
    assert [(0, 0, 10), (1, 0, 1)] == found
    assert {A: 100, B: 10} == query.latest
    reads = 1
    while end != query.latest:
        end, _ = next_batch(query, end, max_offsets=11)
        reads += 1
    assert 10 == reads


def test_a_new_partition_is_read_from_its_start(driver, client):
    """A partition that appears later is read from its earliest offset, with a limit, too."""
    query = driver()
    _, end, _ = first_batch(query)
    grow(client, c=20)
    assert [(2, 0, 20)] == next_batch(query, end)[1]
    query = driver()
    assert [(2, 0, 7)] == next_batch(query, end, max_offsets=7)[1]


def test_a_new_partition_without_its_first_rows_is_a_loss(driver, client):
    """If the log of a new partition does not start at 0, rows are lost already."""
    query = driver()
    _, end, _ = first_batch(query)
    client.logs[C] = (5, 9)
    with pytest.raises(
        DataLossError, match=r"t-2: the partition is new, but its log starts at off"
    ):
        next_batch(query, end)


def test_a_partition_that_is_gone_is_a_loss(driver, client):
    """The error names the partition and the offset, and says how to go on."""
    query = driver()
    _, end, _ = first_batch(query)
    del client.logs[B]
    with pytest.raises(DataLossError, match=r"t-1: the partition is gone, .* offset 10 .*To go on"):
        next_batch(query, end)


def test_a_topic_that_is_gone_is_a_loss(driver, client):
    """A deleted topic is reported as lost partitions, not as a mistake in the options."""
    query = driver()
    _, end, _ = first_batch(query)
    client.logs.clear()
    with pytest.raises(DataLossError, match=r"t-0: the partition is gone.*; t-1: the partition is"):
        next_batch(query, end)


def test_a_loss_can_be_accepted(driver, client, caplog):
    """With failOnDataLoss=false, a warning says what is lost, and the rest is read."""
    query = driver(failOnDataLoss="false")
    _, end, _ = first_batch(query)
    del client.logs[B]
    client.logs[A] = (0, 30)
    grow(client, c=1)
    with caplog.at_level(logging.WARNING):
        end, found = next_batch(query, end)
    assert ({A: 30, C: 1}, [(2, 0, 1)]) == (end, found)
    losses = [text for text in caplog.messages if "the read goes on without them" in text]
    assert 2 == len(losses)
    assert "t-0: the log ends at offset 30, before offset 100" in losses[1]
    assert "70 offsets are lost" in losses[1]
    grow(client, a=5)
    assert [(0, 30, 35)] == next_batch(query, end)[1]


def test_a_topic_made_again_is_a_loss_although_its_log_is_longer(driver, client):
    """A running query never goes on in the middle of another topic of the same name."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(startingOffsets="earliest")
    _, end, _ = first_batch(query)
    client.topic_ids["t"] = UUID(int=2)
    grow(client, a=20)
    with pytest.raises(DataLossError, match=r"t-0: .* deleted and created again.* offset 100 "):
        next_batch(query, end)


def test_a_topic_made_again_is_read_from_its_start_if_the_loss_is_accepted(driver, client, caplog):
    """With failOnDataLoss=false, all of the new topic is read, as that of a new partition is."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(startingOffsets="earliest", failOnDataLoss="false")
    _, end, _ = first_batch(query)
    client.topic_ids["t"] = UUID(int=2)
    client.logs = {A: (0, 120), B: (0, 3)}
    end, found = next_batch(query, end)
    assert ({A: 120, B: 3}, [(0, 0, 120), (1, 0, 3)]) == (end, found)
    assert 2 == sum("deleted and created again" in text for text in caplog.messages)
    grow(client, a=5)
    assert [(0, 120, 125)] == next_batch(query, end)[1]


def test_each_use_of_a_stream_in_a_query_reads_the_same(driver, client):
    """A query that uses a stream twice asks for its partitions twice, and gets one answer."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(startingOffsets="earliest", failOnDataLoss="false")
    _, start, _ = first_batch(query)
    client.topic_ids["t"] = UUID(int=2)
    client.logs = {A: (0, 40), B: (0, 3)}
    end = query.next_end(start)
    expected = [(0, 0, 40), (1, 0, 3)]
    assert [expected, expected] == [ranges(query.divide(start, end)) for _ in range(2)]


def test_a_topic_made_again_between_two_runs_is_a_loss(driver, client):
    """The checkpoint has the topic in which its offsets were found."""
    client.topic_ids["t"] = UUID(int=1)
    _, end, _ = first_batch(driver())
    stored = parse_offsets(offsets_json(end))
    client.topic_ids["t"] = UUID(int=2)
    grow(client, a=1)
    with pytest.raises(DataLossError, match=r"t-0: .* deleted and created again"):
        next_batch(driver(), stored)


def test_offsets_without_a_topic_id_are_those_of_any_topic(driver, client):
    """Spark's own source stores none, and neither have brokers before 2.8."""
    client.topic_ids["t"] = UUID(int=2)
    end, found = next_batch(driver(), StreamOffsets({A: 90, B: 10}))
    assert ([(0, 90, 100)], {"t": UUID(int=2)}) == (found, end.topic_ids)


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_topic_made_again_is_noticed_although_its_log_has_the_same_end(
    driver, client, is_available_now
):
    """A topic that is loaded again every day may have as many records as the day before."""
    client.topic_ids["t"] = UUID(int=1)
    _, start, _ = first_batch(driver())
    client.topic_ids["t"] = UUID(int=2)
    query = driver()
    query.is_available_now = is_available_now
    with pytest.raises(DataLossError, match=r"t-0: .* deleted and created again"):
        next_batch(query, start)
    tolerant = driver(failOnDataLoss="false")
    tolerant.is_available_now = is_available_now
    end, found = next_batch(tolerant, start)
    assert (start, [(0, 0, 100), (1, 0, 10)]) == (end, found)
    assert end is tolerant.next_end(end)


def test_a_topic_made_again_is_noticed_by_pyspark_4_1_although_its_log_has_the_same_end(
    driver, client
):
    """The reached offsets are compared with the latest ones, and so are their topics."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(failOnDataLoss="false")
    start = query.end_of_all()
    assert [] == query.divide(start, start)
    client.topic_ids["t"] = UUID(int=2)
    end = query.end_of_all()
    assert [(0, 0, 100), (1, 0, 10)] == ranges(query.divide(start, end))


def test_a_topic_made_again_before_the_first_batch_is_read_from_its_start(driver, client):
    """A start at latest is pinned with the topic in which it was found, whatever there is now."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(failOnDataLoss="false")
    start = query.initial()
    client.topic_ids["t"] = UUID(int=2)
    client.logs = {A: (0, 3), B: (0, 1)}
    end = query.next_end(start)
    assert (start, []) == (end, query.divide(start, end))
    assert {"t": UUID(int=1)} == end.topic_ids
    assert [(0, 0, 3), (1, 0, 1)] == next_batch(query, end)[1]


@pytest.mark.parametrize("records", [0, 5])
def test_a_first_batch_of_a_topic_made_again_loses_nothing_when_it_is_replayed(
    driver, client, records
):
    """Its start is looked up again in the new topic, and nothing had been read of the old one."""
    client.topic_ids["t"] = UUID(int=1)
    client.logs = {A: (0, records), B: (0, 0)}
    first = driver(startingOffsets="earliest")
    end = first.next_end(first.initial())
    client.topic_ids["t"] = UUID(int=2)
    query = driver(startingOffsets="earliest")
    assert [(0, 0, 5)][:records] == ranges(query.divide(query.initial(), end))


def test_a_given_start_in_a_topic_made_again_is_a_loss_when_it_is_replayed(driver, client):
    """The user has named the offset, of a topic that is gone."""
    client.topic_ids["t"] = UUID(int=1)
    given = '{"t": {"0": 7, "1": 0}}'
    first = driver(startingOffsets=given)
    end = first.next_end(first.initial())
    client.topic_ids["t"] = UUID(int=2)
    query = driver(startingOffsets=given)
    with pytest.raises(DataLossError, match=r"t-0: .* deleted and created again"):
        query.divide(query.initial(), end)


def test_where_the_end_is_asked_for_first_the_start_is_pinned_with_its_topic(driver, client):
    """In PySpark 4.1 the offsets of the start are those of the end, and so is the topic."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver()
    end = query.end_of_all()
    client.topic_ids["t"] = UUID(int=2)
    start = query.initial()
    assert ({"t": UUID(int=1)}, []) == (start.topic_ids, query.divide(start, end))


def test_ranges_of_a_topic_made_again_have_no_epoch_of_the_old_one(driver, client):
    """The first Fetch would name an epoch that the new log never had."""
    client.topic_ids["t"] = UUID(int=1)
    client.epochs = {A: 7, B: 7}
    query = driver(startingOffsets="earliest", failOnDataLoss="false")
    _, start, _ = first_batch(query)
    client.topic_ids["t"] = UUID(int=2)
    client.epochs = {A: 0, B: 0}
    divided = query.divide(start, query.next_end(start))
    assert [-1, -1] == [each.value.start_epoch for each in divided]


def test_all_of_a_topic_made_again_counts_for_the_limits(driver, client):
    """Its offsets are not compared with those of the old topic."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(startingOffsets="earliest", minOffsetsPerTrigger="5", failOnDataLoss="false")
    _, start, _ = first_batch(query)
    client.topic_ids["t"] = UUID(int=2)
    client.logs = {A: (0, 3), B: (0, 1)}
    assert start is query.next_end(start)
    client.logs = {A: (0, 30), B: (0, 10)}
    end, found = next_batch(query, start, max_offsets=20)
    assert ({A: 15, B: 5}, [(0, 0, 15), (1, 0, 5)]) == (end, found)


def test_a_replayed_batch_is_read_from_the_topic_in_which_it_was_planned(driver, client):
    """If the topic was created again meanwhile, the tasks find out, and read nothing else."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(startingOffsets="earliest")
    start = query.initial()
    end = query.next_end(start)
    client.topic_ids["t"] = UUID(int=2)
    partitions = driver(startingOffsets="earliest").divide(start, end)
    assert {UUID(int=1)} == {one.value.topic_id for one in partitions}


def test_a_minimum_makes_triggers_wait(driver, client):
    """The first trigger reads what there is; later ones wait for the minimum or the delay."""
    now = [0.0]
    query = driver(
        clock=lambda: now[0],
        startingOffsets="earliest",
        minOffsetsPerTrigger="50",
        maxTriggerDelay="60s",
    )
    _, end, found = first_batch(query)
    assert 2 == len(found)
    grow(client, a=10)
    assert (end, []) == next_batch(query, end)
    grow(client, b=40)
    end, found = next_batch(query, end)
    assert [(0, 100, 110), (1, 10, 50)] == found
    grow(client, a=1)
    assert (end, []) == next_batch(query, end)
    now[0] = 60.0
    assert [(0, 110, 111)] == next_batch(query, end)[1]


def test_a_trigger_that_reads_all_ignores_the_minimum_and_the_maximum(driver, client):
    """Trigger.Once reads everything."""
    query = driver(startingOffsets="earliest", minOffsetsPerTrigger="50")
    _, end, _ = first_batch(query, max_offsets=1)
    grow(client, a=1)
    assert {A: 101, B: 10} == query.next_end(end, max_offsets=1, reads_all=True)


def test_available_now_ends_at_its_target(driver, client):
    """The latest offsets and the partitions are those of the first trigger."""
    query = driver(startingOffsets="earliest", minOffsetsPerTrigger="1000")
    query.is_available_now = True
    _, end, _ = first_batch(query, max_offsets=60)
    grow(client, a=1000, c=1000)
    batches = 0
    while True:
        following, found = next_batch(query, end, max_offsets=60)
        if following == end:
            break
        end = following
        batches += 1
        assert found
    assert ({A: 100, B: 10}, 1) == (end, batches)
    assert client.calls.count("log_ends") == 1


def test_available_now_continues_from_a_checkpoint(driver, client):
    """A restarted query reads up to its own target, with the partitions that are new by then."""
    grow(client, c=7)
    query = driver()
    query.is_available_now = True
    end, found = next_batch(query, StreamOffsets({A: 90, B: 10}))
    assert ({A: 100, B: 10, C: 7}, [(0, 90, 100), (2, 0, 7)]) == (end, found)
    assert (end, []) == next_batch(query, end)


def test_available_now_fails_before_a_task_if_a_partition_is_gone(driver, client):
    """A partition that is deleted during the query is a loss, and no task waits for it."""
    query = driver(startingOffsets="earliest")
    query.is_available_now = True
    _, end, _ = first_batch(query, max_offsets=20)
    del client.logs[A]
    with pytest.raises(DataLossError, match=r"t-0: the partition is gone, .* offset 18 "):
        next_batch(query, end, max_offsets=20)


def test_available_now_goes_on_without_a_partition_that_is_gone(driver, client):
    """If the loss is accepted, the limit is for the rest; what comes back is for the next run."""
    query = driver(startingOffsets="earliest", failOnDataLoss="false")
    query.is_available_now = True
    _, end, _ = first_batch(query, max_offsets=11)
    log = client.logs.pop(A)
    end, found = next_batch(query, end, max_offsets=5)
    assert ({B: 6}, [(1, 1, 6)]) == (end, found)
    client.logs[A] = log
    end, found = next_batch(query, end, max_offsets=5)
    assert ({B: 10}, [(1, 6, 10)]) == (end, found)
    assert (end, []) == next_batch(query, end, max_offsets=5)


def test_available_now_leaves_a_topic_made_again_to_the_next_run(driver, client):
    """The old topic is a loss, and the records of the new one are not those up to the target."""
    client.topic_ids["t"] = UUID(int=1)
    query = driver(startingOffsets="earliest", failOnDataLoss="false")
    query.is_available_now = True
    _, end, _ = first_batch(query, max_offsets=11)
    client.topic_ids["t"] = UUID(int=2)
    assert ({}, []) == next_batch(query, end, max_offsets=11)
    again = driver(failOnDataLoss="false")
    again.is_available_now = True
    assert [(0, 0, 100), (1, 0, 10)] == next_batch(again, StreamOffsets({}))[1]


def test_available_now_forgets_a_new_partition_that_is_gone_before_its_first_batch(driver, client):
    """A limited batch, too, is planned without the partition; nothing of it has been read."""
    query = driver()
    query.is_available_now = True
    start = query.initial()
    grow(client, a=5, c=7)
    end = query.next_end(start)
    del client.logs[C]
    assert ({A: 105, B: 10}, [(0, 100, 105)]) == next_batch(query, end, max_offsets=20)


def test_ranges_carry_the_ids_of_their_topic(driver):
    """A task can tell its topic from a later one of the same name."""
    query = driver(startingOffsets="earliest", minPartitions="4")
    start = query.initial()
    partitions = query.divide(start, query.next_end(start))
    assert {3} == {one.value.leader_epoch for one in partitions}
    assert 4 <= len(partitions)


def test_ranges_of_a_replayed_batch_carry_the_ids_of_their_topic(driver):
    """The first question of a restarted query may be about a batch that it replays."""
    [partition] = driver().divide(StreamOffsets({A: 90, B: 10}), StreamOffsets({A: 100, B: 10}))
    assert 3 == partition.value.leader_epoch


def test_an_equal_start_and_end_cost_nothing(driver, client):
    """On a restart, PySpark 4.1 asks for the partitions of an empty range."""
    query = driver()
    assert [] == query.divide(StreamOffsets({A: 5}), StreamOffsets({A: 5}))
    assert [] == client.calls


def test_where_the_end_is_asked_for_first_the_start_is_pinned_too(driver, client):
    """PySpark 4.1 asks for the latest offsets, then for the start, and reads nothing at first."""
    query = driver()
    end = query.end_of_all()
    grow(client, a=5)
    assert (end, []) == (query.initial(), query.divide(query.initial(), end))
    following = query.end_of_all()
    assert [(0, 100, 105)] == ranges(query.divide(end, following))


def test_where_no_start_is_told_the_reached_offsets_are_known(driver, client):
    """PySpark 4.1 does not pass the start, so a stale answer is compared with the last batch."""
    query = driver()
    reached = StreamOffsets({A: 100, B: 10})
    query.divide(reached, reached)
    client.stale = [{A: 50, B: 10}]
    assert {A: 100, B: 10} == query.end_of_all()


def test_progress_is_committed_to_the_group(driver, client):
    """With commitGroup, the end of a finished batch is committed; without it, nothing is."""
    query = driver(commitGroup="monitored")
    query.commit({A: 5})
    query.stop()
    assert [("monitored", {A: 5})] == client.commits
    silent = driver()
    silent.commit({A: 6})
    silent.stop()
    assert 1 == len(client.commits)
