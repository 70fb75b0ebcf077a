"""Racks: which replica serves a consumer, and what a follower does that lags (KIP-392)."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.record.decode import decode_records
from tests.support.devbroker.broker_asker import produce_request
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import plain_batch

RACKS = ("a", "b", "b", "")
LONG_MS = 600_000


def client_of(cluster, node_id=1):
    return RawClient(int(cluster.addresses[node_id].rpartition(":")[2]))


def produce(cluster):
    with client_of(cluster) as client:
        client.ask(produce_request("t", plain_batch(1)), 9)


def fetch_request(cluster, rack, *, offset=0, epoch=-1, version=17, max_wait_ms=0, isolation=0):
    topic_id = cluster.call(lambda broker: broker.cluster.topic("t").topic_id)
    partition = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=10**6, current_leader_epoch=epoch
    )
    topic = {"topic": "t"} if version < 13 else {"topic_id": topic_id}
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        rack_id=rack,
        isolation_level=isolation,
        topics=(FetchTopic(**topic, partitions=(partition,)),),
    )


def fetch(cluster, rack, *, node_id=1, version=17, **fields):
    with client_of(cluster, node_id) as client:
        answer = client.ask(fetch_request(cluster, rack, version=version, **fields), version)
    return partition_of(answer)


def partition_of(answer):
    (partition,) = answer.responses[0].partitions
    return partition


def served(partition):
    """Return the error, the replica to fetch from, the high watermark and the offsets."""
    return (
        partition.error_code,
        partition.preferred_read_replica,
        partition.high_watermark,
        [record.offset for record in decode_records(b"".join([partition.records or b""]))],
    )


@pytest.fixture
def cluster():
    """Yield four brokers, of which the first leads a topic of three replicas and one record."""
    with DevBroker(brokers=4, racks=RACKS, rack_aware_replica_selector=True) as cluster:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=(1, 2, 3))
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=(assignment,)
        )
        with client_of(cluster) as client:
            client.ask(CreateTopicsRequest(topics=(topic,)), 7)
        produce(cluster)
        yield cluster


@pytest.mark.parametrize(
    ("rack", "expected"),
    [
        ("", (0, -1, 1, [0])),
        ("a", (0, -1, 1, [0])),
        ("b", (0, 3, 1, [])),
        ("c", (0, -1, 1, [0])),
    ],
)
def test_a_leader_sends_consumers_to_a_follower_in_their_rack(cluster, rack, expected):
    """A consumer in the leader's rack, in one of its own or in none is served by the leader."""
    assert expected == served(fetch(cluster, rack))


def test_a_follower_serves_whoever_asks(cluster):
    """A follower returns records, and never another replica."""
    assert (0, -1, 1, [0]) == served(fetch(cluster, "b", node_id=2))


def test_the_leader_does_not_let_a_consumer_wait_that_it_sends_away(cluster):
    """A response with a preferred replica comes at once."""
    assert (0, 3, 1, []) == served(fetch(cluster, "b", offset=1, max_wait_ms=LONG_MS))


@pytest.mark.parametrize(("version", "replica"), [(10, -1), (11, 3)])
def test_older_consumers_stay_with_the_leader(cluster, version, replica):
    """The preferred replica exists since version 11."""
    assert replica == fetch(cluster, "b", version=version).preferred_read_replica


def test_the_leader_epoch_is_checked_all_the_same(cluster):
    """A consumer with another leader epoch is not sent to a follower."""
    partition = fetch(cluster, "b", epoch=1)

    assert (ErrorCode.UNKNOWN_LEADER_EPOCH, -1) == (
        partition.error_code,
        partition.preferred_read_replica,
    )


@pytest.mark.parametrize("offset", [-1, 2])
def test_the_leader_answers_for_offsets_that_no_follower_has(cluster, offset):
    """An offset outside of the log is the leader's to refuse."""
    assert ErrorCode.OFFSET_OUT_OF_RANGE == fetch(cluster, "b", offset=offset).error_code


def test_a_follower_that_is_down_is_not_preferred(cluster):
    """Only in-sync replicas are chosen; without one in the rack the leader serves."""
    cluster.stop(3)
    assert 2 == fetch(cluster, "b").preferred_read_replica

    cluster.stop(2)
    assert -1 == fetch(cluster, "b").preferred_read_replica


def test_without_the_selector_the_leader_serves_all():
    """Racks alone change nothing, as in Kafka without replica.selector.class."""
    with DevBroker(brokers=2, racks=("a", "b"), topics={"t": 1}) as cluster:
        assert -1 == fetch(cluster, "b").preferred_read_replica


def test_racks_are_in_the_metadata(cluster):
    """Metadata, DescribeCluster and the address of a new leader have the racks of the brokers."""
    with client_of(cluster) as client:
        metadata = client.ask(MetadataRequest(topics=()), 9)
        described = client.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=False), 0
        )
    with client_of(cluster, 4) as client:
        (leader,) = client.ask(fetch_request(cluster, ""), 17).node_endpoints
        (target,) = client.ask(produce_request("t", plain_batch(1)), 11).node_endpoints

    racks = {1: "a", 2: "b", 3: "b", 4: None}
    assert racks == {broker.node_id: broker.rack for broker in metadata.brokers}
    assert racks == {broker.broker_id: broker.rack for broker in described.brokers}
    assert [(1, "a")] * 2 == [(node.node_id, node.rack) for node in (leader, target)]


def test_each_broker_has_a_rack_or_none_has():
    """A number of racks other than that of the brokers is a mistake."""
    with pytest.raises(ConfigError, match="2 for 3 brokers"):
        DevBroker(brokers=3, racks=("a", "b"))


def test_a_follower_can_lag(cluster):
    """Records that are appended later do not reach it, until it may catch up."""
    cluster.stop_replication("t", 0, 2)
    produce(cluster)

    assert (0, -1, 1, [0]) == served(fetch(cluster, "", node_id=2))
    assert (0, -1, 1, []) == served(fetch(cluster, "", node_id=2, offset=1, isolation=1))
    assert ErrorCode.OFFSET_OUT_OF_RANGE == fetch(cluster, "", node_id=2, offset=2).error_code
    assert (0, -1, 2, [0, 1]) == served(fetch(cluster, ""))

    cluster.resume_replication("t", 0, 2)
    assert (0, -1, 2, [0, 1]) == served(fetch(cluster, "", node_id=2))


def test_a_follower_that_lags_is_not_preferred(cluster):
    """It is not in sync any more, so the leader serves the consumers of its rack."""
    cluster.stop_replication("t", 0, 3)
    produce(cluster)
    assert 2 == fetch(cluster, "b").preferred_read_replica

    cluster.stop_replication("t", 0, 2)
    produce(cluster)
    assert -1 == fetch(cluster, "b").preferred_read_replica

    cluster.resume_replication("t", 0, 3)
    assert 3 == fetch(cluster, "b").preferred_read_replica


def test_a_wait_ends_when_a_follower_catches_up(cluster):
    """A fetch that waits at a lagging follower is answered with the records that arrive."""
    cluster.stop_replication("t", 0, 2)
    with client_of(cluster, 2) as client:
        client.send(fetch_request(cluster, "", offset=1, max_wait_ms=LONG_MS), 17)
        produce(cluster)
        assert client.is_silent_for(0.05)

        cluster.resume_replication("t", 0, 2)

        assert (0, -1, 2, [1]) == served(partition_of(client.receive()[1]))


def test_a_follower_leads_once_it_has_all_records(cluster):
    """Before that it is not in sync, and cannot lead."""
    cluster.stop_replication("t", 0, 2)
    produce(cluster)
    with pytest.raises(RefusedError, match="is not in the ISR"):
        cluster.move_leader("t", 0, 2)

    cluster.resume_replication("t", 0, 2)
    cluster.move_leader("t", 0, 2)

    assert (0, -1, 2, [0, 1]) == served(fetch(cluster, "", node_id=2))


@pytest.mark.parametrize("node_id", [1, 4])
def test_only_a_follower_can_lag(cluster, node_id):
    """The leader and a broker without a replica are refused."""
    with pytest.raises(RefusedError) as caught:
        cluster.stop_replication("t", 0, node_id)

    assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == caught.value.error_code


def test_sessions_end_with_their_broker(cluster):
    """A broker that restarts has forgotten its fetch sessions."""
    with client_of(cluster) as client:
        request = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=())
        session_id = client.ask(request, 17).session_id
    cluster.stop(1)
    cluster.start(1)
    with client_of(cluster) as client:
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=1, topics=()
        )
        answer = client.ask(request, 17)

    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == answer.error_code


def test_a_lagging_follower_ends_where_the_log_ends(cluster):
    """After an unclean election a follower has no more records than the leader."""
    cluster.stop_replication("t", 0, 2)
    cluster.elect_unclean_leader("t", 0, 0)

    assert [(0, -1, 0, [])] * 2 == [served(fetch(cluster, "", node_id=each)) for each in (1, 2)]
