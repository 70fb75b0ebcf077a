"""The nodes a client starts from, with and without canonical names."""

from __future__ import annotations

import asyncio
import socket
import threading

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.network_client import BootstrapNodes

SERVERS = (("alias", 9092), ("other", 9093))


def _resolver(names: dict[str, list[str]]) -> HostResolver:
    """Return a resolver whose addresses are the canonical names themselves."""

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple]:
        if host not in names:
            raise socket.gaierror(-2, "Name or service not known")
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, (name, 0)) for name in names[host]]

    return HostResolver(getaddrinfo=getaddrinfo, getnameinfo=lambda where, _: (where[0], "0"))


def _resolved(nodes: BootstrapNodes, within: float = 5.0) -> tuple[Node, ...]:
    async def resolve() -> None:
        await nodes.resolve_once(asyncio.get_running_loop().time() + within)

    asyncio.run(resolve())
    return nodes.nodes


def test_bootstrap_servers_become_nodes_without_a_lookup():
    """Names are looked up only when they are connected to, and ids are negative."""
    nodes = BootstrapNodes(SERVERS, resolver=_resolver({}), canonical=False)
    assert (Node(-1, "alias", 9092), Node(-2, "other", 9093)) == _resolved(nodes)


def test_an_alias_is_expanded_to_canonical_names():
    """resolve_canonical_bootstrap_servers_only finds each machine behind a name once."""
    names = {"alias": ["a.example", "b.example"], "other": ["b.example"]}
    nodes = BootstrapNodes(SERVERS, resolver=_resolver(names), canonical=True)
    expected = [("a.example", 9092), ("b.example", 9092), ("b.example", 9093)]
    assert expected == [(node.host, node.port) for node in _resolved(nodes)]
    assert [-1, -2, -3] == [node.node_id for node in nodes.nodes]


def test_an_unresolvable_name_is_kept_and_looked_up_again():
    """The other servers are used meanwhile, and connecting to this one shows what is wrong."""
    names = {"other": ["b.example"]}
    nodes = BootstrapNodes(SERVERS, resolver=_resolver(names), canonical=True)
    assert ["alias", "b.example"] == [node.host for node in _resolved(nodes)]
    names["alias"] = ["a.example"]
    assert ["a.example", "b.example"] == [node.host for node in _resolved(nodes)]


def test_names_are_looked_up_again_after_a_rebootstrap():
    """The machines behind a name may have changed by then; until then they are kept."""
    names = {"alias": ["a.example"], "other": ["b.example"]}
    nodes = BootstrapNodes(SERVERS, resolver=_resolver(names), canonical=True)
    _resolved(nodes)
    names["alias"] = ["c.example"]
    assert ["a.example", "b.example"] == [node.host for node in _resolved(nodes)]
    nodes.forget()
    assert ["c.example", "b.example"] == [node.host for node in _resolved(nodes)]


def test_configured_names_are_used_if_the_name_service_hangs():
    """At the deadline the configured names are used."""
    answer = threading.Event()

    def hang(*_: object, **__: object) -> list[tuple]:
        answer.wait(60)
        return []

    nodes = BootstrapNodes(SERVERS, resolver=HostResolver(getaddrinfo=hang), canonical=True)
    assert ["alias", "other"] == [node.host for node in _resolved(nodes, within=0.02)]
    answer.set()
