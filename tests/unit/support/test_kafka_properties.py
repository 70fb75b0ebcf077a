"""The settings of the brokers that the tests start."""

from __future__ import annotations

from tests.support.kafka.kafka_properties import Listener, node_properties, to_environment, to_text


def three_node_properties(**overrides):
    clients = Listener("CLIENTS", ":9092", "localhost:20001")
    brokers = Listener("BROKERS", ":19092", "kafka-2:19092")
    return node_properties(
        node_id=2,
        clients=clients,
        brokers=brokers,
        controller=":9093",
        voters={1: "kafka-1:9093", 2: "kafka-2:9093", 3: "kafka-3:9093"},
        overrides=overrides,
    )


def test_listeners_for_clients_and_brokers_are_separate():
    """A node with two listeners binds and advertises each under its own name."""
    properties = three_node_properties()
    expected = "CLIENTS://:9092,BROKERS://:19092,CONTROLLER://:9093"
    assert expected == properties["listeners"]
    expected = "CLIENTS://localhost:20001,BROKERS://kafka-2:19092"
    assert expected == properties["advertised.listeners"]
    assert "BROKERS" == properties["inter.broker.listener.name"]


def test_one_listener_can_serve_both():
    """A listener used for both clients and brokers is listed once."""
    listener = Listener("CLIENTS", "127.0.0.1:20001", "127.0.0.1:20001")
    properties = node_properties(
        node_id=1,
        clients=listener,
        brokers=listener,
        controller="127.0.0.1:20002",
        voters={1: "127.0.0.1:20002"},
        overrides={},
    )
    assert "CLIENTS://127.0.0.1:20001" == properties["advertised.listeners"]
    assert "1" == properties["min.insync.replicas"]


def test_further_listeners_have_their_own_protocols():
    """A secured listener is bound, advertised and mapped next to the plain ones."""
    plain = Listener("CLIENTS", "127.0.0.1:20001", "127.0.0.1:20001")
    secured = Listener("TLS", "127.0.0.1:20003", "localhost:20003", "SSL")
    properties = node_properties(
        node_id=1,
        clients=plain,
        brokers=plain,
        controller="127.0.0.1:20002",
        voters={1: "127.0.0.1:20002"},
        overrides={},
        secured=[secured],
    )
    assert "TLS://127.0.0.1:20003" in properties["listeners"].split(",")
    assert properties["advertised.listeners"].endswith(",TLS://localhost:20003")
    expected = "CLIENTS:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT"
    assert expected == properties["listener.security.protocol.map"]


def test_three_nodes_replicate_on_all():
    """Three nodes store three replicas, two of which must be in sync."""
    properties = three_node_properties()
    assert "3" == properties["default.replication.factor"]
    assert "2" == properties["min.insync.replicas"]


def test_overrides_win():
    """A setting given by a test replaces the default."""
    properties = three_node_properties(**{"auto.create.topics.enable": "true"})
    assert "true" == properties["auto.create.topics.enable"]


def test_a_properties_file_has_a_line_per_setting():
    """Properties are written as key=value lines."""
    assert "a.b=1\nc=x,y\n" == to_text({"a.b": "1", "c": "x,y"})


def test_the_docker_image_reads_the_environment():
    """Dots, underscores and dashes become one, two and three underscores."""
    assert {"KAFKA_A_B__C___D": "1"} == to_environment({"a.b_c-d": "1"})


def test_clients_of_the_proxied_listener_stay_behind_the_proxies():
    """A listener for proxies is bound to its own port and advertises the proxy's address."""
    listener = Listener("CLIENTS", "127.0.0.1:20001", "127.0.0.1:20001")
    properties = node_properties(
        node_id=1,
        clients=listener,
        brokers=listener,
        controller="127.0.0.1:20002",
        voters={1: "127.0.0.1:20002"},
        overrides={},
        proxied=Listener("PROXIED", "127.0.0.1:20003", "127.0.0.1:40000"),
    )
    expected = "CLIENTS://127.0.0.1:20001,PROXIED://127.0.0.1:20003,CONTROLLER://127.0.0.1:20002"
    assert expected == properties["listeners"]
    expected = "CLIENTS://127.0.0.1:20001,PROXIED://127.0.0.1:40000"
    assert expected == properties["advertised.listeners"]
    expected = "CLIENTS:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT"
    assert expected == properties["listener.security.protocol.map"]
