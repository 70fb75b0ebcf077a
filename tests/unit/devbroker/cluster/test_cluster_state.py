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
from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.record.plain_batches import plain_batch


@pytest.fixture
def cluster():
    cluster = ClusterState()
    cluster.register(Node(1, "127.0.0.1", 9092), NOW)
    return cluster


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
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(lambda: create(ClusterState(), "t"))


def test_partitions_are_spread_over_the_brokers(cluster):
    """Brokers lead new partitions in turn."""
    cluster.register(Node(2, "127.0.0.1", 9093), NOW)

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
    """An older leader epoch is fenced, and a newer one is unknown."""
    partition = create(cluster, "t").partitions[0]
    partition.leadership.leader_epoch = 5

    assert expected == error_of(lambda: partition.check_leader_epoch(known))


@pytest.mark.parametrize("known", [-1, 5])
def test_the_present_leader_epoch_or_none_passes(cluster, known):
    """A client that sends the current epoch, or none, is accepted."""
    partition = create(cluster, "t").partitions[0]
    partition.leadership.leader_epoch = 5

    partition.check_leader_epoch(known)


def test_producer_ids_are_given_once(cluster):
    """No producer id is handed out twice."""
    assert [0, 1, 2] == [cluster.next_producer_id() for _ in range(3)]


def test_the_cluster_id_has_kafkas_form():
    """A generated cluster id is 16 bytes in 22 characters; a configured one is kept."""
    assert 16 == len(base64.urlsafe_b64decode(ClusterState().cluster_id + "=="))
    assert "mine" == ClusterState(cluster_id="mine").cluster_id


def test_the_controller_is_a_broker(cluster):
    """The first broker is the controller; without brokers the controller id is -1."""
    assert 1 == cluster.controller_id
    assert -1 == ClusterState().controller_id


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


NOW = 1_700_000_000.0


@pytest.fixture
def three():
    """Return a cluster of three brokers with a topic `t` of three partitions on all of them."""
    cluster = ClusterState(settings=BrokerSettings(default_replication_factor=3))
    for node_id in (1, 2, 3):
        cluster.register(Node(node_id, "127.0.0.1", 9090 + node_id), NOW)
    create(cluster, "t", 3)
    return cluster


def leaders(cluster, topic="t"):
    return [(p.leader_id, p.leader_epoch) for p in cluster.topic(topic).partitions]


def append(cluster, count=1):
    data = plain_batch(count)
    log = cluster.topic("t").partitions[0].log
    log.append(memoryview(bytearray(data)), decode_header(data))
    return log


def test_replicas_are_striped_over_the_brokers(three):
    """The replicas of each partition start at the next broker."""
    assert [(1, 2, 3), (2, 3, 1), (3, 1, 2)] == [p.replicas for p in three.topic("t").partitions]


def test_more_replicas_than_brokers_are_refused(three):
    """A new partition can have a replica on each broker, running or not, if one of them runs."""
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(
        lambda: create(three, "u", replication_factor=4)
    )
    for node_id in (1, 2, 3):
        three.fence(node_id, NOW)
    assert ErrorCode.INVALID_REPLICATION_FACTOR == error_of(
        lambda: create(three, "u", replication_factor=1)
    )


def test_a_stopped_broker_gets_replicas_if_too_few_others_run(three):
    """Running brokers come first; the replicas of the others are in sync when they are back."""
    three.fence(2, NOW)
    create(three, "u", 3)
    create(three, "v", 2, replication_factor=2)

    partitions = three.topic("u").partitions
    assert [(1, 3, 2), (3, 1, 2), (1, 3, 2)] == [p.replicas for p in partitions]
    assert [(1, 3), (3, 1), (1, 3)] == [p.leadership.isr for p in partitions]
    assert [(1, 3), (3, 1)] == [p.replicas for p in three.topic("v").partitions]

    three.register(Node(2, "127.0.0.1", 9092), NOW)
    for node_id in (1, 3):
        three.fence(node_id, NOW)
    assert [2, 2, 2] == [p.leader_id for p in partitions]


def test_coordinators_outlive_the_broker_that_ran_alone_when_they_were_first_looked_up(three):
    """All brokers of the cluster get a replica of each partition, also those that were stopped."""
    for node_id in (2, 3):
        three.fence(node_id, NOW)
    assert (1, 1) == (three.group_coordinator("x"), three.transaction_coordinator("x"))

    for node_id in (2, 3):
        three.register(Node(node_id, "127.0.0.1", 9090 + node_id), NOW)
    three.fence(1, NOW)

    groups = {three.group_coordinator(f"group-{i}") for i in range(30)}
    ids = {three.transaction_coordinator(f"id-{i}") for i in range(30)}
    assert {2, 3} >= groups | ids


def test_partitions_of_a_stopped_broker_get_new_leaders(three):
    """The next replica becomes leader and remains so when the broker is back."""
    three.fence(1, NOW)
    assert [(2, 1), (2, 0), (3, 0)] == leaders(three)

    three.register(Node(1, "127.0.0.1", 9091), NOW)
    assert [(2, 1), (2, 0), (3, 0)] == leaders(three)


def test_a_moved_leader_stamps_records_with_its_epoch(three):
    """The log records where each leader epoch began."""
    append(three, 2)
    three.move_leader(TopicPartition("t", 0), 2, NOW)
    log = append(three, 3)

    assert [0, 1] == [decode_header(batch).partition_leader_epoch for batch in log.batches()]
    assert ((0, 0), (1, 2)) == log.leader_epochs.entries


def test_waiting_requests_are_notified_of_a_new_leader(three):
    """Moving a leader counts as a change; moving it to the current leader does not."""
    three.take_changed()
    three.move_leader(TopicPartition("t", 0), 1, NOW)
    assert set() == three.take_changed()
    three.move_leader(TopicPartition("t", 0), 2, NOW)
    assert {TopicPartition("t", 0)} == three.take_changed()


def test_a_leader_does_not_move_out_of_the_replicas_in_sync(three):
    """A stopped broker cannot be made leader."""
    three.fence(3, NOW)

    assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == error_of(
        lambda: three.move_leader(TopicPartition("t", 0), 3, NOW)
    )


def test_coordinators_are_spread_and_move(three):
    """Coordinators of groups and of transactional ids depend on separate partition leaders."""
    groups = {three.group_coordinator(f"group-{i}") for i in range(30)}
    assert {1, 2, 3} == groups
    place = TopicPartition("__consumer_offsets", coordinator_partition("x"))
    before = three.group_coordinator("x"), three.transaction_coordinator("x")
    after = before[0] % 3 + 1

    three.move_leader(place, after, NOW)

    assert (after, before[1]) == (three.group_coordinator("x"), three.transaction_coordinator("x"))
    three.check_group_coordinator(after, "x")
    assert ErrorCode.NOT_COORDINATOR == error_of(
        lambda: three.check_group_coordinator(before[0], "x")
    )


@given(st.text())
@example("polygenelubricants")
def test_a_coordinators_partition_is_found_as_in_java(key):
    """The partition is Utils.abs of String.hashCode, where the smallest integer counts as 0."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", key.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) % 2**32
    signed = code - 2**32 if code >= 2**31 else code

    assert (0 if signed == -(2**31) else abs(signed)) % 50 == coordinator_partition(key)


def test_there_is_no_coordinator_while_no_broker_runs(three):
    """Without brokers the coordinator is -1."""
    three.transaction_coordinator("x")
    for node_id in (1, 2, 3):
        three.fence(node_id, NOW)

    assert (-1, -1) == (three.group_coordinator("x"), three.transaction_coordinator("x"))
