"""Where a consumer starts to read, and where it goes on."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewPartitions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    BrokerError,
    KafkaTimeoutError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.testing import AlterResponse, AnswerError, ApiKey, ErrorCode, PartitionError
from tests.support.consumer.embedded_consuming import (
    GROUP,
    PATIENCE,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill, numbered


@pytest.fixture
def broker():
    """Return a broker with topic `t` of one partition with ten records."""
    with DevBroker(topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker


def test_earliest_reads_everything(broker):
    """Without a committed offset the first record is read first."""
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        assert numbered(10) == values(take(consumer, 10))
        assert 10 == consumer.position(tp())


def test_latest_reads_what_is_written_from_now_on(broker):
    """Records that were written before are not read."""
    with consuming(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([tp()])
        assert 10 == consumer.position(tp())
        fill(broker.bootstrap_servers, "t", [b"new"])
        assert [b"new"] == values(take(consumer, 1))


def test_by_duration_starts_at_the_time(broker):
    """Records of the last hour are read, those of the last millisecond are none."""
    with consuming(broker, auto_offset_reset="by_duration:PT1H") as consumer:
        consumer.assign([tp()])
        assert 0 == consumer.position(tp())
    time.sleep(0.02)
    with consuming(broker, auto_offset_reset="by_duration:PT0.001S") as consumer:
        consumer.assign([tp()])
        assert 10 == consumer.position(tp())


def test_a_record_written_during_a_reset_is_not_missed(broker):
    """If no record is late enough, and one is written before the end is found, it is read."""

    def before_it_was_written(response):
        (topic,) = response.topics
        partitions = tuple(replace(each, offset=-1, timestamp=-1) for each in topic.partitions)
        return replace(response, topics=(replace(topic, partitions=partitions),))

    hook = broker.on(ApiKey.LIST_OFFSETS, AlterResponse(before_it_was_written), times=1)
    with consuming(broker, auto_offset_reset="by_duration:PT1H") as consumer:
        consumer.assign([tp()])
        assert 0 == consumer.position(tp())
    assert 1 == hook.fired


@pytest.mark.parametrize("group", [{}, GROUP])
def test_none_raises_until_there_is_a_position(broker, group):
    """The error names the partition; after a seek reading begins."""
    with consuming(broker, auto_offset_reset="none", **group) as consumer:
        consumer.assign([tp()])
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError) as caught:
                consumer.poll(PATIENCE)
            assert [tp()] == list(caught.value.partitions)
        time.sleep(0.05)
        consumer.seek(tp(), 8)
        assert numbered(10)[8:] == values(take(consumer, 2))


def test_none_asks_for_committed_offsets_with_a_back_off(broker):
    """A consumer that is not polled after the error does not ask in a busy loop."""
    hook = broker.on(ApiKey.OFFSET_FETCH, lambda *_: None)
    with consuming(broker, auto_offset_reset="none", retry_backoff_ms=100, **GROUP) as consumer:
        begin = time.monotonic()
        consumer.assign([tp()])
        with pytest.raises(NoOffsetForPartitionError):
            consumer.poll(PATIENCE)
        time.sleep(0.5)
        assert hook.seen < 4 + (time.monotonic() - begin) / 0.08


def test_a_refused_look_up_is_not_repeated_in_a_busy_loop(broker):
    """The error of the group is raised by each poll."""
    refusal = AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    hook = broker.on(ApiKey.OFFSET_FETCH, refusal)
    with consuming(broker, retry_backoff_ms=100, **GROUP) as consumer:
        begin = time.monotonic()
        consumer.assign([tp()])
        for _ in range(2):
            with pytest.raises(Exception, match="GROUP_AUTHORIZATION_FAILED"):
                consumer.poll(PATIENCE)
        time.sleep(0.5)
        assert hook.seen < 6 + (time.monotonic() - begin) / 0.08


def test_a_committed_offset_is_where_reading_starts(broker):
    """It takes precedence over auto.offset.reset."""
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        consumer.commit({tp(): 7})
        assert {tp(): OffsetAndMetadata(7)} == consumer.committed([tp()])
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        assert numbered(10)[7:] == values(take(consumer, 3))


def test_a_seek_before_the_first_poll_needs_no_look_up(broker):
    """Neither committed offsets nor the ends of the log are asked for."""
    hooks = [broker.on(key, lambda *_: None) for key in (ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS)]
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        time.sleep(0.1)
        consumer.seek(tp(), 4)
        assert numbered(10)[4:] == values(take(consumer, 6))
    assert [0, 0] == [hook.seen for hook in hooks]


def test_a_seek_in_the_listener_needs_no_look_up(broker):
    """What on_partitions_assigned seeks is where reading starts."""
    hooks = [broker.on(key, lambda *_: None) for key in (ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS)]
    with consuming(broker, **GROUP) as consumer:

        def seek(what, partitions):
            if what == "assigned":
                time.sleep(0.1)
                for each in partitions:
                    consumer.seek(each, 6)

        consumer.subscribe("t", listener=Recording(seek))
        assert numbered(10)[6:] == values(take(consumer, 4))
    assert [0, 0] == [hook.seen for hook in hooks]


def test_the_position_can_be_asked_for_in_the_listener(broker):
    """It is looked up although poll has not returned."""
    found = []
    with consuming(broker, **GROUP) as consumer:

        def ask(what, partitions):
            if what == "assigned":
                found.extend(consumer.position(each, timeout=PATIENCE) for each in partitions)

        consumer.subscribe("t", listener=Recording(ask))
        assert numbered(10) == values(take(consumer, 10))
    assert [0] == found


def test_seeks_to_both_ends(broker):
    """They find the first and the next offset, also of all partitions."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        consumer.seek_to_end()
        assert 10 == consumer.position(tp())
        consumer.seek_to_beginning([tp()])
        assert 0 == consumer.position(tp())
        assert 10 == len(take(consumer, 10))


def test_a_seek_drops_what_was_fetched(broker):
    """The records after the seek are those of the new position, in the middle of a batch too."""
    with consuming(broker, max_poll_records=3) as consumer:
        consumer.assign([tp()])
        assert numbered(10)[:3] == values(take(consumer, 3))
        consumer.seek(tp(), 8)
        assert numbered(10)[8:] == values(take(consumer, 2))
        consumer.seek(tp(), 1)
        assert numbered(10)[1:4] == values(take(consumer, 3))


def test_an_offset_out_of_range_is_reset(broker):
    """Reading goes on as auto.offset.reset says."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 1000)
        assert numbered(10) == values(take(consumer, 10))


def test_an_offset_out_of_range_is_raised_without_a_reset(broker):
    """The error names partition and offset, by each poll, until there is another position."""
    with consuming(broker, auto_offset_reset="none") as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 1000)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                take(consumer, 1)
            assert {tp(): 1000} == dict(caught.value.offsets)
        consumer.seek(tp(), 9)
        assert numbered(10)[9:] == values(take(consumer, 1))


def test_a_topic_created_again_is_read_from_its_beginning(broker):
    """The position in the old topic is out of range, or the records of the new one are read."""
    with consuming(broker, metadata_max_age_ms=200) as consumer:
        consumer.assign([tp()])
        assert 10 == len(take(consumer, 10))
        broker.delete_topic("t")
        broker.create_topic("t")
        fill(broker.bootstrap_servers, "t", [b"a", b"b"])
        assert [b"a", b"b"] == values(take(consumer, 2))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_error_of_a_fetch_that_passes_is_retried(broker, code):
    """No record is lost, and nothing is raised."""
    hook = broker.on(ApiKey.FETCH, PartitionError(code, [("t", 0)]), times=2)
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        assert numbered(10) == values(take(consumer, 10))
    assert 2 == hook.fired


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
def test_an_error_of_a_look_up_that_passes_is_retried(broker, code):
    """The position is found by the next attempt."""
    hook = broker.on(ApiKey.LIST_OFFSETS, PartitionError(code, [("t", 0)]), times=2)
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        assert 0 == consumer.position(tp())
    assert 2 == hook.fired


def test_a_look_up_that_is_refused_is_raised(broker):
    """The error is that of the topic, by poll and by position; later attempts can succeed."""
    refusal = PartitionError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, [("t", 0)])
    hook = broker.on(ApiKey.LIST_OFFSETS, refusal, times=2)
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.poll(PATIENCE)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.position(tp())
        assert numbered(10) == values(take(consumer, 10))
    assert 2 == hook.fired


def test_a_truncation_is_noticed():
    """An unclean leader has fewer records: reading goes on where the logs differ (KIP-320)."""
    with DevBroker(topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(5))
        fill(broker.bootstrap_servers, "t", numbered(10)[5:])
        with consuming(broker, metadata_max_age_ms=200) as consumer:
            consumer.assign([tp()])
            assert 10 == len(take(consumer, 10))
            broker.elect_unclean_leader("t", 0, 5)
            fill(broker.bootstrap_servers, "t", [b"other"] * 7)
            assert [b"other"] * 7 == values(take(consumer, 7))


def test_a_truncation_is_raised_without_a_reset():
    """The error names the position and where the logs differ; a seek mends it."""
    with DevBroker(topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(5))
        fill(broker.bootstrap_servers, "t", numbered(10)[5:])
        with consuming(broker, metadata_max_age_ms=200, auto_offset_reset="none") as consumer:
            consumer.assign([tp()])
            consumer.seek(tp(), 0)
            assert 10 == len(take(consumer, 10))
            broker.elect_unclean_leader("t", 0, 5)
            fill(broker.bootstrap_servers, "t", [b"other"] * 7)
            with pytest.raises(LogTruncationError) as caught:
                take(consumer, 1)
            assert {tp(): 10} == dict(caught.value.offsets)
            [divergent] = caught.value.divergent_offsets.values()
            assert 5 == divergent.offset
            consumer.seek(tp(), divergent)
            assert [b"other"] * 7 == values(take(consumer, 7))


def test_a_partition_that_its_topic_lacks_is_named(broker, caplog):
    """It is warned of once, and is the cause where a position is asked for; later it is read."""
    with consuming(broker, metadata_max_age_ms=50) as consumer:
        consumer.assign([tp(1)])
        missing = "t-1 does not exist: its topic has 1 partition"
        poll_until(consumer, lambda: missing in caplog.text)
        with pytest.raises(KafkaTimeoutError, match=f"last cause: {missing}$"):
            consumer.position(tp(1), timeout=1)
        assert {} == consumer.poll(0.3)
        assert 1 == caplog.text.count(f"{missing}; it is read as soon as it exists")
        with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_partitions({"t": NewPartitions(2)})
        assert 0 == consumer.position(tp(1))


def test_a_topic_that_does_not_exist_is_the_cause_of_a_missing_position(broker, caplog):
    """As is a topic that this user may not describe, which cannot be told apart."""
    with consuming(broker, allow_auto_create_topics=False) as consumer:
        consumer.assign([TopicPartition("gone", 0)])
        poll_until(consumer, lambda: "topic 'gone' does not exist" in caplog.text)
        with pytest.raises(KafkaTimeoutError, match="last cause: topic 'gone' does not exist, or"):
            consumer.position(TopicPartition("gone", 0), timeout=1)
