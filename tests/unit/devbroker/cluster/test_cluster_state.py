"""The topics, partitions and producer ids of a cluster."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.base.topic_names import coordinator_partition, validate_topic_name
from spark_kafka_sink.devbroker.cluster.partition import Leadership
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.record.plain_batches import plain_batch

NOW = 1_700_000_000.0


@pytest.fixture
def cluster():
    cluster = StandaloneCluster()
    start(cluster)
    return cluster


def start(cluster):
    """Record that the broker runs."""
    cluster.nodes[1] = Node(1, "127.0.0.1", 9092)
    cluster.elect(NOW)


def create(cluster, name, partitions=1, **fields):
    return cluster.create_topic(name, partitions=partitions, config=TopicConfig(), **fields)


def error_of(work):
    with pytest.raises(RefusedError) as caught:
        work()
    return caught.value.error_code


@pytest.mark.parametrize("name", ["a", "orders.eu-1_x", "X" * 249, "...", "__consumer_offsets"])
def test_legal_topic_names_pass(name):
    """Topic names have up to 249 ASCII letters, digits, dots, underscores and hyphens."""
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "X" * 250, "a\n"])
def test_illegal_topic_names_are_refused(name):
    """A name that Kafka's Topic.validate refuses is INVALID_TOPIC_EXCEPTION."""
    assert ErrorCode.INVALID_TOPIC_EXCEPTION == error_of(lambda: validate_topic_name(name))


def test_a_topic_is_found_by_name_and_by_id(cluster):
    """A created topic is found under both its name and its id."""
    topic = create(cluster, "t", 3)

    assert topic is cluster.topic("t")
    assert topic is cluster.topic_by_id(topic.topic_id)
    assert [0, 1, 2] == [partition.index for partition in topic.partitions]


def test_a_topic_that_exists_is_not_created_again(cluster):
    """Creating a topic whose name exists is TOPIC_ALREADY_EXISTS."""
    create(cluster, "t")

    assert ErrorCode.TOPIC_ALREADY_EXISTS == error_of(lambda: create(cluster, "t"))


def test_a_name_that_metrics_would_confuse_is_refused(cluster):
    """Kafka's metrics do not distinguish names that differ only in dot and underscore."""
    create(cluster, "a.b")

    assert ErrorCode.INVALID_TOPIC_EXCEPTION == error_of(lambda: create(cluster, "a_b"))


def test_the_metadata_topic_cannot_be_created(cluster):
    """The controller's own topic is INVALID_REQUEST."""
    assert ErrorCode.INVALID_REQUEST == error_of(lambda: create(cluster, "__cluster_metadata"))


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_has_at_least_one_partition(cluster, partitions):
    """A topic without partitions is INVALID_PARTITIONS."""
    assert ErrorCode.INVALID_PARTITIONS == error_of(lambda: create(cluster, "t", partitions))


def test_a_topic_needs_a_broker():
    """Without a broker no replica can be placed."""
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(
        lambda: create(StandaloneCluster(), "t")
    )


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
    """An older leader epoch is fenced, and a newer one is unknown."""
    partition = create(cluster, "t").partitions[0]
    partition.leadership = Leadership.of_only(1, leader_epoch=5)

    assert expected == error_of(lambda: partition.check_leader_epoch(known))


@pytest.mark.parametrize("known", [-1, 5])
def test_the_present_leader_epoch_or_none_passes(cluster, known):
    """A client that sends the current epoch, or none, is accepted."""
    partition = create(cluster, "t").partitions[0]
    partition.leadership = Leadership.of_only(1, leader_epoch=5)

    partition.check_leader_epoch(known)


def test_producer_ids_are_given_once(cluster):
    """No producer id is handed out twice."""
    assert [0, 1, 2] == [cluster.next_producer_id() for _ in range(3)]


def test_the_cluster_id_has_kafkas_form():
    """A generated cluster id is 16 bytes in 22 characters; a configured one is kept."""
    assert 16 == len(base64.urlsafe_b64decode(StandaloneCluster().cluster_id + "=="))
    assert "mine" == StandaloneCluster(cluster_id="mine").cluster_id


def test_the_controller_is_a_broker(cluster):
    """The first broker is the controller; without brokers the controller id is -1."""
    assert 1 == cluster.controller_id
    assert -1 == StandaloneCluster().controller_id


def test_internal_topics_are_known_by_name(cluster):
    """Kafka's own topics are marked as internal."""
    assert create(cluster, "__consumer_offsets").is_internal
    assert not create(cluster, "t").is_internal


def test_a_plan_that_is_given_up_changes_nothing(cluster):
    """Topics are not created, changed or deleted, and no log is left over."""
    kept, doomed = create(cluster, "kept"), create(cluster, "doomed")

    def give_up():
        with cluster.change_topics() as changes:
            changes.create_topic("new", partitions=2, config=TopicConfig())
            changes.add_partitions(kept, 3)
            changes.delete_topic(doomed)
            raise RefusedError(ErrorCode.POLICY_VIOLATION, "given up")

    assert ErrorCode.POLICY_VIOLATION == error_of(give_up)
    assert [("doomed", 1), ("kept", 1)] == [
        (topic.name, len(topic.partitions)) for topic in cluster.topics
    ]
    assert {TopicPartition("kept", 0), TopicPartition("doomed", 0)} == cluster.logs.partitions


def test_a_plan_is_invisible_until_it_takes_effect(cluster):
    """All changes take effect at the end of the block."""
    kept, doomed = create(cluster, "kept"), create(cluster, "doomed")

    with cluster.change_topics() as changes:
        changes.create_topic("new", partitions=2, config=TopicConfig())
        changes.add_partitions(kept, 3)
        changes.delete_topic(doomed)
        before = [(topic.name, len(topic.partitions)) for topic in cluster.topics]

    assert [("doomed", 1), ("kept", 1)] == before
    assert [("kept", 3), ("new", 2)] == [
        (topic.name, len(topic.partitions)) for topic in cluster.topics
    ]


TP = TopicPartition("t", 0)
GROUPS = TopicPartition("__consumer_offsets", 7)


def role(cluster):
    partition = cluster.partition(TP)
    return partition.leader_id, partition.leader_epoch, partition.leadership.isr


def test_nothing_has_a_leader_while_the_broker_is_stopped(cluster):
    """Neither partitions nor coordinators; afterwards it leads in a new epoch."""
    create(cluster, "t")
    assert ((1, 0, (1,)), 1, 1) == (role(cluster), cluster.leader(TP), cluster.leader(GROUPS))

    cluster.fence()
    assert ((-1, 1, ()), -1, -1) == (role(cluster), cluster.leader(TP), cluster.leader(GROUPS))
    assert (-1, -1) == (cluster.group_coordinator("x"), cluster.transaction_coordinator("x"))
    assert -1 == cluster.controller_id

    start(cluster)
    assert ((1, 2, (1,)), 1, 1) == (role(cluster), cluster.leader(TP), cluster.leader(GROUPS))
    assert (1, 1) == (cluster.group_coordinator("x"), cluster.transaction_coordinator("x"))


def test_a_broker_that_returns_stamps_records_with_a_new_epoch(cluster):
    """The log records where each leader epoch began."""
    log = create(cluster, "t").partitions[0].log
    append(log, 2)
    cluster.fence()
    start(cluster)
    append(log, 3)

    assert [0, 2] == [decode_header(batch).partition_leader_epoch for batch in log.batches()]
    assert ((0, 0), (2, 2)) == log.leader_epochs.entries


def append(log, count):
    data = plain_batch(count)
    log.append(memoryview(bytearray(data)), decode_header(data))


@pytest.mark.parametrize("topic_partition", [TP, GROUPS])
def test_only_the_running_broker_can_lead(cluster, topic_partition):
    """It does so already, and another one has no replica."""
    create(cluster, "t")
    before = role(cluster)
    cluster.take_changed()

    cluster.move_leader(topic_partition, 1, NOW)
    assert (before, set()) == (role(cluster), cluster.take_changed())
    for node_id in (2, 1):
        assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == error_of(
            lambda node_id=node_id: cluster.move_leader(topic_partition, node_id, NOW)
        )
        cluster.fence()


def test_a_partition_of_one_broker_has_one_replica(cluster):
    """More would need other brokers, and without a running one nobody could lead."""
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(
        lambda: create(cluster, "u", replication_factor=2)
    )
    assert (1,) == create(cluster, "t", replication_factor=1).partitions[0].replicas
    cluster.fence()
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(lambda: create(cluster, "u"))


def test_the_rack_of_a_broker_is_known(cluster):
    """If it has one."""
    assert {} == cluster.racks
    assert {} == StandaloneCluster(settings=BrokerSettings(racks=("",))).racks
    settings = BrokerSettings(racks=("a",), node_id=5)
    assert {5: "a"} == StandaloneCluster(settings=settings).racks


@given(st.text())
@example("polygenelubricants")
def test_a_coordinators_partition_is_found_as_in_java(key):
    """The partition is Utils.abs of String.hashCode, where the smallest integer counts as 0."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", key.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) % 2**32
    signed = code - 2**32 if code >= 2**31 else code

    assert (0 if signed == -(2**31) else abs(signed)) % 50 == coordinator_partition(key)
