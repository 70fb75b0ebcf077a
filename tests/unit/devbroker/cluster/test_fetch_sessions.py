"""Fetch sessions: what a broker remembers of a consumer from fetch to fetch (KIP-227)."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.record.plain_batches import plain_batch

NO_SUCH = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
OUT_OF_TURN = ErrorCode.INVALID_FETCH_SESSION_EPOCH
MINUTE = 60.0


class Consumer:
    """A consumer of the topic `t`, by name or by id."""

    def __init__(self, broker, *, by_id=True, version=None):
        self.broker = broker
        self.by_id = by_id
        self.version = version or (17 if by_id else 12)

    def topic(self):
        """Return how a request identifies the topic."""
        topic = self.broker.cluster.topic("t")
        return {"topic_id": topic.topic_id} if self.by_id else {"topic": "t"}

    def fetch(
        self, offsets=None, *, session=(0, 0), forget=(), now=NOW, topic=None, kept=None, **fields
    ):
        """Fetch partitions from offsets, given by partition."""
        if topic is None and (offsets or forget):
            topic = self.topic()
        partitions = tuple(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=10**6)
            for index, offset in (offsets or {}).items()
        )
        request = FetchRequest(
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "session_id": session[0],
                "session_epoch": session[1],
                "topics": (FetchTopic(**topic, partitions=partitions),) if partitions else (),
                "forgotten_topics_data": (ForgottenTopic(**topic, partitions=tuple(forget)),)
                if forget
                else (),
            }
            | fields
        )
        return ask(self.broker, request, self.version, now=now, arrived=NOW, kept=kept)

    def open(self, offsets, **fields):
        """Open a session and return its id."""
        return self.fetch(offsets, **fields).session_id


def append(broker, index=0):
    batch = bytearray(plain_batch(1))
    log = broker.cluster.topic("t").partitions[index].log
    log.append(memoryview(batch), decode_header(batch))
    return log


def answered(response):
    """Return the error of a response, and the partitions that it has, with their errors."""
    return response.error_code, [
        (partition.partition_index, partition.error_code)
        for topic in response.responses
        for partition in topic.partitions
    ]


@pytest.fixture(params=[True, False], ids=["by id", "by name"])
def consumer(request):
    """Return a consumer of a topic with three partitions."""
    return Consumer(broker_with({"t": 3}), by_id=request.param)


def test_a_full_fetch_opens_a_session(consumer):
    """The response has the id of the session and all partitions."""
    response = consumer.fetch({0: 0, 1: 0})

    assert response.session_id > 0
    assert (0, [(0, 0), (1, 0)]) == answered(response)


def test_an_incremental_fetch_has_only_what_is_new(consumer):
    """Partitions are listed once, and returned when they have records."""
    session = consumer.open({0: 0, 1: 0})
    append(consumer.broker, 1)

    responses = [
        consumer.fetch(session=(session, 1)),
        consumer.fetch({1: 1}, session=(session, 2)),
        consumer.fetch(session=(session, 3)),
    ]

    assert [(0, [(1, 0)]), (0, []), (0, [])] == [answered(response) for response in responses]
    assert {session} == {response.session_id for response in responses}


def test_records_that_were_not_asked_past_come_again(consumer):
    """A partition keeps the offset of the request that listed it last."""
    session = consumer.open({0: 0})
    append(consumer.broker)

    assert [(0, [(0, 0)])] * 2 == [
        answered(consumer.fetch(session=(session, epoch))) for epoch in (1, 2)
    ]


def test_a_partition_can_be_added_changed_and_forgotten(consumer):
    """A request lists the partitions that differ from the session, and those to drop."""
    session = consumer.open({0: 0})
    for index in range(3):
        append(consumer.broker, index)

    responses = [
        consumer.fetch({2: 0}, session=(session, 1)),
        consumer.fetch({0: 1}, session=(session, 2)),
        consumer.fetch({1: 0}, session=(session, 3), forget=[2]),
        consumer.fetch(session=(session, 4)),
    ]

    assert [
        (0, [(0, 0), (2, 0)]),
        (0, [(2, 0)]),
        (0, [(1, 0)]),
        (0, [(1, 0)]),
    ] == [answered(response) for response in responses]


def test_partitions_with_records_take_turns(consumer):
    """A partition that had records comes last in the next response."""
    session = consumer.open({0: 0, 1: 0})
    for _ in range(2):
        append(consumer.broker, 0)
        append(consumer.broker, 1)

    responses = [
        consumer.fetch(session=(session, epoch), max_bytes=1, min_bytes=0) for epoch in (1, 2)
    ]

    # Both have a new high watermark in the first response, but only one of them has records.
    assert [(0, [(0, 0), (1, 0)]), (0, [(1, 0)])] == [answered(each) for each in responses]


def test_a_moved_log_start_is_news(consumer):
    """A partition without records is returned if its log start offset has changed."""
    log = append(consumer.broker)
    session = consumer.open({0: 1})
    log.delete_records(1)

    assert (0, [(0, 0)]) == answered(consumer.fetch(session=(session, 1)))
    assert (0, []) == answered(consumer.fetch(session=(session, 2)))


def test_an_error_and_its_end_are_news(consumer):
    """A partition with an error is always returned, and once more when the error has ended."""
    append(consumer.broker)
    session = consumer.open({0: 5})
    refused = ErrorCode.OFFSET_OUT_OF_RANGE

    responses = [
        consumer.fetch(session=(session, 1)),
        consumer.fetch({0: 1}, session=(session, 2)),
        consumer.fetch(session=(session, 3)),
    ]

    assert [(0, [(0, refused)]), (0, [(0, 0)]), (0, [])] == [answered(each) for each in responses]


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [(0, 2, OUT_OF_TURN), (0, 1, 0), (1, 1, NO_SUCH)],
)
def test_a_session_is_continued_by_id_and_epoch(consumer, offset, epoch, expected):
    """Another epoch than the next one, or an unknown id, is rejected without partitions."""
    session = consumer.open({0: 0})

    response = consumer.fetch(session=(session + offset, epoch))

    assert (expected, []) == answered(response)
    assert (0 if expected else session) == response.session_id


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_that_it_names(consumer, epoch):
    """With epoch 0 another session is opened, with -1 none."""
    session = consumer.open({0: 0})
    response = consumer.fetch({0: 0}, session=(session, epoch))

    assert (epoch == 0, False) == (response.session_id > 0, response.session_id == session)
    assert (NO_SUCH, []) == answered(consumer.fetch(session=(session, 1)))


def test_a_session_ends_with_its_last_partition(consumer):
    """A session from which all partitions are forgotten is closed."""
    session = consumer.open({0: 0})

    response = consumer.fetch(session=(session, 1), forget=[0])

    assert (0, (0, [])) == (response.session_id, answered(response))
    assert (NO_SUCH, []) == answered(consumer.fetch(session=(session, 2)))


def test_the_epoch_wraps_around():
    """After the largest epoch comes 1, since 0 would open a session."""
    consumer = Consumer(broker_with({"t": 1}))
    session = consumer.open({0: 0})
    consumer.broker.fetch_sessions._sessions[session].epoch = 2**31 - 1

    codes = [consumer.fetch(session=(session, epoch)).error_code for epoch in (2**31 - 1, 1)]

    assert [0, 0] == codes


def test_a_session_uses_either_names_or_ids():
    """A session that began with names cannot continue with ids."""
    broker = broker_with({"t": 1})
    session = Consumer(broker, by_id=False).open({0: 0})

    response = Consumer(broker).fetch(session=(session, 1))

    assert (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, []) == answered(response)


def test_an_unknown_topic_is_found_once_it_exists():
    """A session with the id of an unknown topic returns an error until the topic is created."""
    broker = broker_with({"t": 1})
    consumer = Consumer(broker)
    unknown = uuid.UUID(int=5)
    response = consumer.fetch({0: 0}, topic={"topic_id": unknown})
    codes = [answered(response), answered(consumer.fetch(session=(response.session_id, 1)))]
    topic = broker.cluster.topic("t")
    broker.cluster.topic_index._by_id[unknown] = topic
    topic.topic_id = unknown

    codes.append(answered(consumer.fetch(session=(response.session_id, 2))))

    assert [(0, [(0, ErrorCode.UNKNOWN_TOPIC_ID)])] * 2 + [(0, [(0, 0)])] == codes


def test_a_topic_that_is_made_again_is_inconsistent_with_the_session():
    """A session remembers the name of the topic; another topic of this name has another id."""
    consumer = Consumer(broker_with({"t": 1}))
    session = consumer.open({0: 0})
    cluster = consumer.broker.cluster
    cluster.delete_topic(cluster.topic("t"))
    deleted = consumer.fetch(session=(session, 1))
    cluster.create_topic("t", partitions=1, config=TopicConfig())

    recreated = consumer.fetch(session=(session, 2))

    assert [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] == answered(deleted)[1]
    assert [(0, ErrorCode.INCONSISTENT_TOPIC_ID)] == answered(recreated)[1]


def test_a_topic_that_is_deleted_ends_a_wait():
    """A waiting fetch is answered when its topic ceases to exist, even if there are others."""
    consumer = Consumer(broker_with({"t": 2}))
    waiting = consumer.fetch({0: 0, 1: 0}, max_wait_ms=500)
    topic = consumer.topic()
    cluster = consumer.broker.cluster
    cluster.delete_topic(cluster.topic("t"))

    response = consumer.fetch({0: 0, 1: 0}, topic=topic, max_wait_ms=500, kept=waiting.kept)

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(0, code), (1, code)] == answered(response)[1]


def test_a_session_that_went_on_while_a_fetch_waited_rejects_it():
    """Of two fetches with the same epoch, the second is out of turn, and so is an overtaken one."""
    consumer = Consumer(broker_with({"t": 1}))
    session = consumer.open({0: 0})
    waiting = consumer.fetch(session=(session, 1), max_wait_ms=500)
    assert isinstance(waiting, Delayed)
    assert 0 == consumer.fetch(session=(session, 2)).error_code

    response = consumer.fetch(session=(session, 1), now=NOW + 1, kept=waiting.kept)

    assert (session, (OUT_OF_TURN, [])) == (response.session_id, answered(response))


def test_a_waiting_fetch_continues_its_session_once():
    """A fetch that is handled again after a wait does not need another epoch."""
    consumer = Consumer(broker_with({"t": 1}))
    session = consumer.open({0: 0})
    waiting = consumer.fetch(session=(session, 1), max_wait_ms=500)
    append(consumer.broker)

    response = consumer.fetch(session=(session, 1), max_wait_ms=500, kept=waiting.kept)

    assert (0, [(0, 0)]) == answered(response)
    assert 0 == consumer.fetch(session=(session, 2)).error_code


def test_without_room_no_session_is_opened():
    """With as many recent sessions as are allowed, a fetch is answered without a session."""
    consumer = Consumer(broker_with({"t": 3}, max_incremental_fetch_session_cache_slots=1))
    first = consumer.open({0: 0})

    response = consumer.fetch({0: 0, 1: 0, 2: 0})

    assert (0, [(0, 0), (1, 0), (2, 0)]) == answered(response)
    assert 0 == response.session_id
    assert 0 == consumer.fetch(session=(first, 1)).error_code


def test_an_idle_session_makes_room():
    """A session that has been idle for more than two minutes is replaced."""
    consumer = Consumer(broker_with({"t": 3}, max_incremental_fetch_session_cache_slots=1))
    first = consumer.open({0: 0, 1: 0})

    assert consumer.open({0: 0}, now=NOW + 2 * MINUTE) == 0
    assert consumer.open({0: 0}, now=NOW + 2 * MINUTE + 1) > 0
    assert NO_SUCH == consumer.fetch(session=(first, 1)).error_code


@pytest.mark.parametrize(("size", "opened"), [(1, False), (2, False), (3, True)])
def test_a_larger_session_replaces_an_old_one(size, opened):
    """A session in use that is older than two minutes gives way to one with more partitions."""
    consumer = Consumer(broker_with({"t": 3}, max_incremental_fetch_session_cache_slots=1))
    first = consumer.open({0: 0, 1: 0})
    later = NOW + 3 * MINUTE
    consumer.fetch(session=(first, 1), now=later)

    session = consumer.open(dict.fromkeys(range(size), 0), now=later)

    assert opened == (session > 0)
    assert (NO_SUCH if opened else 0) == consumer.fetch(session=(first, 2), now=later).error_code


def test_without_slots_there_are_no_sessions():
    """A broker that keeps no sessions answers each fetch in full."""
    consumer = Consumer(broker_with({"t": 1}, max_incremental_fetch_session_cache_slots=0))

    assert 0 == consumer.open({0: 0})


#: Room for five partitions.
ROOM = {"fetch_session_cache_max_bytes": 2_999}


def test_sessions_share_a_budget_of_memory():
    """A session that does not fit is not opened; one that is closed makes room for another."""
    consumer = Consumer(broker_with({"t": 9}, **ROOM))
    first = consumer.open({0: 0, 1: 0, 2: 0})

    response = consumer.fetch({0: 0, 1: 0, 2: 0})

    assert (0, [(0, 0), (1, 0), (2, 0)]) == answered(response)
    assert 0 == response.session_id
    assert 0 == consumer.fetch({0: 0, 1: 0, 2: 0}, session=(first, -1)).session_id
    assert consumer.open({0: 0, 1: 0, 2: 0}) > 0


def test_a_large_session_replaces_several():
    """Idle sessions, and then old smaller ones, are closed until a new one fits."""
    consumer = Consumer(broker_with({"t": 9}, **ROOM))
    idle = consumer.open({0: 0})
    used = [consumer.open({0: 0}), consumer.open({0: 0, 1: 0})]
    later = NOW + 3 * MINUTE
    for session in used:
        consumer.fetch(session=(session, 1), now=later)

    large = consumer.open(dict.fromkeys(range(3), 0), now=later)

    assert large > 0
    assert NO_SUCH == consumer.fetch(session=(idle, 1), now=later).error_code
    assert NO_SUCH == consumer.fetch(session=(used[0], 2), now=later).error_code
    assert 0 == consumer.fetch(session=(used[1], 2), now=later).error_code


def test_no_session_is_closed_for_one_that_does_not_fit_all_the_same():
    """A session larger than the whole budget is not opened, and closes none."""
    consumer = Consumer(broker_with({"t": 9}, **ROOM))
    idle = consumer.open({0: 0})
    later = NOW + 3 * MINUTE

    assert 0 == consumer.open(dict.fromkeys(range(9), 0), now=later)
    assert 0 == consumer.fetch(session=(idle, 1), now=later).error_code


def test_a_session_that_outgrows_the_budget_is_closed():
    """Its consumer learns that it is gone; forgotten partitions do not count."""
    consumer = Consumer(broker_with({"t": 9}, **ROOM))
    session = consumer.open({0: 0, 1: 0, 2: 0})
    assert 0 == consumer.fetch({3: 0, 4: 0}, session=(session, 1), forget=[0, 1]).error_code
    assert 0 == consumer.fetch({5: 0, 6: 0}, session=(session, 2)).error_code

    assert NO_SUCH == consumer.fetch({7: 0}, session=(session, 3)).error_code

    assert NO_SUCH == consumer.fetch(session=(session, 4)).error_code
    assert consumer.open(dict.fromkeys(range(5), 0)) > 0


def test_names_of_topics_count_as_memory():
    """A session by names takes the memory of the names, too."""
    broker = broker_with({"t": 1}, **ROOM)
    consumer = Consumer(broker, by_id=False)

    assert 0 == consumer.open({0: 0}, topic={"topic": "n" * 3_000})
    assert consumer.open({0: 0}, topic={"topic": "n" * 249}) > 0
