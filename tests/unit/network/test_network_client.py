"""Requests that any node can answer, and which node is used for them when."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import IllegalStateError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.network_client import MAX_ATTEMPTS, Availability, NetworkClient
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.network.metadata_script import MetadataScript, described
from tests.support.network.network_clients import (
    NODE,
    PATIENCE,
    address,
    answering,
    run_client,
    run_in_memory,
    until,
    wait_for,
)
from tests.support.network.recording_listener import RecordingListener
from tests.support.network.scripted_broker import ScriptedBroker
from tests.support.network.scripted_transport import AnsweringTransport

if TYPE_CHECKING:
    from spark_kafka_sink.network.connection.transport import Transport

#: Only the socket limits how much is sent.
MANY_IN_FLIGHT = {"max.in.flight.requests.per.connection": 1_000_000, "enable.idempotence": False}


def test_a_failure_after_the_callers_timeout_is_not_an_unhandled_error(monkeypatch):
    """The caller has had its timeout as the answer, so the loop must not report the error."""
    # asyncio.shield reports it to the loop from Python 3.14 on, which would end the producer.
    monkeypatch.delattr(asyncio, "shield")
    unhandled: list[dict[str, object]] = []

    async def ask(client: NetworkClient) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, it: unhandled.append(it))
        patient = loop.create_task(client.update_metadata(loop.time() + 60))
        await asyncio.sleep(0)
        with pytest.raises(NetworkError, match=r"bootstrap\.servers"):
            await client.update_metadata(loop.time() + 10)
        question = client._metadata_updater._question
        assert question is not None
        patient.cancel()
        await asyncio.wait({question})
        assert not client.is_updating_metadata

    run_in_memory(answering(lambda _: b""), ask)
    assert [] == unhandled


def test_concurrent_callers_share_one_request():
    """A second caller joins the request that is under way, and both get its outcome."""

    async def ask(client: NetworkClient) -> list[object]:
        deadline = asyncio.get_running_loop().time() + 1
        return await asyncio.gather(
            *(client.update_metadata(deadline) for _ in range(2)), return_exceptions=True
        )

    first, second = run_in_memory(answering(lambda _: b"", Node(-1, *NODE[1:])), ask)
    assert isinstance(first, NetworkError)
    assert first is second


def test_a_throttled_node_gets_no_requests_during_its_pause():
    """A pause that a response asks for is observed, and visible (KIP-219)."""
    bootstrap = Node(-1, *NODE[1:])

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        until = client.throttled_until(bootstrap)
        assert 60.0 == until - asyncio.get_running_loop().time()
        assert until == client.ready_at(bootstrap)
        assert client.ready_connection(bootstrap) is None
        assert 0.0 == client.throttled_until(NODE)

    script = MetadataScript(lambda _: described(NODE, {"t": 1}, throttle_time_ms=60_000))
    run_in_memory(answering(script), act)


def test_a_request_waits_for_the_end_of_a_throttle():
    """If there is no other node, a request waits until the pause is over, and no longer."""
    bootstrap = Node(-1, *NODE[1:])

    async def act(client: NetworkClient) -> float:
        await wait_for(client, "t", within=PATIENCE)
        began = asyncio.get_running_loop().time()
        await wait_for(client, "u", within=PATIENCE)
        return asyncio.get_running_loop().time() - began

    known = {"t": 1, "u": 1}
    script = MetadataScript(lambda _: described(bootstrap, known, throttle_time_ms=10_000))
    assert 10.0 == run_in_memory(answering(script), act)


def test_connections_are_reported_to_the_listener(unreachable_node):
    """Attempts, connections and their ends are reported, and ready connections are counted."""
    listener = RecordingListener()

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        assert 1 == client.connection_count
        assert client.ready_connection(unreachable_node) is None
        await until(lambda: ("connection failed", 5) in listener.events)

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        run_client(address(broker.node), act, listener=listener)
    assert ("connected", -1) in listener.events
    assert ("disconnected", -1) == listener.events[-1]


def test_closing_an_idle_connection_is_not_an_error():
    """A connection closed by connections.max.idle.ms causes neither an error nor a request."""
    listener = RecordingListener()

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        due = client.metadata.next_update_at()
        await asyncio.sleep(29.0)
        assert 1 == client.connection_count
        await asyncio.sleep(2.0)
        assert 0 == client.connection_count
        assert client.last_error is None
        assert due == client.metadata.next_update_at()

    script = MetadataScript(lambda _: described(NODE, {"t": 1}))
    idle = {"connections.max.idle.ms": 30_000}
    run_in_memory(answering(script), act, listener=listener, **idle)
    assert ("disconnected", -1) == listener.events[-1]


def test_closing_does_not_wait_for_a_hanging_name_lookup():
    """Closing does not wait, although the lookup of a name may take another minute."""
    hanging, answer, answered = threading.Event(), threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> list[tuple]:
        hanging.set()
        answer.wait(60)
        answered.set()
        return []

    async def act(client: NetworkClient) -> None:
        attempt = asyncio.ensure_future(wait_for(client, "t", within=60))
        await until(hanging.is_set)
        attempt.cancel()

    run_client("h.example:9092", act, resolver=HostResolver(getaddrinfo=hang))
    assert not answered.is_set()
    answer.set()
    assert answered.wait(60)


def test_four_hundred_nodes_are_not_connected_to_at_once():
    """Attempts beyond the limit begin when others end, in their order, and none is left out."""
    begun, refusal = [], asyncio.Event()

    async def refuse(node: Node, _timeout: float) -> None:
        begun.append(node.node_id)
        await refusal.wait()
        raise NetworkError("refused")

    async def act(client: NetworkClient) -> None:
        client._dialer.connect = refuse
        for number in range(400):
            client.ready_connection(Node(number, "h.example", 9092))
        for _ in range(10):
            await asyncio.sleep(0)
        assert list(range(MAX_ATTEMPTS)) == begun
        refusal.set()
        await until(lambda: 400 <= len(begun))
        assert list(range(400)) == begun

    run_client("h.example:9092", act)


def test_an_attempt_cancelled_before_it_began_can_be_repeated():
    """A rebootstrap cancels the attempts under way and leaves nothing of them behind."""

    async def act(client: NetworkClient) -> None:
        bootstrap = Node(-1, *broker.node[1:])
        assert client.ready_connection(bootstrap) is None
        client.rebootstrap()
        await wait_for(client, "t", within=PATIENCE)

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        run_client(address(broker.node), act)


def test_a_broker_that_accepts_connections_is_somebody():
    """A broker that refused connections while it started may be slow to answer afterwards."""
    is_there = False

    def connect(_: Node) -> Transport:
        if not is_there:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "")
        return AnsweringTransport(lambda _: b"")

    async def act(client: NetworkClient) -> None:
        nonlocal is_there
        with pytest.raises(NetworkError):
            await wait_for(client, "t", within=1.0)
        assert client.finds_nobody
        is_there = True
        with pytest.raises(NetworkError):
            await wait_for(client, "t", within=1.0)
        assert not client.finds_nobody

    run_in_memory(connect, act)


def test_an_unexpected_error_in_connecting_is_not_hidden():
    """An error other than a network error is raised at once, like a refusal, and not retried."""

    def fail(_: Node) -> Transport:
        raise LookupError("a fault")

    async def act(client: NetworkClient) -> None:
        with pytest.raises(
            IllegalStateError, match=r"could not connect to .*: LookupError$"
        ) as raised:
            await wait_for(client, "t", within=1.0)
        assert isinstance(raised.value.__cause__, LookupError)
        assert raised.value is client.refusal

    run_in_memory(fail, act)


def test_what_the_machine_lacks_may_be_there_at_a_later_attempt():
    """Without descriptors or memory no connection can be made; the client tries again."""
    failures: list[Exception] = [OSError(errno.EMFILE, "Too many open files"), MemoryError()]

    def connect(_: Node) -> Transport:
        if failures:
            raise failures.pop(0)
        return AnsweringTransport(lambda _: b"")

    async def act(client: NetworkClient) -> None:
        with pytest.raises(NetworkError):
            await wait_for(client, "t", within=1.0)
        assert client.refusal is None

    run_in_memory(connect, act)
    assert failures == []


def test_a_node_that_stops_reading_gets_no_further_request():
    """One request may wait for its socket, and the node takes no other before it is sent."""
    reads_on = threading.Event()
    script = MetadataScript(lambda _: described(broker.node, {}))

    def stop_reading(frame: bytes) -> bytes | None:
        if len(frame) <= 1_000:
            return script(frame)
        reads_on.wait(PATIENCE)
        return None

    async def ask(client: NetworkClient) -> None:
        loop = asyncio.get_running_loop()
        connection = await client.least_loaded_connection(loop.time() + PATIENCE)
        node = connection.node
        assert Availability.READY is client.least_loaded_node(loop.time()).availability
        # More than sockets hold, in requests that are each read as a whole.
        topics = tuple(str(number) * 100 for number in range(100))
        request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=t) for t in topics))
        outcomes = []
        while not connection.has_unsent:
            outcomes.append(connection.send(request))
        assert client.ready_connection(node) is None
        assert Availability.SATURATED is client.least_loaded_node(loop.time()).availability
        client.close_unsent()
        reads_on.set()
        results = await asyncio.gather(*outcomes, return_exceptions=True)
        assert {NetworkError} == set(map(type, results))

    with ScriptedBroker(stop_reading) as broker:
        try:
            run_client(address(broker.node), ask, **MANY_IN_FLIGHT)
        finally:
            reads_on.set()


def test_a_connection_can_be_closed_with_what_is_in_flight():
    """Its requests fail with the reason; without a connection there is nothing to close."""

    async def ask(client: NetworkClient) -> None:
        await until(lambda: client.ready_connection(broker.node) is not None)
        connection = client.ready_connection(broker.node)
        answer = asyncio.ensure_future(connection.send(MetadataRequest(topics=())))
        client.disconnect(broker.node._replace(node_id=8), "another one")
        await asyncio.sleep(0)
        assert not answer.done()
        client.disconnect(broker.node, "it is of no use")
        with pytest.raises(NetworkError, match="closed by this client: it is of no use"):
            await answer

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {}))) as broker:
        run_client(address(broker.node), ask)


def test_only_connections_with_unsent_requests_are_closed():
    """Only connections with requests that the socket has not accepted are closed."""

    async def ask(client: NetworkClient) -> None:
        await until(lambda: client.ready_connection(broker.node) is not None)
        client.close_unsent()
        assert client.ready_connection(broker.node) is not None

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {}))) as broker:
        run_client(address(broker.node), ask)
