"""Where a client starts again: from bootstrap.servers, or only from the known brokers."""

from __future__ import annotations

import asyncio
import itertools
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.model import MORE_CONNECTIONS, Node
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.connection.node_api_versions import fetch_api_versions
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.protocol.registry import decode_request, encode_response
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


def _meant(**settings: object) -> list[tuple[str | None, int]]:
    """Connect to a cluster whose node 7 is another broker, which says so if it is asked (KIP-1242).

    Returns the cluster and node that each connection means.
    """
    meant: list[tuple[str | None, int]] = []

    def watched(script: MetadataScript, *, refuses: bool) -> Callable[[bytes], bytes | None]:
        def answer(frame: bytes) -> bytes | None:
            header, request = decode_request(frame)
            if not isinstance(request, ApiVersionsRequest):
                return script(frame)
            meant.append((request.cluster_id, request.node_id))
            if not refuses or request.cluster_id is None:
                return script(frame)
            refusal = ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=())
            return b"".join(encode_response(header.correlation_id, refusal, 5))

        return answer

    def described_cluster(_: object) -> MetadataResponse:
        return replace(described(other.node, {"t": 1, "u": 1}), cluster_id="c")

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while client.metadata.snapshot.nodes:
                if client.ready_connection(other.node) is not None:
                    break
                await asyncio.sleep(0.01)
        await wait_for(client, "u", within=PATIENCE)

    script = MetadataScript(described_cluster)
    with (
        ScriptedBroker(watched(script, refuses=True)) as other,
        ScriptedBroker(watched(script, refuses=False)) as bootstrap,
    ):
        run_client(address(bootstrap.node), act, **settings)
    return meant


def test_a_misrouted_connection_leads_to_bootstrap_servers():
    """A broker that is not the one that the client means is left for bootstrap.servers."""
    assert [(None, -1), ("c", 7), (None, -1)] == _meant()


@pytest.mark.parametrize(
    "settings",
    [{"metadata.cluster.check.enable": "false"}, {"metadata.recovery.strategy": "none"}],
)
def test_without_the_check_no_broker_is_asked_who_it_is(settings):
    """The check can be disabled, and has no use without a way to start again."""
    assert [(None, -1), (None, -1)] == _meant(**settings)


def test_each_connection_to_a_broker_means_the_same_one():
    """A member has another connection to its coordinator, under a number of its own."""
    meant = []

    async def ask(request: ApiVersionsRequest, _: int) -> ApiVersionsResponse:
        meant.append((request.cluster_id, request.node_id))
        return ApiVersionsResponse(api_keys=())

    for node_id in (7, 7 + MORE_CONNECTIONS):
        asyncio.run(fetch_api_versions(Node(node_id, "h", 1), ask, cluster_id="c"))
    assert [("c", 7), ("c", 7)] == meant
