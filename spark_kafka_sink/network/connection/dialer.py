"""Connecting to a node: its name is looked up, and its addresses are tried in turn.

All addresses of a name are tried (client.dns.lookup=use_all_dns_ips). Each attempt starts with the
address after the one that was tried last, so that a lost connection is not made to the same machine
again first (as in ClusterConnectionStates.NodeConnectionState). The name is looked up for every
attempt, since its addresses may have changed. The lookup and the TLS handshake count towards the
time for setting up the connection. The TLS files are read on a separate thread, so that an
unavailable file server does not hold up other connections.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.network.base.daemon_thread import SharedCall
from spark_kafka_sink.network.connection.listener_probe import answers_in_plain, answers_in_tls
from spark_kafka_sink.network.transport.connection_errors import finds_nobody
from spark_kafka_sink.network.transport.tls_errors import peer_speaks_no_tls, peer_speaks_tls
from spark_kafka_sink.network.transport.tls_transport import HandshakeEndedError, TlsTransport
from spark_kafka_sink.network.transport.transport import PlaintextTransport, SocketOptions

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from spark_kafka_sink.errors import AuthenticationError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.authentication.tls_contexts import TlsContexts
    from spark_kafka_sink.network.transport.host_resolver import Address, HostResolver
    from spark_kafka_sink.network.transport.transport import Transport

_THREAD: Final = "kafka-tls-files"
#: The share of the connection setup time that reading the TLS files may take.
_FILES_SHARE: Final = 0.5


def addresses_in_turn(addresses: Sequence[Address], last: Address | None) -> list[Address]:
    """Return the addresses in the order to try, starting after `last` if it is among them."""
    start = addresses.index(last) + 1 if last is not None and last in addresses else 0
    return [*addresses[start:], *addresses[:start]]


class Dialer:
    """The factory of a client's connected transports."""

    def __init__(
        self,
        resolver: HostResolver,
        options: SocketOptions | None = None,
        tls: TlsContexts | None = None,
    ) -> None:
        """Create the dialer; without `tls` connections are not encrypted."""
        self._tls = None if tls is None else SharedCall(_THREAD, tls.current)
        self._resolver = resolver
        self._options = options or SocketOptions()
        self._last_tried: dict[Node, Address] = {}
        self._looked_at: set[Node] = set()

    async def connect(self, node: Node, timeout: float) -> Transport:  # noqa: ASYNC109  shared out among addresses
        """Connect to the first of the node's addresses that answers; OSError if none does.

        Each address gets an equal share of `timeout` seconds, so that one behind a dead route does
        not keep the others from being tried. Raises AuthenticationError at once if TLS shows that
        client and broker are not compatible, ConfigError if the TLS files cannot be used.
        """
        resolved = await self._resolver.addresses(node.host, node.port)
        addresses = addresses_in_turn(resolved, self._last_tried.get(node))
        context = await self._tls_context(node, timeout * _FILES_SHARE)
        errors: list[OSError] = []
        for address in addresses:
            self._last_tried[node] = address
            try:
                async with asyncio.timeout(timeout / len(addresses)):
                    return await self._connect(node, address, context, timeout / len(addresses))
            except OSError as error:
                errors.append(error)
        # The peer is absent only if that holds for every address.
        raise next((error for error in errors if not finds_nobody(error)), errors[-1])

    async def why_silent(self, node: Node, timeout: float) -> AuthenticationError | None:  # noqa: ASYNC109  our own
        """Return why a node hung up on our first request; None if the reason is not known.

        Each node is probed only once: a listener's protocol does not change, and a broker that is
        overloaded must not get twice the connections.
        """
        address = self._last_tried.get(node)
        if self._tls is not None or address is None or node in self._looked_at:
            return None
        self._looked_at.add(node)
        in_tls = await answers_in_tls(address, self._options, timeout)
        return peer_speaks_tls(node) if in_tls else None

    async def _tls_context(self, node: Node, seconds: float) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        outcome = await self._tls.outcome_within(seconds)
        if outcome is None:
            raise NetworkError(
                f"{node}: the files of ssl.truststore.location and ssl.keystore.location were not "
                f"read within {seconds:g} s: the daemon thread {_THREAD!r} is still waiting for "
                "them. Check their file systems"
            )
        context: ssl.SSLContext = outcome.get()
        return context

    async def _connect(
        self, node: Node, address: Address, context: ssl.SSLContext | None, share: float
    ) -> Transport:
        plain = await PlaintextTransport.connect(address, self._options)
        if context is None:
            return plain
        try:
            return await TlsTransport.handshake(plain, context, node)
        except HandshakeEndedError:
            if node in self._looked_at:
                raise
            self._looked_at.add(node)
            if await answers_in_plain(address, self._options, share / 2):
                raise peer_speaks_no_tls(node) from None
            raise
        except ValueError as error:
            raise NetworkError(
                f"{node}: {node.host!r} is not a valid host name for TLS: {error}"
            ) from None
