"""Brokers replicate over links that a test can cut or delay, with Kafka's own times."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import BrokerState
from spark_kafka_sink.devbroker.metadata.envelope import ForwardedRequest
from spark_kafka_sink.devbroker.metadata.records import NO_LEADER
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.devbroker.replication.local_cluster import LocalCluster


@pytest.fixture(params=["memory", "disk"])
def cluster(request, tmp_path):
    """Return three running brokers."""
    cluster = LocalCluster(None if request.param == "memory" else tmp_path)
    cluster.run(0.5)
    yield cluster
    cluster.close()


@pytest.fixture
def key(cluster):
    """Return a partition with one committed record."""
    key = cluster.create_topic("t", ask=3)
    leader = cluster.partition(key).leader
    assert ErrorCode.NONE == cluster.produce(key, 7, to=leader, wait=0.1)
    return key


def followers(cluster, key):
    partition = cluster.partition(key)
    return [each for each in partition.replicas if each != partition.leader]


def test_brokers_start_within_a_second(cluster):
    """Each of them may lead, and all know the same metadata."""
    nodes = cluster.cluster.nodes.values()
    assert {BrokerState.RUNNING} == {node.lifecycle.state for node in nodes}
    first, *others = nodes
    assert all(first.image == each.image for each in others)


def test_a_record_reaches_all_replicas(cluster, key):
    """And consumers, once it has."""
    assert {(7,)} == {tuple(cluster.records(key, each)) for each in cluster.node_ids}
    assert 1 == cluster.high_watermark(key, cluster.partition(key).leader)


def test_a_killed_leader_is_replaced(cluster, key):
    """When its session has ended; then it returns as a follower."""
    leader = cluster.partition(key).leader
    cluster.kill(leader)
    cluster.run(12.0)
    partition = cluster.partition(key)
    assert partition.leader not in {leader, NO_LEADER}
    assert leader not in partition.isr
    assert ErrorCode.NONE == cluster.produce(key, 8, to=partition.leader, wait=0.1)
    cluster.start(leader)
    cluster.run(3.0)
    assert [7, 8] == cluster.records(key, leader)
    assert leader in cluster.partition(key).isr


def test_a_leader_that_shuts_down_is_replaced_at_once(cluster, key):
    """No session has to end for that, only before the same broker may start again."""
    leader = cluster.partition(key).leader
    begun = cluster.now
    cluster.shut_down(leader)
    assert 2.5 > cluster.now - begun
    cluster.run(0.1)
    assert cluster.partition(key).leader not in {leader, NO_LEADER}
    cluster.start(leader)
    cluster.run(16.0)
    assert leader in cluster.partition(key).isr


def test_a_follower_that_is_cut_off_leaves_the_isr(cluster, key):
    """After replica.lag.time.max.ms; until then acks=all waits for it."""
    leader = cluster.partition(key).leader
    follower = followers(cluster, key)[0]
    for node_id in cluster.node_ids:
        cluster.cluster.cut(node_id, follower)
    assert cluster.produce(key, 8, to=leader, wait=4.0) is None
    assert ErrorCode.REQUEST_TIMED_OUT == cluster.produce(key, 9, to=leader, wait=5.0)
    assert 1 == cluster.high_watermark(key, leader)
    cluster.run(50.0)
    assert follower not in cluster.partition(key, leader).isr
    assert 3 == cluster.high_watermark(key, leader)
    cluster.cluster.heal()
    cluster.run(15.0)
    assert follower in cluster.partition(key, leader).isr
    assert [7, 8, 9] == cluster.records(key, follower)


def test_a_record_with_acks_1_may_be_lost(cluster, key):
    """The leader had it alone when it was killed."""
    leader = cluster.partition(key).leader
    for follower in followers(cluster, key):
        cluster.cluster.cut(leader, follower)
    assert ErrorCode.NONE == cluster.produce(key, 8, to=leader, acks=1)
    cluster.kill(leader)
    cluster.cluster.heal()
    cluster.run(15.0)
    cluster.start(leader)
    cluster.run(15.0)
    assert {(7,)} == {tuple(cluster.records(key, each)) for each in cluster.node_ids}


def test_a_consumer_may_read_from_any_replica(cluster, key):
    """A follower learns with its next fetch what is committed."""
    cluster.run(1.0)
    for node_id in cluster.node_ids:
        data = cluster.fetch(key, at=node_id)
        assert (ErrorCode.NONE, 1) == (data.error_code, data.high_watermark)
        assert len(data.records) > 0


def metadata(cluster, node_id):
    request = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
    return cluster.ask(node_id, request)


def test_clients_learn_from_any_broker_who_leads(cluster, key):
    """And the addresses of the brokers that run, and who is the controller."""
    partition = cluster.partition(key)
    for node_id in cluster.node_ids:
        response = metadata(cluster, node_id)
        assert cluster.cluster.quorum.controller_id == response.controller_id
        assert {each: 9000 + each for each in cluster.node_ids} == {
            each.node_id: each.port for each in response.brokers
        }
        (found,) = response.topics[0].partitions
        assert (partition.leader, partition.leader_epoch) == (found.leader_id, found.leader_epoch)
        assert (partition.replicas, partition.isr) == (found.replica_nodes, found.isr_nodes)
    stopped = followers(cluster, key)[0]
    cluster.kill(stopped)
    cluster.run(12.0)
    response = metadata(cluster, partition.leader)
    assert stopped not in {each.node_id for each in response.brokers}
    assert (stopped,) == response.topics[0].partitions[0].offline_replicas


def test_a_write_that_waits_ends_with_the_topic(cluster, key):
    """Its records are gone with it."""
    leader = cluster.partition(key).leader
    for follower in followers(cluster, key):
        cluster.cluster.cut(leader, follower)
    broker = cluster.brokers[leader]
    assert cluster.produce(key, 8, to=leader) is None
    broker.take_changed()
    topic = DeleteTopicState(topic_id=key.topic_id)
    cluster.cluster.heal()
    request = ForwardedRequest(
        request=DeleteTopicsRequest(topics=(topic,), timeout_ms=1000), version=6
    )
    cluster.cluster.forward(leader, request, [].append, cluster.now)
    assert {TopicPartition("t", 0)} <= broker.take_changed()
    assert [] == broker.cluster.topics


def test_metadata_may_be_old(cluster):
    """A broker whose link to the controller is slow does not know a new topic yet."""
    controller = cluster.cluster.quorum.controller_id
    slow, other = (each for each in cluster.node_ids if each != controller)
    cluster.cluster.delay(controller, slow, 0.4)
    key = cluster.create_topic("t", ask=other)
    assert cluster.partition(key, slow) is None
    assert cluster.partition(key, other) is not None
    cluster.run(0.5)
    assert cluster.partition(key, slow) is not None


def test_a_client_of_a_killed_broker_gets_no_response(cluster):
    """Neither when it waits already, nor when it asks later."""
    controller = cluster.cluster.quorum.controller_id
    other = next(each for each in cluster.node_ids if each != controller)
    cluster.cluster.cut(controller, other)
    responses = []
    request = ForwardedRequest(request=CreateTopicsRequest(topics=()), version=7)
    cluster.cluster.forward(other, request, responses.append, cluster.now)
    assert [] == responses
    cluster.kill(other)
    cluster.cluster.forward(other, request, responses.append, cluster.now)
    assert [None, None] == responses


def test_a_cluster_on_disk_continues_after_a_crash(tmp_path):
    """Topics, records and epochs are there, although no process was shut down in order."""
    cluster = LocalCluster(tmp_path)
    cluster.run(0.5)
    key = cluster.create_topic("t", ask=1)
    leader = cluster.partition(key).leader
    cluster.produce(key, 7, to=leader, wait=0.1)
    epoch = cluster.cluster.quorum.controller_epoch
    cluster.close()
    again = LocalCluster(tmp_path)
    again.run(12.0)
    assert epoch < again.cluster.quorum.controller_epoch
    partition = again.partition(key)
    assert partition.leader != NO_LEADER
    assert [7] == again.records(key, partition.leader)
    assert ErrorCode.NONE == again.produce(key, 8, to=partition.leader, wait=0.1)
    again.close()


def test_no_two_producers_have_the_same_id(cluster):
    """Whichever broker they ask; the first one of a broker asks twice, as in Kafka."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    ids = []
    for node_id in cluster.node_ids:
        code = cluster.ask(node_id, request).error_code
        assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS == code
        ids += [cluster.ask(node_id, request).producer_id for _ in range(3)]
    assert 9 == len(set(ids))
    assert {0, 1, 2} == {each // 1000 for each in ids}
