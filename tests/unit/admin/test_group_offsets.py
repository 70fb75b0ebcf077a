"""Offsets that the admin client commits to consumer groups of the embedded broker."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.spark.source_groups import committed_offsets, joined_consumer

TIMEOUT = 120.0
FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)


@pytest.fixture
def broker():
    with DevBroker(topics={"data": 2, "more": 1}, auto_create_topics=False) as started:
        yield started


@pytest.fixture
def admin(broker):
    servers = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10}
    with DriverClient(ProducerConfig.from_mapping(servers)) as client:
        yield client


@pytest.fixture
def commit(admin):
    """Return a function that commits offsets of the group `g`."""
    return lambda offsets: admin.commit_group_offsets("g", offsets, timeout=TIMEOUT)


def test_committing_creates_the_group(broker, commit):
    """The group is created, and a client other than ours reads the committed offsets."""
    assert {} == commit({FIRST: 5, SECOND: 0, TopicPartition("more", 0): 2**40})
    expected = {("data", 0): 5, ("data", 1): 0, ("more", 0): 2**40}
    assert expected == committed_offsets(broker.bootstrap_servers, "g")


def test_offsets_can_be_committed_again_and_lowered(broker, commit):
    """The last commit counts; partitions that it does not name are unchanged."""
    commit({FIRST: 5, SECOND: 7})
    commit({FIRST: 5})
    commit({FIRST: 3})
    expected = {("data", 0): 3, ("data", 1): 7}
    assert expected == committed_offsets(broker.bootstrap_servers, "g")


def test_a_missing_topic_does_not_affect_others(broker, commit):
    """A missing topic is refused at once, without affecting the others."""
    missing = TopicPartition("missing", 0)
    refused = commit({FIRST: 5, missing: 1})
    assert {missing: "UNKNOWN_TOPIC_OR_PARTITION"} == {
        topic_partition: error.name for topic_partition, error in refused.items()
    }
    assert {("data", 0): 5} == committed_offsets(broker.bootstrap_servers, "g")


def test_a_group_with_members_rejects_commits(broker, commit):
    """Only the members of a group may commit, until they have left."""
    with joined_consumer(broker.bootstrap_servers, "g", "data"):
        refused = commit({FIRST: 5, SECOND: 7})
        assert ["UNKNOWN_MEMBER_ID"] * 2 == [error.name for error in refused.values()]
    assert {} == commit({FIRST: 5})


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(ErrorCode.NOT_COORDINATOR),
        AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        CloseConnection(handled=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("api_key", [ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_COMMIT])
def test_retriable_errors_are_retried(broker, commit, api_key, fault):
    """A coordinator that moves or does not respond is looked up and sent the request again."""
    hook = broker.on(api_key, fault, times=1)
    assert {} == commit({FIRST: 5})
    assert 1 == hook.seen
    assert {("data", 0): 5} == committed_offsets(broker.bootstrap_servers, "g")


def test_a_coordinator_is_looked_up_once(broker, commit):
    """Its coordinator is known from then on, separately from that of a transactional id."""
    hook = broker.on(ApiKey.FIND_COORDINATOR, lambda *_: None)
    commit({FIRST: 5})
    commit({FIRST: 6})
    assert 1 == hook.seen


def test_a_missing_authorization_on_the_group_is_an_error(broker, commit):
    """A client that may not describe the group does not learn its coordinator."""
    broker.on(ApiKey.FIND_COORDINATOR, AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        commit({FIRST: 5})


def test_a_timeout_is_an_error_with_its_cause(broker, admin, commit, refuse_until_timeout):
    """The error names the group."""
    refuse_until_timeout(
        broker, admin, ApiKey.OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    with pytest.raises(KafkaTimeoutError, match=r"group 'g'.*COORDINATOR_LOAD_IN_PROGRESS"):
        commit({FIRST: 5})


def test_nothing_to_commit_sends_no_request(broker, commit):
    """No request is sent without offsets."""
    hook = broker.on(ApiKey.FIND_COORDINATOR, lambda *_: None)
    assert ({}, 0) == (commit({}), hook.seen)
