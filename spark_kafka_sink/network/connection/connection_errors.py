"""Connection failures in words: what they reveal about the peer, and what to do.

Permanent TLS errors are AuthenticationErrors (as Java's SslAuthenticationException, for
SSLHandshakeException and similar ones): a certificate, a name, a version, a peer that does not
speak TLS. A connection that merely ended is a NetworkError.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import AuthenticationError, DecodeError, KafkaError, NetworkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import Node


class SilentPeerError(NetworkError):
    """The peer hung up on the first request without a response; it may speak another protocol."""


class GreetedOnlyError(NetworkError):
    """The peer answered ApiVersions and hung up on the next request; it may require SASL."""


class AbsentPeerError(NetworkError):
    """Nothing listens at any address of the node, or its name has no address."""


class MisroutedError(NetworkError):
    """The peer is another broker than the one that the connection is meant for (KIP-1242)."""


def misrouted(node: Node) -> MisroutedError:
    """Return the error for a node at whose address another broker answers."""
    return MisroutedError(
        f"{node}: what answers at this address is not broker {node.broker_id} of the cluster "
        "that the client knows (REBOOTSTRAP_REQUIRED). The client starts again from "
        "bootstrap.servers; if that happens again and again, check which address each broker "
        "advertises (advertised.listeners), or set metadata.cluster.check.enable=false if a "
        "proxy in between gives brokers other ids"
    )


def connect_failure(node: Node, error: OSError) -> NetworkError:
    """Return the error for a node to which no connection could be made.

    A broker chooses the address that clients connect to (`advertised.listeners`), which is easily
    one that only its own network knows.
    """
    if not finds_nobody(error):
        return NetworkError(f"{node}: {reason(error)}")
    advertised = (
        ""
        if node.node_id < 0
        else f"; broker {node.broker_id} advertises this address (its advertised.listeners): "
        "clients must be able to reach it"
    )
    return AbsentPeerError(f"{node}: {reason(error)}{advertised}")


def finds_nobody(error: OSError) -> bool:
    """Return whether a connection failed because no peer can be there.

    The connection was refused, the name has no address, or there is no local address to connect
    from: a machine without IPv6 has none for an IPv6 address of a name.
    """
    return isinstance(error, ConnectionRefusedError | socket.gaierror) or (
        error.errno == errno.EADDRNOTAVAIL
    )


def reason(error: OSError) -> str:
    """Return why the system could not connect, or why it lost the connection."""
    # asyncio's message is only "Connect call failed"; the system's message says why.
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error)
    return os.strerror(error.errno)


def loss_of(node: Node, error: Exception, doing: str, kind: type[NetworkError]) -> KafkaError:
    """Return the error with which a connection ends, from the one raised while `doing` something.

    `doing` is "sending" or "reading", `kind` the class to use for system errors. Every error but an
    AuthenticationError is retriable, like a lost connection: what the broker did with the requests
    is unknown.
    """
    match error:
        case AuthenticationError() | NetworkError():
            # The transport has already described the problem.
            return error
        case OSError():
            return kind(f"{node}: connection lost while {doing}: {reason(error)}")
        case DecodeError():
            return NetworkError(f"{node}: cannot read the response: {error}")
    return NetworkError(f"{node}: connection closed while {doing}: {type(error).__name__}")


#: OpenSSL's X509_V_ERR_* codes of the broker's certificate.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_ISSUERS: Final = frozenset({2, 18, 19, 20, 21, 27})
_WRONG_HOST: Final = frozenset({62, 64})
_REVOKED: Final = 23

_OWN_CERTIFICATE: Final = "check the certificate in ssl.keystore.*"
_NEEDS_CERTIFICATE: Final = (
    "it requires a client certificate that it trusts (ssl.client.auth): set ssl.keystore.*"
)
#: The alert in OpenSSL's reason -> what the broker means by it.
_ALERTS: Final[Mapping[str, str]] = {
    "CERTIFICATE_REQUIRED": _NEEDS_CERTIFICATE,
    "BAD_CERTIFICATE": _NEEDS_CERTIFICATE,
    "UNKNOWN_CA": f"it does not trust the issuer of this client's certificate; {_OWN_CERTIFICATE}",
    "CERTIFICATE_UNKNOWN": f"it rejects this client's certificate; {_OWN_CERTIFICATE}",
    "CERTIFICATE_EXPIRED": f"this client's certificate has expired; {_OWN_CERTIFICATE}",
    "CERTIFICATE_REVOKED": f"this client's certificate was revoked; {_OWN_CERTIFICATE}",
    "UNSUPPORTED_CERTIFICATE": f"it cannot use this client's certificate; {_OWN_CERTIFICATE}",
    "ACCESS_DENIED": f"it denies access to this client's certificate; {_OWN_CERTIFICATE}",
    "DECRYPT_ERROR": f"it cannot verify this client's certificate; {_OWN_CERTIFICATE}",
    "PROTOCOL_VERSION": (
        "it supports none of the TLS versions in ssl.enabled.protocols and ssl.protocol"
    ),
    "HANDSHAKE_FAILURE": (
        "it has no cipher suite or version in common with ssl.cipher.suites and "
        "ssl.enabled.protocols, or requires a client certificate (ssl.keystore.*)"
    ),
    "INSUFFICIENT_SECURITY": "it requires stronger cipher suites than ssl.cipher.suites has",
    "UNRECOGNIZED_NAME": "it has no certificate for this host name",
}
#: OpenSSL's reasons if the received bytes are not TLS at all.
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)
#: OpenSSL's reasons if both sides have no version or cipher suite in common.
_NOTHING_IN_COMMON: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "WRONG_SSL_VERSION", "NO_CIPHERS_AVAILABLE"}
)
_ENDED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
#: The start of a TLS alert, version 3.x, with which a TLS listener responds to plain bytes.
_ALERT_RECORD: Final = b"\x15\x03"


def looks_like_tls(data: bytes) -> bool:
    """Return whether the first bytes of a peer are a TLS alert."""
    return data.startswith(_ALERT_RECORD)


def peer_speaks_tls(node: Node) -> AuthenticationError:
    """Return the error for a plain connection to a TLS listener."""
    return AuthenticationError(
        f"{node}: this listener uses TLS, but security.protocol does not: set it to "
        "SSL or SASL_SSL, or use the port of a listener without TLS"
    )


def peer_speaks_no_tls(node: Node) -> AuthenticationError:
    """Return the error for a TLS connection to a plain listener."""
    return AuthenticationError(
        f"{node}: this listener does not use TLS: use the port of a TLS listener, or set "
        "security.protocol to PLAINTEXT or SASL_PLAINTEXT"
    )


def tls_failure(error: ssl.SSLError, node: Node) -> KafkaError:
    """Convert Python's TLS error into one of ours."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(f"{node}: {_certificate_problem(error, node)}")
    if isinstance(error, _ENDED):
        return NetworkError(f"{node}: the broker closed the connection during the TLS handshake")
    reason = error.reason or "unknown"
    if reason in _NO_TLS:
        return peer_speaks_no_tls(node)
    if reason in _NOTHING_IN_COMMON:
        return AuthenticationError(
            f"{node}: TLS handshake failed ({reason}): no TLS version or cipher suite in "
            "common; check ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites"
        )
    if "_ALERT_" in reason:
        return alert_failure(reason, node)
    return AuthenticationError(f"{node}: TLS handshake failed ({reason})")


def alert_failure(reason: str, node: Node) -> KafkaError:
    """Return the error for an alert that the broker has sent, in the handshake or after it."""
    alert = reason.partition("_ALERT_")[2]
    meaning = _ALERTS.get(alert)
    if meaning is None:
        return NetworkError(f"{node}: the broker ended the TLS connection ({alert or reason})")
    return AuthenticationError(
        f"{node}: the broker rejected the TLS connection ({alert}): {meaning}"
    )


def _certificate_problem(error: ssl.SSLCertVerificationError, node: Node) -> str:
    code, message = error.verify_code, error.verify_message
    if code in _WRONG_HOST:
        return (
            f"the broker's certificate is not for the host {node.host!r} ({message}): check the "
            "address, or use a certificate that names it; "
            "ssl.endpoint.identification.algorithm= (empty) accepts any certificate of a trusted "
            "authority"
        )
    if code in _UNKNOWN_ISSUERS:
        return (
            f"the broker's certificate is not trusted ({message}): add the certificate of its "
            "authority to ssl.truststore.location or ssl.truststore.certificates"
        )
    if code == _EXPIRED:
        return (
            f"the broker's certificate, or one in its chain, has expired ({message}): renew it, "
            "and check this machine's clock"
        )
    if code == _NOT_YET_VALID:
        return f"the broker's certificate is not valid yet ({message}): check this machine's clock"
    if code == _REVOKED:
        return f"the broker's certificate was revoked ({message})"
    return f"the broker's certificate was rejected ({message})"
