"""TLS over a plain transport: OpenSSL converts the bytes, the socket remains ours.

Both reads and writes can make OpenSSL produce output (a read may have to answer a key update). All
output is sent in the order in which it was produced, and what the operating system does not accept
at once is kept here. A peer that accepts no bytes may still have sent some, so reads do not wait
for that.

OpenSSL also keeps input: one call to the socket may bring several records, and the event loop does
not know of them. So the socket is read once for each of its events, and then the reader is called
until all of that is decrypted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.connection.connection_errors import alert_failure, tls_failure
from spark_kafka_sink.network.connection.transport import READ_SIZE, PlaintextTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import Node

T = TypeVar("T")

#: The number of bytes encrypted before they are sent: several TLS records, but little memory.
CHUNK_BYTES = 131_072


_ENDED_AT_ONCE = "the peer closed the connection at the beginning of the TLS handshake"


class HandshakeEndedError(ConnectionError):
    """The peer hung up on our first message without a response; it may not speak TLS at all."""


class TlsTransport:
    """A `Transport` that encrypts its bytes. Created by `handshake`."""

    def __init__(self, plain: PlaintextTransport, context: ssl.SSLContext, node: Node) -> None:
        """Take over a connected transport; nothing is sent yet."""
        self._plain = plain
        self._node = node
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=node.host)
        #: Encrypted bytes that the operating system has not accepted yet.
        self._unsent: deque[memoryview] = deque()
        self._heard_anything = False
        self._on_readable: Callable[[], None] = lambda: None
        self._on_writable: Callable[[], None] = lambda: None
        #: Whether OpenSSL may have input that has not been decrypted.
        self._has_input = False
        self._read_error: Exception | None = None
        self._is_closed = False

    @classmethod
    async def handshake(
        cls, plain: PlaintextTransport, context: ssl.SSLContext, node: Node
    ) -> TlsTransport:
        """Perform the TLS handshake, in which both sides authenticate as the context requires.

        Takes over `plain`, and closes it on failure. Raises AuthenticationError for a permanent
        failure, HandshakeEndedError or another OSError for a connection that ended, ValueError for
        a host that cannot be in a certificate.
        """
        try:
            transport = cls(plain, context, node)
            await transport._shake_hands()
        except BaseException:
            plain.close()
            raise
        return transport

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._plain.write_all([self._outgoing.read()])
                await self._receive()
            except ssl.SSLError as error:
                if isinstance(error, ssl.SSLEOFError) and not self._heard_anything:
                    raise HandshakeEndedError(_ENDED_AT_ONCE) from None
                # Send the alert that says why, if the peer still reads.
                with suppress(OSError):
                    await self._plain.write_all([self._outgoing.read()])
                raise tls_failure(error, self._node) from error
            else:
                await self._plain.write_all([self._outgoing.read()])
                return

    async def _receive(self) -> None:
        try:
            data = await self._plain.receive()
        except ConnectionError:
            if self._heard_anything:
                raise
            raise HandshakeEndedError(_ENDED_AT_ONCE) from None
        self._take(data)

    def _take(self, data: bytes) -> None:
        if data:
            self._heard_anything = True
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    @property
    def taken_at(self) -> float:
        """When the operating system last accepted bytes; see `Transport.taken_at`."""
        return self._plain.taken_at

    def start(self, on_readable: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call functions when there is something to do; see `Transport.start`."""
        self._on_readable, self._on_writable = on_readable, on_writable
        self._plain.start(self._on_input, self._on_room)
        # The end of the handshake may have brought more than that.
        self._has_input = True
        asyncio.get_running_loop().call_soon(self._read_input)

    def _on_input(self) -> None:
        try:
            data = self._plain.read()
            if data is not None:
                self._take(data)
        except Exception as error:  # noqa: BLE001  the reader meets it, and ends the connection
            self._read_error = error
        self._has_input = True
        self._read_input()

    def _read_input(self) -> None:
        while self._has_input and not self._is_closed:
            self._on_readable()

    def _on_room(self) -> None:
        # The next call of the reader or the writer meets an error again.
        with suppress(OSError, MemoryError):
            if not self._flush():
                return
        self._on_writable()

    def write(self, pending: deque[memoryview]) -> bool:
        """Encrypt and send `pending` buffers; see `Transport.write`."""
        try:
            while self._flush():
                if not pending:
                    return True
                while pending and self._outgoing.pending < CHUNK_BYTES:
                    first = pending.popleft()
                    self._tls.write(first[:CHUNK_BYTES])
                    if len(first) > CHUNK_BYTES:
                        pending.appendleft(first[CHUNK_BYTES:])
        except OSError:
            # In TLS 1.3 a peer that refuses our certificate says so after the handshake, and hangs
            # up.
            self._raise_alert_received()
            raise
        return False

    def _flush(self) -> bool:
        """Send what is encrypted; return whether the operating system has accepted all of it."""
        while self._plain.write(self._unsent):
            data = self._outgoing.read(CHUNK_BYTES)
            if not data:
                return True
            self._unsent.append(memoryview(data))
        return False

    def read(self) -> bytes | None:
        """Return decrypted bytes; AuthenticationError if the peer refuses us."""
        return self._read(lambda: self._tls.read(READ_SIZE), b"")

    def read_into(self, room: memoryview) -> int | None:
        """Write decrypted bytes to `room`; see `read` and `Transport.read_into`."""
        # With a buffer it returns a number, unlike what its annotation says.
        return self._read(lambda: cast("int", self._tls.read(len(room), room)), 0)

    def rounds_to_read(self) -> int:
        """Return the rounds for the encrypted bytes; see `Transport.rounds_to_read`."""
        # OpenSSL has none that could be decrypted: each round decrypts all that it reads.
        return self._plain.rounds_to_read()

    def _read(self, decrypt: Callable[[], T], at_the_end: T) -> T | None:
        try:
            return decrypt()
        except ssl.SSLWantReadError:
            self._has_input = False
            if self._read_error is not None:
                raise self._read_error from None
            # The peer may be waiting for what this read has made. If a write waits for the system,
            # `_on_room` sends this too: sent here, the writer would not hear that there is room.
            if not self._unsent:
                self._flush()
            return None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self._has_input = False
            return at_the_end
        except ssl.SSLError as error:
            raise alert_failure(error.reason or "unknown", self._node) from error

    def _raise_alert_received(self) -> None:
        with suppress(OSError):
            self._incoming.write(self._plain.read() or b"")
        try:
            while self._tls.read(READ_SIZE):
                pass
        except (ssl.SSLWantReadError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return
        except ssl.SSLError as error:
            failure = alert_failure(error.reason or "unknown", self._node)
            if isinstance(failure, AuthenticationError):
                raise failure from error

    def close(self) -> None:
        """Close the connection, with a TLS close notification if that needs no waiting."""
        if not self._is_closed and not self._unsent:
            with suppress(ssl.SSLError, OSError):
                self._tls.unwrap()
            with suppress(OSError):
                self._flush()
        self._is_closed = True
        self._plain.close()
