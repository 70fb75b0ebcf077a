"""What a listener is sent, and what in its response shows which protocol it speaks."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace

import pytest

from spark_kafka_sink.errors import AuthenticationError, NetworkError, UnsupportedVersionError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import dialer
from spark_kafka_sink.network.connection.dialer import (
    answers_in_plain,
    answers_in_tls,
    refuse_if_sasl_is_required,
)

#: ApiVersions (18), version 0, with correlation id 0x5EC0 and no client id.
GREETING = bytes.fromhex("0000000a 0012 0000 00005ec0 ffff")


class _Transport:
    """A transport that reads as scripted and accepts everything."""

    def __init__(self, *reads):
        self.reads = list(reads)
        self.written = b""
        self.closed = False

    async def write_all(self, buffers):
        self.written += b"".join(buffers)

    async def receive(self):
        data = self.reads.pop(0) if self.reads else b""
        if isinstance(data, BaseException):
            raise data
        return data

    def close(self):
        self.closed = True


@pytest.fixture
def look(monkeypatch):
    """Probe a listener that answers as scripted; return the result."""

    def run(ask, transport):
        async def connect(*_):
            if isinstance(transport, OSError):
                raise transport
            return transport

        monkeypatch.setattr(dialer, "PlaintextTransport", SimpleNamespace(connect=connect))
        found = asyncio.run(ask(None, None, 60.0))
        assert isinstance(transport, OSError) or transport.closed
        return found

    return run


def frame(correlation_id, size=10):
    return struct.pack(">ii", size, correlation_id) + bytes(size - 4)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([frame(0x5EC0)], True),
        ([frame(0x5EC0)[:3], frame(0x5EC0)[3:]], True),
        ([frame(0x5EC0, 65_536)], True),
        ([frame(0x5EC0, 65_537)], False),
        ([frame(0x5EBF)], False),
        ([frame(0x5EC1)], False),
        ([frame(0x5EC0)[:-1]], False),
        ([], False),
        ([b"HTTP/1.1 400 Bad Request"], False),
        ([ConnectionResetError("gone")], False),
    ],
)
def test_a_plain_listener_is_recognized_by_its_response(look, reads, expected):
    """Any other response, or the end of the connection, does not count."""
    transport = _Transport(*reads)
    assert expected is look(answers_in_plain, transport)
    assert GREETING == transport.written


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([b"\x16\x03\x03\x00\x7a"], True),
        ([b"\x15\x03\x01\x00\x02"], True),
        ([b"\x17\x03\x03"], False),
        ([b"HTTP/1.1 400 Bad Request"], False),
        ([b""], False),
        ([ConnectionResetError("gone")], False),
    ],
)
def test_a_tls_listener_is_recognized_by_its_response(look, reads, expected):
    """Whatever the record says, the listener speaks TLS."""
    transport = _Transport(*reads)
    assert expected is look(answers_in_tls, transport)
    assert transport.written.startswith(b"\x16\x03")


@pytest.mark.parametrize("ask", [answers_in_plain, answers_in_tls])
def test_probing_a_missing_listener_finds_nothing(look, ask):
    """Nothing is found out, and no error is raised."""
    assert look(ask, ConnectionRefusedError("gone")) is False


class _Connection:
    """A connection whose SASL handshake is answered as scripted."""

    node = Node(1, "host", 9092)

    def __init__(self, answer):
        self.answer = answer
        self.closed = False

    async def send(self, _request):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def close(self):
        self.closed = True


def refuse(connection):
    asyncio.run(refuse_if_sasl_is_required(connection, 60.0))


@pytest.mark.parametrize("error_code", [0, 33])
def test_a_listener_that_requires_sasl_is_named_with_ten_of_its_mechanisms(error_code):
    """It answers a SASL handshake, whether or not it has the mechanism (33)."""
    mechanisms = [f"M{number}" for number in range(11)]
    connection = _Connection(SimpleNamespace(error_code=error_code, mechanisms=mechanisms))
    with pytest.raises(AuthenticationError) as caught:
        refuse(connection)
    offered = "'M0', 'M1', 'M2', 'M3', 'M4', 'M5', 'M6', 'M7', 'M8', 'M9'"
    assert f"this listener requires SASL (it offers {offered}), but" in str(caught.value)
    assert connection.closed


@pytest.mark.parametrize(
    "answer",
    [SimpleNamespace(error_code=34, mechanisms=[]), UnsupportedVersionError("no handshake")],
)
def test_the_connection_to_a_listener_without_sasl_is_kept(answer):
    """It refuses the handshake (34), or does not know it."""
    connection = _Connection(answer)
    refuse(connection)
    assert not connection.closed


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (TimeoutError(), NetworkError, "no response to a SASL handshake"),
        (NetworkError("gone"), NetworkError, "gone"),
    ],
)
def test_the_connection_to_a_silent_listener_is_closed(answer, error, sentence):
    """In that case it is unknown what the listener requires."""
    connection = _Connection(answer)
    with pytest.raises(error, match=sentence):
        refuse(connection)
    assert connection.closed
