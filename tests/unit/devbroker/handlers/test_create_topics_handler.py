"""CreateTopics: what is created, and each reason for a refusal."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.devbroker.broker_requests import ask, broker_with


def topic(name="t", partitions=1, replication=-1, *, assignments=(), configs=None):
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(brokers))
            for index, brokers in assignments
        ),
        configs=tuple(
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ),
    )


def create(broker, *topics, version=None, validate_only=False):
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    return ask(broker, request, version).topics


def error_of(broker, asked):
    (result,) = create(broker, asked)
    assert asked.name == result.name
    assert result.error_message
    assert asked.name not in [existing.name for existing in broker.cluster.topics] or (
        result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    )
    return result.error_code


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created(version):
    """A topic is created with its partitions and the only possible replication factor."""
    broker = broker_with()

    (result,) = create(broker, topic("t", 3, 1), version=version)

    assert ("t", 0, None) == (result.name, result.error_code, result.error_message)
    assert 3 == len(broker.cluster.topic("t").partitions)
    if version >= 5:
        assert (3, 1) == (result.num_partitions, result.replication_factor)
    if version >= 7:
        assert broker.cluster.topic("t").topic_id == result.topic_id


def test_defaults_are_the_brokers():
    """-1 stands for the broker's default number of partitions or replication factor."""
    (result,) = create(broker_with(num_partitions=6), topic("t", -1, -1))

    assert (6, 1) == (result.num_partitions, result.replication_factor)


def test_settings_take_effect_and_are_returned():
    """The response lists every config with its source, and the topic uses it."""
    broker = broker_with()

    (result,) = create(broker, topic(configs={"max.message.bytes": "2000"}))

    told = {config.name: (config.value, config.config_source) for config in result.configs}
    assert ("2000", 1) == told["max.message.bytes"]
    assert ("CreateTime", 5) == told["message.timestamp.type"]
    assert 2000 == broker.cluster.topic("t").config.max_message_bytes


def test_validate_only_creates_nothing():
    """The response is the same, but the topic does not exist afterwards."""
    broker = broker_with()

    (result,) = create(broker, topic("t", 2), validate_only=True)

    assert (0, 2) == (result.error_code, result.num_partitions)
    assert [] == broker.cluster.topics


def test_a_topic_that_is_only_validated_has_a_random_id():
    """The id is that of no topic, and another one each time, as in ReplicationControlManager."""
    broker = broker_with()

    ids = [create(broker, topic("t"), validate_only=True)[0].topic_id for _ in range(2)]

    assert 3 == len({ZERO_UUID, *ids})
    assert [None, None] == [broker.cluster.topic_by_id(it) for it in ids]


def test_validate_only_refuses_invalid_requests():
    """With validate_only, an invalid request is refused as usual."""
    (result,) = create(broker_with({"t": 1}), topic("t"), validate_only=True)

    assert ErrorCode.TOPIC_ALREADY_EXISTS == result.error_code


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("is.there"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("is_there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (topic(replication=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(replication=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(replication=3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(configs={"max.message.bytes": "x"}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"max.message.bytes": None}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"no.such": "x"}), ErrorCode.INVALID_CONFIG),
        (topic(partitions=2, assignments=[(0, [1])]), ErrorCode.INVALID_REQUEST),
        (topic(partitions=-1, replication=1, assignments=[(0, [1])]), ErrorCode.INVALID_REQUEST),
        (
            topic(partitions=-1, assignments=[(0, [1]), (0, [1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic(partitions=-1, assignments=[(0, [1]), (2, [1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (topic(partitions=-1, assignments=[(0, [7])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(partitions=-1, assignments=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(partitions=-1, assignments=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_topics_are_refused(asked, expected):
    """Each refusal has Kafka's error code and a message, and creates nothing."""
    assert expected == error_of(broker_with({"is_there": 1}), asked)


def test_partitions_can_be_placed_by_hand():
    """A manual assignment to this broker has the same result as an automatic one."""
    broker = broker_with()

    (result,) = create(broker, topic(partitions=-1, assignments=[(1, [1]), (0, [1])]))

    assert (0, 2) == (result.error_code, result.num_partitions)


def test_a_topic_named_twice_is_refused_once():
    """Two entries with one name get one INVALID_REQUEST; the other topics are created."""
    broker = broker_with()

    results = create(broker, topic("a"), topic("b"), topic("a"))

    assert [("b", 0), ("a", ErrorCode.INVALID_REQUEST)] == [
        (result.name, result.error_code) for result in results
    ]
    assert ["b"] == [existing.name for existing in broker.cluster.topics]


def test_too_much_at_once_is_refused_as_a_whole():
    """More partitions than one request may create are POLICY_VIOLATION."""
    broker = broker_with(request_max_partitions=9)

    results = create(broker, topic("a"), topic("b", 9))

    assert [ErrorCode.POLICY_VIOLATION] * 2 == [result.error_code for result in results]
    assert [] == broker.cluster.topics
    assert [0, 0] == [each.error_code for each in create(broker, topic("a"), topic("b", 8))]


def test_names_that_collide_in_one_request_are_not_both_created():
    """A topic created earlier in the same request counts as existing."""
    results = create(broker_with(), topic("a.b"), topic("a_b"))

    assert [0, ErrorCode.INVALID_TOPIC_EXCEPTION] == [result.error_code for result in results]
