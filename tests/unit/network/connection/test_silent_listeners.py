"""When a dialer probes whether a listener speaks another protocol than the client."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from types import SimpleNamespace

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import dialer as dialer_module
from spark_kafka_sink.network.connection.dialer import Dialer
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.connection.tls_transport import TlsTransport

NODE = Node(1, "host", 9092)


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made.getsockname()


@pytest.fixture
def looks(monkeypatch):
    """Respond to each probe as scripted, and record its address and its timeout."""
    made = SimpleNamespace(asked=[], answer=True)

    def answers(protocol):
        async def look(address, _options, timeout):  # noqa: ASYNC109  as the real ones
            made.asked.append((protocol, address.socket_address, timeout))
            return made.answer

        return look

    monkeypatch.setattr(dialer_module, "answers_in_tls", answers("tls"))
    monkeypatch.setattr(dialer_module, "answers_in_plain", answers("plain"))
    return made


def dialer_to(server, tls=None):
    found = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", server)]
    return Dialer(HostResolver(getaddrinfo=lambda *_, **__: found), tls=tls)


async def connect(dialer):
    (await dialer.connect(NODE, timeout=30)).close()


def test_a_listener_is_probed_once(server, looks):
    """Its protocol does not change, and an overloaded broker gets no more connections."""

    async def run():
        dialer = dialer_to(server)
        await connect(dialer)
        return [await dialer.why_silent(NODE, 7.0) for _ in range(2)]

    first, again = asyncio.run(run())
    assert isinstance(first, AuthenticationError)
    assert again is None
    assert [("tls", server, 7.0)] == looks.asked


def test_a_silent_listener_without_tls_has_no_explanation(server, looks):
    """The reason for its silence is not known."""
    looks.answer = False

    async def run():
        dialer = dialer_to(server)
        await connect(dialer)
        return await dialer.why_silent(NODE, 7.0)

    assert asyncio.run(run()) is None


def test_a_node_that_was_never_dialled_is_not_probed(server, looks):
    """There is no address to probe, and a later probe is still possible."""

    async def run():
        dialer = dialer_to(server)
        before = await dialer.why_silent(NODE, 7.0)
        await connect(dialer)
        return before, await dialer.why_silent(NODE, 7.0)

    before, after = asyncio.run(run())
    assert before is None
    assert isinstance(after, AuthenticationError)


@pytest.mark.parametrize(("answer", "error"), [(True, AuthenticationError), (False, OSError)])
def test_a_listener_that_ends_a_handshake_is_probed_once_for_half_of_the_time(
    monkeypatch, server, looks, answer, error
):
    """The probe is for a plain listener, since a TLS client never probes for TLS."""

    async def refuse(plain, *_):
        plain.close()
        raise dialer_module.HandshakeEndedError("the peer hung up")

    monkeypatch.setattr(TlsTransport, "handshake", refuse)
    looks.answer = answer
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def run():
        dialer = dialer_to(server, SimpleNamespace(current=lambda: context))
        with pytest.raises(error):
            await connect(dialer)
        for _ in range(2):
            with suppress(OSError):
                await connect(dialer)
        return await dialer.why_silent(NODE, 7.0)

    assert asyncio.run(run()) is None
    assert [("plain", server, 15.0)] == looks.asked
