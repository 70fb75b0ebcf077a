"""Where a client starts again: from bootstrap.servers, or only from the known brokers."""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from tests.support.network.metadata_script import MetadataScript, described
from tests.support.network.network_clients import (
    NODE,
    PATIENCE,
    address,
    answering,
    run_client,
    run_in_memory,
    wait_for,
)
from tests.support.network.recording_listener import RecordingListener
from tests.support.network.scripted_broker import ScriptedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.network.network_client import NetworkClient


def _describe_unreachable_once(
    broker: Callable[[], Node], gone: Node
) -> Callable[[object], object]:
    """Describe first an unreachable broker, then close the connection, then describe `broker`."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse | None:
        match next(answers):
            case 0:
                return described(gone, {"t": 1})
            case 1:
                return None
        return described(broker(), {"t": 1, "u": 1})

    return answer


def test_bootstrap_servers_are_used_again_if_no_known_broker_is_available(unreachable_node):
    """A cluster that has moved is found through bootstrap.servers again (KIP-899)."""

    async def act(client: NetworkClient) -> dict[int, Node]:
        await wait_for(client, "t", within=PATIENCE)
        await wait_for(client, "u", within=PATIENCE)
        return dict(client.metadata.snapshot.nodes)

    script = MetadataScript(_describe_unreachable_once(lambda: broker.node, unreachable_node))
    with ScriptedBroker(script) as broker:
        assert {7: broker.node} == run_client(address(broker.node), act)


def test_with_the_strategy_none_only_known_brokers_are_tried():
    """With metadata.recovery.strategy=none, bootstrap.servers are not used again."""
    gone = Node(5, "gone.example", 9092)

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        with pytest.raises(NetworkError, match=r"gone\.example:9092 \(id 5\).*refused"):
            await wait_for(client, "u", within=1.0)

    script = MetadataScript(_describe_unreachable_once(lambda: NODE, gone))
    strategy = {"metadata.recovery.strategy": "none"}
    run_in_memory(answering(script, gone), act, **strategy)
    assert 1 == script.connections


def test_a_broker_can_request_a_rebootstrap():
    """REBOOTSTRAP_REQUIRED closes the connections and leads to bootstrap.servers (KIP-1102)."""
    answers = itertools.count()
    listener = RecordingListener()

    def answer(_: object) -> MetadataResponse:
        if next(answers) == 1:
            return MetadataResponse(
                brokers=(), topics=(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED
            )
        return described(broker.node, {"t": 1, "u": 1})

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        await wait_for(client, "u", within=PATIENCE)
        assert {7: broker.node} == client.metadata.snapshot.nodes

    with ScriptedBroker(MetadataScript(answer)) as broker:
        run_client(address(broker.node), act, listener=listener)
    changes = [event for event in listener.events if "connected" in event[0]]
    expected = [("connected", -1), ("disconnected", -1)] * 2
    assert expected == changes


def test_rebootstrap_required_is_retried_if_rebootstrapping_is_disabled(unreachable_node):
    """With the strategy none, REBOOTSTRAP_REQUIRED is retried like any other error."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        if next(answers) == 0:
            return MetadataResponse(
                brokers=(), topics=(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED
            )
        return described(broker.node, {"t": 1})

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        assert "REBOOTSTRAP_REQUIRED" in str(client.last_error)

    script = MetadataScript(answer)
    with ScriptedBroker(script) as broker:
        run_client(address(broker.node), act, **{"metadata.recovery.strategy": "none"})
    assert 1 == script.connections


def test_a_long_time_without_metadata_triggers_a_rebootstrap():
    """After metadata.recovery.rebootstrap.trigger.ms without metadata it happens (KIP-1102)."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        if 0 < next(answers) < 3:
            return MetadataResponse(brokers=(), topics=())
        return described(broker.node, {"t": 1, "u": 1})

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        await wait_for(client, "u", within=PATIENCE)

    script = MetadataScript(answer)
    with ScriptedBroker(script) as broker:
        trigger = {"metadata.recovery.rebootstrap.trigger.ms": 0}
        run_client(address(broker.node), act, **trigger)
    assert script.connections > 1


def test_bootstrap_servers_can_be_resolved_to_canonical_names():
    """resolve_canonical_bootstrap_servers_only connects to the machines behind an alias."""
    looked_up = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple]:
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    resolver = HostResolver(
        getaddrinfo=getaddrinfo, getnameinfo=lambda *_: ("canonical.example", "0")
    )
    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        run_client(
            f"alias.example:{broker.node.port}",
            lambda client: wait_for(client, "t", within=PATIENCE),
            resolver=resolver,
            **{"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"},
        )
    assert ["alias.example", "canonical.example"] == looked_up
