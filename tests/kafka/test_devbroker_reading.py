"""The embedded broker and Apache Kafka: the same answers to consumers, over several requests.

`test_devbroker_conformance` has single fetches. These are fetch sessions, fetches that wait, and
topics that are deleted and created again under their name.
"""

from __future__ import annotations

import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
)
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.devbroker.admin_requests import delete_records, delete_topics
from tests.support.devbroker.broker_asker import METADATA, Asker, creatable, observe
from tests.support.devbroker.transactional_client import TransactionalRequests
from tests.support.record.plain_batches import PlainRecord, plain_batch

pytestmark = pytest.mark.kafka

BATCH = plain_batch(2)
BY_NAME, BY_ID = 12, 17
#: The records have the lowest possible timestamps, which retention would not keep for long.
KEPT = {"retention_ms": "-1"}
#: How long a fetch waits if nothing ends the wait; it is early if it took less than half. A pause
#: of a process must not make an early answer look late, nor delay an action past the wait's end.
LONG_MS = 16_000
ACTION_MS = 5_000
IDLE_MS = 1_000
SECONDS = 120


class Reader:
    """A consumer of one topic that sends the fetches of a scenario and describes the responses."""

    def __init__(self, asker, topic, version=BY_ID):
        self.asker = asker
        self.version = version
        self.topic_id = asker.topic_id(topic)
        self.topic = {"topic": topic} if version == BY_NAME else {"topic_id": self.topic_id}
        #: The sessions of the responses, in order; described by their numbers, from 1.
        self.sessions = [0]

    def request(self, *partitions, session=(0, -1), forget=(), topic=None, **fields):
        """Create a request for partitions, each with its fetch offset."""
        topic = topic or self.topic
        wanted = tuple(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=10**7)
            for index, offset in partitions
        )
        return FetchRequest(
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "session_id": self.sessions[session[0]],
                "session_epoch": session[1],
                "topics": (FetchTopic(**topic, partitions=wanted),) if wanted else (),
                "forgotten_topics_data": (ForgottenTopic(**topic, partitions=forget),)
                if forget
                else (),
            }
            | fields
        )

    def fetch(self, *partitions, **fields):
        """Fetch, and describe the response."""
        return self.described(self.asker.ask(self.request(*partitions, **fields), self.version))

    def described(self, answer):
        """Return what matters in a response."""
        if answer.session_id not in self.sessions:
            self.sessions.append(answer.session_id)
        return (
            answer.error_code,
            self.sessions.index(answer.session_id),
            [
                (
                    p.partition_index,
                    p.error_code,
                    p.high_watermark,
                    p.log_start_offset,
                    [decode_header(b).base_offset for b in split_record_batches(p.records or b"")],
                )
                for topic in answer.responses
                for p in topic.partitions
            ],
        )

    def waits_until(self, *partitions, action, max_wait_ms=LONG_MS, **fields):
        """Send a fetch that waits, then act; return the response, and whether it was early."""
        started = time.monotonic()
        request = self.request(*partitions, max_wait_ms=max_wait_ms, **fields)
        self.asker.client.send(request, self.version)
        time.sleep(0.3)
        action()
        _, answer = self.asker.client.receive()
        return self.described(answer), time.monotonic() - started < max_wait_ms / 2000


class Transactions(TransactionalRequests):
    """A transactional producer on the connection of another client."""

    def __init__(self, asker, topic):
        super().__init__(f"reading-{uuid.uuid4().hex}", topic)
        self._asker = asker
        self.timestamp = int(time.time() * 1000)

    def ask(self, request, version, **_):
        """Send a request and return the response."""
        return self._asker.ask(request, version)

    def write(self, identity, sequence, **fields):
        """Append a batch, once the coordinator is loaded, and return its offset."""
        deadline = time.monotonic() + SECONDS
        while self.add(identity, 0)[0]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while True:
            ((code, offset),) = self.produce(identity, sequence, version=11, **fields)
            if code != ErrorCode.NOT_ENOUGH_REPLICAS:
                assert 0 == code
                return offset
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait_until_complete(self):
        """Wait until the coordinator has written the markers of the transaction."""
        request = DescribeTransactionsRequest(transactional_ids=(self.transactional_id,))
        deadline = time.monotonic() + SECONDS
        while (
            not self.ask(request, 0).transaction_states[0].transaction_state.startswith("Complete")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def identity(self):
        """Return a producer id and epoch, once the coordinator can serve it."""
        deadline = time.monotonic() + SECONDS
        code, identity = self.init()
        while code:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            code, identity = self.init()
        return identity


def sessions(broker, version):
    """Open, continue, change and close sessions, with errors and out of turn."""
    topic = broker.topic(3, **KEPT)
    broker.produce(topic, BATCH, BATCH)
    reader = Reader(broker, topic, version)
    seen = [
        reader.fetch((0, 0), (1, 2), (2, 0), session=(0, 0)),
        reader.fetch(session=(1, 1)),
        reader.fetch((0, 2), session=(1, 2)),
        reader.fetch(session=(1, 3)),
        reader.fetch(session=(1, 3)),
        reader.fetch(session=(1, 5)),
    ]
    broker.produce(topic, BATCH)
    seen += [
        reader.fetch(session=(1, 4)),
        reader.fetch((0, 4), (2, 9), session=(1, 5)),
        reader.fetch(session=(1, 6)),
        reader.fetch((2, 0), session=(1, 7)),
        reader.fetch(session=(1, 8)),
    ]
    broker.ask(delete_records((topic, 0, 3)), 2)
    seen += [
        reader.fetch(session=(1, 9)),
        reader.fetch(session=(1, 10)),
        reader.fetch((7, 0), session=(1, 11)),
        reader.fetch(session=(1, 12)),
        reader.fetch(session=(1, 13), forget=(7, 1)),
        reader.fetch((0, 3), (1, 0), session=(1, 14), max_bytes=1),
        reader.fetch(session=(1, 15), max_bytes=1),
        reader.fetch(session=(1, 16), max_bytes=1),
        reader.fetch(session=(1, 17), forget=(0, 1, 2)),
        reader.fetch(session=(1, 18)),
        reader.fetch((0, 3), session=(0, 0)),
        reader.fetch((0, 3), session=(2, 0)),
        reader.fetch((0, 3), session=(3, -1)),
        reader.fetch(session=(3, 1)),
        reader.fetch(session=(0, 0)),
        reader.fetch((0, 3), session=(4, 1)),
    ]
    return seen


def sessions_by_name(broker):
    """Use sessions with names of topics."""
    return sessions(broker, BY_NAME)


def sessions_by_id(broker):
    """Use sessions with ids of topics."""
    return sessions(broker, BY_ID)


def mixed_sessions(broker):
    """Continue a session by name with an id, and fetch topics by an unknown name and id."""
    topic = broker.topic(**KEPT)
    named, with_id = Reader(broker, topic, BY_NAME), Reader(broker, topic, BY_ID)
    seen = [named.fetch((0, 0), session=(0, 0))]
    with_id.sessions = named.sessions
    seen.append(with_id.fetch(session=(1, 1)))
    unknown = {"topic_id": uuid.UUID(int=77)}
    seen += [
        with_id.fetch((0, 0), session=(0, 0), topic=unknown),
        with_id.fetch((0, 0), session=(2, 1)),
        with_id.fetch(session=(2, 2)),
        named.fetch((0, 0), topic={"topic": "no-such-topic"}, session=(0, 0)),
        named.fetch(session=(3, 1)),
    ]
    return seen


def repeated_partitions(broker):
    """List a partition twice in a request, with other offsets."""
    topic = broker.topic(2, **KEPT)
    for _ in range(2):
        broker.produce(topic, BATCH, BATCH)
    return [
        Reader(broker, topic, version).fetch((0, 0), (1, 0), (0, 2)) for version in (BY_NAME, BY_ID)
    ]


def delete(broker, topic):
    """Delete a topic and wait until it is gone."""
    broker.ask(delete_topics(topic), 6)
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False
    )
    deadline = time.monotonic() + SECONDS
    while not broker.ask(request, METADATA).topics[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def recreate(broker, topic):
    """Create a topic again and wait until its leader serves it."""
    deadline = time.monotonic() + SECONDS
    while broker.create(creatable(topic, 1))[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while broker.offsets((topic, 0, -1))[0][0]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def recreated_topics(broker):
    """Read a topic that is deleted, and then created again under its name."""
    topic = broker.topic(**KEPT)
    broker.produce(topic, BATCH)
    readers = [Reader(broker, topic, version) for version in (BY_NAME, BY_ID)]
    seen = [reader.fetch((0, 2), session=(0, 0)) for reader in readers]
    delete(broker, topic)
    for reader in readers:
        seen += [reader.fetch(session=(1, 1)), reader.fetch((0, 2))]
    recreate(broker, topic)
    for reader in readers:
        seen += [reader.fetch(session=(1, 2)), reader.fetch((0, 2)), reader.fetch((0, 0))]
    return seen


def waiting(broker):
    """Wait for records, for the end of a transaction, and for what never comes."""
    other = Asker(broker.port)
    broker.wait_for_coordinators()
    try:
        return _waiting(broker, other)
    finally:
        other.close()


def _waiting(broker, other):
    topic = broker.topic(2, segment_bytes=str(2**20), **KEPT)
    reader = Reader(broker, topic)

    def nothing():
        pass

    seen = {
        "nothing": reader.waits_until((0, 0), (1, 0), action=nothing, max_wait_ms=IDLE_MS),
        "a record": reader.waits_until((0, 0), (1, 0), action=lambda: other.produce(topic, BATCH)),
        "an unknown partition": reader.waits_until(
            (0, 2), (7, 0), action=nothing, max_wait_ms=IDLE_MS
        ),
        "too few bytes": reader.waits_until(
            (0, 2),
            (1, 0),
            min_bytes=10**5,
            action=lambda: other.produce(topic, BATCH),
            max_wait_ms=ACTION_MS,
        ),
        "bytes of two partitions": reader.waits_until(
            (0, 4),
            (1, 0),
            min_bytes=2 * len(BATCH),
            action=lambda: other.produce(topic, BATCH, BATCH),
        ),
        "an error": reader.waits_until((0, 99), (1, 0), min_bytes=10**5, action=nothing),
    }
    broker.produce(topic, BATCH)
    seen["deleted records"] = reader.waits_until(
        (0, 6),
        min_bytes=10**5,
        action=lambda: other.ask(delete_records((topic, 0, 8)), 2),
        max_wait_ms=ACTION_MS,
    )
    transactions = Transactions(other, topic)
    identity = transactions.identity()
    assert 8 == transactions.write(identity, 0)
    seen["an open transaction"] = reader.waits_until(
        (0, 8), isolation_level=1, action=nothing, max_wait_ms=IDLE_MS
    )
    seen["the end of a transaction"] = reader.waits_until(
        (0, 8),
        isolation_level=1,
        action=lambda: transactions.end(identity, committed=True, version=4),
    )
    large = plain_batch([PlainRecord(b"x" * 700_000)])
    first = other.produce(topic, b"", large)[1][2]
    other.produce(topic, b"", large)
    seen["an older segment"] = reader.waits_until(
        (1, first), min_bytes=5 * 10**6, max_bytes=10**8, action=nothing
    )
    # One partition alone: Kafka deletes them one after the other.
    seen["a topic that is deleted"] = reader.waits_until(
        (0, 10), action=lambda: delete(other, topic)
    )
    return seen


def epochs(broker):
    """Look up the ends of leader epochs in every version."""
    topic = broker.topic(2, **KEPT)
    broker.produce(topic, BATCH)
    asked = [
        (name, index, current, epoch)
        for name, index in ((topic, 0), (topic, 1), (topic, 2), ("no-such-topic", 0))
        for current in (-1, 0, 1)
        for epoch in (-1, 0, 1, 2**31 - 1)
    ]

    def ends(version, name, index, current, epoch):
        partition = OffsetForLeaderPartition(
            partition=index, current_leader_epoch=current, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=(OffsetForLeaderTopic(topic=name, partitions=(partition,)),)
        )
        (found,) = broker.ask(request, version).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    return [(version, each[1:], ends(version, *each)) for version in (2, 3, 4) for each in asked]


def read_committed(broker):
    """Read from every offset, with every limit, around transactions that end in both ways."""
    topic = broker.topic(1, **KEPT)
    broker.wait_for_coordinators()
    producers = [Transactions(broker, topic) for _ in range(3)]
    identities = [producer.identity() for producer in producers]
    numbers = {identity[0]: number for number, identity in enumerate(identities)}
    for producer in producers:
        producer.timestamp = producers[0].timestamp
    sequences = [0, 0, 0]

    def write(index):
        producers[index].write(identities[index], sequences[index], count=2)
        sequences[index] += 2

    def end(index, *, committed):
        producers[index].end(identities[index], committed=committed, version=4)
        # The markers are written after the response.
        producers[index].wait_until_complete()

    write(0)
    write(1)
    broker.produce(topic, BATCH)
    end(0, committed=False)
    write(2)
    write(0)
    end(1, committed=True)
    end(0, committed=False)
    write(1)
    reader = producers[0]
    latest = [reader.latest(isolation_level=level) for level in (0, 1)]
    seen = {"latest": latest}
    for level in (0, 1):
        for offset in range(latest[0] + 1):
            for limit in (1, 10**8):
                code, ((*before, aborted, diverging, epoch, bases),) = broker.fetch(
                    topic, [offset], isolation_level=level, partition_max_bytes=limit
                )
                if aborted is not None:
                    aborted = [(numbers[txn.producer_id], txn.first_offset) for txn in aborted]
                seen[level, offset, limit] = code, before, aborted, diverging, epoch, bases
        seen[level, "times"] = [
            broker.ask(
                ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=level,
                    topics=(
                        ListOffsetsTopic(
                            name=topic,
                            partitions=(
                                ListOffsetsPartition(partition_index=0, timestamp=timestamp),
                            ),
                        ),
                    ),
                ),
                9,
            )
            .topics[0]
            .partitions[0]
            .offset
            for timestamp in (-1, -2, 0, reader.timestamp, 2**60)
        ]
    seen["positions"] = sequences
    return seen


SCENARIOS = [
    epochs,
    read_committed,
    sessions_by_name,
    sessions_by_id,
    mixed_sessions,
    repeated_partitions,
    recreated_topics,
    waiting,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_consumers_get_the_same_answers_as_from_kafka(kafka, scenario):
    """Kafka and the embedded broker give the same answers to the same consumers."""
    expected = observe(scenario, int(kafka.bootstrap_servers.rpartition(":")[2]))

    with DevBroker(auto_create_topics=False) as devbroker:
        actual = observe(scenario, devbroker.port)

    assert expected == actual
