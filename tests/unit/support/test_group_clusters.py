"""The clusters that the tests of a group share."""

from __future__ import annotations

import pytest

from tests.support.kafka.group_clusters import GroupClusters


class _Broker:
    is_running = True

    def start(self):
        self.is_running = True


class _Cluster:
    failure = None

    def __init__(self, log):
        self.log = log
        self.brokers = [_Broker(), _Broker()]
        log.append("started")

    def wait_until_ready(self):
        self._fail()
        self.log.append([broker.is_running for broker in self.brokers])

    def close(self):
        self.log.append("closed")
        self._fail()

    def _fail(self):
        if self.failure is not None:
            raise self.failure


def test_a_cluster_is_started_once_and_gets_all_its_nodes_back():
    """Nodes that a test has left stopped run again when the next one gets the cluster."""
    log, clusters = [], GroupClusters()
    cluster = clusters.get("4", lambda: _Cluster(log))
    assert ["started"] == log
    cluster.brokers[1].is_running = False
    assert cluster is clusters.get("4", lambda: _Cluster(log))
    assert ["started", [True, True]] == log
    assert cluster is not clusters.get("3", lambda: _Cluster(log))


def test_a_cluster_that_does_not_come_back_is_replaced():
    """The test that gets it fails, and the next one gets another."""
    log, clusters = [], GroupClusters()
    broken = clusters.get("4", lambda: _Cluster(log))
    broken.failure = TimeoutError("not ready")
    with pytest.raises(TimeoutError, match="not ready"):
        clusters.get("4", lambda: _Cluster(log))
    assert broken is not clusters.get("4", lambda: _Cluster(log))
    assert ["started", "closed", "started"] == log


def test_all_clusters_are_closed_whichever_fails_to():
    """After a group has ended, the next one gets new clusters."""
    log, clusters = [], GroupClusters()
    for version in ("4", "3"):
        clusters.get(version, lambda: _Cluster(log)).failure = OSError(version)
    with pytest.raises(OSError, match=r"[34]"):
        clusters.close()
    assert ["started"] * 2 + ["closed"] * 2 == log
    clusters.close()
    clusters.get("4", lambda: _Cluster(log))
    assert ["started"] == log[4:]
