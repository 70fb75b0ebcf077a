"""Brokers as Docker containers of Apache's own image, through testcontainers.

Each container's client port is bound to a port of the host that is chosen beforehand, since a
broker has to advertise it, and since it must not change when the container is restarted.
testcontainers removes the containers if the test run dies.
"""

from __future__ import annotations

import gc
import warnings
from contextlib import closing
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from tests.support.kafka.kafka_process import free_ports
from tests.support.kafka.kafka_properties import Listener, node_properties, to_environment
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DAEMON_SECONDS = 5
_STOP_SECONDS = 120
_CLIENTS_PORT = 9092
_CONTROLLER_PORT = 9093
_BROKERS_PORT = 19092
_PROXIED_PORT = 9094
_SECURED_PORT = 9100


@cache
def check_docker() -> str | None:
    """Return why Docker cannot be used, or None; the result of one short check is cached."""
    with warnings.catch_warnings():
        # If no daemon answers, the client leaves its socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        reason = _ping()
        gc.collect()
    return reason


def _ping() -> str | None:
    try:
        with closing(docker.from_env(timeout=_DAEMON_SECONDS)) as client:
            client.ping()
    except (DockerException, OSError) as error:
        return f"the Docker daemon does not respond: {error}"
    return None


class KafkaContainer:
    """One node: its address, and its container."""

    def __init__(
        self,
        *,
        node_id: int,
        address: str,
        container: DockerContainer,
        proxied_address: str | None = None,
        secured_addresses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create a node for a container that is configured and not started."""
        self.node_id = node_id
        self.address = address
        self.proxied_address = proxied_address
        self.secured_addresses = secured_addresses
        #: The process belongs to the Docker daemon; it is not a child of the test run.
        self.process_id = None
        self._container = container
        self._created = False

    @property
    def is_running(self) -> bool:
        """Whether the container's process is running."""
        if not self._created:
            return False
        container = self._container.get_wrapped_container()
        container.reload()
        return container.status == "running"

    def start(self) -> None:
        """Start the container, creating it the first time; does not wait until it is ready."""
        if self._created:
            self._container.get_wrapped_container().start()
            return
        try:
            self._container.start()
        except Exception as error:  # any failure: a process may still work
            raise KafkaUnavailableError(f"Docker cannot start a broker: {error}") from error
        self._created = True

    def stop(self) -> None:
        """Stop the broker cleanly: it hands over its leadership and flushes its logs."""
        self._container.get_wrapped_container().stop(timeout=_STOP_SECONDS)

    def kill(self) -> None:
        """Kill the broker, as a crash would; its disk is kept."""
        self._container.get_wrapped_container().kill()

    def freeze(self) -> None:
        """Freeze the broker, with its connections open, until it is thawed."""
        self._container.get_wrapped_container().pause()

    def thaw(self) -> None:
        """Resume a frozen broker."""
        self._container.get_wrapped_container().unpause()

    def log_tail(self) -> str:
        """Return the last lines of the log, for error messages."""
        return self._container.get_wrapped_container().logs(tail=40).decode(errors="replace")

    def remove(self) -> None:
        """Remove the container with its disk, if it was created."""
        self._container.stop()


class DockerNodes:
    """All nodes of one cluster, and the network between them."""

    def __init__(
        self,
        version: str,
        count: int,
        *,
        overrides: dict[str, str],
        java_options: list[str],
        proxies: Sequence[str] = (),
        secured: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Configure `count` containers of a version, without starting them.

        Raises KafkaUnavailableError if no daemon answers or the image is not available.
        """
        reason = check_docker()
        if reason is not None:
            raise KafkaUnavailableError(reason)
        image = f"apache/kafka:{version}"
        try:
            client = DockerClient()
            client.client.images.pull("apache/kafka", tag=version)
            self._network = Network().create()
        except (DockerException, OSError) as error:
            raise KafkaUnavailableError(f"Docker cannot provide {image}: {error}") from error
        host = client.host()
        voters = {i: f"kafka-{i}:{_CONTROLLER_PORT}" for i in range(1, count + 1)}
        self.nodes = []
        ports = free_ports((2 + len(secured)) * count)
        for node_id, port, proxied_port in zip(
            voters, ports[:count], ports[count : 2 * count], strict=True
        ):
            name = f"kafka-{node_id}"
            proxied = None
            if proxies:
                proxied = Listener("PROXIED", f":{_PROXIED_PORT}", proxies[node_id - 1])
            more = [
                Listener(name, f":{_SECURED_PORT + number}", f"localhost:{theirs}", protocol)
                for number, ((name, protocol), theirs) in enumerate(
                    zip(secured.items(), ports[2 * count + node_id - 1 :: count], strict=True)
                )
            ]
            properties = node_properties(
                node_id=node_id,
                clients=Listener("CLIENTS", f":{_CLIENTS_PORT}", f"{host}:{port}"),
                brokers=Listener("BROKERS", f":{_BROKERS_PORT}", f"{name}:{_BROKERS_PORT}"),
                controller=f":{_CONTROLLER_PORT}",
                voters=voters,
                overrides={"log.dirs": "/tmp/kafka-data", **overrides},  # noqa: S108  # the container's
                proxied=proxied,
                secured=more,
            )
            container = (
                DockerContainer(image)
                .with_envs(**to_environment(properties), KAFKA_HEAP_OPTS=" ".join(java_options))
                .with_bind_ports(_CLIENTS_PORT, port)
                .with_network(self._network)
                .with_network_aliases(name)
            )
            if proxied:
                container.with_bind_ports(_PROXIED_PORT, proxied_port)
            for number, at in enumerate(more):
                container.with_bind_ports(
                    _SECURED_PORT + number, int(at.advertised.rpartition(":")[2])
                )
            self.nodes.append(
                KafkaContainer(
                    node_id=node_id,
                    address=f"{host}:{port}",
                    container=container,
                    proxied_address=f"{host}:{proxied_port}" if proxied else None,
                    secured_addresses={at.name: at.advertised for at in more},
                )
            )

    def close(self) -> None:
        """Remove the containers and their network."""
        for node in self.nodes:
            node.remove()
        self._network.remove()
