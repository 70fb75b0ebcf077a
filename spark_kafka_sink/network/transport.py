"""Moving bytes over one socket. Knows no Kafka.

Writes go out by `sendmsg`, straight from the buffers they lie in: asyncio's own transports join
them into one bytes object first (all of Python 3.11), which would copy every record batch again.
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

    from spark_kafka_sink.network.host_resolver import Address

#: Linux takes at most 1024 buffers in one call (IOV_MAX).
MAX_BUFFERS_PER_WRITE = 1024
READ_SIZE = 65_536
#: A buffer size that leaves the choice to the system.
SYSTEM_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """How a socket is set up before it is connected."""

    #: send.buffer.bytes (SO_SNDBUF) and receive.buffer.bytes (SO_RCVBUF).
    send_buffer_bytes: int = SYSTEM_DEFAULT
    receive_buffer_bytes: int = SYSTEM_DEFAULT

    def apply(self, sock: socket.socket) -> None:
        """Set the options; a buffer that is `SYSTEM_DEFAULT` is left to the system."""
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
        """When the operating system last took bytes to be sent, by the loop's clock."""

    async def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send all buffers, in order; return when the operating system has taken the last byte."""

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Send what the operating system takes at once, and give the rest, for `write`.

        Only while no `write` is under way. Fails never: what is wrong `write` will find as well.
        """

    async def read(self) -> bytes:
        """Return the bytes that have come, at least one; nothing at the end of the stream."""

    def close(self) -> None:
        """Close at once; pending reads and writes fail. May be called twice."""


def _views(buffers: Sequence[bytes | memoryview]) -> deque[memoryview]:
    return deque(memoryview(buffer) for buffer in buffers if len(buffer))


class PlaintextTransport:
    """A TCP connection without encryption."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected, non-blocking socket."""
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        #: See `Transport.taken_at`.
        self.taken_at = self._loop.time()

    @classmethod
    async def connect(cls, address: Address, options: SocketOptions) -> PlaintextTransport:
        """Connect to an address; OSError when that fails, also where its family is switched off."""
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
        """See `Transport.write`."""
        pending = _views(buffers)
        while True:
            try:
                self._send(pending)
            except (BlockingIOError, InterruptedError):
                await self._writable()
            else:
                return

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """See `Transport.begin_write`."""
        pending = _views(buffers)
        with suppress(OSError):
            self._send(pending)
        return pending

    def _send(self, pending: deque[memoryview]) -> None:
        """Send what is pending until there is nothing left, or the socket takes no more."""
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
        """See `Transport.read`."""
        return await self._loop.sock_recv(self._socket, READ_SIZE)

    def read_nowait(self) -> bytes:
        """Return what has come; nothing where nothing has, or where the stream has ended."""
        with suppress(OSError):
            return self._socket.recv(READ_SIZE)
        return b""

    def write_nowait(self, data: bytes) -> None:
        """Send as much as the operating system takes at once; the rest is lost."""
        with suppress(OSError):
            self._socket.send(data)

    def close(self) -> None:
        """See `Transport.close`."""
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
