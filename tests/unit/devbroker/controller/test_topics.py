"""The creation, growth and deletion of topics by the controller."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.devbroker.controlled_cluster import ControlledCluster


def assigned(
    *assignments: tuple[int, ...], first: int = 0
) -> tuple[CreatableReplicaAssignment, ...]:
    """Return the replicas of the partitions from the first one on."""
    return tuple(
        CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
        for index, replicas in enumerate(assignments, start=first)
    )


def topic(
    name: str = "t", partitions: int = -1, factor: int = -1, **more: object
) -> CreatableTopic:
    """Return a topic to create, by default with the brokers' defaults."""
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


def config(name: str, value: str | None) -> tuple[CreatableTopicConfig, ...]:
    """Return one setting."""
    return (CreatableTopicConfig(name=name, value=value),)


def create(cluster: ControlledCluster, *topics: CreatableTopic, validate_only: bool = False):
    """Create topics and return the results."""
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return cluster.controller.handle(request, cluster.now).topics


def test_a_topic_has_its_partitions_on_all_brokers():
    """The first replica leads, and all that are active are in sync."""
    cluster = ControlledCluster(brokers=4)
    (result,) = create(cluster, topic(partitions=8, factor=3, configs=config("retention.ms", "5")))
    assert (8, 3) == (result.num_partitions, result.replication_factor)
    image = cluster.controller.image
    partitions = image.topics[result.topic_id].partitions
    assert list(range(8)) == list(partitions)
    for partition in partitions.values():
        assert partition.replicas == partition.isr
        assert partition.replicas[0] == partition.leader
    assert [2] * 4 == [
        sum(each.leader == node_id for each in partitions.values()) for node_id in range(4)
    ]
    assert {"retention.ms": "5"} == image.topic_config("t")


def test_a_topic_has_the_default_numbers_of_partitions_and_replicas():
    """They are settings of the controller."""
    settings = ControllerSettings(num_partitions=2, default_replication_factor=3)
    cluster = ControlledCluster(settings=settings)
    (result,) = create(cluster, topic())
    assert (2, 3) == (result.num_partitions, result.replication_factor)


def test_fenced_brokers_get_replicas_only_if_they_must():
    """They are not in sync then, and never lead."""
    cluster = ControlledCluster()
    cluster.fence(1)
    create(cluster, topic(partitions=4, factor=2), topic("u", partitions=4, factor=3))
    image = cluster.controller.image
    assert not any(1 in each.replicas for each in image.find_topic("t").partitions.values())
    for partition in image.find_topic("u").partitions.values():
        assert {0, 2} == {*partition.isr}
        assert 1 == partition.replicas[2]


def test_a_topic_is_only_checked_on_request():
    """The result is that of a creation, and nothing is recorded."""
    cluster = ControlledCluster()
    (result,) = create(cluster, topic(partitions=2, factor=2), validate_only=True)
    assert (ErrorCode.NONE, 2) == (result.error_code, result.num_partitions)
    assert cluster.controller.image.find_topic("t") is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("old"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(configs=config("retention.ms", None)), ErrorCode.INVALID_CONFIG),
        (topic(configs=config("retention.ms", "x")), ErrorCode.INVALID_CONFIG),
        (topic(configs=config("no.such", "1")), ErrorCode.INVALID_CONFIG),
        (
            topic(configs=config("unclean.leader.election.enable", "perhaps")),
            ErrorCode.INVALID_CONFIG,
        ),
        (topic(factor=1, assignments=assigned((0,))), ErrorCode.INVALID_REQUEST),
        (topic(partitions=1, assignments=assigned((0,))), ErrorCode.INVALID_REQUEST),
        (topic(assignments=assigned((0,), first=1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((0,)) * 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((0, 0))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((0, 7))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((0, 1), (0,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned(())), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((2,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_topic_that_cannot_be_created_is_refused(wanted, expected):
    """The others of the request are created."""
    cluster = ControlledCluster()
    create(cluster, topic("old"), topic("a.b"))
    cluster.fence(2)
    refused, created = create(cluster, wanted, topic("new"))
    assert expected == refused.error_code
    assert refused.error_message
    assert ErrorCode.NONE == created.error_code
    assert {"old", "a.b", "new"} == {each.name for each in cluster.controller.image.topics.values()}


def test_topics_of_one_request_must_differ():
    """Neither of two with the same name is created, and only one of two that collide."""
    cluster = ControlledCluster()
    results = create(cluster, topic("a"), topic("a"), topic("b.c"), topic("b_c"))
    assert [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ] == [each.error_code for each in results]


def test_without_an_active_broker_no_topic_is_created():
    """Somebody has to lead."""
    cluster = ControlledCluster()
    cluster.fence(0, 1, 2)
    (result,) = create(cluster, topic())
    assert ErrorCode.INVALID_REPLICATION_FACTOR == result.error_code
    cluster = ControlledCluster(brokers=1)
    cluster.register(1)
    for _ in range(5):
        (result,) = create(cluster, topic(factor=2), validate_only=True)
        assert ErrorCode.NONE == result.error_code


def grow(cluster: ControlledCluster, count: int, *assignments: tuple[int, ...], name: str = "t"):
    """Add partitions to a topic and return the result."""
    given = tuple(CreatePartitionsAssignment(broker_ids=replicas) for replicas in assignments)
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=given or None)
    request = CreatePartitionsRequest(topics=(wanted,), timeout_ms=0, validate_only=False)
    (result,) = cluster.controller.handle(request, cluster.now).results
    return result


def test_a_topic_grows():
    """New partitions have as many replicas as the others."""
    cluster = ControlledCluster()
    cluster.create((0, 1))
    assert ErrorCode.NONE == grow(cluster, 3).error_code
    assert ErrorCode.NONE == grow(cluster, 4, (2, 0)).error_code
    partitions = cluster.controller.image.find_topic("t").partitions
    assert [0, 1, 2, 3] == list(partitions)
    assert [2] * 4 == [len(each.replicas) for each in partitions.values()]
    assert (2, 0) == partitions[3].replicas


@pytest.mark.parametrize(
    ("count", "assignments", "name", "expected"),
    [
        (2, (), "u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, (), "t", ErrorCode.INVALID_PARTITIONS),
        (0, (), "t", ErrorCode.INVALID_PARTITIONS),
        (3, ((0, 1),), "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (2, ((0, 1, 2),), "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (2, ((2, 3),), "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_topic_that_cannot_grow_is_refused(count, assignments, name, expected):
    """Nothing is recorded."""
    cluster = ControlledCluster(brokers=4)
    cluster.create((0, 1))
    cluster.fence(2, 3)
    end = cluster.quorum.end_offset
    assert expected == grow(cluster, count, *assignments, name=name).error_code
    assert end == cluster.quorum.end_offset


def test_a_topic_is_named_once_in_a_request():
    """Otherwise it would not be clear how many partitions it gets."""
    cluster = ControlledCluster()
    cluster.create((0, 1))
    wanted = CreatePartitionsTopic(name="t", count=3, assignments=None)
    request = CreatePartitionsRequest(topics=(wanted,) * 2, timeout_ms=0, validate_only=False)
    results = cluster.controller.handle(request, cluster.now).results
    assert [ErrorCode.INVALID_REQUEST] * 2 == [each.error_code for each in results]


def test_a_topic_is_deleted_with_replicas_away():
    """Brokers that are fenced delete their replicas when they read the record."""
    cluster = ControlledCluster()
    topic_id = cluster.create((0, 1, 2))
    cluster.create((0, 1, 2), name="u")
    cluster.fence(1, 2)
    request = DeleteTopicsRequest(
        topics=(
            DeleteTopicState(topic_id=topic_id),
            DeleteTopicState(name="u", topic_id=uuid.UUID(int=0)),
        ),
        timeout_ms=0,
    )
    results = cluster.controller.handle(request, cluster.now).responses
    assert [("t", ErrorCode.NONE), ("u", ErrorCode.NONE)] == [
        (each.name, each.error_code) for each in results
    ]
    assert {} == cluster.controller.image.topics


def test_a_topic_that_cannot_be_deleted_is_refused():
    """It is unknown, or named twice."""
    cluster = ControlledCluster()
    topic_id = cluster.create((0, 1, 2))
    unknown = uuid.UUID(int=999)
    by_id = DeleteTopicsRequest(
        topics=(
            DeleteTopicState(topic_id=unknown),
            DeleteTopicState(name="t", topic_id=topic_id),
            DeleteTopicState(topic_id=topic_id),
        ),
        timeout_ms=0,
    )
    results = cluster.controller.handle(by_id, cluster.now).responses
    assert [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ] == [each.error_code for each in results]
    by_name = DeleteTopicsRequest(topic_names=("u", "t"), timeout_ms=0)
    results = cluster.controller.handle(by_name, cluster.now).responses
    assert [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE] == [
        each.error_code for each in results
    ]


def test_a_controller_on_standby_changes_no_topic():
    """The results of such requests have no place for its error, so it is raised."""
    cluster = ControlledCluster()
    standby = cluster.new_controller(1)
    with pytest.raises(RefusedError) as caught:
        standby.handle(CreateTopicsRequest(topics=(topic(),)), cluster.now)
    assert ErrorCode.NOT_CONTROLLER == caught.value.error_code
