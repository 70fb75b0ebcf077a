"""TLS over a plain transport: OpenSSL converts the bytes, the socket remains ours.

Both reads and writes can make OpenSSL produce output (a read may have to answer a key update), and
the output must be sent in the order in which it was produced: hence the lock.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.transport.tls_errors import alert_failure, tls_failure
from spark_kafka_sink.network.transport.transport import READ_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.transport.transport import PlaintextTransport

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
        self._sending = asyncio.Lock()
        self._heard_anything = False

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
                await self._flush()
                await self._receive()
            except ssl.SSLError as error:
                if isinstance(error, ssl.SSLEOFError) and not self._heard_anything:
                    raise HandshakeEndedError(_ENDED_AT_ONCE) from None
                # Send the alert that says why, if the peer still reads.
                with suppress(OSError):
                    await self._flush()
                raise tls_failure(error, self._node) from error
            else:
                await self._flush()
                return

    @property
    def taken_at(self) -> float:
        """When the operating system last accepted bytes; see `Transport.taken_at`."""
        return self._plain.taken_at

    async def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Encrypt and send all buffers; see `Transport.write`."""
        try:
            for buffer in buffers:
                view = memoryview(buffer).cast("B")
                for start in range(0, len(view), CHUNK_BYTES):
                    self._tls.write(view[start : start + CHUNK_BYTES])
                    if self._outgoing.pending >= CHUNK_BYTES:
                        await self._flush()
            await self._flush()
        except OSError:
            # In TLS 1.3 a peer that refuses our certificate says so after the handshake, and hangs
            # up.
            self._raise_alert_received()
            raise

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Return all buffers: what is encrypted too early could not be taken back."""
        return buffers

    async def read(self) -> bytes:
        """Wait for bytes and decrypt them; AuthenticationError if the peer refuses us."""
        return await self._read(lambda: self._tls.read(READ_SIZE), b"")

    async def read_into(self, room: memoryview) -> int:
        """Wait for bytes and decrypt them to `room`; see `read` and `Transport.read_into`."""
        # With a buffer it returns a number, unlike what its annotation says.
        return await self._read(lambda: cast("int", self._tls.read(len(room), room)), 0)

    async def _read(self, decrypt: Callable[[], T], at_the_end: T) -> T:
        while True:
            try:
                return decrypt()
            except ssl.SSLWantReadError:
                # A flush under way also sends the output of this read. Waiting for it would mean
                # reading nothing from a peer that has responded but accepts no more bytes.
                if not self._sending.locked():
                    await self._flush()
                await self._receive()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return at_the_end
            except ssl.SSLError as error:
                raise alert_failure(error.reason or "unknown", self._node) from error

    async def _receive(self) -> None:
        try:
            data = await self._plain.read()
        except ConnectionError:
            if self._heard_anything:
                raise
            raise HandshakeEndedError(_ENDED_AT_ONCE) from None
        if data:
            self._heard_anything = True
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            while data := self._outgoing.read(CHUNK_BYTES):
                await self._plain.write([data])

    def _raise_alert_received(self) -> None:
        try:
            self._incoming.write(self._plain.read_nowait())
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
        if not self._sending.locked():
            with suppress(ssl.SSLError, OSError):
                self._tls.unwrap()
            if farewell := self._outgoing.read():
                self._plain.write_nowait(farewell)
        self._plain.close()
