"""Partitions and offsets of an embedded broker, looked up by a consumer client."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.offset_specs import Assign, Subscribe, SubscribePattern
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    IllegalStateError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.testing import AnswerError, CloseConnection, NeverAnswer
from tests.support.consumer.reading import (
    PATIENCE,
    delete_topic,
    fill,
    log_of,
    numbered,
    open_transaction,
    reading,
)
from tests.support.network.leaps import SECONDS, leap, leap_at_second_metadata, leap_once

T = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def broker():
    """Yield a broker with `t` of three partitions, with 10 records in the first, and `u`."""
    with DevBroker(topics={"t": 3, "u": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker


@pytest.fixture
def client(broker):
    """Yield a client of the broker."""
    with reading(broker.bootstrap_servers) as client:
        yield client


# --- partitions


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Subscribe(("u", "t")), [*T, TopicPartition("u", 0)]),
        (SubscribePattern("^t$"), T),
        (SubscribePattern("."), [*T, TopicPartition("u", 0)]),
        (SubscribePattern("nothing"), []),
        (Assign((T[2], T[0])), [T[0], T[2]]),
    ],
    ids=["topics", "pattern", "all", "none", "partitions"],
)
def test_a_selection_becomes_sorted_partitions(client, selection, expected):
    """Topics, patterns and partitions are resolved to sorted partitions."""
    # Internal topics exist from now on, and match no pattern.
    client.commit_offsets("g", {T[0]: 1}, timeout=PATIENCE)

    assert tuple(expected) == client.list_partitions(selection, timeout=PATIENCE)


def test_what_is_missing_can_be_skipped(client):
    """What exists of the named topics and partitions is returned."""
    topics = Subscribe(("gone", "t"))
    assigned = Assign((T[0], TopicPartition("t", 7), TopicPartition("gone", 0)))

    assert tuple(T) == client.list_partitions(topics, timeout=PATIENCE, skips_missing=True)
    assert (T[0],) == client.list_partitions(assigned, timeout=PATIENCE, skips_missing=True)


def test_new_partitions_and_topics_are_seen_at_once(broker, client):
    """Each call asks the cluster again."""
    assert 4 == len(client.list_partitions(SubscribePattern("."), timeout=PATIENCE))
    broker.create_topic("v", partitions=2)
    assert 6 == len(client.list_partitions(SubscribePattern("."), timeout=PATIENCE))


def test_a_missing_topic_is_an_error_with_similar_names():
    """The error suggests the names that are most similar."""
    with (
        DevBroker(topics={"orders": 1, "payments": 1}, auto_create_topics=True) as broker,
        reading(broker.bootstrap_servers) as client,
    ):
        leap_at_second_metadata(broker, client)
        with pytest.raises(BrokerError, match=r"topic 'order' does not exist.*: 'orders'"):
            client.list_partitions(Subscribe(("order",)), timeout=PATIENCE)
        assert ["orders", "payments"] == sorted(broker.topic_names)


def test_a_missing_partition_is_an_error(client):
    """The error says how many partitions there are."""
    with pytest.raises(BrokerError, match="t-7 does not exist: topic 't' has 3 partitions"):
        client.list_partitions(Assign((TopicPartition("t", 7),)), timeout=PATIENCE)
    with pytest.raises(BrokerError, match="t-7 does not exist"):
        client.latest_offsets([TopicPartition("t", 7)], timeout=PATIENCE)


def test_a_topic_without_the_right_to_read_is_an_error_at_once(broker, client):
    """The error names the missing right."""
    client.list_partitions(Subscribe(("t",)), timeout=PATIENCE)
    broker.on(ApiKey.LIST_OFFSETS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match=r"t-0: ListOffsets .* Grant this user DESCRIBE and READ"):
        client.latest_offsets(T, timeout=PATIENCE)


def test_a_pattern_that_is_not_valid_is_an_error(client):
    """The error shows the pattern."""
    with pytest.raises(ConfigError, match=r"the pattern '\(' is not valid"):
        client.list_partitions(SubscribePattern("("), timeout=PATIENCE)


# --- offsets


def test_offsets_have_bounds_and_times(broker, client):
    """The first and the next offset, and those for times, are looked up for each partition."""
    log = log_of(broker)
    broker.call(lambda _: log.delete_records(4))

    assert {T[0]: 4, T[1]: 0, T[2]: 0} == client.earliest_offsets(T, timeout=PATIENCE)
    assert {T[0]: 10, T[1]: 0, T[2]: 0} == client.latest_offsets(T, timeout=PATIENCE)
    times = {T[0]: 0, T[1]: 0}
    assert {T[0]: 4, T[1]: None} == client.offsets_for_times(times, timeout=PATIENCE)
    assert {} == client.latest_offsets([], timeout=PATIENCE)


def test_the_latest_offset_of_read_committed_is_the_last_stable_one(broker):
    """Records of an open transaction are not part of the range."""
    servers = broker.bootstrap_servers
    with (
        open_transaction(servers, numbered(5)),
        reading(servers) as uncommitted,
        reading(servers, **{"isolation.level": "read_committed"}) as committed,
    ):
        assert {T[0]: 15} == uncommitted.latest_offsets(T[:1], timeout=PATIENCE)
        assert {T[0]: 10} == committed.latest_offsets(T[:1], timeout=PATIENCE)


def test_each_leader_is_asked_once():
    """Offsets of many partitions take one request for each broker."""
    topic = [TopicPartition("many", number) for number in range(60)]
    with DevBroker(brokers=3, topics={"many": 60}) as cluster:
        hook = cluster.on(ApiKey.LIST_OFFSETS, lambda *_: None)
        with reading(cluster.bootstrap_servers) as client:
            assert dict.fromkeys(topic, 0) == client.latest_offsets(topic, timeout=PATIENCE)
        assert 3 == hook.seen


@pytest.mark.parametrize(
    "fault",
    [
        CloseConnection(),
        CloseConnection(handled=True),
        AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        AnswerError(ErrorCode.OFFSET_NOT_AVAILABLE),
        AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=repr,
)
def test_offsets_are_asked_for_again_after_a_fault(broker, client, fault):
    """A fault that is not final is followed by another request."""
    hook = broker.on(ApiKey.LIST_OFFSETS, fault, times=2)

    assert {T[0]: 10} == client.latest_offsets(T[:1], timeout=PATIENCE)
    assert 2 == hook.fired


def test_offsets_follow_a_leader_that_has_moved():
    """Metadata that proved to be old are refreshed."""
    with (
        DevBroker(brokers=3, topics={"t": 3}) as cluster,
        reading(cluster.bootstrap_servers) as client,
    ):
        assert dict.fromkeys(T, 0) == client.latest_offsets(T, timeout=PATIENCE)
        for number in range(3):
            cluster.move_leader("t", number, cluster.leader("t", number) % 3 + 1)
        cluster.stop(1)
        assert dict.fromkeys(T, 0) == client.latest_offsets(T, timeout=PATIENCE)


def test_offsets_of_a_deleted_topic_are_an_error(broker, client):
    """A topic that was deleted after its partitions were listed does not exist."""
    client.list_partitions(Subscribe(("t",)), timeout=PATIENCE)
    delete_topic(broker)
    leap_at_second_metadata(broker, client)
    with pytest.raises(BrokerError, match="topic 't' does not exist"):
        client.latest_offsets(T, timeout=PATIENCE)


def test_a_broker_that_does_not_answer_ends_in_an_error(broker, client):
    """The error names what was asked, and what was last seen."""
    client.list_partitions(Subscribe(("t",)), timeout=PATIENCE)
    broker.on(ApiKey.LIST_OFFSETS, lambda *_: leap(client) or NeverAnswer(), expect=True)
    with pytest.raises(KafkaTimeoutError, match=r"ListOffsets of t-0: .*not answered LIST_OFFSETS"):
        client.latest_offsets(T[:1], timeout=SECONDS)


def test_nobody_listening_ends_in_an_error_soon(unused_port):
    """If nothing listens at any address, a call that fails early ends before its timeout."""
    message = f"^no broker answered through 127.0.0.1:{unused_port}"
    with reading(f"127.0.0.1:{unused_port}") as client:
        began = client.clock()
        leap_once(client, lambda: client._client.last_error and client._client.finds_nobody)
        with pytest.raises(NetworkError, match=message):
            client.list_partitions(Subscribe(("t",)), timeout=4 * PATIENCE, fails_early=True)
        assert client.clock() - began < PATIENCE


def test_ids_are_those_of_the_last_metadata(broker, client):
    """Topic id and leader epoch of a partition are known once it was listed."""
    assert (None, -1) == client.partition_ids(T)[T[0]]
    client.list_partitions(Subscribe(("t",)), timeout=PATIENCE)
    topic_id = broker.call(lambda it: it.cluster.topic("t").topic_id)

    assert dict.fromkeys(T, (topic_id, 0)) == client.partition_ids(T)


# --- commits


def test_offsets_are_committed_for_a_group(broker, client):
    """The offsets of a group are those committed; the answer has no refusals."""
    assert {} == client.commit_offsets("g", {T[0]: 5, T[1]: 7}, timeout=PATIENCE)


def test_a_refused_commit_is_returned(client):
    """A partition that does not exist is refused at once, and the others are committed."""
    gone = TopicPartition("gone", 0)
    refusals = client.commit_offsets("g", {T[0]: 5, gone: 7}, timeout=PATIENCE)

    assert [gone] == list(refusals)
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == refusals[gone].code


@pytest.mark.parametrize(
    "fault",
    [AnswerError(ErrorCode.NOT_COORDINATOR), CloseConnection()],
    ids=repr,
)
def test_a_commit_is_repeated_after_a_fault(broker, client, fault):
    """The coordinator is looked up again."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, fault, times=2)

    assert {} == client.commit_offsets("g", {T[0]: 5}, timeout=PATIENCE)
    assert 2 == hook.fired


# --- the client


def test_a_closed_client_refuses_calls(broker):
    """A client may be closed more than once, and raises an error from then on."""
    with reading(broker.bootstrap_servers) as client:
        client.close()
    with pytest.raises(IllegalStateError, match="the consumer client is closed"):
        client.list_partitions(Subscribe(("t",)), timeout=PATIENCE)
