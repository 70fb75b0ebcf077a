"""Topics, partitions and producer ids of a cluster."""

from __future__ import annotations

import base64

import pytest

from spark_kafka_sink.devbroker.cluster_state import ClusterState, validate_topic_name
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.topic_config import TopicConfig
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode


@pytest.fixture
def cluster():
    cluster = ClusterState()
    cluster.nodes[1] = Node(1, "127.0.0.1", 9092)
    return cluster


def create(cluster, name, partitions=1):
    return cluster.create_topic(name, partitions=partitions, config=TopicConfig())


def error_of(work):
    with pytest.raises(RefusedError) as caught:
        work()
    return caught.value.error_code


@pytest.mark.parametrize("name", ["a", "orders.eu-1_x", "X" * 249, "...", "__consumer_offsets"])
def test_legal_topic_names_pass(name):
    """ASCII letters, digits, dot, underscore and hyphen, up to 249 of them."""
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "X" * 250, "a\n"])
def test_illegal_topic_names_are_refused(name):
    """What Kafka's Topic.validate refuses is INVALID_TOPIC_EXCEPTION."""
    assert ErrorCode.INVALID_TOPIC_EXCEPTION == error_of(lambda: validate_topic_name(name))


def test_a_topic_is_found_by_name_and_by_id(cluster):
    """A topic that was created is there under both."""
    topic = create(cluster, "t", 3)

    assert topic is cluster.topic("t")
    assert topic is cluster.topic_by_id(topic.topic_id)
    assert [0, 1, 2] == [partition.index for partition in topic.partitions]


def test_a_topic_that_exists_is_not_created_again(cluster):
    """A second topic of a name is TOPIC_ALREADY_EXISTS."""
    create(cluster, "t")

    assert ErrorCode.TOPIC_ALREADY_EXISTS == error_of(lambda: create(cluster, "t"))


def test_a_name_that_metrics_would_confuse_is_refused(cluster):
    """A dot and an underscore in the same place are one name to Kafka's metrics."""
    create(cluster, "a.b")

    assert ErrorCode.INVALID_TOPIC_EXCEPTION == error_of(lambda: create(cluster, "a_b"))


def test_the_metadata_topic_cannot_be_created(cluster):
    """The controller's own topic is INVALID_REQUEST."""
    assert ErrorCode.INVALID_REQUEST == error_of(lambda: create(cluster, "__cluster_metadata"))


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_has_at_least_one_partition(cluster, partitions):
    """No partitions at all are INVALID_PARTITIONS."""
    assert ErrorCode.INVALID_PARTITIONS == error_of(lambda: create(cluster, "t", partitions))


def test_a_topic_needs_a_broker():
    """Without a broker there is nobody to keep a replica."""
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(lambda: create(ClusterState(), "t"))


def test_partitions_are_spread_over_the_brokers(cluster):
    """Leadership goes round."""
    cluster.nodes[2] = Node(2, "127.0.0.1", 9093)

    assert [1, 2, 1] == [p.leader_id for p in create(cluster, "t", 3).partitions]


@pytest.mark.parametrize(("topic", "partition"), [("t", 1), ("t", -1), ("u", 0)])
def test_a_partition_that_does_not_exist_is_refused(cluster, topic, partition):
    """An unknown topic or partition is UNKNOWN_TOPIC_OR_PARTITION."""
    create(cluster, "t")

    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == error_of(
        lambda: cluster.partition(TopicPartition(topic, partition))
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_another_leader_epoch_is_refused(cluster, known, expected):
    """An older epoch is fenced, a newer one unknown."""
    partition = create(cluster, "t").partitions[0]
    partition.log.leader_epoch = 5

    assert expected == error_of(lambda: partition.check_leader_epoch(known))


@pytest.mark.parametrize("known", [-1, 5])
def test_the_present_leader_epoch_or_none_passes(cluster, known):
    """A client that knows the epoch, or none, is let in."""
    partition = create(cluster, "t").partitions[0]
    partition.log.leader_epoch = 5

    partition.check_leader_epoch(known)


def test_producer_ids_are_given_once(cluster):
    """No producer id is given out twice."""
    assert [0, 1, 2] == [cluster.next_producer_id() for _ in range(3)]


def test_the_cluster_id_has_kafkas_form():
    """A made-up cluster id is 16 bytes in 22 characters; a given one is kept."""
    assert 16 == len(base64.urlsafe_b64decode(ClusterState().cluster_id + "=="))
    assert "mine" == ClusterState(cluster_id="mine").cluster_id


def test_the_controller_is_a_broker(cluster):
    """The first broker is the controller, and nobody is while there is none."""
    assert 1 == cluster.controller_id
    assert -1 == ClusterState().controller_id


def test_internal_topics_are_known_by_name(cluster):
    """Kafka's own topics are marked as internal."""
    assert create(cluster, "__consumer_offsets").is_internal
    assert not create(cluster, "t").is_internal
