"""OAUTHBEARER with a broker that checks signature, issuer, audience and expiry of each token."""

from __future__ import annotations

import base64
import json
import os
import time

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.process_nodes import ProcessNodes
from tests.support.kafka.real_kafka import start_kafka
from tests.support.security.secured import jaas
from tests.support.security.secured_kafka import address
from tests.support.security.signed_tokens import AUDIENCE, ISSUER, SigningKey, jwks
from tests.support.security.token_endpoint import TokenEndpoint, jwt

pytestmark = pytest.mark.kafka

LISTENER = "SIGNED"
OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(scope="module")
def key():
    """Return the key that the broker knows."""
    return SigningKey("known")


@pytest.fixture(scope="module")
def strict_kafka(key, tmp_path_factory):
    """Yield a broker that accepts tokens signed with this key, with its audience and issuer."""
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_text(jwks([key]))
    prefix = f"listener.name.{LISTENER.lower()}"
    try:
        cluster = start_kafka(
            KAFKA_4,
            overrides={
                f"{prefix}.sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{prefix}.oauthbearer.sasl.jaas.config": jaas("OAUTHBEARER"),
                f"{prefix}.oauthbearer.sasl.server.callback.handler.class": (
                    f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
                ),
                f"{prefix}.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
                f"{prefix}.sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{prefix}.sasl.oauthbearer.expected.issuer": ISSUER,
                f"{prefix}.sasl.oauthbearer.clock.skew.seconds": "0",
            },
            # Since Kafka 4, brokers read keys only from allowed URLs and files.
            java_options=(
                "-Xmx512m",
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}",
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={keys}",
            ),
            secured={LISTENER: "SASL_PLAINTEXT"},
            ways=(ProcessNodes,),
        )
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with cluster:
        yield cluster


def settings(kafka, **others):
    return {
        "bootstrap.servers": address(kafka, LISTENER),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        **{name.replace("_", "."): value for name, value in others.items()},
    }


def showing(token):
    """Return settings that send a token, even one that has expired."""
    return {"sasl_login_callback_handler_class": lambda: (token, time.time() + 600)}


def write(kafka, **others):
    topic = kafka.create_topic(1)
    with KafkaProducer(settings(kafka, **others)) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert list(range(10)) == [future.result(60).offset for future in futures]


def refusal(kafka, token, **others):
    """Return the error of a producer that fails to log in, long before its max.block.ms."""
    producer = KafkaProducer(settings(kafka, max_block_ms=10**7, **others))
    try:
        with pytest.raises(AuthenticationError) as caught:
            producer.send("events", b"v").result(60)
    finally:
        producer.close(0)
    assert token not in str(caught.value)
    return str(caught.value)


def test_a_signed_token_is_accepted(strict_kafka, key):
    """The broker accepts a token that is signed with the known key for its audience."""
    write(strict_kafka, **showing(key.token("alice")))


def test_a_token_of_an_endpoint_is_accepted(strict_kafka, key):
    """The broker accepts a token that was requested from an endpoint with client credentials."""
    with TokenEndpoint() as endpoint:
        endpoint.token = key.token("alice")
        write(
            strict_kafka,
            sasl_oauthbearer_token_endpoint_url=endpoint.url,
            sasl_oauthbearer_client_credentials_client_id="id",
            sasl_oauthbearer_client_credentials_client_secret="secret",  # noqa: S106
        )
        assert endpoint.asked


def changed(key):
    """Return a token whose signed claims are replaced with those of another token."""
    header, _, signature = key.token("alice").split(".")
    return ".".join((header, key.token("alice", audience="others").split(".")[1], signature))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda key: key.token("alice", audience="others"), "audience 'others', key 'known', end"),
        (lambda key: key.token("alice", issuer="https://x"), "says: issuer 'https://x', audience"),
        (lambda _: SigningKey("other").token("alice"), f"audience '{AUDIENCE}', key 'other', end"),
        (lambda _: SigningKey("known").token("alice"), f"audience '{AUDIENCE}', key 'known', end"),
        (changed, "audience 'others', key 'known', end"),
        (lambda _: jwt("alice"), "The token says: end 20"),
    ],
    ids=["audience", "issuer", "unknown key", "forged", "changed", "unsigned"],
)
def test_an_invalid_token_is_rejected(strict_kafka, key, made, expected):
    """An invalid token is rejected without a retry; the error shows its claims, not the token."""
    token = made(key)
    message = refusal(strict_kafka, token, **showing(token))
    assert "OAUTHBEARER authentication of user 'alice' failed: " in message
    assert "invalid_token" in message
    assert expected in message


def test_an_expired_token_is_rejected(strict_kafka, key):
    """The broker rejects an expired token; a client that knows the expiry does not send it."""
    token = key.token("alice", lifetime=-60)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    end = time.strftime("%Y-%m-%d", time.gmtime(claims["exp"]))
    message = refusal(strict_kafka, token, **showing(token))
    assert "invalid_token" in message
    assert f", end {end}" in message
    known = refusal(strict_kafka, token, sasl_login_callback_handler_class=lambda: token)
    assert "the token for 'alice' (OAUTHBEARER) expired " in known
