"""The secured listeners of a real broker, as properties, and its users.

| listener | description |
|---|---|
| TLS, MTLS | SSL, without and with client certificates |
| EXPIRED, OTHERHOST | SSL with a certificate that has expired, or is for another host |
| SASLPLAIN, SASLTLS | SASL with all mechanisms, over plain TCP and over TLS |
| SCRAMONLY | SASL with one mechanism |
| REAUTH | SASL over TLS, whose sessions last `SESSION_MS` |

Stores are PEM on one line, as Kafka accepts them, so the broker needs no files.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from spark_kafka_sink.network.authentication.sasl_authenticator import SaslSession

if TYPE_CHECKING:
    import pytest

    from tests.support.kafka.real_kafka import KafkaCluster
    from tests.support.security.certificates import Certificate, Certificates

USER = "alice"
PASSWORD = "planted-secret"  # noqa: S105 - only for the tests' own broker
SESSION_MS = 3_000
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PROTOCOLS = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "OTHERHOST": "SSL",
    "SASLPLAIN": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "SCRAMONLY": "SASL_PLAINTEXT",
    "REAUTH": "SASL_SSL",
}
_KAFKA = "org.apache.kafka.common.security"
_JAAS = {
    "plain": f'{_KAFKA}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "scram-sha-256": f"{_KAFKA}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_KAFKA}.scram.ScramLoginModule required;",
    "oauthbearer": (
        f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}


def secured_properties(certificates: Certificates) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties of all listeners, and the protocol of each by its name."""
    shown = {"EXPIRED": certificates.expired, "OTHERHOST": certificates.other_host}
    properties = {"delegation.token.secret.key": "the tests' own"}
    for name, protocol in _PROTOCOLS.items():
        prefix = f"listener.name.{name.lower()}"
        if "SSL" in protocol:
            properties |= _key_store(prefix, shown.get(name, certificates.server))
        if "SASL" in protocol:
            mechanisms = ("SCRAM-SHA-512",) if name == "SCRAMONLY" else MECHANISMS
            properties[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(mechanisms)
            for mechanism in (each.lower() for each in mechanisms):
                properties[f"{prefix}.{mechanism}.sasl.jaas.config"] = _JAAS[mechanism]
                if name == "REAUTH":
                    session = str(SESSION_MS)
                    properties[f"{prefix}.{mechanism}.connections.max.reauth.ms"] = session
    properties["listener.name.mtls.ssl.client.auth"] = "required"
    properties["listener.name.mtls.ssl.truststore.type"] = "PEM"
    properties["listener.name.mtls.ssl.truststore.certificates"] = _one_line(
        certificates.authority.pem
    )
    return properties, dict(_PROTOCOLS)


def _key_store(prefix: str, certificate: Certificate) -> dict[str, str]:
    return {
        f"{prefix}.ssl.keystore.type": "PEM",
        f"{prefix}.ssl.keystore.key": _one_line(certificate.key),
        f"{prefix}.ssl.keystore.certificate.chain": _one_line(certificate.chain),
    }


def _one_line(pem: str) -> str:
    return " ".join(pem.split("\n"))


def create_scram_users(kafka: KafkaCluster) -> None:
    """Store the user's SCRAM credentials in the cluster."""
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 8192)
        stored = kafka.admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
        )
        for future in stored.values():
            future.result(60)


def address(kafka: KafkaCluster, listener: str) -> str:
    """Return the address of a listener."""
    return kafka.brokers[0].secured_addresses[listener]


def count_renewals(monkeypatch: pytest.MonkeyPatch) -> Counter[SaslSession]:
    """Count how often each of the producers' SASL sessions reauthenticates from now on."""
    renewed: Counter[SaslSession] = Counter()
    renew = SaslSession.renew

    async def counted(session: SaslSession) -> None:
        await renew(session)
        renewed[session] += 1

    monkeypatch.setattr(SaslSession, "renew", counted)
    return renewed
