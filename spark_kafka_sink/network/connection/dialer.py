"""Connecting to a node: its name is looked up, and its addresses are tried in turn.

All addresses of a name are tried (client.dns.lookup=use_all_dns_ips). Each attempt starts with the
address after the one that was tried last, so that a lost connection is not made to the same machine
again first (as in ClusterConnectionStates.NodeConnectionState). The name is looked up for every
attempt, since its addresses may have changed. The lookup and the TLS handshake count towards the
time for setting up the connection. The TLS files are read on a separate thread, so that an
unavailable file server does not hold up other connections.

A listener that hung up on our first message may speak another protocol: a plain Kafka listener
hangs up on a TLS handshake, many TLS listeners hang up on plain bytes, and so does a broker that is
shutting down. To tell them apart, the listener is contacted the other way. In plain text it is sent
ApiVersions, which every broker answers without authentication; in TLS it has to answer a
ClientHello with a TLS record. Nothing else is sent.

A listener that requires SASL answers ApiVersions and hangs up on any other request from a client
that has not authenticated. A SASL handshake reveals it: listeners without SASL refuse it.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import (
    AuthenticationError,
    DecodeError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.connection.connection_errors import (
    finds_nobody,
    peer_speaks_no_tls,
    peer_speaks_tls,
)
from spark_kafka_sink.network.connection.tls_transport import HandshakeEndedError, TlsTransport
from spark_kafka_sink.network.connection.transport import PlaintextTransport, SocketOptions
from spark_kafka_sink.network.daemon_thread import SharedCall
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.frame import FrameDecoder
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.registry import RequestHeader, encode_request, peek_correlation_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.connection.host_resolver import Address, HostResolver
    from spark_kafka_sink.network.connection.transport import Transport
    from spark_kafka_sink.network.tls_contexts import TlsContexts

_THREAD: Final = "kafka-tls-files"
#: The share of the connection setup time that reading the TLS files may take.
_FILES_SHARE: Final = 0.5
_CORRELATION_ID: Final = 0x5EC0
_MOST_BYTES: Final = 65_536
_ANY_MECHANISM: Final = "PLAIN"
_MOST_MECHANISMS: Final = 10
#: The start of a TLS record: a handshake or an alert, version 3.x.
_TLS_RECORDS: Final = (b"\x16\x03", b"\x15\x03")


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


async def answers_in_plain(address: Address, options: SocketOptions, timeout: float) -> bool:  # noqa: ASYNC109  our own
    """Return whether a broker without TLS answers at an address within `timeout` seconds."""
    request = ApiVersionsRequest(client_software_name="", client_software_version="")
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=0,
        correlation_id=_CORRELATION_ID,
        client_id=None,
    )
    frames = FrameDecoder(_MOST_BYTES)
    transport: PlaintextTransport | None = None
    try:
        async with asyncio.timeout(timeout):
            transport = await PlaintextTransport.connect(address, options)
            await transport.write_all(encode_request(header, request))
            while data := await transport.receive():
                frames.receive_data(data)
                frame = frames.next_frame()
                if frame is not None:
                    return peek_correlation_id(frame) == _CORRELATION_ID
    except (OSError, DecodeError):
        return False
    finally:
        if transport is not None:
            transport.close()
    return False


async def refuse_if_sasl_is_required(connection: BrokerConnection, timeout: float) -> None:  # noqa: ASYNC109  our own
    """Raise AuthenticationError if the listener requires SASL.

    Raises NetworkError if it does not answer within `timeout` seconds. The connection is closed
    when anything is raised.
    """
    try:
        async with asyncio.timeout(timeout):
            answer = await connection.send(SaslHandshakeRequest(mechanism=_ANY_MECHANISM))
    except UnsupportedVersionError:
        # A broker that does not know the handshake cannot require it.
        return
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise NetworkError(f"{connection.node}: no response to a SASL handshake") from None
        raise
    if answer.error_code in {ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM}:
        connection.close()
        raise _requires_sasl(connection.node, answer.mechanisms)


def _requires_sasl(node: Node, mechanisms: Sequence[str]) -> AuthenticationError:
    offered = ", ".join(map(repr, mechanisms[:_MOST_MECHANISMS]))
    return AuthenticationError(
        f"{node}: this listener requires SASL (it offers {offered}), but security.protocol "
        "does not use it: set security.protocol to SASL_PLAINTEXT or SASL_SSL, and sasl.mechanism, "
        "or use the port of a listener without SASL"
    )


async def answers_in_tls(address: Address, options: SocketOptions, timeout: float) -> bool:  # noqa: ASYNC109  our own
    """Return whether a listener at an address answers in TLS within `timeout` seconds."""
    # Nothing is verified here: only the form of the response counts.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    greeting = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), greeting)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    transport: PlaintextTransport | None = None
    try:
        async with asyncio.timeout(timeout):
            transport = await PlaintextTransport.connect(address, options)
            await transport.write_all([greeting.read()])
            return (await transport.receive()).startswith(_TLS_RECORDS)
    except OSError:
        return False
    finally:
        if transport is not None:
            transport.close()
