"""TLS over a plain transport: OpenSSL turns bytes into bytes, the socket stays ours.

Both sides of the connection may make OpenSSL say something (a read may have to answer a key
update), and what it says must leave in the order in which it was said: hence the lock.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.tls_errors import alert_failure, tls_failure
from spark_kafka_sink.network.transport import READ_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.transport import PlaintextTransport

#: How many bytes are encrypted before they are sent: some records of TLS, and little memory.
CHUNK_BYTES = 131_072


_ENDED_AT_ONCE = "the peer closed the connection at the beginning of the TLS handshake"


class HandshakeEndedError(ConnectionError):
    """The peer hung up on our first message without a word; it may not speak TLS at all."""


class TlsTransport:
    """A `Transport` whose bytes are encrypted on their way. Made by `handshake`."""

    def __init__(self, plain: PlaintextTransport, context: ssl.SSLContext, node: Node) -> None:
        """Take over a connected transport; nothing is said yet."""
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
        """Make sure of the peer, and have it make sure of us, as the context says.

        Takes over `plain`, and closes it when that fails. Raises AuthenticationError for what will
        fail the next time as well, HandshakeEndedError or another OSError for a connection that
        ended, ValueError for a host that cannot stand in a certificate.
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
                # The peer is told why, if it still listens.
                with suppress(OSError):
                    await self._flush()
                raise tls_failure(error, self._node) from error
            else:
                await self._flush()
                return

    @property
    def taken_at(self) -> float:
        """See `Transport.taken_at`."""
        return self._plain.taken_at

    async def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """See `Transport.write`."""
        try:
            for buffer in buffers:
                view = memoryview(buffer).cast("B")
                for start in range(0, len(view), CHUNK_BYTES):
                    self._tls.write(view[start : start + CHUNK_BYTES])
                    if self._outgoing.pending >= CHUNK_BYTES:
                        await self._flush()
            await self._flush()
        except OSError:
            # Who refuses our certificate in TLS 1.3 says so after the handshake, and hangs up.
            self._raise_alert_received()
            raise

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """See `Transport.begin_write`: what is encrypted too early could not be taken back."""
        return buffers

    async def read(self) -> bytes:
        """See `Transport.read`; AuthenticationError where the peer says that it refuses us."""
        while True:
            try:
                return self._tls.read(READ_SIZE)
            except ssl.SSLWantReadError:
                # A flush under way takes along what reading makes OpenSSL say. To wait for it would
                # be to read nothing from a peer that has answered, but takes no more bytes.
                if not self._sending.locked():
                    await self._flush()
                await self._receive()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return b""
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
        """See `Transport.close`; says goodbye if that costs no waiting."""
        if not self._sending.locked():
            with suppress(ssl.SSLError, OSError):
                self._tls.unwrap()
            if farewell := self._outgoing.read():
                self._plain.write_nowait(farewell)
        self._plain.close()
