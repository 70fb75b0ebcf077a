"""Requests fail with the error that ended their connection, however it was detected."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.errors import AuthenticationError, DecodeError, NetworkError
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


class _Failing(ScriptedTransport):
    """A transport that accepts nothing, and fails when it is written to or read from."""

    def __init__(self, *, write_error=None, read_error=None):
        super().__init__()
        self._write_error = write_error
        self._read_error = read_error

        if read_error is not None:
            self.deliver(b"")

    def write(self, pending):
        """Raise the error; see `Transport.write`."""
        if self._write_error is not None:
            raise self._write_error
        return super().write(pending)

    def read(self):
        """Raise the error; see `Transport.read`."""
        if self._read_error is not None:
            raise self._read_error
        return super().read()


def failures(**errors):
    """Return the errors of two requests, one of which expects no response."""

    async def run():
        settings = ConnectionSettings(client_id="test", request_timeout=30.0)
        connection = BrokerConnection(NODE, _Failing(**errors), settings)
        connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
        futures = [
            connection.send(MetadataRequest(topics=())),
            connection.send_without_response(MetadataRequest(topics=())),
        ]
        return await asyncio.gather(*futures, return_exceptions=True)

    return run_without_waiting(run)


REFUSED = AuthenticationError("the broker rejected the TLS connection")
CUT = NetworkError("the broker ended the TLS connection")


@pytest.mark.parametrize(
    ("errors", "kind", "said"),
    [
        ({"write_error": REFUSED}, AuthenticationError, str(REFUSED)),
        ({"read_error": REFUSED}, AuthenticationError, str(REFUSED)),
        ({"read_error": CUT}, NetworkError, str(CUT)),
        (
            {"write_error": BrokenPipeError("the pipe is broken")},
            NetworkError,
            f"{NODE}: connection lost while sending: the pipe is broken",
        ),
        (
            {"read_error": ConnectionResetError("the peer reset it")},
            NetworkError,
            f"{NODE}: connection lost while reading: the peer reset it",
        ),
        (
            {"read_error": DecodeError("too long")},
            NetworkError,
            f"{NODE}: cannot read the response: too long",
        ),
    ],
)
def test_requests_fail_with_the_error_that_ended_the_connection(errors, kind, said):
    """A refusal is permanent whether it is found by sending or reading, a loss is retriable."""
    answers = failures(**errors)
    assert [(True, said)] * 2 == [(isinstance(error, kind), str(error)) for error in answers]


def test_a_failed_write_does_not_lose_a_response_that_has_arrived():
    """A broker may answer a request and hang up before the next one is sent."""

    class Closing(ScriptedTransport):
        def write(self, pending):
            if self.taken:
                raise BrokenPipeError("the pipe is broken")
            return super().write(pending)

    async def run():
        transport = Closing()
        transport.take(1_000)
        settings = ConnectionSettings(client_id="test", request_timeout=30.0)
        connection = BrokerConnection(NODE, transport, settings)
        connection.api_versions = NodeApiVersions(ALL_VERSIONS, {})
        request, response = MetadataRequest(topics=()), MetadataResponse(brokers=(), topics=())
        answered = connection.send(request)
        # No event has announced it yet.
        transport._incoming.append(
            b"".join(encode_response(0, response, MetadataRequest.versions.max))
        )
        unanswered = connection.send(request)
        assert connection.is_unsent(unanswered)
        return await asyncio.gather(answered, unanswered, return_exceptions=True)

    answer, error = run_without_waiting(run)
    assert () == answer.brokers
    assert f"{NODE}: connection lost while sending: the pipe is broken" == str(error)
