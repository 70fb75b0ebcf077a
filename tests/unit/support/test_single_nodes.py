"""The brokers that the processes of a test run share."""

from __future__ import annotations

import pytest

from tests.support.kafka import single_nodes
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError
from tests.support.kafka.real_kafka import KafkaCluster
from tests.support.kafka.single_nodes import SingleNodes


class _Started(KafkaCluster):
    is_open = True

    def close(self):
        self.is_open = False


@pytest.fixture
def started(monkeypatch):
    """Return the clusters that are started, of the newest version alone."""
    clusters = []

    def start(version, **_):
        if version == KAFKA_3:
            raise KafkaUnavailableError("no jars")
        clusters.append(_Started(version, "127.0.0.1:1"))
        return clusters[-1]

    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr(single_nodes, "start_kafka", start)
    return clusters


def test_other_processes_use_the_brokers_that_one_has_started(started):
    """They start none, close none, and get the reason why there is none of a version."""
    nodes = SingleNodes()
    users = [SingleNodes(nodes.share()) for _ in range(2)]
    for user in users:
        found = user.get(KAFKA_4)
        assert ("127.0.0.1:1", KAFKA_4) == (found.bootstrap_servers, found.version)
        assert "no jars" == str(user.get(KAFKA_3))
        user.close()
    assert [True] == [cluster.is_open for cluster in started]
    nodes.close()
    assert [False] == [cluster.is_open for cluster in started]


def test_a_broker_that_fails_to_start_fails_the_tests_that_need_it(started, monkeypatch):
    """The other processes raise its error for these tests, and the run goes on."""

    def start(version, **_):
        raise TimeoutError(f"{version} is slow")

    monkeypatch.setattr(single_nodes, "start_kafka", start)
    shared = SingleNodes().share()
    with pytest.raises(
        RuntimeError, match=f"^Kafka {KAFKA_4} did not start: TimeoutError: .* is slow$"
    ):
        SingleNodes(shared).get(KAFKA_4)
    assert [] == started


def test_a_broker_is_started_once(started):
    """A process without shared brokers starts each when it is first requested, and closes it."""
    nodes = SingleNodes()
    assert [] == started
    assert nodes.get(KAFKA_4) is nodes.get(KAFKA_4)
    nodes.close()
    assert [False] == [cluster.is_open for cluster in started]
