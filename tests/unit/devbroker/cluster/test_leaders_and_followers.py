"""The responses of each broker in a cluster; see also `tests/kafka/test_devbroker_brokers.py`."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.topic_names import (
    GROUP_METADATA_TOPIC,
    coordinator_partition,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import write_txn_markers as markers
from spark_kafka_sink.protocol.messages.elect_leaders import UNCLEAN
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.devbroker.admin_requests import (
    alter_replica_log_dirs,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
)
from tests.support.devbroker.broker_asker import produce_request
from tests.support.devbroker.replication.local_cluster import LocalCluster
from tests.support.record.plain_batches import plain_batch

LEADER, FOLLOWER, STRANGER = 1, 2, 3
REFUSED = ErrorCode.NOT_LEADER_OR_FOLLOWER
#: Longer than the session of a broker and the lease of a controller together.
FAIL_OVER = 13.0
#: Also longer than a new process waits between attempts to register.
RETURN = 30.0


@pytest.fixture
def cluster():
    """Yield three brokers; the first leads a topic `t`, which the second one has as well."""
    cluster = LocalCluster()
    cluster.run(0.5)
    cluster.create_topic("t", ask=STRANGER, replicas=(LEADER, FOLLOWER))
    yield cluster
    cluster.close()


def produced(cluster, node_id, *, version):
    """Return the error code, the leader and its epoch, and the addresses in the response."""
    response = cluster.ask(node_id, produce_request("t", plain_batch(1)), version)
    (partition,) = response.responses[0].partition_responses
    leader = partition.current_leader
    nodes = [(node.node_id, node.port) for node in response.node_endpoints]
    return partition.error_code, leader.leader_id, leader.leader_epoch, nodes


@pytest.mark.parametrize("who", [FOLLOWER, STRANGER])
def test_a_broker_that_does_not_lead_names_the_leader(cluster, who):
    """Since version 10 the response has the leader, its epoch and its address (KIP-951)."""
    assert (REFUSED, LEADER, 0, [(LEADER, 9001)]) == produced(cluster, who, version=10)
    assert (REFUSED, -1, -1, []) == produced(cluster, who, version=9)
    assert ErrorCode.NONE == produced(cluster, LEADER, version=10)[0]


@pytest.mark.parametrize(
    ("who", "version", "expected"),
    [
        (FOLLOWER, 12, ErrorCode.NONE),
        (FOLLOWER, 10, REFUSED),
        (STRANGER, 12, REFUSED),
    ],
)
def test_consumers_may_fetch_from_followers(cluster, who, version, expected):
    """Since version 11 consumers may fetch from followers (KIP-392)."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchTopic(topic="t", partitions=(partition,))
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,))

    response = cluster.ask(who, request, version)

    assert expected == response.responses[0].partitions[0].error_code


def described(cluster, version=12):
    request = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
    response = cluster.ask(STRANGER, request, version)
    (partition,) = response.topics[0].partitions
    return {
        "error": partition.error_code,
        "leader": (partition.leader_id, partition.leader_epoch),
        "replicas": partition.replica_nodes,
        "isr": partition.isr_nodes,
        "offline": partition.offline_replicas,
        "brokers": [broker.node_id for broker in response.brokers],
    }


def test_metadata_follow_the_brokers(cluster):
    """Metadata has the leader, epoch, in-sync and offline replicas, and the running brokers."""
    assert {
        "error": 0,
        "leader": (1, 0),
        "replicas": (1, 2),
        "isr": (1, 2),
        "offline": (),
        "brokers": [1, 2, 3],
    } == described(cluster)
    cluster.shut_down(LEADER)
    assert {
        "error": 0,
        "leader": (2, 1),
        "replicas": (1, 2),
        "isr": (2,),
        "offline": (1,),
        "brokers": [2, 3],
    } == described(cluster)
    assert (ErrorCode.REPLICA_NOT_AVAILABLE, (2,)) == (
        described(cluster, version=0)["error"],
        described(cluster, version=0)["replicas"],
    )
    cluster.kill(FOLLOWER)
    cluster.run(FAIL_OVER)
    assert {
        "error": ErrorCode.LEADER_NOT_AVAILABLE,
        "leader": (-1, 2),
        "replicas": (1, 2),
        "isr": (),
        "offline": (1, 2),
        "brokers": [3],
    } == described(cluster)


def leave_only_what_lacks_records(cluster):
    """Kill the brokers that are in sync after another one, which runs again."""
    cluster.kill(STRANGER)
    cluster.run(FAIL_OVER)
    yield
    for node_id in (FOLLOWER, LEADER):
        cluster.kill(node_id)
    cluster.start(STRANGER)
    cluster.run(RETURN)
    yield


def test_an_unclean_leader_loses_what_it_lacks(cluster):
    """An administrator elects a replica that was away, and it leads with the records it had."""
    key = cluster.create_topic("u", ask=1, replicas=cluster.node_ids)
    assert ErrorCode.NONE == cluster.produce(key, 1, to=LEADER)
    steps = leave_only_what_lacks_records(cluster)
    next(steps)
    assert ErrorCode.NONE == cluster.produce(key, 2, to=LEADER)
    next(steps)
    assert (-1, [1]) == (cluster.partition(key).leader, cluster.records(key, STRANGER))

    response = cluster.ask(STRANGER, elect_leaders({"u": [0]}, UNCLEAN))

    (result,) = response.replica_election_results[0].partition_result
    partition = cluster.partition(key)
    assert (ErrorCode.NONE, STRANGER, (STRANGER,)) == (
        result.error_code,
        partition.leader,
        partition.isr,
    )
    assert ErrorCode.NONE == cluster.produce(key, 3, to=STRANGER)
    for node_id in (LEADER, FOLLOWER):
        cluster.start(node_id)
    cluster.run(RETURN)
    assert [[1, 3]] * 3 == [cluster.records(key, node_id) for node_id in cluster.node_ids]


def find_coordinator(cluster, node_id, key_type, version):
    key = {"key": "x"} if version == 3 else {"coordinator_keys": ("x",)}
    response = cluster.ask(node_id, FindCoordinatorRequest(key_type=key_type, **key), version)
    one = response if version == 3 else response.coordinators[0]
    return one.error_code, one.node_id, one.host, one.port


@pytest.mark.parametrize(("key_type", "version"), [(0, 3), (1, 4)])
def test_without_its_replicas_in_sync_there_is_no_coordinator(cluster, key_type, version):
    """The response has COORDINATOR_NOT_AVAILABLE and no address."""
    find_coordinator(cluster, LEADER, key_type, version)
    assert ErrorCode.NONE == find_coordinator(cluster, LEADER, key_type, version)[0]
    for _ in leave_only_what_lacks_records(cluster):
        pass

    found = find_coordinator(cluster, STRANGER, key_type, version)

    assert (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1) == found


def test_coordinators_outlive_the_broker_that_ran_alone_when_they_were_first_looked_up(cluster):
    """All brokers of the cluster get a replica of each partition, also those that were stopped."""
    for node_id in (2, 3):
        cluster.shut_down(node_id)
    find_coordinator(cluster, 1, 0, 4)
    assert (ErrorCode.NONE, 1) == find_coordinator(cluster, 1, 0, 4)[:2]
    for node_id in (2, 3):
        cluster.start(node_id)
    cluster.run(RETURN)

    cluster.shut_down(1)

    code, node_id, *_ = find_coordinator(cluster, 2, 0, 4)
    assert (ErrorCode.NONE, True) == (code, node_id in {2, 3})


def write_marker(cluster, node_id, name, index):
    """Write a marker of a producer without transaction; return the error code."""
    topic = markers.WritableTxnMarkerTopic(name=name, partition_indexes=(index,))
    marker = markers.WritableTxnMarker(
        producer_id=7,
        producer_epoch=0,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=0,
    )
    response = cluster.ask(node_id, markers.WriteTxnMarkersRequest(markers=(marker,)))
    return response.markers[0].topics[0].partitions[0].error_code


def test_markers_at_a_broker_that_does_not_lead(cluster):
    """Neither a partition of a topic, nor one of the groups' offsets."""
    index = coordinator_partition("x")
    find_coordinator(cluster, 1, 0, 4)
    coordinator = cluster.brokers[1].cluster.leader(TopicPartition(GROUP_METADATA_TOPIC, index))

    results = {
        node_id: (
            write_marker(cluster, node_id, "t", 0),
            write_marker(cluster, node_id, GROUP_METADATA_TOPIC, index),
        )
        for node_id in cluster.node_ids
    }

    of_topic = {1: ErrorCode.NONE, 2: REFUSED, 3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert {
        node_id: (of_topic[node_id], ErrorCode.NONE if node_id == coordinator else REFUSED)
        for node_id in cluster.node_ids
    } == results


def test_a_marker_needs_enough_replicas(cluster):
    """It is a write with acks=all."""
    cluster.create_topic("u", ask=1, replicas=cluster.node_ids, min_insync_replicas=3)
    cluster.shut_down(STRANGER)

    assert ErrorCode.NOT_ENOUGH_REPLICAS == write_marker(cluster, LEADER, "u", 0)


def test_a_broker_lists_its_own_replicas(cluster):
    """A partition is in the directories of those brokers that have a replica."""
    found = [
        [
            (topic.name, partition.partition_index)
            for topic in cluster.ask(node_id, describe_log_dirs()).results[0].topics
            for partition in topic.partitions
        ]
        for node_id in cluster.node_ids
    ]

    assert [[("t", 0)], [("t", 0)], []] == found


def test_replicas_of_other_brokers_are_not_available(cluster):
    """A broker moves only the replicas that it has."""
    request = alter_replica_log_dirs("/memory", {"t": [0]})

    codes = [
        cluster.ask(node_id, request).results[0].partitions[0].error_code
        for node_id in (LEADER, STRANGER)
    ]

    assert [ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE] == codes


def test_a_partition_shows_which_replicas_are_left(cluster):
    """It has the stopped replicas, and those that may lead although they are not in sync."""
    cluster.create_topic("u", ask=1, replicas=cluster.node_ids, min_insync_replicas=2)
    for node_id in (STRANGER, LEADER):
        cluster.shut_down(node_id)

    [topic] = cluster.ask(FOLLOWER, describe_topic_partitions("u")).topics
    [partition] = topic.partitions

    assert (2, (1, 2, 3), (2,), (1,), (1, 3)) == (
        partition.leader_id,
        partition.replica_nodes,
        partition.isr_nodes,
        partition.eligible_leader_replicas,
        partition.offline_replicas,
    )


def test_another_broker_leads_the_quorum_when_the_leader_stops(cluster):
    """Each broker votes, whether it runs or not, and the next leader has another epoch."""

    def quorum(node_id):
        response = cluster.ask(node_id, describe_quorum())
        [partition] = response.topics[0].partitions
        offsets = {voter.replica_id: voter.log_end_offset for voter in partition.current_voters}
        return partition, offsets, {node.node_id for node in response.nodes}

    cluster.run(1.0)
    first, offsets, nodes = quorum(1)
    assert dict.fromkeys((1, 2, 3), first.high_watermark) == offsets
    assert {1, 2, 3} == nodes

    stopped = first.leader_id
    left = {1, 2, 3} - {stopped}
    cluster.shut_down(stopped)
    cluster.run(FAIL_OVER)

    cluster.run(1.0)
    second, offsets, nodes = quorum(min(left))
    assert left == nodes
    assert second.leader_id in left
    assert second.leader_epoch > first.leader_epoch
    assert second.high_watermark > first.high_watermark
    assert {**dict.fromkeys(left, second.high_watermark), stopped: -1} == offsets
