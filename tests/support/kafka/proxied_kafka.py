"""A real Kafka with a fault proxy before each of its nodes.

Each broker has one additional listener that advertises the proxies' addresses. So the producer
under test never bypasses the proxies, while administration, replication and the consumers that
check the outcome do.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.faults.fault_proxy import FaultProxy
from tests.support.kafka.real_kafka import KafkaCluster, start_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ProxiedKafka:
    """Both ways to a cluster: `cluster` is direct, `bootstrap_servers` leads through proxies."""

    cluster: KafkaCluster
    #: One proxy for each node, in the order of their ids, or none at all.
    proxies: list[FaultProxy]
    #: The time without a response after which a producer under test disconnects from a broker.
    request_timeout_ms: int = 1_500

    @property
    def bootstrap_servers(self) -> str:
        """The proxies' addresses, or without proxies those of the brokers."""
        addresses = ",".join(proxy.address for proxy in self.proxies)
        return addresses or self.cluster.bootstrap_servers

    @property
    def proxy(self) -> FaultProxy:
        """The proxy of the only node."""
        (proxy,) = self.proxies
        return proxy

    def disarm(self) -> None:
        """Remove the faults of all proxies."""
        for proxy in self.proxies:
            proxy.disarm()


@contextmanager
def start_proxied_kafka(
    version: str, *, nodes: int = 1, seed: int = 0, lifetime_seconds: float = 1800
) -> Iterator[ProxiedKafka]:
    """Start a cluster and its proxies. Raises KafkaUnavailableError."""
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(FaultProxy(seed=seed + i, lifetime_seconds=lifetime_seconds))
            for i in range(nodes)
        ]
        addresses = [proxy.address for proxy in proxies]
        cluster = stack.enter_context(start_kafka(version, nodes=nodes, proxies=addresses))
        for proxy, broker in zip(proxies, cluster.brokers, strict=True):
            assert broker.proxied_address is not None
            proxy.connect_to(broker.proxied_address)
        yield ProxiedKafka(cluster, proxies)
