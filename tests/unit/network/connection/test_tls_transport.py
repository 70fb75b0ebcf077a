"""TLS over a transport whose peer stops reading, or reads and sends nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from unittest.mock import Mock

import pytest

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.tls_transport import CHUNK_BYTES, TlsTransport
from spark_kafka_sink.network.connection.transport import to_send
from tests.support.network.scripted_transport import run_without_waiting
from tests.support.security.secure_front import server_context

NODE = Node(7, "localhost", 9092)


class Peer:
    """The other end of a connection in memory: a plain transport and a TLS server behind it."""

    def __init__(self, certificates):
        self._to_peer, self._from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = server_context(certificates.server)
        self._tls = context.wrap_bio(self._to_peer, self._from_peer, server_side=True)
        self._incoming = deque()
        self._is_greeted = False
        self._is_blocked = False
        self._on_readable = self._on_writable = None
        #: Whether the peer accepts bytes.
        self.reads = True
        #: The client's bytes, decrypted.
        self.received = bytearray()
        #: How often the client has read.
        self.read_count = 0

    def start(self, on_readable, on_writable):
        """Set what to call."""
        self._on_readable, self._on_writable = on_readable, on_writable

    def write(self, pending):
        """Accept all bytes if the peer reads."""
        if not self.reads:
            self._is_blocked = bool(pending)
            return not pending
        self._is_blocked = False
        for buffer in pending:
            self._to_peer.write(buffer)
        pending.clear()
        try:
            if not self._is_greeted:
                self._tls.do_handshake()
                self._is_greeted = True
            while data := self._tls.read(CHUNK_BYTES):
                self.received += data
        except ssl.SSLWantReadError:
            pass
        self._send()
        return True

    async def write_all(self, buffers):
        """Accept bytes during the handshake."""
        self.write(to_send(buffers))

    def read_again(self):
        """Accept bytes from now on."""
        self.reads = True
        self.go_on()

    def go_on(self):
        """Call the writer if it waits for room and there is some, as the event loop does."""
        if self._is_blocked and self.reads:
            self._on_writable()

    def say(self, *answers):
        """Send these to the client, which receives them together."""
        for answer in answers:
            self._tls.write(answer)
        self._send()
        while self._incoming and self._on_readable is not None:
            self._on_readable()

    def _send(self):
        if data := self._from_peer.read():
            self._incoming.append(data)

    def read(self):
        """Return what the peer has sent."""
        self.read_count += 1
        return self._incoming.popleft() if self._incoming else None

    def rounds_to_read(self):
        """Count what the peer has sent."""
        return len(self._incoming)

    async def receive(self):
        """Return what the peer has sent during the handshake."""
        return self._incoming.popleft()

    def close(self):
        """Do nothing."""


def trusting_any_certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Client:
    """A transport over TLS to a peer, and what it has read."""

    def __init__(self, transport, read=None):
        self.transport = transport
        self.answers = []
        self.writable_count = 0
        self._read = read or transport.read
        transport.start(self._on_readable, self._on_writable)

    def _on_readable(self):
        answer = self._read()
        if answer is not None:
            self.answers.append(answer)

    def _on_writable(self):
        self.writable_count += 1


async def connected(peer, read=None):
    transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
    client = Client(transport, read)
    # What came with the handshake is read, and what came after it.
    await asyncio.sleep(0)
    peer.say()
    return client


async def blocked(certificates, request):
    """Return a peer that accepts no bytes, a client whose write waits for it, and what is left."""
    peer = Peer(certificates)
    client = await connected(peer)
    peer.reads = False
    pending = to_send([request])
    assert not client.transport.write(pending)
    return peer, client, pending


def test_responses_are_read_while_a_write_is_blocked(certificates):
    """A peer that accepts no more bytes may have answered the earlier ones."""
    request = bytes(range(256)) * (CHUNK_BYTES // 256) * 3

    async def run():
        peer, client, pending = await blocked(certificates, request)
        # No more is encrypted than can be sent at once.
        assert 2 * CHUNK_BYTES == sum(map(len, pending))
        peer.say(b"first")
        peer.say(b"second")
        assert 0 == client.writable_count
        peer.read_again()
        assert 1 == client.writable_count
        assert client.transport.write(pending)
        return client.answers, bytes(peer.received)

    assert ([b"first", b"second"], request) == run_without_waiting(run)


def test_a_read_leaves_the_rest_of_a_blocked_write_to_the_writer(certificates):
    """A peer that answers and accepts bytes again at once: the writer must still go on."""
    request = bytes(range(256)) * (CHUNK_BYTES // 256) * 3

    async def run():
        peer, client, pending = await blocked(certificates, request)
        peer.reads = True
        # The event loop calls the reader first, if there is both something to read and room.
        peer.say(b"answer")
        peer.go_on()
        assert (1, [b"answer"]) == (client.writable_count, client.answers)
        assert client.transport.write(pending)
        return bytes(peer.received)

    assert request == run_without_waiting(run)


def test_a_write_is_complete_when_its_last_byte_was_accepted(certificates):
    """A request that is encrypted but not accepted yet is still unsent."""

    async def run():
        peer = Peer(certificates)
        client = await connected(peer)
        peer.reads = False
        pending = to_send([b"request"])
        assert (False, 0) == (client.transport.write(pending), len(pending))
        assert not client.transport.write(pending)
        peer.read_again()
        assert client.transport.write(pending)
        return bytes(peer.received)

    assert b"request" == run_without_waiting(run)


def test_all_that_arrived_together_is_read_at_once(certificates):
    """No event announces the bytes that OpenSSL has taken from the socket with others."""

    async def run():
        peer = Peer(certificates)
        client = await connected(peer)
        before = peer.read_count
        peer.say(b"first", b"second", b"third")
        return client.answers, peer.read_count - before

    # The socket is read once for each event, so that other connections get their turn.
    assert ([b"first", b"second", b"third"], 1) == run_without_waiting(run)


def test_what_came_with_the_handshake_is_read(certificates):
    """A peer may send data together with the end of the handshake, and then nothing more."""

    async def run():
        peer = Peer(certificates)
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        peer.say(b"hello")
        while data := peer.read():
            transport._take(data)
        client = Client(transport)
        await asyncio.sleep(0)
        return client.answers

    assert [b"hello"] == run_without_waiting(run)


def test_nothing_is_read_after_the_close(certificates):
    """A reader that closes the transport is not called for the rest of what has arrived."""

    async def run():
        peer = Peer(certificates)
        client = await connected(peer)
        read = client.transport.read

        def read_and_close():
            answer = read()
            client.transport.close()
            return answer

        client._read = read_and_close
        peer.say(b"first", b"second")
        return client.answers

    assert [b"first"] == run_without_waiting(run)


def test_bytes_count_as_accepted_when_the_transport_below_accepts_them(certificates):
    """This time, and not that of the encryption, shows whether the peer still reads."""

    async def run():
        peer = Peer(certificates)
        transport = await TlsTransport.handshake(peer, trusting_any_certificate(), NODE)
        peer.taken_at = 12.5
        return transport.taken_at

    assert 12.5 == run_without_waiting(run)


def test_the_rounds_to_read_are_those_of_the_transport_below(certificates):
    """Each read of the transport below is decrypted at once, so nothing is left to read."""

    async def run():
        peer = Peer(certificates)
        client = await connected(peer)
        peer._incoming.extend([b"first", b"second"])
        return client.transport.rounds_to_read()

    assert 2 == run_without_waiting(run)


def test_bytes_are_decrypted_in_place(certificates):
    """What the peer sends is decrypted into the given memory, as far as it has room."""

    async def run():
        peer, memory = Peer(certificates), bytearray(4)
        client = await connected(peer)
        client._read = lambda: client.transport.read_into(memoryview(memory))
        peer.say(b"abcdef")
        return bytes(memory), client.answers

    assert (b"efcd", [4, 2]) == run_without_waiting(run)


def test_the_reader_meets_the_lack_of_memory(certificates):
    """Only the reader can end the connection: the event loop would end all of the client."""

    async def run():
        peer = Peer(certificates)
        client = await connected(peer)

        def lose():
            peer._incoming.clear()
            raise MemoryError

        peer.read = lose

        def read_or_close():
            try:
                return client.transport.read()
            except MemoryError as error:
                client.transport.close()
                return error

        client._read = read_or_close
        peer.say(b"answer")
        return [type(answer) for answer in client.answers]

    assert [MemoryError] == run_without_waiting(run)


def test_the_writer_meets_the_lack_of_memory(certificates):
    """As for the reader: only the writer can end the connection."""

    async def run():
        peer = Peer(certificates)
        client = await connected(peer)
        peer.reads = False
        pending = to_send([b"request"])
        assert not client.transport.write(pending)
        peer.write = Mock(side_effect=MemoryError)
        peer.read_again()
        assert 1 == client.writable_count
        with pytest.raises(MemoryError):
            client.transport.write(pending)

    run_without_waiting(run)
