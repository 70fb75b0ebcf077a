"""The settings of a producer that secure its connections."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, ProducerConfig
from spark_kafka_sink.config.security_settings import SecuritySettings
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol
from tests.support.producer.producer_configs import OAUTH, config, refusal


def test_security_defaults_equal_javas():
    """By default connections are not secured, and TLS is strict."""
    assert (
        SecuritySettings(
            security_protocol=SecurityProtocol.PLAINTEXT,
            ssl_truststore_type="JKS",
            ssl_truststore_location=None,
            ssl_truststore_password=None,
            ssl_truststore_certificates=None,
            ssl_keystore_type="JKS",
            ssl_keystore_location=None,
            ssl_keystore_password=None,
            ssl_keystore_key=None,
            ssl_keystore_certificate_chain=None,
            ssl_key_password=None,
            ssl_endpoint_identification_algorithm="https",
            ssl_protocol="TLSv1.3",
            ssl_enabled_protocols=("TLSv1.2", "TLSv1.3"),
            ssl_cipher_suites=(),
            sasl_mechanism="GSSAPI",
            sasl_jaas_config=None,
            sasl_kerberos_service_name=None,
            sasl_login_callback_handler_class=None,
            sasl_oauthbearer_token_endpoint_url=None,
            sasl_oauthbearer_client_credentials_client_id=None,
            sasl_oauthbearer_client_credentials_client_secret=None,
            sasl_oauthbearer_scope=None,
            sasl_oauthbearer_header_urlencode=False,
            sasl_oauthbearer_sub_claim_name="sub",
            sasl_login_connect_timeout_ms=None,
            sasl_login_read_timeout_ms=None,
            sasl_login_retry_backoff_ms=100,
            sasl_login_retry_backoff_max_ms=10_000,
            sasl_login_refresh_window_factor=0.8,
            sasl_login_refresh_window_jitter=0.05,
            sasl_login_refresh_min_period_seconds=60,
            sasl_login_refresh_buffer_seconds=300,
        )
        == config().security
    )


@pytest.mark.parametrize("protocol", list(SecurityProtocol))
def test_the_security_protocol_is_case_insensitive(protocol):
    """security.protocol is case-insensitive."""
    settings = config(security_protocol=protocol.lower()).security
    assert protocol is settings.security_protocol
    assert ("SSL" in protocol, "SASL" in protocol) == (settings.uses_tls, settings.uses_sasl)


@pytest.mark.parametrize("name", ["ssl_truststore_type", "ssl_keystore_type"])
def test_the_types_of_stores_are_case_insensitive(name):
    """A type of store is accepted in any case, as by Java."""
    assert "pkcs12" == getattr(config(security_protocol="SSL", **{name: "pkcs12"}).security, name)


def test_an_unknown_protocol_is_rejected():
    """The error for an unknown protocol lists the known ones."""
    assert (
        "security.protocol must be one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not 'TLS'"
        == refusal(security_protocol="TLS")
    )


@pytest.mark.parametrize(
    ("name", "protocol", "needed"),
    [
        ("sasl.jaas.config", "PLAINTEXT", "SASL_PLAINTEXT or SASL_SSL"),
        ("sasl.mechanism", "SSL", "SASL_PLAINTEXT or SASL_SSL"),
        ("ssl.key.password", "SASL_PLAINTEXT", "SSL or SASL_SSL"),
    ],
)
def test_a_security_setting_without_effect_is_rejected(name, protocol, needed):
    """A security setting without effect is an error, since it would suggest a secure connection."""
    settings = {"bootstrap.servers": "a:1", "security.protocol": protocol, name: "PLAIN"}
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping(settings, prefix="kafka.")
    assert (
        f"kafka.{name} requires security.protocol {needed}, but it is {protocol}: the setting "
        "would have no effect"
    ) == str(caught.value)


SECRETS = [key.name for key in PRODUCER_CONFIG_DEF if key.type == "password"]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_not_shown(name):
    """The repr hides passwords, keys and certificates, and the pickle contains them."""
    security_protocol = "SASL_SSL"
    settings = {"bootstrap.servers": "a:1", "security.protocol": security_protocol, name: "hunter2"}
    made = ProducerConfig.from_mapping(settings)
    assert "hunter2" not in repr(made)
    assert f"{name.replace('.', '_')}=[hidden]" in repr(made)
    arrived = pickle.loads(pickle.dumps(made))  # noqa: S301 -- our own bytes
    assert "hunter2" == getattr(arrived.security, name.replace(".", "_")).value


@pytest.mark.parametrize("empty", ["", "  ", "${env:EMPTY}"])
@pytest.mark.parametrize(
    "name",
    [
        *SECRETS,
        "ssl.truststore.location",
        "ssl.keystore.location",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
    ],
)
def test_an_empty_store_or_secret_is_rejected(name, empty, monkeypatch):
    """An empty store, key or login is an error, and does not mean the default."""
    monkeypatch.setenv("EMPTY", "")
    settings = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", name: empty}
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping(settings, prefix="kafka.")
    assert str(caught.value).startswith(f"kafka.{name} must not be empty")


def test_host_name_verification_can_be_disabled():
    """An empty ssl.endpoint.identification.algorithm is accepted, as in Java."""
    made = config(security_protocol="SSL", ssl_endpoint_identification_algorithm="")
    assert "" == made.security.ssl_endpoint_identification_algorithm


@pytest.mark.parametrize("name", SECRETS)
def test_a_malformed_secret_is_rejected_without_being_shown(name):
    """The error for a secret of the wrong type names the setting and hides the value."""
    settings = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", name: b"hunter2"}
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping(settings)
    assert f"{name} must be a string, not [hidden]" == str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("sasl_login_refresh_window_factor", "0.4", "must be at least 0.5, not '0.4'"),
        ("sasl_login_refresh_window_factor", "1.1", "must be at most 1.0, not '1.1'"),
        ("sasl_login_refresh_window_jitter", "x", "must be a number without a unit, not 'x'"),
        ("sasl_login_refresh_window_jitter", "nan", "must be a number without a unit, not 'nan'"),
        ("sasl_login_refresh_buffer_seconds", 3601, "must be at most 3600, not 3601"),
        ("sasl_login_refresh_min_period_seconds", "70000", "must be a 16-bit integer"),
        ("ssl_endpoint_identification_algorithm", "http", "must be one of: https, '', not 'http'"),
        ("ssl_keystore_type", "BKS", "must be one of: JKS, PKCS12, PEM, not 'BKS'"),
        ("sasl_mechanism", "scram-sha-256", "must be one of: PLAIN, SCRAM-SHA-256"),
    ],
)
def test_security_settings_are_validated(name, value, problem):
    """Numbers must be in their ranges, and words must be Kafka's."""
    assert f"{name.replace('_', '.')} {problem}" in refusal(
        security_protocol="SASL_SSL", **{name: value}
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"{OAUTH}.OAuthBearerLoginCallbackHandler", "token_endpoint"),
        (f"{OAUTH}.secured.OAuthBearerLoginCallbackHandler", "token_endpoint"),
        ("software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler", "msk_iam"),
        ("unsecured", "unsecured"),
    ],
)
def test_javas_login_callback_handlers_are_accepted(value, expected):
    """Java's login callback handlers refer to their built-in counterparts."""
    made = config(security_protocol="SASL_SSL", sasl_login_callback_handler_class=value)
    assert expected == made.security.sasl_login_callback_handler_class.built_in
