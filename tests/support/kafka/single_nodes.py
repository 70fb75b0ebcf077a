"""One broker of each version for a whole test run, which no test stops or reconfigures.

Parallel processes share them: pytest's controller starts them, and its workers get their addresses,
since a broker of each process would take as much time again as its tests.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_unavailable import KafkaUnavailableError
from tests.support.kafka.real_kafka import (
    GIVEN,
    KafkaCluster,
    given_kafka,
    start_kafka,
    tested_versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The brokers are never killed, so nobody waits for their heartbeats; a pause must not fence the
#: only one.
_PATIENT = {"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "60000"}


class SingleNodes:
    """The brokers, each started when first requested. They run side by side."""

    def __init__(self, shared: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Start nothing; `shared` are the brokers of another process, as its `share` returned."""
        self.get: Callable[[str], KafkaCluster | KafkaUnavailableError] = cache(self._get)
        self._shared = shared or {}
        self._started: list[KafkaCluster] = []

    def share(self) -> dict[str, dict[str, str]]:
        """Start a broker of each version, and return for each its address or why there is none."""
        return {version: self._share(version) for version in tested_versions()}

    def _share(self, version: str) -> dict[str, str]:
        try:
            found = self.get(version)
        except Exception as error:  # noqa: BLE001  the tests that need this broker fail by it
            return {"failure": f"{type(error).__name__}: {error}"}
        if isinstance(found, KafkaUnavailableError):
            return {"unavailable": str(found)}
        return {"bootstrap_servers": found.bootstrap_servers}

    def close(self) -> None:
        """Stop all started brokers."""
        for cluster in self._started:
            cluster.close()

    def _get(self, version: str) -> KafkaCluster | KafkaUnavailableError:
        # The error is cached as well, so that a second test does not wait for it again.
        try:
            if version in self._shared:
                return _of_another_process(version, self._shared[version])
            cluster = (
                given_kafka() if version == GIVEN else start_kafka(version, overrides=_PATIENT)
            )
        except KafkaUnavailableError as error:
            return error
        assert cluster is not None
        self._started.append(cluster)
        return cluster


def _of_another_process(version: str, shared: Mapping[str, str]) -> KafkaCluster:
    if "unavailable" in shared:
        raise KafkaUnavailableError(shared["unavailable"])
    if "failure" in shared:
        raise RuntimeError(f"Kafka {version} did not start: {shared['failure']}")
    return KafkaCluster(version, shared["bootstrap_servers"])
