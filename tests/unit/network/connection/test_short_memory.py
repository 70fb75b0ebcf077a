"""Connections that run out of memory or threads end at once, and no request hangs."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from spark_kafka_sink.errors import NetworkError, UnsupportedVersionError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import broker_connection
from spark_kafka_sink.network.connection.broker_connection import (
    BrokerConnection,
    ConnectionSettings,
)
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.network.daemon_thread import in_daemon_thread
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.registry import encode_response
from tests.support.network.scripted_transport import ScriptedTransport, run_without_waiting
from tests.support.producer.mock_network import ALL_VERSIONS

NODE = Node(7, "localhost", 9092)
REQUEST = MetadataRequest(topics=())
#: No earlier version can express it.
REQUEST_OF_VERSION_4 = MetadataRequest(topics=(), allow_auto_topic_creation=False)
#: More bytes than a request has.
ALL = 1_000


class _NoMemoryToRead(ScriptedTransport):
    def read(self):
        raise MemoryError


class _NoMemoryToWrite(ScriptedTransport):
    def write(self, pending):
        if self._is_blocked:
            raise MemoryError
        return super().write(pending)


class _NoMemoryForTheRest(ScriptedTransport):
    def write(self, pending):
        super().write(pending)
        raise MemoryError


def _answer(correlation_id):
    response = MetadataResponse(brokers=(), topics=())
    return b"".join(encode_response(correlation_id, response, MetadataRequest.versions.max))


def _connection(transport):
    connection = BrokerConnection(
        NODE, transport, ConnectionSettings(client_id="test", request_timeout=30.0)
    )
    connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
    return connection


async def _errors_of(connection, outcomes):
    """Return the errors of requests, and after how many seconds they came."""
    began = asyncio.get_running_loop().time()
    results = await asyncio.gather(*outcomes, return_exceptions=True)
    seconds = asyncio.get_running_loop().time() - began
    assert connection._transport.is_closed
    return [(type(each), str(each)) for each in results], seconds


@pytest.mark.parametrize(
    ("transport", "doing"), [(_NoMemoryToRead, "reading"), (_NoMemoryToWrite, "sending")]
)
def test_a_connection_without_memory_ends_with_that_reason(transport, doing):
    """Its requests do not wait for request.timeout.ms, whose error would blame the broker."""

    async def run():
        connection = _connection(transport())
        outcomes = [connection.send(REQUEST), connection.send_without_response(REQUEST)]
        connection._transport.deliver(b"x")
        connection._transport.take(1)
        return await _errors_of(connection, outcomes)

    reason = f"localhost:9092 (id 7): connection closed while {doing}: MemoryError"
    assert ([(NetworkError, reason)] * 2, 0.0) == run_without_waiting(run)


def test_a_partly_sent_request_ends_the_connection():
    """Otherwise the next request would follow in the middle of it."""

    async def run():
        transport = _NoMemoryForTheRest()
        transport.take(5)
        connection = _connection(transport)
        with pytest.raises(NetworkError, match="closed while sending: MemoryError"):
            connection.send(REQUEST)
        with pytest.raises(NetworkError, match="closed while sending: MemoryError"):
            connection.send(REQUEST)
        assert transport.is_closed
        assert 5 == len(transport.taken)

    run_without_waiting(run)


def _no_memory(*_, **__):
    raise MemoryError


@pytest.mark.parametrize(
    ("part", "has_response"),
    [
        ("encode_request", True),
        ("encode_request", False),
        ("InFlightRequest", True),
        ("OutgoingRequest", True),
        ("OutgoingRequest", False),
    ],
)
def test_a_request_without_memory_ends_the_connection(monkeypatch, part, has_response):
    """The caller and earlier requests get the reason, and no future's error is unretrieved."""
    forgotten = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: forgotten.append(what))
        connection = _connection(ScriptedTransport())
        earlier = connection.send(REQUEST)
        monkeypatch.setattr(broker_connection, part, _no_memory)
        send = connection.send if has_response else connection.send_without_response
        with pytest.raises(NetworkError, match="closed while sending: MemoryError"):
            send(REQUEST)
        assert (0, False) == (connection.in_flight_count, connection.has_unsent)
        return await _errors_of(connection, [earlier])

    reason = "localhost:9092 (id 7): connection closed while sending: MemoryError"
    assert ([(NetworkError, reason)], 0.0) == run_without_waiting(run)
    # Until here the connection's error has kept the frames, and their futures, alive.
    gc.collect()
    assert [] == forgotten


def test_a_request_that_cannot_be_encoded_does_not_affect_the_connection():
    """None of it has been sent, and the mistake is the caller's."""

    async def run():
        connection = _connection(ScriptedTransport())
        connection._transport.take(ALL)
        with pytest.raises(UnsupportedVersionError):
            connection.send(REQUEST_OF_VERSION_4, max_version=3)
        answer = connection.send(REQUEST)
        connection._transport.deliver(_answer(1))
        assert () == (await answer).brokers
        connection.close()

    run_without_waiting(run)


def test_a_response_without_memory_fails_its_request(monkeypatch):
    """It fails like all others of the connection, although it is no longer in flight."""

    def decode_response(*_, **__):
        raise MemoryError

    monkeypatch.setattr(broker_connection, "decode_response", decode_response)

    async def run():
        connection = _connection(ScriptedTransport())
        connection._transport.take(ALL)
        outcomes = [connection.send(REQUEST) for _ in range(2)]
        connection._transport.deliver(_answer(0))
        return await _errors_of(connection, outcomes)

    errors, seconds = run_without_waiting(run)
    assert 0 == seconds
    assert [
        (NetworkError, "localhost:9092 (id 7): METADATA response: MemoryError"),
        (NetworkError, "localhost:9092 (id 7): connection closed while reading: MemoryError"),
    ] == errors


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_thread_that_cannot_be_started_is_a_transient_error(monkeypatch, error, reason):
    """A name that cannot be looked up for lack of a thread can be looked up later."""
    starts = []

    def start(thread):
        starts.append(thread.name)
        raise error

    async def run():
        outcome = await in_daemon_thread("test", lambda: 7)
        resolver = HostResolver(getaddrinfo=lambda *_, **__: [])
        with pytest.raises(NetworkError):
            await resolver.addresses("h", 9092)
        return outcome.error

    monkeypatch.setattr(threading.Thread, "start", start)
    problem = asyncio.run(run())
    assert isinstance(problem, NetworkError)
    assert f"the thread 'test' cannot be started: {reason}" == str(problem)
    assert error is problem.__cause__
    assert ["test", "kafka-host-resolver"] == starts
