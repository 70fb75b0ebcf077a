"""The responses of each broker in a cluster; see also `tests/kafka/test_devbroker_brokers.py`."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.devbroker.broker_asker import creatable, produce_request
from tests.support.devbroker.broker_requests import NOW, ask
from tests.support.devbroker.group_client import join_request
from tests.support.record.plain_batches import plain_batch

LEADER, FOLLOWER, STRANGER = range(3)


@pytest.fixture
def brokers():
    """Return three brokers, and create a topic `t` on the first two."""
    cluster = ClusterState(settings=BrokerSettings(default_replication_factor=2))
    brokers = [Broker(node_id=node_id, cluster=cluster) for node_id in (1, 2, 3)]
    for broker in brokers:
        broker.advertise("127.0.0.1", 9090 + broker.node_id)
    brokers[0].cluster.create_topic("t", partitions=1, config=TopicConfig())
    return brokers


def cluster_of(brokers):
    return brokers[0].cluster


def produced(broker, *, topic="t", acks=-1, version=11):
    answer = ask(broker, produce_request(topic, plain_batch(1), acks=acks), version)
    (partition,) = answer.responses[0].partition_responses
    leader = partition.current_leader
    nodes = [(node.node_id, node.port) for node in answer.node_endpoints]
    return partition.error_code, leader.leader_id, leader.leader_epoch, nodes


def fetched(broker, *, version=12, epoch=-1, now=NOW, max_wait_ms=0):
    partition = FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=epoch
    )
    topic = FetchTopic(topic="t", partitions=(partition,))
    return ask(
        broker,
        FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=(topic,)),
        version,
        now=now,
        arrived=NOW,
    )


def error_of_fetch(*arguments, **fields):
    return fetched(*arguments, **fields).responses[0].partitions[0].error_code


def described(broker, version=12):
    request = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
    answer = ask(broker, request, version)
    (partition,) = answer.topics[0].partitions
    return {
        "error": partition.error_code,
        "leader": (partition.leader_id, partition.leader_epoch),
        "replicas": partition.replica_nodes,
        "isr": partition.isr_nodes,
        "offline": partition.offline_replicas,
        "brokers": [broker.node_id for broker in answer.brokers],
    }


@pytest.mark.parametrize("who", [FOLLOWER, STRANGER])
def test_a_broker_that_does_not_lead_names_the_leader(brokers, who):
    """Since version 10 the response has the leader, its epoch and its address (KIP-951)."""
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (refused, 1, 0, [(1, 9091)]) == produced(brokers[who], version=10)
    assert (refused, -1, -1, []) == produced(brokers[who], version=9)
    assert ErrorCode.NONE == produced(brokers[LEADER])[0]


@pytest.mark.parametrize(
    ("who", "version", "expected"),
    [
        (FOLLOWER, 12, ErrorCode.NONE),
        (FOLLOWER, 10, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (STRANGER, 12, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_consumers_may_fetch_from_followers(brokers, who, version, expected):
    """Since version 11 consumers may fetch from followers (KIP-392)."""
    produced(brokers[LEADER])
    assert expected == error_of_fetch(brokers[who], version=version)


def test_a_reader_that_waits_learns_that_the_leader_has_moved(brokers):
    """A long poll in the old epoch ends with an error as soon as the leader changes."""
    waiting = fetched(brokers[LEADER], epoch=0, max_wait_ms=1000)
    assert {("t", 0)} == waiting.watched
    cluster_of(brokers).take_changed()

    cluster_of(brokers).fence(1, NOW)

    assert {("t", 0)} == cluster_of(brokers).take_changed()
    assert ErrorCode.FENCED_LEADER_EPOCH == error_of_fetch(brokers[LEADER], epoch=0)
    assert ErrorCode.UNKNOWN_LEADER_EPOCH == error_of_fetch(brokers[FOLLOWER], epoch=2)


def test_metadata_follow_the_brokers(brokers):
    """Metadata has the leader, epoch, in-sync and offline replicas, and the running brokers."""
    assert {
        "error": 0,
        "leader": (1, 0),
        "replicas": (1, 2),
        "isr": (1, 2),
        "offline": (),
        "brokers": [1, 2, 3],
    } == described(brokers[STRANGER])
    cluster_of(brokers).fence(1, NOW)
    assert {
        "error": 0,
        "leader": (2, 1),
        "replicas": (1, 2),
        "isr": (2,),
        "offline": (1,),
        "brokers": [2, 3],
    } == described(brokers[STRANGER])
    cluster_of(brokers).fence(2, NOW)
    assert {
        "error": ErrorCode.LEADER_NOT_AVAILABLE,
        "leader": (-1, 2),
        "replicas": (1, 2),
        "isr": (),
        "offline": (1, 2),
        "brokers": [3],
    } == described(brokers[STRANGER])


def test_the_oldest_metadata_omits_stopped_brokers(brokers):
    """Version 0 has no field for offline replicas."""
    cluster_of(brokers).fence(1, NOW)
    answer = described(brokers[STRANGER], version=0)

    assert (ErrorCode.REPLICA_NOT_AVAILABLE, (2,)) == (answer["error"], answer["replicas"])


def test_too_few_replicas_in_sync_take_nothing_that_all_must_have(brokers):
    """acks=all gets NOT_ENOUGH_REPLICAS, while acks=1 only needs the leader."""
    config = TopicConfig(min_insync_replicas=2)
    cluster_of(brokers).create_topic("strict", partitions=1, config=config)
    cluster_of(brokers).fence(2, NOW)

    assert ErrorCode.NOT_ENOUGH_REPLICAS == produced(brokers[LEADER], topic="strict")[0]
    assert ErrorCode.NONE == produced(brokers[LEADER], topic="strict", acks=1)[0]


@pytest.mark.parametrize("key_type", [0, 1])
@pytest.mark.parametrize("version", [3, 4])
def test_without_its_brokers_there_is_no_coordinator(brokers, key_type, version):
    """The response has COORDINATOR_NOT_AVAILABLE and no address."""
    key = {"key": "x"} if version == 3 else {"coordinator_keys": ("x",)}
    request = FindCoordinatorRequest(key_type=key_type, **key)

    def found():
        answer = ask(brokers[STRANGER], request, version)
        one = answer if version == 3 else answer.coordinators[0]
        return one.error_code, one.node_id, one.host, one.port

    code, node_id, *_ = found()
    assert (ErrorCode.NONE, True) == (code, node_id in {1, 2, 3})
    for node_id in (1, 2, 3):
        cluster_of(brokers).fence(node_id, NOW)
    assert (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1) == found()


def test_a_join_that_waits_is_answered_when_the_coordinator_moves(brokers):
    """It gets NOT_COORDINATOR with its own id, and is a member at the new coordinator."""
    cluster = cluster_of(brokers)
    coordinator = brokers[cluster.group_coordinator("g") - 1]
    leader = ask(coordinator, join_request("g"), 3).member_id
    ask(coordinator, join_request("g", leader), 3)
    request = join_request("g")
    waiting = ask(coordinator, request, 3)

    cluster.fence(coordinator.node_id, NOW)

    answer = ask(coordinator, request, 3, kept=waiting.kept)
    assert ErrorCode.NOT_COORDINATOR == answer.error_code
    assert answer.member_id in cluster.groups.find("g").members
    assert ErrorCode.NOT_COORDINATOR == ask(coordinator, join_request("g"), 3).error_code


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([1, 2, 3], ErrorCode.NONE),
        ([3], ErrorCode.NONE),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 4], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_topics_can_be_assigned_to_brokers(brokers, replicas, expected):
    """An assignment needs at least one replica, all on different running brokers."""
    topic = creatable("u", -1, -1, [(0, replicas)])
    request = CreateTopicsRequest(topics=(topic,), timeout_ms=1)
    (result,) = ask(brokers[STRANGER], request).topics

    assert expected == result.error_code
    if not expected:
        assert tuple(replicas) == cluster_of(brokers).topic("u").partitions[0].replicas
        assert len(replicas) == result.replication_factor


def test_all_partitions_have_the_same_number_of_replicas(brokers):
    """An assignment with two brokers for one partition and one for another is refused."""
    topic = creatable("u", -1, -1, [(0, [1, 2]), (1, [3])])
    request = CreateTopicsRequest(topics=(topic,), timeout_ms=1)

    assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == ask(brokers[0], request).topics[0].error_code


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((3, 1), ErrorCode.NONE),
        ((3,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((3, 4), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_new_partitions_can_be_assigned_to_brokers(brokers, replicas, expected):
    """New partitions have as many replicas as the existing ones."""
    topic = CreatePartitionsTopic(
        name="t", count=2, assignments=(CreatePartitionsAssignment(broker_ids=replicas),)
    )
    request = CreatePartitionsRequest(topics=(topic,), timeout_ms=1, validate_only=False)

    assert expected == ask(brokers[0], request).results[0].error_code
    assert (1 if expected else 2) == len(cluster_of(brokers).topic("t").partitions)
