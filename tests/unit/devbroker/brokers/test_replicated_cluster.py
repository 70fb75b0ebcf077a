"""Several brokers in one process, by a clock that the test drives."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.brokers.replicated_cluster import ReplicatedCluster
from spark_kafka_sink.model import TopicPartition

NODES = (1, 2, 3)
PARTITIONS = 3


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster(BrokerSettings(), NODES)
    cluster.open(0.0)
    cluster.start(NODES, 0.0)
    cluster.create_topic("t", partitions=PARTITIONS, replication_factor=len(NODES))
    yield cluster
    cluster.close(1_000.0)


def roles_of(cluster):
    """Return the epoch of the controller, and of each partition the leader and the ISR."""
    image = cluster._cluster.nodes[1].image
    leaders = [cluster.leader(TopicPartition("t", number)) for number in range(PARTITIONS)]
    return (
        cluster._quorum.controller_epoch,
        leaders,
        [sorted(partition.isr) for partition in image.partitions()],
    )


@pytest.mark.parametrize("seconds", [3.0, 300.0])
def test_a_pause_of_the_process_moves_no_leadership(cluster, seconds):
    """Time that passes for all brokers at once makes none of them take another one for dead."""
    before = roles_of(cluster)
    cluster.run_due(1.0)
    cluster.run_due(1.0 + seconds)
    assert (1, [1, 2, 3], [[1, 2, 3]] * PARTITIONS) == before == roles_of(cluster)


def test_a_killed_broker_is_missed_after_a_pause(cluster):
    """The others take the lead of its partitions, although nothing was done in between."""
    cluster.kill_broker(1, 1.0)
    cluster.run_due(60.0)
    image = cluster._cluster.nodes[2].image
    leaders = {partition.leader for partition in image.partitions()}
    assert ({2, 3}, [[2, 3]] * PARTITIONS) == (
        leaders,
        [sorted(partition.isr) for partition in image.partitions()],
    )


def test_a_short_session_ends_early():
    """Others lead once the session has ended, and a new controller takes over as quickly."""
    settings = BrokerSettings(broker_session_timeout_ms=100, controller_quorum_fetch_timeout_ms=100)
    cluster = ReplicatedCluster(settings, NODES)
    cluster.open(0.0)
    cluster.start(NODES, 0.0)
    cluster.create_topic("t", partitions=1, replication_factor=len(NODES))
    cluster.run_due(10.0)
    assert 1 == cluster.leader(TopicPartition("t", 0)) == cluster._quorum.controller_id
    cluster.kill_broker(1, 10.0)
    cluster.run_due(10.5)
    assert 2 == cluster.leader(TopicPartition("t", 0))
    cluster.close(11.0)
