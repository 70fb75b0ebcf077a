"""Requests that the socket does not accept because the peer has stopped reading."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.broker_connection import (
    BrokerConnection,
    ConnectionSettings,
    OutgoingRequest,
    OutgoingRequests,
)
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.registry import encode_response
from tests.support.network.scripted_transport import ScriptedTransport, run_without_waiting
from tests.support.producer.mock_network import ALL_VERSIONS

REQUEST_TIMEOUT = 30.0
REQUEST = MetadataRequest(topics=())
#: More bytes than a request has.
ALL = 1_000


async def _open(on_writable=lambda: None) -> tuple[BrokerConnection, ScriptedTransport]:
    transport = ScriptedTransport()
    connection = BrokerConnection(
        Node(7, "localhost", 9092),
        transport,
        ConnectionSettings(client_id="test", request_timeout=REQUEST_TIMEOUT),
        on_writable=on_writable,
    )
    connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
    await asyncio.sleep(0)
    return connection, transport


async def _close(connection: BrokerConnection) -> None:
    connection.close()


@pytest.mark.parametrize("send", ["send", "send_without_response"])
@pytest.mark.parametrize("taken", [0, 5], ids=["nothing", "a part"])
def test_a_connection_whose_socket_accepts_nothing_is_closed(send, taken):
    """After request.timeout.ms the request fails, whether or not the broker would answer it."""

    async def run() -> None:
        connection, transport = await _open()
        transport.take(taken)
        began_at = asyncio.get_running_loop().time()
        with pytest.raises(NetworkError, match=r"localhost:9092.*stopped reading.* within 30 s"):
            await getattr(connection, send)(REQUEST)
        assert REQUEST_TIMEOUT == asyncio.get_running_loop().time() - began_at
        assert transport.is_closed
        assert taken == len(transport.taken)

    run_without_waiting(run)


def test_a_slow_socket_is_waited_for():
    """The timeout counts from the last byte accepted: a slow peer is not a silent one."""

    async def run() -> None:
        connection, transport = await _open()
        sent = connection.send_without_response(REQUEST)
        for _ in range(4):
            await asyncio.sleep(REQUEST_TIMEOUT - 1)
            transport.take(2)
        await asyncio.sleep(REQUEST_TIMEOUT - 1)
        assert not sent.done()
        transport.take(ALL)
        await sent
        await asyncio.sleep(10 * REQUEST_TIMEOUT)
        assert not transport.is_closed
        await _close(connection)

    run_without_waiting(run)


def test_a_connection_reports_unsent_requests():
    """It has unsent requests until the last byte is accepted, and reports when that happens."""
    writable = []

    async def run() -> None:
        connection, transport = await _open(lambda: writable.append(len(transport.taken)))
        assert not connection.has_unsent
        first = connection.send_without_response(REQUEST)
        second = connection.send_without_response(REQUEST)
        transport.take(5)
        await asyncio.sleep(0)
        assert (True, 2, True, True) == (
            connection.has_unsent,
            connection.in_flight_count,
            connection.is_unsent(first),
            connection.is_unsent(second),
        )
        assert [] == writable
        transport.take(ALL)
        await asyncio.gather(first, second)
        assert (False, 0, False) == (
            connection.has_unsent,
            connection.in_flight_count,
            connection.is_unsent(second),
        )
        assert [len(transport.taken)] == writable
        await _close(connection)

    run_without_waiting(run)


def test_unsent_requests_fail_with_the_connection():
    """Closing fails requests of both kinds, and none of their bytes is sent afterwards."""

    async def run() -> None:
        connection, transport = await _open()
        outcomes = [connection.send_without_response(REQUEST), connection.send(REQUEST)]
        await _close(connection)
        transport.take(ALL)
        results = await asyncio.gather(*outcomes, return_exceptions=True)
        assert [NetworkError, NetworkError] == list(map(type, results))
        assert b"" == transport.taken
        assert 0 == connection.in_flight_count

    run_without_waiting(run)


def test_a_response_to_a_partly_sent_request_ends_the_connection():
    """A response that comes too early must not free records that are still being sent."""

    async def run() -> None:
        connection, transport = await _open()
        transport.take(5)
        answer = connection.send(REQUEST)
        response = MetadataResponse(brokers=(), topics=())
        transport.deliver(b"".join(encode_response(0, response, MetadataRequest.versions.max)))
        with pytest.raises(NetworkError, match="request 0, which has not been sent in full"):
            await answer

    run_without_waiting(run)


def test_the_write_timeout_counts_from_the_oldest_request():
    """The timeout counts from the first waiting request, and again from each byte accepted."""
    requests = OutgoingRequests()
    loop = asyncio.new_event_loop()
    first, second = (OutgoingRequest([b"x"], loop.create_future(), False) for _ in range(2))
    loop.close()
    assert requests.stalls_at(taken_at=1.0, timeout=10.0) is None
    requests.add(first, now=5.0)
    requests.add(second, now=8.0)
    assert 15.0 == requests.stalls_at(taken_at=1.0, timeout=10.0)
    assert 17.0 == requests.stalls_at(taken_at=7.0, timeout=10.0)
    assert (2, True) == (requests.without_response, requests.holds(second.outcome))
    assert first is requests.pop()
    assert [second] == requests.clear()
    assert (0, 0, False) == (
        len(requests),
        requests.without_response,
        requests.holds(second.outcome),
    )
