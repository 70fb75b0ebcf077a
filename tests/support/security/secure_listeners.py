"""Listeners of an embedded broker with TLS and SASL, and the credentials for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker import Listener, SaslSettings
from spark_kafka_sink.devbroker.net.listener import SERVED_MECHANISMS
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.security.tls import TlsSettings

if TYPE_CHECKING:
    from tests.support.security.certificates import Authority, Certificate, Certificates

USER = "alice"
PASSWORD = "alice's, =secret"  # noqa: S105 - only for the tests' own broker
USERS = {USER: PASSWORD, "bob": "bob's secret"}


def server_tls(certificate: Certificate, clients: Authority | None = None) -> TlsSettings:
    """Return a listener's key store, and a trust store if it checks client certificates."""
    return TlsSettings(
        keystore_type="PEM",
        keystore_location=str(certificate.pem_file),
        truststore_type="PEM",
        truststore_location=None if clients is None else str(clients.pem_file),
    )


def sasl(**settings: Any) -> SaslSettings:
    """Return settings with all mechanisms and this module's users, unless others are given."""
    return SaslSettings(**{"users": USERS, "mechanisms": SERVED_MECHANISMS, **settings})


def listener(
    protocol: str, certificates: Certificates | None = None, **sasl_settings: Any
) -> Listener:
    """Return a listener with the server's certificate and the users, as the protocol requires."""
    security_protocol = SecurityProtocol(protocol)
    return Listener(
        security_protocol=security_protocol,
        tls=server_tls(certificates.server) if "SSL" in protocol and certificates else None,
        sasl=sasl(**sasl_settings) if "SASL" in protocol else None,
    )


def all_listeners(certificates: Certificates) -> list[Listener]:
    """Return one listener of each protocol."""
    return [listener(protocol, certificates) for protocol in SecurityProtocol]
