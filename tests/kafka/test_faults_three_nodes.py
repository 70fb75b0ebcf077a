"""Faults in a cluster of three brokers while a producer writes to it.

`test_three_nodes` has more tests of killed leaders, on the oldest supported version as well, and a
rolling restart.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.sender_metrics import SenderMetrics
from tests.support.kafka.leadership import leader_seen_by, move_leaders, wait_until_out_of_sync
from tests.support.kafka.real_kafka import wait_until
from tests.support.record.numbered_rows import RowCheck, read_numbers
from tests.support.soaking.steady_writer import SteadyWriter, write_during

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: Small batches cause many requests; the producer times out a silent broker before the cluster
#: fences it.
SETTINGS = {
    "batch.size": 16_384,
    "compression.type": "none",
    "request.timeout.ms": 2_000,
    "delivery.timeout.ms": 120_000,
    "metadata.max.age.ms": 1_000,
}
SESSION_SECONDS = 6
NO_LEADER = -1


@pytest.fixture
def cluster(kafka_cluster):
    return kafka_cluster


@contextmanager
def frozen(*brokers):
    """Suspend the processes of brokers, as a long pause of a virtual machine does."""
    for broker in brokers:
        broker.freeze()
    try:
        yield
    finally:
        for broker in brokers:
            broker.thaw()


def followers(cluster, topic):
    leader = cluster.leader(topic)
    return [broker for broker in cluster.brokers if broker is not leader]


def check(cluster, topic, disturb, **settings):
    settings = SETTINGS | settings
    return write_during(cluster, topic, disturb, settle=lambda: cluster.settle(topic), **settings)


def test_moving_leaders_lose_and_duplicate_no_row(cluster):
    """After leaders move three times during a write, every row is there once and in order."""
    topic = cluster.create_topic(6)

    def disturb():
        for _ in range(3):
            move_leaders(cluster, topic)
            time.sleep(0.3)

    assert RowCheck() == check(cluster, topic, disturb)


def test_a_leader_killed_during_small_batches_loses_and_duplicates_no_row(cluster):
    """With five small requests in flight, a leader's SIGKILL loses and duplicates no row."""
    topic = cluster.create_topic(2)

    def disturb():
        for _ in range(2):
            killed = cluster.leader(topic)
            killed.kill()
            time.sleep(1)
            killed.start()
            cluster.settle(topic)

    assert RowCheck() == check(cluster, topic, disturb)


def test_added_partitions_get_rows(cluster):
    """New partitions are discovered within metadata.max.age.ms, and get a share of the rows."""
    topic = cluster.create_topic(2)

    def add():
        cluster.add_partitions(topic, 5)
        wait_until(
            lambda: len([n for n in cluster.end_offsets(topic).values() if n]) == 5,
            seconds=120,
            what="rows in the new partitions",
        )

    assert RowCheck() == check(cluster, topic, add)


def test_a_frozen_follower_loses_and_duplicates_no_row(cluster):
    """Rows that are resent while a silent follower leaves the ISR are there once and in order."""
    topic = cluster.create_topic(3, config={"min.insync.replicas": "2"})

    def disturb():
        follower = followers(cluster, topic)[0]
        with frozen(follower):
            wait_until_out_of_sync(cluster, topic, [follower])

    assert RowCheck() == check(cluster, topic, disturb)


def test_a_frozen_leader_loses_and_duplicates_no_row(cluster):
    """A frozen leader that resumes after another was elected loses and duplicates no row."""
    topic = cluster.create_topic(3, config={"min.insync.replicas": "2"})

    def disturb():
        leader = cluster.leader(topic)
        other = followers(cluster, topic)[0]
        with frozen(leader):
            wait_until(
                lambda: leader_seen_by(other, topic) not in {leader.node_id, NO_LEADER},
                seconds=120,
                what="another leader",
            )
            time.sleep(1)

    assert RowCheck() == check(cluster, topic, disturb)


def test_two_temporarily_frozen_followers_lose_and_duplicate_no_row(cluster, monkeypatch):
    """Rows that a leader without followers could not acknowledge are acknowledged later, once."""
    topic = cluster.create_topic(3)
    retried = set()
    count = SenderMetrics.on_batch_retried

    def note(metrics, batch, now):
        retried.add(batch.topic_partition)
        count(metrics, batch, now)

    monkeypatch.setattr(SenderMetrics, "on_batch_retried", note)

    def disturb():
        with frozen(*followers(cluster, topic)):
            retried.clear()
            wait_until(lambda: len(retried) == 3, seconds=120, what="rows resent to each partition")

    # A flush would wait for the first partition that cannot be written, and write to no other.
    assert RowCheck() == check(cluster, topic, disturb, flushes=False)


def test_rows_wait_for_enough_replicas(cluster):
    """While too few replicas are in sync, rows wait, and are then written once and in order."""
    topic = cluster.create_topic(1, replication_factor=2, config={"min.insync.replicas": "2"})
    cluster.wait_until_in_sync(topic)
    follower = only_follower(cluster, topic)

    def disturb():
        follower.kill()
        wait_until(lambda: in_sync(cluster, topic) == 1, seconds=120, what="the follower's end")
        time.sleep(1)
        follower.start()
        cluster.settle(topic)

    assert RowCheck() == check(cluster, topic, disturb)


def test_too_few_replicas_for_too_long_are_an_error(cluster):
    """If replicas are down for longer than delivery.timeout.ms, the error says what is missing."""
    topic = cluster.create_topic(1, replication_factor=2, config={"min.insync.replicas": "2"})
    cluster.wait_until_in_sync(topic)
    follower = only_follower(cluster, topic)
    # Several times what the cluster takes to notice that a broker is gone, even on a busy machine.
    timeout_ms = 6_000 * SESSION_SECONDS
    writer = SteadyWriter(cluster, topic, **{**SETTINGS, "delivery.timeout.ms": timeout_ms})

    def write():
        with writer:
            follower.kill()
            wait_until(lambda: not writer.is_alive, seconds=120, what="the writer's error")

    try:
        with pytest.raises(DeliveryError, match=rf"{topic}-0.*NOT_ENOUGH_REPLICAS"):
            write()
    finally:
        follower.start()
        cluster.settle(topic)
    found = writer.check(cluster.bootstrap_servers)
    assert RowCheck(lost=found.lost) == found


def only_follower(cluster, topic):
    (partition,) = cluster.admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
    (node_id,) = set(partition.replicas) - {partition.leader}
    return cluster.broker(node_id)


def in_sync(cluster, topic):
    (partition,) = cluster.admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
    return len(partition.isrs)


def test_a_deleted_topic_is_an_error_within_the_delivery_timeout(cluster):
    """Deleting a topic during a write raises an error that names it within delivery.timeout.ms."""
    topic = cluster.create_topic(3)
    # An append that waits for the topic's metadata must not time out before the rows sent.
    settings = {**SETTINGS, "delivery.timeout.ms": 6_000, "max.block.ms": 60_000}
    writer = SteadyWriter(cluster, topic, **settings)

    def write():
        with writer:
            cluster.delete_topics([topic])
            wait_until(lambda: not writer.is_alive, seconds=120, what="the writer's error")

    with pytest.raises(DeliveryError, match=rf"{topic}-\d.*UNKNOWN_TOPIC"):
        write()


def test_a_recreated_topic_gets_no_row_twice(cluster):
    """Rows written after a deletion are in the new topic once and in order, or the write fails."""
    topic = cluster.create_topic(3)
    settings = {**SETTINGS, "delivery.timeout.ms": 10_000, "max.block.ms": 120_000}
    writer = SteadyWriter(cluster, topic, **settings)
    try:
        with writer:
            cluster.delete_topics([topic])
            time.sleep(1)
            cluster.create_topic(3, name=topic)
            writer.write_on(5000)
    except DeliveryError as error:
        assert topic in str(error)  # noqa: PT017  # the write may succeed or fail
    found = writer.check(cluster.bootstrap_servers)
    assert RowCheck(lost=found.lost) == found
    assert read_numbers(cluster.bootstrap_servers, topic)
