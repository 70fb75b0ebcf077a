"""Settings of clients for secured listeners, with Kafka's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.security.certificates import Authority, Certificate

_KAFKA = "org.apache.kafka.common.security"
MODULES = {
    "PLAIN": f"{_KAFKA}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule",
}


def jaas(mechanism: str, **options: str) -> str:
    """Return a login module in the form of Java's client."""
    written = "".join(f' {name}="{value}"' for name, value in options.items())
    return f"{MODULES[mechanism]} required{written};"


def tls(authority: Authority, protocol: str = "SSL") -> dict[str, str]:
    """Return the settings that trust an authority."""
    return {
        "security.protocol": protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem,
    }


def key_store(certificate: Certificate) -> dict[str, str]:
    """Return the settings that present a certificate."""
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate.pem_file)}


def sasl(
    mechanism: str, user: str, password: str, protocol: str = "SASL_PLAINTEXT"
) -> dict[str, str]:
    """Return the settings that authenticate with a user and a password."""
    return {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(mechanism, username=user, password=password),
    }
