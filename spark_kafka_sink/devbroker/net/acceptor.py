"""Accepting clients: the listening sockets, their key stores, and the limits of connections.

`Acceptor` is what a broker and the Schema Registry have in common. It knows nothing of what is
spoken on a connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spark_kafka_sink.devbroker.net.sasl_servers import Credentials
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.security.tls import ClientAuth, tls_server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.base.broker_settings import ConnectionLimits, Patience
    from spark_kafka_sink.devbroker.net.listener import Listener

logger = logging.getLogger(__name__)

_BACKLOG = 128
_ACCEPT_RETRY_SECONDS = 1.0
_TLS_SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class OpenListener:
    """A listener with its open resources."""

    listener: Listener
    socket: socket.socket
    tls: ssl.SSLContext | None
    credentials: Credentials | None


class AcceptedConnection(asyncio.BaseProtocol):
    """A connection of an acceptor: its transport, and how long its client may take.

    `name` is what the log calls it; `patience` ends a connection whose client takes longer.
    """

    #: How many bytes of responses the transport holds before it asks for a pause.
    max_pending_write_bytes: int

    def __init__(self, acceptor: Acceptor, name: str, client_host: str, patience: Patience) -> None:
        self.client_host = client_host
        self._acceptor = acceptor
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._patience = patience
        #: Checks whether patience has run out; fires at that time or earlier.
        self._watchdog: asyncio.TimerHandle | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to read from the client."""
        # The transport of an accepted socket is a stream in both directions.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self.max_pending_write_bytes)
        self._acceptor.connected(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        if exc is not None:
            logger.debug("%s: %s", self._name, exc)
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = None
        self._transport = None
        self._acceptor.disconnected(self)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read and handle nothing more until `resume`."""
        raise NotImplementedError

    def resume(self) -> None:
        """Continue with what the client has sent in the meantime."""
        raise NotImplementedError

    @property
    def _is_working(self) -> bool:
        """Whether what the client waits for takes its time here."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Schedule the next check for when patience runs out, or leave an earlier one."""
        ends_at, _ = self._patience.ends()
        if self._watchdog is not None:
            if self._watchdog.when() <= ends_at:
                return
            self._watchdog.cancel()
        self._watchdog = self._acceptor.loop.call_at(ends_at, self._check_limits)

    def _check_limits(self) -> None:
        self._watchdog = None
        now = self._acceptor.loop.time()
        if self._is_working:
            self._patience.active(now)
        ends_at, reason = self._patience.ends()
        if ends_at <= now:
            logger.info("closing %s: %s", self._name, reason)
            self.abort()
        elif self._transport is not None:
            self._watch()


class Acceptor:
    """Accepts clients on listeners, and tracks their connections, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: ConnectionLimits) -> None:
        self.loop = loop
        self._limits = limits
        self._connections: set[AcceptedConnection] = set()
        #: Set while there is no connection.
        self._drained = asyncio.Event()
        self._drained.set()
        self._open: list[OpenListener] = []
        self._accepting: set[asyncio.Task[None]] = set()
        #: Whether clients have to wait, as for a process that is stopped by SIGSTOP.
        self.is_paused = False
        self._next_connection_id = 1
        #: Connections by the client's address, TLS handshakes included.
        self._clients: Counter[str] = Counter()

    def connect(self, opened: OpenListener, connection_id: int, host: str) -> AcceptedConnection:
        """Return the connection of a new client, whose address is `host`."""
        raise NotImplementedError

    def open(self, listeners: Sequence[Listener]) -> list[int]:
        """Open the listeners' sockets, and return their ports; `accept` begins to use them.

        Key stores are read now, so that stopping and starting picks up renewed ones. Raises
        OSError, and ConfigError for key stores that cannot be read.
        """
        try:
            for listener in listeners:
                self._open.append(_open(listener))
        except BaseException:
            self._close_listeners()
            raise
        return [int(opened.socket.getsockname()[1]) for opened in self._open]

    def accept(self) -> None:
        """Accept clients from now on."""
        for opened in self._open:
            self._listen(opened)

    def pause(self) -> None:
        """Accept, read and answer nothing until `resume`; all connections remain open."""
        self.is_paused = True
        for opened in self._open:
            self.loop.remove_reader(opened.socket)
        for connection in self._connections:
            connection.pause()

    def resume(self) -> None:
        """Continue after `pause`, with the clients that wait."""
        self.is_paused = False
        self.accept()
        for connection in list(self._connections):
            connection.resume()

    async def close(self) -> None:
        """Stop listening, abort every connection, and wait until all are closed."""
        self._close_listeners()
        await asyncio.sleep(0)  # A task that has not begun would leave its socket open.
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        await self._drained.wait()

    def connected(self, connection: AcceptedConnection) -> None:
        """Add a connection."""
        self._connections.add(connection)
        self._drained.clear()
        if self.is_paused:
            connection.pause()

    def disconnected(self, connection: AcceptedConnection) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        self._release(connection.client_host)
        if not self._connections:
            self._drained.set()

    def _close_listeners(self) -> None:
        open_listeners, self._open = self._open, []
        for opened in open_listeners:
            self.loop.remove_reader(opened.socket)
            opened.socket.close()

    def _listen(self, opened: OpenListener) -> None:
        if opened in self._open and not self.is_paused:
            self.loop.add_reader(opened.socket, self._accept, opened)

    def _accept(self, opened: OpenListener) -> None:
        """Accept a waiting client.

        Not done with asyncio's own server, which loses a client that it has just accepted if the
        server is closed a moment later.
        """
        if opened not in self._open:
            return
        try:
            client, address = opened.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client has left already.
        except OSError:
            logger.exception("cannot accept a connection; retrying soon")
            self.loop.remove_reader(opened.socket)
            self.loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen, opened)
            return
        host = str(address[0])
        if not self._admit(host):
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self._attach(client, host, opened))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def _admit(self, host: str) -> bool:
        """Count a new client; return False if a limit is reached."""
        limits = self._limits
        if (
            self._clients.total() >= limits.max_connections
            or self._clients[host] >= limits.max_connections_per_ip
        ):
            logger.info("closing a connection from %s: there are too many", host)
            return False
        self._clients[host] += 1
        return True

    def _release(self, host: str) -> None:
        self._clients[host] -= 1
        if not self._clients[host]:
            del self._clients[host]

    async def _attach(self, client: socket.socket, host: str, opened: OpenListener) -> None:
        connection_id = self._next_connection_id
        self._next_connection_id += 1
        connection = self.connect(opened, connection_id, host)
        with_tls = opened.tls is not None
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=opened.tls,
                ssl_handshake_timeout=self._limits.authentication_timeout_ms / 1000
                if with_tls
                else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS if with_tls else None,
            )
        except OSError as error:
            self._release(host)
            logger.info("connection %d: the TLS handshake failed: %s", connection_id, error)


def _open(listener: Listener) -> OpenListener:
    """Open a listener's socket and read its key stores. Raises OSError, ConfigError."""
    context = None
    if listener.tls is not None:
        stores = {
            name: Path(location).read_bytes()
            for name, location in (
                ("keystore", listener.tls.keystore_location),
                ("truststore", listener.tls.truststore_location),
            )
            if location is not None
        }
        try:
            context = tls_server_context(listener.tls, ClientAuth(listener.client_auth), **stores)
        except ValueError as error:
            raise ConfigError(f"listener {listener.name}: {error}") from None
    sasl = listener.sasl
    credentials = (
        None if sasl is None else Credentials(sasl.users, iterations=sasl.scram_iterations)
    )
    family, _, _, _, address = socket.getaddrinfo(
        listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    opened = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    opened.setblocking(False)
    return OpenListener(listener, opened, context, credentials)
