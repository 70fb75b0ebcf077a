"""How a TLS connection ends: before any data, in the middle, by an alert, or regularly."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.tls_transport import HandshakeEndedError, TlsTransport
from spark_kafka_sink.network.connection.transport import to_send
from tests.support.network.scripted_transport import run_without_waiting
from tests.support.security.secure_front import server_context

NODE = Node(7, "localhost", 9092)
#: The head of a record whose rest never arrives.
BEGUN = b"\x16\x03\x03\x00\x7a"


class Peer:
    """A TLS server in memory behind a plain transport, which may fail from some write on."""

    def __init__(self, context):
        self._to_peer, self._from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._to_peer, self._from_peer, server_side=True)
        self._incoming = asyncio.Queue()
        self.fails = False
        self.alert = b""
        self.sizes = []
        self.is_blocked = False
        self.is_closed = False

    def start(self, on_readable, on_writable):
        """Call nothing."""

    def write(self, pending):
        """Receive bytes, and answer as a server does."""
        if self.fails:
            raise ConnectionResetError("the peer hung up")
        if self.is_blocked:
            return not pending
        for buffer in pending:
            self.sizes.append(len(buffer))
            self._to_peer.write(buffer)
        pending.clear()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # It refuses the client: the alert is there when the client writes.
            self.fails, self.alert = True, self._from_peer.read()
            return True
        if data := self._from_peer.read():
            self._incoming.put_nowait(data)
        return True

    async def write_all(self, buffers):
        """Receive bytes of the handshake."""
        self.write(to_send(buffers))

    async def receive(self):
        """Return what the server has sent."""
        return await self._incoming.get()

    def read(self):
        """Return the alert, if there is one."""
        return self.alert or None

    def close(self):
        """Record that it was closed."""
        self.is_closed = True


class Script:
    """A plain transport that accepts everything and reads as scripted."""

    def __init__(self, *reads):
        self._reads = list(reads)

    async def write_all(self, buffers):
        """Accept bytes."""

    async def receive(self):
        """Return or raise what comes next."""
        data = self._reads.pop(0)
        if isinstance(data, Exception):
            raise data
        return data

    def close(self):
        """Do nothing."""


def trusting_any_certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize(
    ("reads", "is_at_once"),
    [
        ([b""], True),
        ([ConnectionResetError("reset")], True),
        ([BEGUN, b""], False),
        ([BEGUN, ConnectionResetError("reset")], False),
    ],
)
def test_a_handshake_that_ends_before_any_bytes_is_distinguished(reads, is_at_once):
    """Only the former may come from a listener that does not speak TLS at all."""

    async def run():
        await TlsTransport.handshake(Script(*reads), trusting_any_certificate(), NODE)

    with pytest.raises(OSError) as caught:  # noqa: PT011  the kind is what counts
        asyncio.run(run())
    assert is_at_once is isinstance(caught.value, HandshakeEndedError)


def test_a_request_is_encrypted_128_kib_at_a_time(certificates):
    """Encrypted bytes are sent before more are made, so a slow peer costs no more memory."""

    async def run():
        peer = Peer(server_context(certificates.server))
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        peer.sizes.clear()
        assert transport.write(to_send([bytes(3 * 131_072)]))
        return peer.sizes

    sizes = run_without_waiting(run)
    assert [131_072] * 3 == sizes[::2]
    assert 3 == len(sizes[1::2])
    assert max(sizes[1::2]) < 1_000


def test_a_close_notify_is_sent_unless_a_write_is_under_way(certificates):
    """Nothing may follow half a record."""

    async def run(is_writing):
        peer = Peer(server_context(certificates.server))
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        peer.sizes.clear()
        if is_writing:
            peer.is_blocked = True
            assert not transport.write(to_send([b"x"]))
            peer.is_blocked = False
        transport.close()
        transport.close()
        return len(peer.sizes), peer.is_closed

    assert (1, True) == run_without_waiting(lambda: run(False))
    assert (0, True) == run_without_waiting(lambda: run(True))


def test_a_failed_write_raises_the_alert_of_the_peer(certificates):
    """In TLS 1.3 an alert after the handshake says that a certificate is missing."""

    async def run(*, is_told):
        context = server_context(certificates.server)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificates.authority.pem)
        peer = Peer(context)
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        assert peer.alert
        if not is_told:
            peer.alert = b""
        transport.write(to_send([b"x"]))

    with pytest.raises(AuthenticationError, match="certificate"):
        run_without_waiting(lambda: run(is_told=True))
    with pytest.raises(ConnectionResetError, match="the peer hung up"):
        run_without_waiting(lambda: run(is_told=False))
