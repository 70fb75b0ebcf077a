"""A handler passed to `send` is called as soon as its response is decoded."""

from __future__ import annotations

import asyncio
import gc
import weakref
from unittest.mock import MagicMock

import pytest

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.broker_connection import (
    BrokerConnection,
    ConnectionSettings,
)
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.registry import encode_response
from tests.support.network.scripted_transport import ScriptedTransport, run_without_waiting
from tests.support.producer.mock_network import ALL_VERSIONS

NODE = Node(1, "broker.example", 9092)
REQUEST = MetadataRequest(topics=())


def _connection() -> tuple[BrokerConnection, ScriptedTransport]:
    transport = ScriptedTransport()
    transport.take(1_000)
    connection = BrokerConnection(
        NODE, transport, ConnectionSettings(client_id="test", request_timeout=30.0)
    )
    connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
    return connection, transport


def _response(correlation_id: int) -> bytes:
    response = MetadataResponse(brokers=(), topics=())
    return b"".join(encode_response(correlation_id, response, MetadataRequest.versions.max))


def test_handlers_are_called_in_the_round_that_receives_the_responses():
    """Each handler is called once, in the order of the responses, before the loop goes on."""

    async def run():
        connection, transport = _connection()
        called = []
        futures = [connection.send(REQUEST, on_done=called.append) for _ in range(2)]
        transport._incoming.append(_response(0) + _response(1))
        transport._on_readable()
        at_once = list(called)
        await asyncio.sleep(0)
        return futures, at_once, called

    futures, at_once, called = run_without_waiting(run)
    assert futures == at_once
    assert futures == called
    assert [(), ()] == [done.result().brokers for done in called]


def test_a_handler_is_called_once_after_a_failure_and_not_before_its_caller_goes_on():
    """The caller that closes the connection is not called back in the middle of that."""

    async def run():
        connection, _ = _connection()
        called = []
        future = connection.send(REQUEST, on_done=called.append)
        connection.close()
        at_once = list(called)
        await asyncio.sleep(0)
        return at_once, [done is future for done in called], str(future.exception())

    closed = f"{NODE}: the connection was closed by this client"
    assert ([], [True], closed) == run_without_waiting(run)


def test_the_handlers_of_a_closed_connection_are_freed_at_once():
    """They refer to the records of their requests, which must not wait for garbage collection."""

    class _Records:
        """The records of a request."""

    async def run():
        connection, _ = _connection()
        records = _Records()
        freed = weakref.ref(records)
        connection.send(REQUEST, on_done=lambda _, kept=records: (connection, kept))
        del records
        connection.close()
        await asyncio.sleep(0)
        return freed()

    gc.disable()
    try:
        assert run_without_waiting(run) is None
    finally:
        gc.enable()


def test_the_handler_of_a_cancelled_request_is_called_once():
    """The response that arrives afterwards is of no interest to anybody."""

    async def run():
        connection, transport = _connection()
        called = []
        future = connection.send(REQUEST, on_done=called.append)
        future.cancel()
        await asyncio.sleep(0)
        transport.deliver(_response(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [done is future for done in called], connection.in_flight_count

    assert ([True], 0) == run_without_waiting(run)


@pytest.mark.parametrize("error", [ValueError("a mistake"), MemoryError("full")], ids=repr)
def test_the_error_of_a_handler_is_reported_and_the_connection_lives(error):
    """An error of a handler is not one of the connection, and the next response is delivered."""

    def fail(_):
        raise error

    async def run():
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, it: reported.append(it))
        connection, transport = _connection()
        connection.send(REQUEST, on_done=fail)
        second = connection.send(REQUEST)
        transport.deliver(_response(0) + _response(1))
        await second
        return [it["exception"] for it in reported]

    assert [error] == run_without_waiting(run)


def test_a_handler_is_called_although_the_response_cannot_be_counted():
    """Lack of memory for a measurement ends the connection, but the response has arrived."""

    class _Listener(MagicMock):
        """A listener that cannot handle a response."""

        def response_received(self, *_):
            raise MemoryError("full")

    async def run():
        connection, transport = _connection()
        connection._listener = _Listener()
        called = []
        future = connection.send(REQUEST, on_done=called.append)
        transport.deliver(_response(0))
        for _ in range(3):
            await asyncio.sleep(0)
        return [done is future for done in called], connection._closed_by is None

    assert ([True], False) == run_without_waiting(run)
