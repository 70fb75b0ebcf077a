"""Sending and receiving bytes over one socket, independent of Kafka.

Writes use `sendmsg` on the caller's buffers. asyncio's own transports join the buffers into one
bytes object first (in all of Python 3.11), which would copy every record batch once more.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.network.connection.host_resolver import Address

#: Linux accepts at most 1024 buffers in one call (IOV_MAX).
MAX_BUFFERS_PER_WRITE = 1024
READ_SIZE = 65_536
#: The reads that bring at least `READ_SIZE` bytes if they have arrived. A reader that passes memory
#: for the rest of a frame (`read_into`) may get less, but no two such reads follow one another.
READS_PER_READ_SIZE = 2
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
    """A byte stream to a peer. No method waits."""

    @property
    def taken_at(self) -> float:
        """When the operating system last accepted bytes to send, by the loop's clock."""

    def start(self, on_readable: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call `on_readable` as long as there is something to read, until the transport is closed.

        `on_readable` reads once each time. `on_writable` is called when the operating system may
        accept more bytes after a `write` that it did not accept in full.
        """

    def read(self) -> bytes | None:
        """Return bytes that have arrived; None without any, nothing at the end of the stream."""

    def read_into(self, room: memoryview) -> int | None:
        """Write bytes that have arrived to `room`; return their number, like `read`."""

    def rounds_to_read(self) -> int:
        """Return the most rounds of the loop needed to read what has arrived; 0 without any."""

    def write(self, pending: deque[memoryview]) -> bool:
        """Send `pending` buffers in order; return whether the system has accepted every byte.

        Removes from `pending` what need not be passed again. If that leaves anything to send,
        `on_writable` will be called, and no bytes but these may be written next.
        """

    def close(self) -> None:
        """Close at once; nothing is called any more. May be called more than once."""


def to_send(buffers: Iterable[bytes | memoryview]) -> deque[memoryview]:
    """Return the buffers that are not empty as bytes to send, see `Transport.write`."""
    return deque([memoryview(buffer).cast("B") for buffer in buffers if len(buffer)])


class PlaintextTransport:
    """A TCP connection without encryption."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected, non-blocking socket."""
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._on_writable: Callable[[], None] = lambda: None
        self._is_blocked = False
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

    def start(self, on_readable: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call functions when there is something to do; see `Transport.start`."""
        self._on_writable = on_writable
        self._loop.add_reader(self._socket, on_readable)

    def write(self, pending: deque[memoryview]) -> bool:
        """Send what the operating system accepts; see `Transport.write`."""
        try:
            while pending:
                sent = self._socket.sendmsg(islice(pending, MAX_BUFFERS_PER_WRITE))
                self.taken_at = self._loop.time()
                while sent:
                    first = pending.popleft()
                    if sent < len(first):
                        pending.appendleft(first[sent:])
                        break
                    sent -= len(first)
        except (BlockingIOError, InterruptedError):
            if not self._is_blocked:
                self._is_blocked = True
                self._loop.add_writer(self._socket, self._go_on)
            return False
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(self._socket)
        return True

    def _go_on(self) -> None:
        self._on_writable()

    def read(self) -> bytes | None:
        """Return bytes that have arrived; see `Transport.read`."""
        try:
            return self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return None

    def read_into(self, room: memoryview) -> int | None:
        """Write bytes that have arrived to `room`; see `Transport.read_into`."""
        try:
            return self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return None

    def rounds_to_read(self) -> int:
        """Return the rounds for what the system has received; see `Transport.rounds_to_read`."""
        (arrived,) = struct.unpack("i", fcntl.ioctl(self._socket, termios.FIONREAD, bytes(4)))
        return READS_PER_READ_SIZE * -(-int(arrived) // READ_SIZE)

    def close(self) -> None:
        """Close the socket; see `Transport.close`."""
        if self._socket.fileno() >= 0:
            try:
                self._loop.remove_writer(self._socket)
                self._loop.remove_reader(self._socket)
            finally:
                self._socket.close()

    # --- before `start`, for a caller that has nothing else to do

    async def write_all(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Send all buffers; return when the system has accepted the last byte."""
        pending = to_send(buffers)
        while not self.write(pending):
            writable: asyncio.Future[None] = self._loop.create_future()
            self._on_writable = partial(_wake, writable)
            await writable

    async def receive(self) -> bytes:
        """Wait for bytes and return them; return nothing at the end of the stream."""
        while (data := self.read()) is None:
            readable: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(self._socket, _wake, readable)
            try:
                await readable
            finally:
                if self._socket.fileno() >= 0:
                    self._loop.remove_reader(self._socket)
        return data


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
