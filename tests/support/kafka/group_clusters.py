"""Clusters that the tests of one group share, each started when first requested.

Starting a node takes as much processor time as many tests, and so does one that idles for minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.kafka.real_kafka import KafkaCluster


class GroupClusters:
    """The running clusters of the group whose tests run. Tests may stop nodes, and leave them."""

    def __init__(self) -> None:
        """Start nothing."""
        self._started: dict[str, KafkaCluster] = {}

    def get(self, name: str, start: Callable[[], KafkaCluster]) -> KafkaCluster:
        """Return the cluster of this name with all of its nodes running, or start it."""
        cluster = self._started.get(name)
        if cluster is None:
            cluster = self._started[name] = start()
        elif stopped := [broker for broker in cluster.brokers if not broker.is_running]:
            for broker in stopped:
                broker.start()
            cluster.wait_until_ready()
        return cluster

    def close(self) -> None:
        """Stop all clusters."""
        while self._started:
            self._started.popitem()[1].close()
