"""Sockets and their options, and how bytes are sent."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from spark_kafka_sink.network.connection.host_resolver import Address
from spark_kafka_sink.network.connection.transport import (
    PlaintextTransport,
    SocketOptions,
    to_send,
)


def _buffers_of(options: SocketOptions) -> tuple[int, int]:
    with socket.socket() as sock:
        options.apply(sock)
        return (
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        )


def test_buffer_sizes_are_as_configured():
    """send.buffer.bytes and receive.buffer.bytes reach the socket."""
    # Linux doubles the requested size, to have room for its own bookkeeping.
    assert (2 * 20_000, 2 * 30_000) == _buffers_of(
        SocketOptions(send_buffer_bytes=20_000, receive_buffer_bytes=30_000)
    )


def test_buffer_sizes_are_left_to_the_system():
    """With -1 the socket's buffers keep the system's sizes."""
    with socket.socket() as untouched:
        expected = (
            untouched.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            untouched.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        )
    assert expected == _buffers_of(SocketOptions(send_buffer_bytes=-1, receive_buffer_bytes=-1))
    assert SocketOptions() == SocketOptions(send_buffer_bytes=-1, receive_buffer_bytes=-1)


def test_nagle_is_off_and_keep_alive_is_on():
    """Nagle's algorithm is off and keep-alive on, whatever the buffers are."""
    with socket.socket() as sock:
        SocketOptions().apply(sock)
        assert (1, 1) == (
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        )


def test_one_call_sends_1024_buffers_and_reads_64_kib():
    """Linux rejects more buffers than that."""
    calls = []

    class Socket:
        def sendmsg(self, buffers):
            taken = list(buffers)
            calls.append(len(taken))
            return sum(map(len, taken))

        def recv(self, size):
            calls.append(size)
            return b"x"

    async def use() -> None:
        transport = PlaintextTransport(Socket())
        assert transport.write(to_send([b"x"] * 1_025))
        assert b"x" == transport.read()

    asyncio.run(use())
    assert [1_024, 1, 65_536] == calls


def test_a_connected_socket_has_the_options():
    """The options are set before the socket is connected."""

    async def connect(where: tuple) -> int:
        address = Address(socket.AF_INET, socket.IPPROTO_TCP, where)
        transport = await PlaintextTransport.connect(
            address, SocketOptions(receive_buffer_bytes=30_000)
        )
        size = transport._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        transport.close()
        return size

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert 2 * 30_000 == asyncio.run(connect(server.getsockname()))


def test_a_refused_address_is_an_error(unused_port):
    """The error for a port where nothing listens has the system's message."""

    async def connect(where: tuple) -> None:
        address = Address(socket.AF_INET, socket.IPPROTO_TCP, where)
        await PlaintextTransport.connect(address, SocketOptions())

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect(("127.0.0.1", unused_port)))


def _between(use) -> bytes:
    """Connect a transport with small buffers and `use` it; return what was received."""

    async def connect() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = Address(socket.AF_INET, socket.IPPROTO_TCP, server.getsockname())
            transport = await PlaintextTransport.connect(
                address, SocketOptions(send_buffer_bytes=20_000)
            )
            peer = server.accept()[0]
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        received = bytearray()

        async def receive() -> None:
            while data := await loop.sock_recv(peer, 65_536):
                received.extend(data)

        with peer:
            reading = asyncio.create_task(receive())
            await use(transport)
            transport.close()
            await reading
        return bytes(received)

    return asyncio.run(connect())


def test_bytes_accepted_at_once_are_not_waited_for():
    """Empty buffers count for nothing, and nothing is left over."""

    async def use(transport: PlaintextTransport) -> None:
        pending = to_send([b"ab", b"", memoryview(b"cd")])
        assert (True, 0) == (transport.write(pending), len(pending))

    assert b"abcd" == _between(use)


def test_bytes_not_accepted_at_once_remain():
    """The rest follows what has been sent, without any loss or repetition."""
    sent = bytes(range(256)) * 16_000

    async def use(transport: PlaintextTransport) -> None:
        pending, is_sent = to_send([sent[:5], sent[5:]]), asyncio.Event()
        calls = []

        def go_on() -> None:
            calls.append(len(pending))
            if transport.write(pending):
                is_sent.set()

        transport.start(lambda: None, go_on)
        assert not transport.write(pending)
        assert 0 < sum(map(len, pending)) < len(sent)
        await is_sent.wait()
        # Nothing is called once everything has been accepted.
        count = len(calls)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert count == len(calls)

    assert sent == _between(use)


def test_a_write_to_a_closed_transport_is_an_error():
    """The error is the system's."""

    async def use(transport: PlaintextTransport) -> None:
        transport.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            transport.write(to_send([b"ab"]))

    assert b"" == _between(use)


def test_a_socket_may_have_the_number_of_standard_input():
    """A process without standard input may give its number to a socket, which works as usual."""
    data = bytes(8 * 1024 * 1024)

    async def receive_all(peer: socket.socket) -> int:
        received = 0
        while received < len(data):
            received += len(await asyncio.get_running_loop().sock_recv(peer, len(data)))
        return received

    async def use(ours: socket.socket, peer: socket.socket) -> int:
        transport = PlaintextTransport(ours)
        _, received = await asyncio.gather(transport.write_all([data]), receive_all(peer))
        assert not asyncio.get_running_loop().remove_writer(ours.fileno())
        transport.close()
        return received

    kept = os.dup(0)
    os.close(0)
    try:
        ours, peer = socket.socketpair()
        with ours, peer:
            assert 0 == ours.fileno()
            ours.setblocking(False)
            peer.setblocking(False)
            assert len(data) == asyncio.run(use(ours, peer))
            assert -1 == ours.fileno()
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_bytes_are_received_in_place_until_the_end():
    """Bytes are written to the given memory as they arrive; 0 is the end of the stream."""

    async def run() -> tuple[bytes, list[int | None]]:
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        transport = PlaintextTransport(ours)
        memory, counts, has_ended = bytearray(10), [], asyncio.Event()

        def receive() -> None:
            with memoryview(memory) as view:
                count = transport.read_into(view[sum(counts) :])
            counts.append(count)
            if count == 3:
                peer.send(b"defg")
            elif count == 4:
                peer.close()
            else:
                transport.close()
                has_ended.set()

        assert (None, None) == (transport.read(), transport.read_into(memoryview(memory)))
        transport.start(receive, lambda: None)
        peer.send(b"abc")
        await has_ended.wait()
        return bytes(memory[:7]), counts

    assert (b"abcdefg", [3, 4, 0]) == asyncio.run(run())


@pytest.mark.parametrize(("size", "rounds"), [(0, 0), (1, 2), (65_536, 2), (65_537, 4)])
def test_the_rounds_to_read_depend_on_what_has_arrived(size, rounds):
    """Every round of the loop reads once, and two reads bring 64 KiB if they have arrived."""

    async def run() -> tuple[int, int, int]:
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        transport = PlaintextTransport(ours)
        with peer:
            peer.sendall(bytes(size))
            before, received = transport.rounds_to_read(), 0
            while data := transport.read():
                received += len(data)
            after = transport.rounds_to_read()
        transport.close()
        return before, received, after

    assert (rounds, size, 0) == asyncio.run(run())


def test_received_bytes_can_be_waited_for():
    """Before the start a caller waits for bytes that arrive later, and for the stream's end."""

    async def run() -> list[bytes]:
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        transport = PlaintextTransport(ours)
        receiving = asyncio.ensure_future(transport.receive())
        await asyncio.sleep(0)
        with peer:
            peer.send(b"abc")
            received = [await receiving]
        received.append(await transport.receive())
        transport.close()
        return received

    assert [b"abc", b""] == asyncio.run(run())
