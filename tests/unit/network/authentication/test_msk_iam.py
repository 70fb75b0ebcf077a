"""Tokens for Amazon MSK by Amazon's own signer, offline if it has credentials."""

from __future__ import annotations

import asyncio
import base64
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.authentication import tokens
from spark_kafka_sink.network.authentication.connection_security import ConnectionSecurity
from spark_kafka_sink.network.authentication.tokens import msk_region
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.security.login import MskIamToken

HOST = "b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com"
SETTINGS = {
    "bootstrap.servers": f"{HOST}:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}


@pytest.fixture(autouse=True)
def aws(monkeypatch, tmp_path):
    """Set credentials in the environment, and hide those of this machine."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")


def _client(**settings):
    """Begin an exchange as a connection does."""

    async def run():
        config = ProducerConfig.from_mapping({**SETTINGS, **settings})
        security = ConnectionSecurity(config.security, time.time, [HOST])
        try:
            return await security.sasl_client(Node(1, HOST, 9098))
        finally:
            await security.close()

    return asyncio.run(run())


def test_a_token_is_a_presigned_request():
    """The options of Java's MSK client give an OAUTHBEARER token for the cluster's region."""
    client = _client()
    assert ("OAUTHBEARER", "AWS credentials") == (client.mechanism, client.user)
    said = client.initial_response().decode()
    token = said.removeprefix("n,,\x01auth=Bearer ").rstrip("\x01")
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    query = parse_qs(url.query)
    assert "kafka.eu-west-1.amazonaws.com" == url.hostname
    assert ["kafka-cluster:Connect"] == query["Action"]
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert "planted-secret" not in said


def test_a_token_has_the_expiry_of_the_signer(monkeypatch):
    """The signer returns milliseconds since 1970."""
    signer = "aws_msk_iam_sasl_signer.MSKAuthTokenProvider.generate_auth_token"
    monkeypatch.setattr(signer, lambda region: (f"token.of.{region}", 1_700_000_000_500))
    token = tokens.msk_iam_source(MskIamToken(region="x"), [])()
    expected = ("token.of.x", "AWS credentials", 1_700_000_000.5)
    assert expected == (token.value, token.subject, token.expires_at)


def test_missing_credentials_are_reported_at_once(monkeypatch):
    """If the AWS libraries find no credentials, the producer's error says where to look."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(
        AuthenticationError, match=r"Check where this process \(driver or task\) find"
    ):
        _client()


def test_a_missing_profile_is_named():
    """The error names the profile in sasl.jaas.config."""
    jaas = 'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="nobody";'
    with pytest.raises(AuthenticationError, match=r"^AWS profile nobody \(AWS_MSK_IAM\) cannot be"):
        _client(**{"sasl.jaas.config": jaas})


@pytest.mark.parametrize(
    ("host", "region"),
    [
        (HOST, "eu-west-1"),
        ("boot-x.c1.kafka-serverless.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
    ],
)
def test_the_region_is_parsed_from_a_brokers_name(host, region):
    """As in Java, this applies unless the region is configured."""
    assert region == msk_region(MskIamToken(), [host])
    assert "x" == msk_region(MskIamToken(region="x"), [host])


def test_the_region_can_come_from_the_environment(monkeypatch):
    """This is for brokers behind custom host names."""
    with pytest.raises(ConfigError, match=r"set awsRegion in sasl\.jaas\.config"):
        msk_region(MskIamToken(), ["kafka.internal"])
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert "eu-central-1" == msk_region(MskIamToken(), ["kafka.internal"])


def test_the_error_for_a_missing_signer_says_how_to_install_it(monkeypatch):
    """Creating a producer raises an error that names the extra."""
    monkeypatch.setattr(tokens, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'spark-kafka-sink\[msk-iam\]'"):
        KafkaProducer(SETTINGS)
