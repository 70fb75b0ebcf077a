"""Sending and receiving bytes over one socket, independent of Kafka.

Writes use `sendmsg` on the caller's buffers. asyncio's own transports join the buffers into one
bytes object first (in all of Python 3.11), which would copy every record batch once more.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.network.transport.host_resolver import Address

#: Linux accepts at most 1024 buffers in one call (IOV_MAX).
MAX_BUFFERS_PER_WRITE = 1024
READ_SIZE = 65_536
#: The buffer size that leaves the choice to the system.
SYSTEM_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """The options of a socket, set before it is connected."""

    #: send.buffer.bytes (SO_SNDBUF) and receive.buffer.bytes (SO_RCVBUF).
    send_buffer_bytes: int = SYSTEM_DEFAULT
    receive_buffer_bytes: int = SYSTEM_DEFAULT

    def apply(self, sock: socket.socket) -> None:
        """Set the options on a socket; a buffer size of `SYSTEM_DEFAULT` is left to the system."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, True)
        if self.send_buffer_bytes != SYSTEM_DEFAULT:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        if self.receive_buffer_bytes != SYSTEM_DEFAULT:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)


class Transport(Protocol):
    """A byte stream to a peer."""

    @property
    def taken_at(self) -> float:
        """When the operating system last accepted bytes to send, by the loop's clock."""

    async def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send all buffers in order; return when the system has accepted the last byte."""

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Send what the operating system accepts at once, and return the rest, for `write`.

        May only be called while no `write` is under way. Never raises: `write` will meet the same
        error.
        """

    async def read(self) -> bytes:
        """Wait for bytes and return them; return nothing at the end of the stream."""

    async def read_into(self, room: memoryview) -> int:
        """Wait for bytes and write them to `room`; return their number, 0 at the stream's end."""

    def close(self) -> None:
        """Close at once; pending reads and writes fail. May be called more than once."""


def _views(buffers: Sequence[bytes | memoryview]) -> deque[memoryview]:
    return deque(memoryview(buffer) for buffer in buffers if len(buffer))


class PlaintextTransport:
    """A TCP connection without encryption."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected, non-blocking socket."""
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        #: When the operating system last accepted bytes; see `Transport.taken_at`.
        self.taken_at = self._loop.time()

    @classmethod
    async def connect(cls, address: Address, options: SocketOptions) -> PlaintextTransport:
        """Connect to an address; OSError if that fails, also if its address family is disabled."""
        sock = socket.socket(address.family, socket.SOCK_STREAM, address.protocol)
        try:
            sock.setblocking(False)
            options.apply(sock)
            await asyncio.get_running_loop().sock_connect(sock, address.socket_address)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send all buffers; see `Transport.write`."""
        pending = _views(buffers)
        while True:
            try:
                self._send(pending)
            except (BlockingIOError, InterruptedError):
                await self._writable()
            else:
                return

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Send what the operating system accepts at once; see `Transport.begin_write`."""
        pending = _views(buffers)
        with suppress(OSError):
            self._send(pending)
        return pending

    def _send(self, pending: deque[memoryview]) -> None:
        """Send the pending buffers; raises BlockingIOError when the socket accepts no more."""
        while pending:
            sent = self._socket.sendmsg(islice(pending, MAX_BUFFERS_PER_WRITE))
            self.taken_at = self._loop.time()
            while sent:
                first = pending.popleft()
                if sent < len(first):
                    pending.appendleft(first[sent:])
                    break
                sent -= len(first)

    async def read(self) -> bytes:
        """Wait for bytes and return them; see `Transport.read`."""
        return await self._loop.sock_recv(self._socket, READ_SIZE)

    async def read_into(self, room: memoryview) -> int:
        """Wait for bytes and write them to `room`; see `Transport.read_into`."""
        return await self._loop.sock_recv_into(self._socket, room)

    def read_nowait(self) -> bytes:
        """Return what has arrived; nothing if nothing has, or if the stream has ended."""
        with suppress(OSError):
            return self._socket.recv(READ_SIZE)
        return b""

    def write_nowait(self, data: bytes) -> None:
        """Send as much as the operating system accepts at once; the rest is discarded."""
        with suppress(OSError):
            self._socket.send(data)

    def close(self) -> None:
        """Close the socket; see `Transport.close`."""
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise ConnectionAbortedError("the connection was closed")

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_writer(descriptor, wake)
        try:
            await ready
        finally:
            if self._socket.fileno() >= 0:
                self._loop.remove_writer(descriptor)
