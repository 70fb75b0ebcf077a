"""What tests do to single brokers of a cluster, and what they look at, by a virtual clock.

Records are appended by requests to the handlers, as clients' are, without sockets.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.brokers.replicated_cluster import ReplicatedCluster
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.log.partition_log import committed_records
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.broker_asker import produce_request
from tests.support.devbroker.broker_requests import ask
from tests.support.record.plain_batches import plain_batch

NODES = (1, 2, 3)
PARTITION = TopicPartition("t", 0)
#: Longer than a session and the lease of a controller.
FAIL_OVER = 12.0


def started(path=None, **settings):
    cluster = ReplicatedCluster(BrokerSettings(**settings), NODES, data_dir=path)
    cluster.open(0.0)
    cluster.start(NODES, 0.0)
    cluster.create_topic("t", partitions=1, replication_factor=len(NODES))
    return cluster


@pytest.fixture
def cluster():
    cluster = started()
    yield cluster
    cluster.close(100.0)


def append(cluster, node_id, now, *, acks=-1):
    """Append a record at a broker; return the error code, or None while it waits for replicas."""
    broker = cluster.brokers[node_id - 1]
    response = ask(broker, produce_request("t", plain_batch(1), acks=acks), 11, now=now)
    if isinstance(response, Delayed):
        return None
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def read(cluster):
    return len(list(committed_records(cluster.log(PARTITION))))


def test_end_offsets_are_those_of_each_replica(cluster):
    """A follower behind a cut link lacks the record that the leader and the other one have."""
    cluster.cut(1, 3)
    assert ErrorCode.NONE == append(cluster, 1, 1.0, acks=1)
    assert {1: 1, 2: 1, 3: 0} == cluster.end_offsets(PARTITION)


def test_a_follower_without_its_leader_leaves_the_isr_after_the_lag():
    """It takes `replica.lag.time.max.ms`, and a write with acks=all waits for that long."""
    cluster = started(replica_lag_time_max_ms=1_000)
    cluster.run_due(1.0)
    cluster.cut(1, 3)
    assert append(cluster, 1, 1.0) is None
    cluster.run_due(1.4)
    assert ([1, 2, 3], 0) == (cluster.isr(PARTITION), read(cluster))
    cluster.run_due(4.0)
    assert ([1, 2], 1) == (cluster.isr(PARTITION), read(cluster))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_wiped_broker_fetches_everything_again(tmp_path, on_disk):
    """It is in sync again after its start, with all that the leader has."""
    cluster = started(tmp_path / "data" if on_disk else None)
    append(cluster, 1, 1.0)
    cluster.begin_stop(3, 2.0)
    cluster.stop_broker(3, 2.0)
    cluster.wipe_broker(3)
    cluster.start([3], 3.0)
    assert ([1, 2, 3], {1: 1, 2: 1, 3: 1}) == (
        cluster.isr(PARTITION),
        cluster.end_offsets(PARTITION),
    )
    cluster.close(100.0)


def test_a_wiped_last_replica_loses_the_records(cluster):
    """Others cannot lead without having been in sync, so the topic is empty after the start."""
    for node_id in (2, 3):
        cluster.stop_replication(PARTITION, node_id)
    append(cluster, 1, 1.0)
    cluster.kill_broker(1, 2.0)
    cluster.wipe_broker(1)
    cluster.start([1], 2.0 + FAIL_OVER)
    for node_id in (2, 3):
        cluster.resume_replication(PARTITION, node_id)
    cluster.run_due(60.0)
    assert (1, {1: 0, 2: 0, 3: 0}) == (
        cluster.leader(PARTITION),
        cluster.end_offsets(PARTITION),
    )
