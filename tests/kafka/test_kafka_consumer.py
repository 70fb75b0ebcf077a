"""KafkaConsumer on real Kafka, compared with what confluent-kafka (librdkafka) sees."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AclOperation, ResourceType

from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.errors import (
    BrokerError,
    CommitFailedError,
    IllegalStateError,
    NoOffsetForPartitionError,
    WakeupError,
)
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.consumer.consuming import (
    COUNT,
    PARTITIONS,
    PATIENCE,
    RecordingListener,
    committed_as_seen_by_confluent,
    consumer_for,
    fill,
    in_log_order,
    partitions_of,
    poll_until,
    take,
    values_by_partition,
)
from tests.support.consumer.many_headers import check_polls, check_refusal, write_many_headers
from tests.support.kafka.kafka_rights import Rights
from tests.support.kafka.readers import Record, read_with_confluent
from tests.support.network.leaps import leap

NO_COMMITS = {"enable.auto.commit": False}
#: Long enough that no member is missed on a busy machine, and less than a leap.
POLL_INTERVAL_MS = 15_000


@pytest.fixture
def group():
    """Return the name of a new group."""
    return f"readers-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(kafka, create_topic):
    """Return a topic of three partitions with 40 numbered records each."""
    name = create_topic(PARTITIONS)
    fill(kafka, name)
    return name


def plain(records):
    """Return records as the other readers' ones."""
    return [
        Record(
            it.topic,
            it.partition,
            it.offset,
            it.timestamp,
            it.key,
            it.value,
            tuple((name, value) for name, value in it.headers),
        )
        for it in in_log_order(records)
    ]


# --- reading


@pytest.fixture
def mixed_topic(kafka, create_topic):
    """Return a topic with records of all compressions, with headers, nulls and empty values."""
    name = create_topic(2)
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        settings = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": compression,
            "linger.ms": 50,
        }
        with KafkaProducer(settings) as producer:
            for number in range(20):
                headers = [("codec", compression.encode()), ("null", None), ("codec", b"")]
                producer.send(
                    name,
                    None if number % 5 == 0 else compression.encode() * number,
                    key=None if number % 3 == 0 else f"{number}".encode(),
                    partition=number % 2,
                    headers=headers[: number % 4],
                    timestamp=1_700_000_000_000 + number,
                )
    return name


def test_assigned_partitions_are_read_as_by_confluent(kafka, mixed_topic):
    """Keys, values, headers, timestamps and offsets are those that librdkafka reads."""
    expected = read_with_confluent(kafka.bootstrap_servers, mixed_topic)
    with consumer_for(kafka) as consumer:
        consumer.assign(partitions_of(mixed_topic, 2))
        assert expected == plain(take(consumer, 100))


def test_a_subscription_is_read_as_by_confluent(kafka, mixed_topic, group):
    """A single member of a group gets all partitions, with the same records."""
    expected = read_with_confluent(kafka.bootstrap_servers, mixed_topic)
    with consumer_for(kafka, group, **{"max.poll.records": 7}) as consumer:
        consumer.subscribe([mixed_topic])
        assert expected == plain(take(consumer, 100))
        assert frozenset(partitions_of(mixed_topic, 2)) == consumer.assignment()


def test_arrow_tables_have_the_same_records(kafka, mixed_topic):
    """`poll_arrow` returns the keys and values that librdkafka reads."""
    expected = read_with_confluent(kafka.bootstrap_servers, mixed_topic)
    rows = []
    with consumer_for(kafka) as consumer:
        consumer.assign(partitions_of(mixed_topic, 2))
        deadline = time.monotonic() + PATIENCE
        while len(rows) < len(expected) and time.monotonic() < deadline:
            table = consumer.poll_arrow(columns=["partition", "offset", "key", "value"])
            rows += table.to_pylist()
    rows.sort(key=lambda row: (row["partition"], row["offset"]))
    assert [
        {"partition": it.partition, "offset": it.offset, "key": it.key, "value": it.value}
        for it in expected
    ] == rows


@pytest.mark.parametrize("as_arrow", [False, True])
def test_a_poll_returns_as_many_headers_as_fit_into_memory(kafka, create_topic, as_arrow):
    """A record of a few hundred bytes may have headers that take hundreds of megabytes."""
    place = TopicPartition(create_topic(1), 0)
    write_many_headers(kafka.bootstrap_servers, place, is_one_refused=not as_arrow)
    with consumer_for(kafka) as consumer:
        check_polls(consumer, place, as_arrow=as_arrow)
        if not as_arrow:
            check_refusal(consumer, place)


def test_aborted_transactions_are_skipped_as_by_confluent(kafka, create_topic):
    """With read_committed, the records are those of librdkafka with the same setting."""
    name = create_topic()
    plain_producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": f"id-{name}",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(PATIENCE)
    for number in range(12):
        producer.begin_transaction()
        for part in "ab":
            producer.produce(name, f"{number}{part}")
        producer.flush(PATIENCE)
        plain_producer.produce(name, f"{number} outside")
        plain_producer.flush(PATIENCE)
        if number % 3:
            producer.abort_transaction(PATIENCE)
        else:
            producer.commit_transaction(PATIENCE)
    kafka.wait_for_markers(name)
    [end] = kafka.end_offsets(name).values()
    place = TopicPartition(name, 0)
    for level, count in (("read_committed", 12 + 8), ("read_uncommitted", 36)):
        expected = _read_to(kafka, name, end, level)
        with consumer_for(kafka, **{"isolation.level": level}) as consumer:
            consumer.assign([place])
            found = take(consumer, count)
            # The markers and what was aborted at the end are passed, too.
            poll_until(lambda: consumer.position(place) == end, consumer)
        assert expected == [(it.offset, it.value) for it in found]


def _read_to(kafka, topic, end, level):
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    found = []
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    while (message := consumer.poll(PATIENCE)) is not None and message.error() is None:
        found.append((message.offset(), message.value()))
    assert [end] == [it.offset for it in consumer.position(consumer.assignment())]
    consumer.close()
    return found


def test_an_open_transaction_is_not_read(kafka, create_topic):
    """Read_committed ends at the first open transaction, and goes on when that is committed."""
    name = create_topic()
    place = TopicPartition(name, 0)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"id-{name}"}
    )
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(name, "late")
    producer.flush(PATIENCE)
    with consumer_for(kafka, **{"isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        assert {place: 0} == consumer.end_offsets([place])
        assert consumer.poll(0.5).is_empty
        producer.commit_transaction(PATIENCE)
        assert [b"late"] == [it.value for it in take(consumer, 1)]


# --- offsets


def test_a_restart_goes_on_where_it_was_committed(kafka, topic, group):
    """What is committed is what librdkafka sees, and where the next member begins."""
    with consumer_for(kafka, group, **NO_COMMITS, **{"max.poll.records": 5}) as consumer:
        consumer.subscribe([topic])
        first = poll_until(consumer.assignment, consumer)
        poll_until(lambda: len(first) >= 50, consumer, found=first)
        consumer.commit()
        expected = {each: consumer.position(each) for each in partitions_of(topic)}
        found = consumer.committed(partitions_of(topic))
        # Not committed, and so read again.
        consumer.poll()
    assert expected == {each: it.offset for each, it in found.items()}
    seen = committed_as_seen_by_confluent(kafka, group, topic)
    assert {each.partition: offset for each, offset in expected.items()} == seen
    with consumer_for(kafka, group, **NO_COMMITS) as consumer:
        consumer.subscribe([topic])
        rest = take(consumer, COUNT * PARTITIONS - len(first))
    everything = values_by_partition([*first, *rest])
    assert {key: list(range(COUNT)) for key in range(PARTITIONS)} == everything


def test_closing_commits_what_was_returned(kafka, topic, group):
    """With enable.auto.commit, the next member gets only what the first one was not returned."""
    with consumer_for(kafka, group, **{"max.poll.records": 5}) as consumer:
        consumer.subscribe([topic])
        first = []
        poll_until(lambda: len(first) >= 20, consumer, found=first)
    with consumer_for(kafka, group) as consumer:
        consumer.subscribe([topic])
        rest = take(consumer, COUNT * PARTITIONS - len(first))
    everything = values_by_partition([*first, *rest])
    assert {key: list(range(COUNT)) for key in range(PARTITIONS)} == everything


def test_a_listener_commits_what_closing_revokes(kafka, topic, group):
    """A listener may use the consumer that is being closed; closing it again does nothing."""

    class Committing(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions):
            consumer.commit(dict.fromkeys(partitions, 9))
            consumer.close()

    consumer = consumer_for(kafka, group, **NO_COMMITS)
    consumer.subscribe([topic], listener=Committing())
    poll_until(consumer.assignment, consumer)
    consumer.close()
    expected = dict.fromkeys(range(PARTITIONS), 9)
    assert expected == committed_as_seen_by_confluent(kafka, group, topic)
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


def test_polls_commit_while_the_consumer_is_open(kafka, topic, group):
    """With enable.auto.commit, a poll after the interval commits what was returned before."""
    with consumer_for(kafka, group, **{"auto.commit.interval.ms": 100}) as consumer:
        consumer.assign(partitions_of(topic))
        take(consumer, COUNT * PARTITIONS)
        expected = dict.fromkeys(range(PARTITIONS), COUNT)
        poll_until(
            lambda: expected == committed_as_seen_by_confluent(kafka, group, topic), consumer
        )


def test_commits_carry_metadata_and_call_back(kafka, topic, group):
    """Asynchronous commits call back within a later poll; metadata is kept."""
    [place, *_] = partitions_of(topic)
    done = []
    offsets = {place: OffsetAndMetadata(7, metadata="as agreed")}
    with consumer_for(kafka, group, **NO_COMMITS) as consumer:
        consumer.assign(partitions_of(topic))
        consumer.commit_async(offsets, lambda *it: done.append(it))
        poll_until(lambda: done, consumer)
        assert [(offsets, None)] == done
        found = consumer.committed(partitions_of(topic))
    assert (7, "as agreed") == (found[place].offset, found[place].metadata)
    assert [None, None] == [found[each] for each in partitions_of(topic)[1:]]


def test_seeking_moves_the_position(kafka, topic):
    """A sought partition is read from there on, without records that were fetched before."""
    places = zero, one, two = partitions_of(topic)
    with consumer_for(kafka, **{"max.poll.records": 10}) as consumer:
        consumer.assign(places)
        poll_until(lambda: all(consumer.position(each) for each in places), consumer)
        consumer.seek(zero, 35)
        consumer.seek_to_end([one])
        consumer.seek_to_beginning([two])
        assert (35, COUNT, 0) == tuple(map(consumer.position, places))
        found = values_by_partition(take(consumer, 5 + COUNT))
        assert {0: list(range(35, COUNT)), 2: list(range(COUNT))} == found
        assert (0, 0, 0) == tuple(consumer.beginning_offsets(places).values())
        assert (COUNT, COUNT, COUNT) == tuple(consumer.end_offsets(places).values())


def test_a_paused_partition_returns_nothing_and_then_the_rest(kafka, topic):
    """While partitions are paused, only the others are read; afterwards nothing is missing."""
    places = zero, _, two = partitions_of(topic)
    with consumer_for(kafka, **{"max.poll.records": 5}) as consumer:
        consumer.assign(places)
        before = []
        poll_until(lambda: len(before) >= 15, consumer, found=before)
        consumer.pause([zero, two])
        assert {zero, two} == consumer.paused()
        during = []
        count = len([it for it in before if it.partition == 1])
        poll_until(lambda: len(during) >= COUNT - count, consumer, found=during)
        assert {1} == {it.partition for it in during}
        assert consumer.poll(0.3).is_empty
        consumer.resume([zero, two])
        after = take(consumer, COUNT * PARTITIONS - len(before) - len(during))
    everything = values_by_partition([*before, *during, *after])
    assert {key: list(range(COUNT)) for key in range(PARTITIONS)} == everything


def test_offsets_are_found_by_time_as_by_confluent(kafka, create_topic):
    """The offsets of times are those that librdkafka finds; none after the last record."""
    name = create_topic(2)
    base = 1_700_000_000_000
    for number in range(5):
        fill(kafka, name, partitions=1, first=number, count=1, timestamp=base + 1000 * number)
    zero, one = partitions_of(name, 2)
    other = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "not-used"})
    with consumer_for(kafka) as consumer:
        for time_ms in (0, base, base + 1500, base + 4000):
            asked = [ConfluentPartition(name, 0, time_ms)]
            [expected] = other.offsets_for_times(asked, PATIENCE)
            found = consumer.offsets_for_times({zero: time_ms, one: time_ms})
            assert {zero: expected.offset, one: None} == found
        assert {zero: None} == consumer.offsets_for_times({zero: base + 4001})
    other.close()


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("earliest", ["0", "1", "2"]),
        ("latest", ["2"]),
        ("by_duration:PT1H", ["1", "2"]),
    ],
)
def test_a_new_group_begins_where_the_setting_says(kafka, create_topic, group, reset, expected):
    """Without a committed offset, auto.offset.reset says where reading begins."""
    name = create_topic()
    now = int(time.time() * 1000)
    fill(kafka, name, partitions=1, count=1, timestamp=now - 7_200_000)
    fill(kafka, name, partitions=1, first=1, count=1, timestamp=now)
    [place] = partitions_of(name, 1)
    with consumer_for(kafka, group, **{"auto.offset.reset": reset}) as consumer:
        consumer.subscribe([name])
        early = poll_until(consumer.assignment, consumer)
        consumer.position(place)
        fill(kafka, name, partitions=1, first=2, count=1)
        found = [*early, *take(consumer, len(expected) - len(early))]
    assert expected == [it.value.decode() for it in found]


def test_without_a_reset_a_missing_offset_is_an_error(kafka, topic, group):
    """With `none`, poll raises an error that names the partitions; after `seek` it reads."""
    [place] = places = partitions_of(topic, 1)
    with consumer_for(kafka, group, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign(places)
        with pytest.raises(NoOffsetForPartitionError) as caught:
            poll_until(lambda: False, consumer)
        assert [place] == list(caught.value.partitions)
        consumer.seek(place, 38)
        assert [b"38", b"39"] == [it.value for it in take(consumer, 2)]


# --- groups


def test_two_members_share_a_topic(kafka, topic, group):
    """Each partition has one owner; when one member leaves, the other one gets its partitions."""
    with (
        consumer_for(kafka, group) as first,
        consumer_for(kafka, group) as second,
    ):
        for each in (first, second):
            each.subscribe([topic])
        records = poll_until(lambda: first.assignment() and second.assignment(), first, second)
        assert frozenset(partitions_of(topic)) == first.assignment() | second.assignment()
        assert not first.assignment() & second.assignment()
        poll_until(lambda: len(records) >= COUNT * PARTITIONS, first, second, found=records)
        second.close()
        everything = frozenset(partitions_of(topic))
        poll_until(lambda: everything == first.assignment(), first, found=records)
    found = values_by_partition(records)
    assert {key: list(range(COUNT)) for key in range(PARTITIONS)} == found


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_new_topic_of_the_pattern_is_read(kafka, create_topic, group, strategy):
    """A topic created later is found by the pattern, and others are not."""
    prefix = f"logs-{uuid.uuid4().hex[:8]}"
    first = create_topic(name=f"{prefix}-one")
    other = create_topic(name=f"not-{prefix}-one")
    fill(kafka, first, partitions=1, count=1)
    fill(kafka, other, partitions=1, count=1)
    settings = {"metadata.max.age.ms": 200, "partition.assignment.strategy": strategy}
    with consumer_for(kafka, group, **settings) as consumer:
        consumer.subscribe(pattern=f"{prefix}-.*")
        assert [first] == [it.topic for it in take(consumer, 1)]
        second = create_topic(name=f"{prefix}-two")
        fill(kafka, second, partitions=1, count=1)
        assert [second] == [it.topic for it in take(consumer, 1)]
        assert {first, second} == consumer.subscription()


def test_added_partitions_are_read(kafka, create_topic, group):
    """The leader of the group sees more partitions, and the group shares them."""
    name = create_topic(1)
    fill(kafka, name, partitions=1, count=1)
    with (
        consumer_for(kafka, group, **{"metadata.max.age.ms": 200}) as first,
        consumer_for(kafka, group, **{"metadata.max.age.ms": 200}) as second,
    ):
        for each in (first, second):
            each.subscribe([name])
        records = []
        poll_until(lambda: records, first, second, found=records)
        kafka.add_partitions(name, 4)
        fill(kafka, name, partitions=4, first=1, count=1)
        poll_until(lambda: len(records) >= 5, first, second, found=records)
        assert [2, 2] == [len(each.assignment()) for each in (first, second)]
    assert {0: [0, 1], 1: [1], 2: [1], 3: [1]} == values_by_partition(records)


def test_a_static_member_returns_without_a_rebalance(kafka, topic, group):
    """A restarted static member has its partitions again, in the same generation of the others."""
    with consumer_for(kafka, group, **{"group.instance.id": "stays"}) as stays:
        recording = RecordingListener(stays)
        stays.subscribe([topic], listener=recording)
        poll_until(stays.assignment, stays)
        restarted = consumer_for(kafka, group, **{"group.instance.id": "returns"})
        restarted.subscribe([topic])
        poll_until(lambda: restarted.assignment() and stays.assignment(), restarted, stays)
        owned = restarted.assignment()
        generation = stays.group_metadata().generation_id
        events = list(recording.events)
        restarted.close()
        with consumer_for(kafka, group, **{"group.instance.id": "returns"}) as returned:
            returned.subscribe([topic])
            poll_until(returned.assignment, returned, stays)
            assert owned == returned.assignment()
            # A heartbeat of the other member would bring the news of a rebalance.
            fill(kafka, topic, first=COUNT, count=5)
            found = []
            poll_until(lambda: len({it.value for it in found}) >= 5, returned, stays, found=found)
            assert generation == returned.group_metadata().generation_id
            assert generation == stays.group_metadata().generation_id
    assert events == recording.events[: len(events)]
    assert "assigned" not in [it.what for it in recording.events[len(events) :]]


def test_wakeup_interrupts_a_poll(kafka, topic):
    """Another thread interrupts a poll that waits, or the next one, and none after that."""
    places = partitions_of(topic)
    with consumer_for(kafka) as consumer:
        consumer.assign(places)
        consumer.seek_to_end()
        poll_until(lambda: all(consumer.position(each) for each in places), consumer)
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        started = time.monotonic()
        with pytest.raises(WakeupError):
            consumer.poll(PATIENCE)
        assert time.monotonic() - started < PATIENCE / 2
        timer.join()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(PATIENCE)
        fill(kafka, topic, partitions=1, count=1)
        assert [b"0"] == [it.value for it in take(consumer, 1)]


def test_a_wakeup_in_a_listener_is_the_users(kafka, topic, group):
    """A wakeup that a call within the listener raises comes out of poll; the next one goes on."""
    waked = []

    class Waked(RecordingListener):
        def on_partitions_revoked(self, partitions):
            if not waked:
                waked.append(partitions)
                first.wakeup()
                while True:
                    # One that is answered before it is waited for is not interrupted.
                    first.commit()
            super().on_partitions_revoked(partitions)

    settings = {"partition.assignment.strategy": "range", **NO_COMMITS}
    with consumer_for(kafka, group, **settings) as first:
        recording = Waked(first)
        first.subscribe([topic], listener=recording)
        records = poll_until(first.assignment, first)
        # A commit of nothing would not be interrupted.
        poll_until(lambda: records, first, found=records)
        with consumer_for(kafka, group, **settings) as second:
            second.subscribe([topic])
            with pytest.raises(WakeupError):
                poll_until(lambda: False, first, second)
            assert ["assigned"] == recording.names[-1:]
            poll_until(lambda: first.assignment() and second.assignment(), first, second)
            # As in Java, the revocation is not repeated.
            assert 1 == len(waked)
            assert ["assigned", "assigned"] == recording.names[-2:]


def test_a_member_that_does_not_poll_leaves_and_returns(kafka, topic, group):
    """After max.poll.interval.ms the group is left: commits fail until the next poll joins it."""
    settings = {"max.poll.interval.ms": POLL_INTERVAL_MS, **NO_COMMITS}
    with consumer_for(kafka, group, **settings) as slow, consumer_for(kafka, group) as other:
        recording = RecordingListener(slow)
        slow.subscribe([topic], listener=recording)
        records = poll_until(slow.assignment, slow)
        poll_until(lambda: len(records) >= COUNT * PARTITIONS, slow, found=records)
        generation = slow.group_metadata().generation_id
        # The other member can join only because the slow one leaves.
        other.subscribe([topic])
        leap(slow)
        poll_until(lambda: len(other.assignment()) == PARTITIONS, other)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms"):
            slow.commit()
        # The next poll joins again; what was owned is lost, not revoked.
        poll_until(lambda: slow.assignment() and len(recording.names) >= 3, slow, other)
        assert ["assigned", "lost", "assigned"] == recording.names[:3]
        assert frozenset(partitions_of(topic)) == recording.events[1].partitions
        assert generation < slow.group_metadata().generation_id


# --- rights


def test_a_topic_that_may_not_be_read_is_named(kafka_with_acls, group):
    """Without rights on a topic, poll raises an error that says which right is missing."""
    kafka = kafka_with_acls
    rights = Rights(kafka)
    hidden, unreadable = kafka.create_topic(), kafka.create_topic()
    rights.only(ResourceType.TOPIC, hidden)
    rights.only(ResourceType.TOPIC, unreadable, AclOperation.DESCRIBE)
    try:
        for name in (hidden, unreadable):
            for use in ("subscribe", "assign"):
                with consumer_for(kafka, group) as consumer:
                    if use == "subscribe":
                        consumer.subscribe([name])
                    else:
                        consumer.assign(partitions_of(name, 1))
                    with pytest.raises(BrokerError, match=f"{name}.*TOPIC_AUTH.*READ"):
                        poll_until(lambda: False, consumer)
    finally:
        rights.give_back()


def test_a_group_that_may_not_be_used_is_named(kafka_with_acls, group):
    """Without READ on the group, poll and commit raise an error that says so."""
    kafka = kafka_with_acls
    rights = Rights(kafka)
    name = kafka.create_topic()
    rights.only(ResourceType.GROUP, group, AclOperation.DESCRIBE)
    try:
        with consumer_for(kafka, group) as consumer:
            consumer.subscribe([name])
            with pytest.raises(BrokerError, match=f"{group}.*GROUP_AUTH.*READ"):
                poll_until(lambda: False, consumer)
        with consumer_for(kafka, group) as consumer:
            consumer.assign(partitions_of(name, 1))
            with pytest.raises(BrokerError, match=f"{group}.*GROUP_AUTH.*READ"):
                consumer.commit({TopicPartition(name, 0): 0})
    finally:
        rights.give_back()
