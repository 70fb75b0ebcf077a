"""TLS over a transport whose peer stops reading, or reads and sends nothing."""

from __future__ import annotations

import asyncio
import ssl

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.transport.tls_transport import CHUNK_BYTES, TlsTransport
from tests.support.network.scripted_transport import run_without_waiting
from tests.support.security.secure_front import server_context

NODE = Node(7, "localhost", 9092)


class Peer:
    """The other end of a connection in memory: a plain transport and a TLS server behind it."""

    def __init__(self, certificates):
        self._to_peer, self._from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = server_context(certificates.server)
        self._tls = context.wrap_bio(self._to_peer, self._from_peer, server_side=True)
        self._incoming = asyncio.Queue()
        self._is_greeted = False
        self.reads = asyncio.Event()
        self.reads.set()
        #: The client's bytes, decrypted.
        self.received = bytearray()

    async def write(self, buffers):
        """Accept bytes as soon as the peer reads."""
        await self.reads.wait()
        for buffer in buffers:
            self._to_peer.write(buffer)
        try:
            if not self._is_greeted:
                self._tls.do_handshake()
                self._is_greeted = True
            while data := self._tls.read(CHUNK_BYTES):
                self.received += data
        except ssl.SSLWantReadError:
            pass
        self._send()

    def say(self, data):
        """Send this to the client."""
        self._tls.write(data)
        self._send()

    def _send(self):
        if data := self._from_peer.read():
            self._incoming.put_nowait(data)

    async def read(self):
        """Return what the peer has sent."""
        return await self._incoming.get()

    def close(self):
        """Do nothing."""


def trusting_any_certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_responses_are_read_while_a_write_is_blocked(certificates):
    """A peer that accepts no more bytes may have answered the earlier ones."""
    request = bytes(range(256)) * (CHUNK_BYTES // 256) * 3

    async def run():
        peer = Peer(certificates)
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        reading = asyncio.ensure_future(transport.read())
        await asyncio.sleep(0)
        peer.reads.clear()
        writing = asyncio.ensure_future(transport.write([request]))
        await asyncio.sleep(0)
        answers = []
        for answer in (b"first", b"second"):
            peer.say(answer)
            async with asyncio.timeout(30):
                answers.append(await reading)
            reading = asyncio.ensure_future(transport.read())
        is_blocked = not writing.done()
        peer.reads.set()
        await writing
        reading.cancel()
        return answers, is_blocked, bytes(peer.received)

    assert ([b"first", b"second"], True, request) == run_without_waiting(run)


def test_bytes_count_as_accepted_when_the_transport_below_accepts_them(certificates):
    """This time, and not that of the encryption, shows whether the peer still reads."""

    async def run():
        peer = Peer(certificates)
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        peer.taken_at = 12.5
        return transport.taken_at

    assert 12.5 == run_without_waiting(run)


def test_bytes_are_decrypted_in_place(certificates):
    """What the peer sends is decrypted into the given memory, as far as it has room."""

    async def run():
        peer = Peer(certificates)
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        reading = asyncio.ensure_future(transport.read_into(memoryview(memory := bytearray(4))))
        await asyncio.sleep(0)
        peer.say(b"abcdef")
        count = await reading
        return bytes(memory[:count]), await transport.read()

    assert (b"abcd", b"ef") == run_without_waiting(run)
