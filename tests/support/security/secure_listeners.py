"""Listeners of an embedded broker with TLS and SASL, and what clients need to come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker import Listener, SaslSettings
from spark_kafka_sink.devbroker.sasl.sasl_settings import SERVED_MECHANISMS
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.security.tls import TlsSettings

if TYPE_CHECKING:
    from tests.support.security.certificates import Authority, Certificate, Certificates

USER = "alice"
PASSWORD = "alice's, =secret"  # noqa: S105 - of the tests' own broker
USERS = {USER: PASSWORD, "bob": "bob's secret"}


def server_tls(certificate: Certificate, clients: Authority | None = None) -> TlsSettings:
    """Give a listener's key store, and its trust store where it looks at clients' certificates."""
    return TlsSettings(
        keystore_type="PEM",
        keystore_location=str(certificate.pem_file),
        truststore_type="PEM",
        truststore_location=None if clients is None else str(clients.pem_file),
    )


def sasl(**settings: Any) -> SaslSettings:
    """Give all mechanisms, for the users of this module unless others are given."""
    return SaslSettings(**{"users": USERS, "mechanisms": SERVED_MECHANISMS, **settings})


def listener(
    protocol: str, certificates: Certificates | None = None, **sasl_settings: Any
) -> Listener:
    """Give a listener that shows the server's certificate and knows the users, as needed."""
    security_protocol = SecurityProtocol(protocol)
    return Listener(
        security_protocol=security_protocol,
        tls=server_tls(certificates.server) if "SSL" in protocol and certificates else None,
        sasl=sasl(**sasl_settings) if "SASL" in protocol else None,
    )


def all_listeners(certificates: Certificates) -> list[Listener]:
    """Give one listener of each protocol."""
    return [listener(protocol, certificates) for protocol in SecurityProtocol]
