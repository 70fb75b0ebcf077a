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


def test_a_short_pause_changes_nothing(cluster):
    """A broker that is paused for less than its session leads on, and its followers go on."""
    cluster.pause_broker(1, 1.0)
    cluster.run_due(8.0)
    cluster.resume_broker(1, 8.0)
    cluster.run_due(8.1)
    assert (1, [1, 2, 3]) == (cluster.leader(PARTITION), cluster.isr(PARTITION))
    assert ErrorCode.NONE == append(cluster, 1, 9.0)


def test_others_lead_when_the_session_of_a_paused_broker_ends(cluster):
    """Also if it was the controller, for which a new one takes over."""
    cluster.pause_broker(1, 1.0)
    cluster.run_due(1.0 + FAIL_OVER)
    assert (2, [2, 3]) == (cluster.leader(PARTITION), cluster.isr(PARTITION))
    assert ErrorCode.NONE == append(cluster, 2, 20.0)
    assert {1: 0, 2: 1, 3: 1} == cluster.end_offsets(PARTITION)


def resumed_zombie(cluster):
    """Make another broker lead while the leader is paused, and resume that."""
    cluster.pause_broker(1, 1.0)
    cluster.run_due(1.0 + FAIL_OVER)
    cluster.resume_broker(1, 20.0)


def test_a_zombie_leader_confirms_what_is_lost(cluster):
    """It does not know the new epoch yet: a write with acks=1 succeeds, and is truncated."""
    resumed_zombie(cluster)
    assert ErrorCode.NONE == append(cluster, 1, 20.0, acks=1)
    assert 2 == cluster.leader(PARTITION)
    cluster.run_due(21.0)
    assert ([1, 2, 3], {1: 0, 2: 0, 3: 0}) == (
        cluster.isr(PARTITION),
        cluster.end_offsets(PARTITION),
    )
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == append(cluster, 1, 21.0, acks=1)


def test_a_zombie_leader_does_not_confirm_a_write_to_all(cluster):
    """With acks=all it waits for followers, and learns of the new epoch instead."""
    resumed_zombie(cluster)
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == append(cluster, 1, 20.0)


def test_a_zombie_leader_behind_cut_links_remains_one(cluster):
    """Until they are healed it takes writes with acks=1, beside the new leader."""
    for other in (2, 3):
        cluster.cut(1, other)
    resumed_zombie(cluster)
    cluster.run_due(40.0)
    assert ErrorCode.NONE == append(cluster, 1, 40.0, acks=1)
    assert {1: 1, 2: 0, 3: 0} == cluster.end_offsets(PARTITION)
    cluster.heal()
    cluster.run_due(80.0)
    assert ([1, 2, 3], {1: 0, 2: 0, 3: 0}) == (
        cluster.isr(PARTITION),
        cluster.end_offsets(PARTITION),
    )


def test_a_paused_broker_can_be_killed(cluster):
    """What was sent to it fails, and it starts again after the end of its session."""
    cluster.pause_broker(1, 1.0)
    cluster.run_due(2.0)
    cluster.kill_broker(1, 2.0)
    cluster.start([1], 2.0 + FAIL_OVER)
    assert ([1, 2, 3], [1, 2, 3]) == (sorted(cluster.running), cluster.isr(PARTITION))


def test_a_cluster_is_closed_in_order_while_a_broker_is_paused(tmp_path):
    """The paused broker is resumed for it, so none of the logs has to be recovered."""
    cluster = started(tmp_path / "data")
    cluster.pause_broker(1, 1.0)
    cluster.close(2.0)
    markers = list((tmp_path / "data" / "brokers").glob("*/.kafka_cleanshutdown"))
    assert len(NODES) == len(markers)


def test_a_stop_waits_for_the_session_of_a_killed_broker(cluster):
    """Until it ends, the controller does not know whether all others know the next leader."""
    cluster.kill_broker(2, 1.0)
    assert cluster.begin_stop(1, 1.5)
    cluster.stop_broker(1, 1.5)
    assert (3, [3]) == (cluster.leader(PARTITION), cluster.isr(PARTITION))


def test_a_stop_without_the_controller_is_not_approved(cluster):
    """The broker may stop anyway, and others lead, since its session ends."""
    for other in (1, 2):
        cluster.cut(3, other)
    assert not cluster.begin_stop(3, 1.0)
    cluster.stop_broker(3, 1.0)
    assert [1, 2] == cluster.isr(PARTITION)
