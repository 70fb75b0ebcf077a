"""Clusters that the tests of one group share, each started when first requested.

Starting a node takes as much processor time as many tests, and so does one that idles for minutes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.kafka.real_kafka import KafkaCluster


class GroupClusters:
    """The running clusters of the group whose tests run. Tests may stop nodes, and leave them."""

    def __init__(self) -> None:
        """Start nothing."""
        self._started: dict[str, KafkaCluster] = {}

    def get(self, version: str, start: Callable[[], KafkaCluster]) -> KafkaCluster:
        """Return the cluster of a version with all of its nodes running, or start it.

        One whose nodes do not come back is stopped, so that the next call starts another.
        """
        cluster = self._started.get(version)
        if cluster is None:
            cluster = self._started[version] = start()
            return cluster
        try:
            for broker in cluster.brokers:
                if not broker.is_running:
                    broker.start()
            cluster.wait_until_ready()
        except BaseException:
            del self._started[version]
            cluster.close()
            raise
        return cluster

    def close(self) -> None:
        """Stop all clusters."""
        with ExitStack() as stack:
            while self._started:
                stack.callback(self._started.popitem()[1].close)
