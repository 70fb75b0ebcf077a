"""Finding out which protocol a listener speaks after it hung up on our first message.

A plain Kafka listener hangs up on a TLS handshake, many TLS listeners hang up on plain bytes, and
so does a broker that is shutting down. To tell them apart, the listener is contacted the other way.
In plain text it is sent ApiVersions, which every broker answers without authentication; in TLS it
has to answer a ClientHello with a TLS record. Nothing else is sent.

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
from spark_kafka_sink.network.transport.transport import PlaintextTransport
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.frame import FrameDecoder
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.registry import RequestHeader, encode_request, peek_correlation_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.transport.host_resolver import Address
    from spark_kafka_sink.network.transport.transport import SocketOptions

_CORRELATION_ID: Final = 0x5EC0
_MOST_BYTES: Final = 65_536
_ANY_MECHANISM: Final = "PLAIN"
_MOST_MECHANISMS: Final = 10
#: The start of a TLS record: a handshake or an alert, version 3.x.
_TLS_RECORDS: Final = (b"\x16\x03", b"\x15\x03")


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
