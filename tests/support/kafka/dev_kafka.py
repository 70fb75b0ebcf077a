"""The embedded broker in place of a real Kafka, for scenarios that run on both."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker import DevBroker, Listener
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.kafka.proxied_kafka import ProxiedKafka
from tests.support.kafka.real_kafka import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The version of the embedded broker.
EMBEDDED = "embedded"
_PROXIED = "PROXIED"
#: A short timeout is enough: no other process is involved that could be busy starting, collecting
#: garbage or writing to disk.
_REQUEST_TIMEOUT_MS = 500


@dataclass(slots=True)
class DevNode:
    """One broker of a cluster, with as much of `real_kafka.Broker` as the scenarios need."""

    cluster: DevBroker
    node_id: int
    is_running: bool = True

    @property
    def address(self) -> str:
        """The address for clients."""
        return self.cluster.addresses[self.node_id]

    def start(self) -> None:
        """Start the broker again."""
        self.cluster.start(self.node_id)
        self.is_running = True

    def stop(self) -> None:
        """Stop the broker; its records are kept."""
        self.cluster.stop(self.node_id)
        self.is_running = False

    def kill(self) -> None:
        """End the broker without notice."""
        self.cluster.kill(self.node_id)
        self.is_running = False


@dataclass(slots=True)
class DevNodes:
    """The brokers of a cluster."""

    cluster: DevBroker

    @property
    def nodes(self) -> list[DevNode]:
        """All brokers, by ascending id."""
        return [DevNode(self.cluster, node_id) for node_id in self.cluster.addresses]

    def close(self) -> None:
        """Stop all brokers."""
        self.cluster.stop()


@contextmanager
def start_dev_cluster(nodes: int) -> Iterator[ProxiedKafka]:
    """Start embedded brokers that replicate, and learn soon that one of them was killed."""
    configs = {"broker.session.timeout.ms": "1000", "auto.create.topics.enable": "false"}
    broker = DevBroker(brokers=nodes, configs=configs).start()
    with KafkaCluster(EMBEDDED, broker.bootstrap_servers, DevNodes(broker)) as cluster:
        yield ProxiedKafka(cluster, [])


@contextmanager
def start_proxied_dev_kafka(*, transaction_version: int = 2) -> Iterator[ProxiedKafka]:
    """Start one embedded broker with a fault proxy before it."""
    with FaultProxy() as proxy:
        host, _, port = proxy.address.rpartition(":")
        listeners = [
            Listener(),
            Listener(name=_PROXIED, advertised_host=host, advertised_port=int(port)),
        ]
        broker = DevBroker(
            listeners=listeners, auto_create_topics=False, transaction_version=transaction_version
        )
        broker.start()
        with KafkaCluster(EMBEDDED, broker.bootstrap_servers, DevNodes(broker)) as cluster:
            proxy.connect_to(broker.address(_PROXIED))
            yield ProxiedKafka(cluster, [proxy], request_timeout_ms=_REQUEST_TIMEOUT_MS)
