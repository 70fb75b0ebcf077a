"""What the repr of security settings shows: no secret, and no name of a user or a file."""

from __future__ import annotations

import pytest

from spark_kafka_sink.security.kerberos import KerberosLogin
from spark_kafka_sink.security.login import PasswordLogin, TokenFile, TokenLogin, TokenSettings
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.tls import KeyPair, TlsSettings


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            PasswordLogin(mechanism=SaslMechanism.PLAIN, username="planted", password="planted"),  # noqa: S106
            "PasswordLogin(mechanism=<SaslMechanism.PLAIN: 'PLAIN'>, token_auth=False)",
        ),
        (TokenFile("/planted"), "TokenFile()"),
        (
            TokenLogin(source=TokenFile("/planted"), tls_options={"planted": "planted"}),
            "TokenLogin(source=TokenFile(), extensions={}, subject_claim='sub')",
        ),
        (
            TokenSettings(url="planted", client_id="planted", client_secret="planted"),  # noqa: S106
            "TokenSettings(handler=None, scope=None, urlencode=False, subject_claim='sub')",
        ),
        (
            KerberosLogin(service_name="kafka", ticket_cache="/planted", keytab="/planted"),
            "KerberosLogin(service_name='kafka', principal=None, use_ticket_cache=False)",
        ),
        (KeyPair("public", "planted", "planted"), "KeyPair(certificates='public')"),
        (
            TlsSettings(
                truststore_location="/planted",
                truststore_password="planted",  # noqa: S106
                keystore_location="/planted",
                keystore_password="planted",  # noqa: S106
            ),
            (
                "TlsSettings(protocol='TLSv1.3', enabled_protocols=('TLSv1.2', 'TLSv1.3'), "
                "cipher_suites=(), check_hostname=True, truststore_type='JKS', keystore_type='JKS')"
            ),
        ),
    ],
)
def test_a_repr_shows_neither_secrets_nor_names(made, expected):
    """Logs and tracebacks contain reprs."""
    assert expected == repr(made)
