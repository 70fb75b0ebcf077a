"""The clusters that the tests of a group share."""

from __future__ import annotations

from tests.support.kafka.group_clusters import GroupClusters


class _Broker:
    is_running = True

    def start(self):
        self.is_running = True


class _Cluster:
    def __init__(self, log):
        self.log = log
        self.brokers = [_Broker(), _Broker()]
        log.append("started")

    def wait_until_ready(self):
        self.log.append([broker.is_running for broker in self.brokers])

    def close(self):
        self.log.append("closed")


def test_a_cluster_is_started_once_and_gets_all_its_nodes_back():
    """Nodes that a test has left stopped run again when the next one gets the cluster."""
    log, clusters = [], GroupClusters()
    cluster = clusters.get("one", lambda: _Cluster(log))
    assert cluster is clusters.get("one", lambda: _Cluster(log))
    assert ["started"] == log
    cluster.brokers[1].is_running = False
    assert cluster is clusters.get("one", lambda: _Cluster(log))
    assert ["started", [True, True]] == log
    assert cluster is not clusters.get("another", lambda: _Cluster(log))


def test_all_clusters_are_closed_and_can_be_started_again():
    """After a group has ended, the next one gets new clusters."""
    log, clusters = [], GroupClusters()
    for name in ("one", "another"):
        clusters.get(name, lambda: _Cluster(log))
    clusters.close()
    assert ["started"] * 2 + ["closed"] * 2 == log
    clusters.close()
    clusters.get("one", lambda: _Cluster(log))
    assert "started" == log[4]
    assert 5 == len(log)
