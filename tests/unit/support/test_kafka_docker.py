"""Brokers in Docker, as far as they can be tested without a daemon."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from docker.errors import APIError

from tests.support.kafka import kafka_docker
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError


class FakeContainer:
    """A stand-in for the DockerContainer of testcontainers that records its calls."""

    def __init__(self, docker, image):
        self.docker = docker
        self.image = image
        docker.containers.append(self)

    def with_envs(self, **variables):
        """Set the environment."""
        self.environment = variables
        return self

    def with_bind_ports(self, container, host):
        """Bind a port of the host."""
        self.ports = (container, host)
        return self

    def with_network(self, network):
        """Join a network."""
        self.network = network
        return self

    def with_network_aliases(self, name):
        """Set the name in the network."""
        self.alias = name
        return self

    def start(self):
        """Create and start the container, or raise the configured error."""
        self.docker.did.append(f"start {self.alias}")
        if self.docker.start_error is not None:
            raise self.docker.start_error

    def stop(self):
        """Remove the container."""
        self.docker.did.append(f"remove {self.alias}")

    def get_wrapped_container(self):
        """Return an object that can be started again."""
        return SimpleNamespace(start=lambda: self.docker.did.append(f"start again {self.alias}"))


class FakeDocker:
    """A stand-in for a Docker daemon."""

    def __init__(self):
        self.containers = []
        self.did = []
        self.start_error = None
        self.pull_error = None

    def pull(self, repository, *, tag):
        """Pull an image, or raise the configured error."""
        self.did.append(f"pull {repository}:{tag}")
        if self.pull_error is not None:
            raise self.pull_error


@pytest.fixture
def docker(monkeypatch):
    fake = FakeDocker()
    client = SimpleNamespace(
        client=SimpleNamespace(images=SimpleNamespace(pull=fake.pull)), host=lambda: "localhost"
    )
    network = SimpleNamespace(remove=lambda: fake.did.append("remove network"))
    monkeypatch.setattr(kafka_docker, "check_docker", lambda: None)
    monkeypatch.setattr(kafka_docker, "DockerClient", lambda: client)
    monkeypatch.setattr(kafka_docker, "Network", lambda: SimpleNamespace(create=lambda: network))
    monkeypatch.setattr(kafka_docker, "DockerContainer", lambda image: FakeContainer(fake, image))
    return fake


def docker_nodes(count=3, **options):
    return kafka_docker.DockerNodes(
        "4.3.1", count, overrides={}, java_options=["-Xmx512m"], **options
    )


def test_each_broker_advertises_the_port_that_is_bound_on_the_host(docker):
    """Clients on the host can reach every broker at its advertised address."""
    nodes = docker_nodes()
    assert ["apache/kafka:4.3.1"] * 3 == [container.image for container in docker.containers]
    for node, container in zip(nodes.nodes, docker.containers, strict=True):
        inside, outside = container.ports
        assert 9092 == inside
        assert f"localhost:{outside}" == node.address
        advertised = container.environment["KAFKA_ADVERTISED_LISTENERS"]
        assert f"CLIENTS://{node.address},BROKERS://{container.alias}:19092" == advertised


def test_a_broker_behind_a_proxy_advertises_the_proxy(docker):
    """A further port is bound for the proxy, and its clients get the proxy's address."""
    (node,) = docker_nodes(1, proxies=["127.0.0.1:40000"]).nodes
    (container,) = docker.containers
    inside, outside = container.ports
    assert 9094 == inside
    assert f"localhost:{outside}" == node.proxied_address
    advertised = container.environment["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert "PROXIED://127.0.0.1:40000" in advertised


def test_brokers_find_each_other_by_their_names_in_the_network(docker):
    """The controllers' addresses are the containers' names in their common network."""
    docker_nodes()
    assert ["kafka-1", "kafka-2", "kafka-3"] == [c.alias for c in docker.containers]
    expected = {"1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093"}
    assert expected == {c.environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] for c in docker.containers}


def test_a_broker_is_created_once_and_then_started_again(docker):
    """Starting a killed broker reuses its container, and so its disk."""
    (node,) = docker_nodes(1).nodes
    node.start()
    node.start()
    assert ["start kafka-1", "start again kafka-1"] == docker.did[1:]


def test_a_failed_pull_is_recorded_as_the_reason(docker):
    """After a failed pull the next way to provide Kafka is tried, with the reason recorded."""
    docker.pull_error = APIError("no such image")
    with pytest.raises(KafkaUnavailableError, match="no such image"):
        docker_nodes()


def test_a_failed_start_is_recorded_as_the_reason(docker):
    """After a failed start the next way to provide Kafka is tried, with the reason recorded."""
    docker.start_error = RuntimeError("port taken")
    (node,) = docker_nodes(1).nodes
    with pytest.raises(KafkaUnavailableError, match="port taken"):
        node.start()


def test_closing_removes_the_containers_before_their_network(docker):
    """No container is left behind, and the network is removed once it is empty."""
    docker_nodes().close()
    expected = ["remove kafka-1", "remove kafka-2", "remove kafka-3", "remove network"]
    assert expected == docker.did[1:]
