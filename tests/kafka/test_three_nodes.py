"""Three brokers, three replicas: leaders move during a write."""

from __future__ import annotations

import pytest

from tests.support.producer.producing import produce
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.record.text_rows import numbered_batches
from tests.support.soaking.steady_writer import IN_BULK, write_during

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROWS = 200_000
SETTINGS = {**IN_BULK, "compression.type": "none"}


BOTH_VERSIONS = pytest.mark.parametrize(
    "cluster", ["kafka_cluster", "kafka_cluster_3"], indirect=True
)


@pytest.fixture(params=["kafka_cluster"])
def cluster(request):
    return request.getfixturevalue(request.param)


def test_rows_go_to_all_leaders(cluster):
    """Partitions led by each of the three brokers get rows, once and in order."""
    topic = cluster.create_topic(6)
    assert {1, 2, 3} == {cluster.leader(topic, partition).node_id for partition in range(6)}
    produce(cluster, numbered_batches(ROWS), topic=topic)
    numbers = read_numbers(cluster.bootstrap_servers, topic)
    assert RowCheck() == check_rows(numbers, ROWS)
    assert 6 == len(numbers)


def test_a_killed_leader_loses_and_duplicates_no_row(cluster):
    """When a leader is killed and stays down, rows go to the new leaders, once and in order."""
    topic = cluster.create_topic(6)
    killed = cluster.leader(topic)

    def start_again():
        killed.start()
        cluster.settle(topic)

    assert RowCheck() == write_during(cluster, topic, killed.kill, settle=start_again, **SETTINGS)


@BOTH_VERSIONS
def test_a_killed_and_restarted_leader_loses_and_duplicates_no_row(cluster):
    """If a leader is killed and restarted during a write, every row is there once and in order."""
    topic = cluster.create_topic(6)
    killed = cluster.leader(topic)

    def kill_and_start():
        killed.kill()
        killed.start()
        cluster.settle(topic)

    assert RowCheck() == write_during(cluster, topic, kill_and_start, **SETTINGS)


def test_a_rolling_restart_loses_and_duplicates_no_row(cluster):
    """If all brokers restart one by one, as in an upgrade, every row is there once, in order."""
    topic = cluster.create_topic(6)

    def restart_all():
        for broker in cluster.brokers:
            broker.stop()
            broker.start()
            cluster.settle(topic)

    assert RowCheck() == write_during(cluster, topic, restart_all, **SETTINGS)
