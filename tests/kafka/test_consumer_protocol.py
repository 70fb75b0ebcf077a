"""KafkaConsumer with the consumer protocol (KIP-848), whose assignments the broker makes."""

from __future__ import annotations

import os
import uuid

import pytest

from spark_kafka_sink.errors import CommitFailedError
from tests.support.consumer.consuming import (
    COUNT,
    PARTITIONS,
    RecordingListener,
    committed_as_seen_by_confluent,
    consumer_for,
    fill,
    partitions_of,
    poll_until,
    take,
    values_by_partition,
)
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.real_kafka import start_kafka
from tests.support.network.leaps import leap

pytestmark = [pytest.mark.kafka]

CONSUMER = {"group.protocol": "consumer", "enable.auto.commit": False}
CLASSIC = {"partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False}
EVERYTHING = {number: list(range(COUNT)) for number in range(PARTITIONS)}


@pytest.fixture(scope="module")
def kafka_4():
    """Yield a broker that expects heartbeats often, and so makes assignments soon."""
    overrides = {
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    try:
        cluster = start_kafka(KAFKA_4, overrides=overrides)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with cluster:
        yield cluster


@pytest.fixture
def group():
    """Return the name of a new group."""
    return f"readers-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(kafka_4):
    """Return a topic of three partitions with 40 numbered records each."""
    name = kafka_4.create_topic(PARTITIONS)
    fill(kafka_4, name)
    return name


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_two_members_share_a_topic(kafka_4, topic, group, assignor):
    """Each partition has one owner; when one member leaves, the other one gets its partitions."""
    settings = {**CONSUMER, "group.remote.assignor": assignor}
    with (
        consumer_for(kafka_4, group, **settings) as first,
        consumer_for(kafka_4, group, **settings) as second,
    ):
        for each in (first, second):
            each.subscribe([topic])
        everything = frozenset(partitions_of(topic))
        records = poll_until(
            lambda: (
                first.assignment()
                and second.assignment()
                and first.assignment() | second.assignment() == everything
            ),
            first,
            second,
        )
        assert not first.assignment() & second.assignment()
        poll_until(lambda: len(records) >= COUNT * PARTITIONS, first, second, found=records)
        first.commit()
        second.commit()
        second.close()
        poll_until(lambda: everything == first.assignment(), first, found=records)
    # What was read before the first commit may be read again by another owner.
    found = {place: sorted(set(it)) for place, it in _by_partition(records).items()}
    assert found == EVERYTHING


def _by_partition(records):
    found = {}
    for record in records:
        found.setdefault(record.partition, []).append(int(record.value))
    return found


def test_a_restart_goes_on_where_it_was_committed(kafka_4, topic, group):
    """What is committed is what librdkafka sees, and where the next member begins."""
    with consumer_for(kafka_4, group, **CONSUMER, **{"max.poll.records": 5}) as consumer:
        consumer.subscribe([topic])
        first = []
        poll_until(lambda: len(first) >= 50, consumer, found=first)
        consumer.commit()
        expected = {each.partition: consumer.position(each) for each in partitions_of(topic)}
    assert expected == committed_as_seen_by_confluent(kafka_4, group, topic)
    with consumer_for(kafka_4, group, **CONSUMER) as consumer:
        consumer.subscribe([topic])
        rest = take(consumer, COUNT * PARTITIONS - len(first))
    assert EVERYTHING == values_by_partition([*first, *rest])


def test_closing_commits_what_was_returned(kafka_4, topic, group):
    """With enable.auto.commit, the next member gets only what the first one was not returned."""
    settings = {"group.protocol": "consumer", "max.poll.records": 5}
    with consumer_for(kafka_4, group, **settings) as consumer:
        consumer.subscribe([topic])
        first = []
        poll_until(lambda: len(first) >= 20, consumer, found=first)
    with consumer_for(kafka_4, group, **settings) as consumer:
        consumer.subscribe([topic])
        rest = take(consumer, COUNT * PARTITIONS - len(first))
    assert EVERYTHING == values_by_partition([*first, *rest])


def test_a_new_topic_of_the_pattern_is_read(kafka_4, group):
    """A topic created later is found by the pattern, and others are not."""
    prefix = f"logs-{uuid.uuid4().hex[:8]}"
    first = kafka_4.create_topic(name=f"{prefix}-one")
    other = kafka_4.create_topic(name=f"not-{prefix}-one")
    fill(kafka_4, first, partitions=1, count=1)
    fill(kafka_4, other, partitions=1, count=1)
    with consumer_for(kafka_4, group, **CONSUMER, **{"metadata.max.age.ms": 200}) as consumer:
        consumer.subscribe(pattern=f"{prefix}-.*")
        assert [first] == [it.topic for it in take(consumer, 1)]
        second = kafka_4.create_topic(name=f"{prefix}-two")
        fill(kafka_4, second, partitions=1, count=1)
        assert [second] == [it.topic for it in take(consumer, 1)]


def test_added_partitions_are_read(kafka_4, group):
    """The broker assigns new partitions, without a word of the members."""
    name = kafka_4.create_topic(1)
    fill(kafka_4, name, partitions=1, count=1)
    with (
        consumer_for(kafka_4, group, **CONSUMER) as first,
        consumer_for(kafka_4, group, **CONSUMER) as second,
    ):
        for each in (first, second):
            each.subscribe([name])
        records = []
        poll_until(lambda: records, first, second, found=records)
        first.commit()
        second.commit()
        kafka_4.add_partitions(name, 4)
        fill(kafka_4, name, partitions=4, first=1, count=1)
        poll_until(lambda: len(records) >= 5, first, second, found=records)
        assert [2, 2] == [len(each.assignment()) for each in (first, second)]
    assert {0: [0, 1], 1: [1], 2: [1], 3: [1]} == values_by_partition(records)


def test_a_static_member_gets_its_partitions_again(kafka_4, topic, group):
    """A restarted static member has the same partitions, which nobody has owned meanwhile."""
    with consumer_for(kafka_4, group, **CONSUMER, **{"group.instance.id": "stays"}) as stays:
        recording = RecordingListener(stays)
        stays.subscribe([topic], listener=recording)
        restarted = consumer_for(kafka_4, group, **CONSUMER, **{"group.instance.id": "returns"})
        restarted.subscribe([topic])
        poll_until(
            lambda: len(restarted.assignment()) + len(stays.assignment()) == PARTITIONS,
            restarted,
            stays,
        )
        owned, kept = restarted.assignment(), stays.assignment()
        restarted.close()
        settings = {**CONSUMER, "group.instance.id": "returns"}
        with consumer_for(kafka_4, group, **settings) as returned:
            returned.subscribe([topic])
            poll_until(lambda: owned == returned.assignment(), returned, stays)
            assert kept == stays.assignment()


def test_a_member_that_does_not_poll_leaves_and_returns(kafka_4, topic, group):
    """After max.poll.interval.ms the group is left: commits fail until the next poll joins it."""
    # Long enough that no member is missed on a busy machine, and less than a leap.
    settings = {**CONSUMER, "max.poll.interval.ms": 15_000}
    with (
        consumer_for(kafka_4, group, **settings) as slow,
        consumer_for(kafka_4, group, **CONSUMER) as other,
    ):
        recording = RecordingListener(slow)
        slow.subscribe([topic], listener=recording)
        records = []
        poll_until(lambda: len(records) >= COUNT * PARTITIONS, slow, found=records)
        other.subscribe([topic])
        leap(slow)
        poll_until(lambda: len(other.assignment()) == PARTITIONS, other)
        with pytest.raises(CommitFailedError):
            slow.commit()
        poll_until(lambda: slow.assignment() and len(recording.names) >= 3, slow, other)
        assert ["assigned", "lost", "assigned"] == recording.names[:3]
        assert not slow.assignment() & other.assignment()


@pytest.mark.parametrize("order", ["upgrade", "downgrade"])
def test_a_group_changes_its_protocol_member_by_member(kafka_4, topic, group, order):
    """Members of both protocols share a group, until the last one of the old protocol leaves it."""
    old, new = (CLASSIC, CONSUMER) if order == "upgrade" else (CONSUMER, CLASSIC)
    everything = frozenset(partitions_of(topic))
    records = []
    with (
        consumer_for(kafka_4, group, **old) as first,
        consumer_for(kafka_4, group, **new) as second,
    ):
        first.subscribe([topic])
        poll_until(lambda: len(records) >= COUNT * PARTITIONS, first, found=records)
        first.commit()
        second.subscribe([topic])

        def is_shared():
            both = first.assignment(), second.assignment()
            return all(both) and not both[0] & both[1] and both[0] | both[1] == everything

        poll_until(is_shared, first, second, found=records)
        fill(kafka_4, topic, first=COUNT, count=5)
        wanted = (COUNT + 5) * PARTITIONS
        poll_until(lambda: len(records) >= wanted, first, second, found=records)
        first.commit()
        second.commit()
        first.close()
        poll_until(lambda: everything == second.assignment(), second, found=records)
        fill(kafka_4, topic, first=COUNT + 5, count=5)
        wanted = (COUNT + 10) * PARTITIONS
        poll_until(lambda: len(records) >= wanted, second, found=records)
    expected = list(range(COUNT + 10))
    assert dict.fromkeys(range(PARTITIONS), expected) == _by_partition(records)
