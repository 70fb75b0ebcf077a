"""SASL exchanges, valid and invalid: the embedded broker answers as Kafka does."""

from __future__ import annotations

import os
import ssl
import struct
import time
from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.registry import RequestHeader, encode_request
from spark_kafka_sink.security.oauth_bearer import OAuthBearerClient, unsecured_token
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import ScramClient
from spark_kafka_sink.security.tls import ClientAuth
from tests.support.kafka.java_tools import run_java_tool
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.network.raw_client import RawClient
from tests.support.security.certificates import STORE_PASSWORD
from tests.support.security.secure_listeners import listener, server_tls
from tests.support.security.secured_kafka import PASSWORD, SESSION_MS, USER, address

API_VERSIONS = (ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4)
METADATA = (MetadataRequest(topics=()), 12)
CLOSED = "closed"
#: Both brokers ignore a re-authentication that begins within a second of the previous one.
TOO_SOON_SECONDS = 1.0
PATIENCE_SECONDS = 120


def handshake(mechanism="PLAIN", version=1):
    return SaslHandshakeRequest(mechanism=mechanism), version


def authenticate(auth_bytes, version=2):
    return SaslAuthenticateRequest(auth_bytes=auth_bytes), version


def plain(user=USER, secret=PASSWORD, acting_as=""):
    return f"{acting_as}\0{user}\0{secret}".encode()


def scram(user=USER, secret=PASSWORD):
    client = ScramClient(SaslMechanism.SCRAM_SHA_256, user, secret)
    return [
        handshake("SCRAM-SHA-256"),
        authenticate(client.initial_response()),
        lambda answer: authenticate(client.evaluate_challenge(bytes(answer.auth_bytes))),
        METADATA,
    ]


def token(subject=USER, *, lifetime=600.0):
    made = unsecured_token({"sub": subject}, now=time.time() - 60, lifetime=lifetime)
    return authenticate(OAuthBearerClient(made).initial_response())


def of_unknown_version(request):
    """Return a request's frame, without its size, with version 99 in its header."""
    header = RequestHeader(
        request_api_key=request.api_key, request_api_version=1, correlation_id=0, client_id="raw"
    )
    frame = bytearray(b"".join(encode_request(header, request))[4:])
    frame[2:4] = struct.pack(">h", 99)
    return bytes(frame)


#: A step is a request, a frame without header, or a function of the previous answer; each exchange
#: is built separately for each broker.
IN_ORDER = {
    "plain": lambda: [API_VERSIONS, handshake(), authenticate(plain()), METADATA],
    "without versions": lambda: [handshake(), authenticate(plain(), 0), METADATA],
    "acting as oneself": lambda: [handshake(), authenticate(plain(acting_as=USER)), METADATA],
    "without headers": lambda: [handshake(version=0), plain(), METADATA],
    "scram": scram,
    "token": lambda: [handshake("OAUTHBEARER"), token(lifetime=10**9), METADATA],
    "once more": lambda: [handshake(), authenticate(plain()), handshake(), METADATA],
    "authenticating once more": lambda: [
        handshake(),
        authenticate(plain()),
        authenticate(plain()),
        METADATA,
    ],
}
OUT_OF_ORDER = {
    "metadata first": lambda: [METADATA],
    "authenticate first": lambda: [authenticate(plain())],
    "versions twice": lambda: [API_VERSIONS, API_VERSIONS],
    "versions after handshake": lambda: [handshake(), API_VERSIONS],
    "handshake twice": lambda: [handshake(), handshake(), METADATA],
    "metadata after handshake": lambda: [handshake(), METADATA, METADATA],
    "unknown mechanism": lambda: [handshake("GSSAPI"), METADATA],
    "unknown version of handshake": lambda: [of_unknown_version(handshake()[0])],
    "a ticket": lambda: [b"\x60\x82\x01\x02ticket"],
    "an empty frame": lambda: [b""],
    "wrong password": lambda: [handshake(), authenticate(plain(USER, "no")), METADATA],
    "unknown user": lambda: [handshake(), authenticate(plain(user="nobody")), METADATA],
    "no password": lambda: [handshake(), authenticate(plain(USER, "")), METADATA],
    "no user": lambda: [handshake(), authenticate(plain(user="")), METADATA],
    "two tokens": lambda: [handshake(), authenticate(b"alice\0x"), METADATA],
    "four tokens": lambda: [handshake(), authenticate(b"\0alice\0x\0y"), METADATA],
    "acting as another": lambda: [handshake(), authenticate(plain(acting_as="bob")), METADATA],
    "wrong password without headers": lambda: [handshake(version=0), plain(USER, "no")],
    "wrong password of scram": lambda: scram(USER, "no"),
    "unknown user of scram": lambda: scram(user="nobody")[:2],
    "malformed scram": lambda: [handshake("SCRAM-SHA-256"), authenticate(b"n,,x")],
    "token that has ended": lambda: [
        handshake("OAUTHBEARER"),
        token(lifetime=1.0),
        authenticate(b"\x01"),
    ],
    "no token": lambda: [handshake("OAUTHBEARER"), authenticate(b"n,,\x01\x01")],
}
AGAIN = {
    "another mechanism": lambda: [
        handshake(),
        authenticate(plain()),
        handshake("SCRAM-SHA-256"),
        METADATA,
    ],
    "another user": lambda: [
        handshake("OAUTHBEARER"),
        token(lifetime=10**6),
        handshake("OAUTHBEARER"),
        token("bob", lifetime=10**6),
        METADATA,
    ],
    "wrong password": lambda: [
        handshake(),
        authenticate(plain()),
        handshake(),
        authenticate(plain(USER, "no")),
        METADATA,
    ],
    "too soon": lambda: [
        handshake(),
        authenticate(plain()),
        handshake(),
        authenticate(plain()),
        handshake(),
        METADATA,
    ],
}


def described(answer):
    """Return the parts of an answer that must be the same for both brokers."""
    kind = type(answer).__name__
    match kind:
        case "SaslHandshakeResponse":
            return kind, answer.error_code, sorted(answer.mechanisms)
        case "SaslAuthenticateResponse":
            said = bytes(answer.auth_bytes)
            return (
                kind,
                answer.error_code,
                answer.error_message,
                answer.session_lifetime_ms > 0,
                said if said.startswith(b"{") else len(said) > 0,
            )
        case "MetadataResponse":
            return kind, len(answer.brokers)
    return kind, answer.error_code


def talk(port, steps, tls=None):
    """Send each step after the answer to the previous one; return the answers, up to the end."""
    received = []
    answer = None
    with RawClient(port, tls) as client:
        try:
            for step in steps:
                said = step(answer) if callable(step) else step
                if isinstance(said, bytes):
                    client.send_bytes(struct.pack(">i", len(said)) + said)
                    received.append(client.receive_frame())
                else:
                    answer = client.ask(*said)
                    received.append(described(answer))
        except (ConnectionError, ssl.SSLError):
            received.append(CLOSED)
    return received


def talk_quickly(port, make_steps, tls):
    """Retry an exchange until it has taken less than the second that makes it too soon."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        started = time.monotonic()
        received = talk(port, make_steps(), tls)
        if time.monotonic() - started < TOO_SOON_SECONDS:
            return received
        assert time.monotonic() < deadline


def port_of(address_):
    return int(address_.rpartition(":")[2])


@pytest.fixture(scope="module")
def devbroker():
    users = {USER: PASSWORD}
    with DevBroker(listeners=[listener("SASL_PLAINTEXT", users=users)]) as broker:
        yield broker


@pytest.mark.parametrize("name", IN_ORDER)
def test_valid_exchanges_get_the_same_answers(secured_kafka, devbroker, name):
    """A valid exchange gets the same answers from the embedded broker as from Kafka, to the end."""
    expected = talk(port_of(address(secured_kafka, "SASLPLAIN")), IN_ORDER[name]())
    assert ("MetadataResponse", 1) == expected[-1]
    assert expected == talk(devbroker.port, IN_ORDER[name]())


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_failed_exchanges_get_the_same_answers(secured_kafka, devbroker, name):
    """Wrong orders, mechanisms and passwords get the same answers, and the same failure."""
    steps = OUT_OF_ORDER[name]
    expected = talk(port_of(address(secured_kafka, "SASLPLAIN")), steps())
    assert ("MetadataResponse", 1) not in expected
    assert expected == talk(devbroker.port, steps())


@pytest.mark.parametrize("name", AGAIN)
def test_reauthentication_gets_the_same_answers(secured_kafka, certificates, name):
    """Re-authentication succeeds or fails as with Kafka (KIP-368)."""
    tls = ssl.create_default_context(cafile=certificates.authority.pem_file)
    ending = listener("SASL_SSL", certificates, users={USER: PASSWORD}, max_reauth_ms=SESSION_MS)
    expected = talk_quickly(port_of(address(secured_kafka, "REAUTH")), AGAIN[name], tls)
    with DevBroker(listeners=[ending]) as broker:
        assert expected == talk_quickly(broker.port, AGAIN[name], tls)


def test_frames_before_authentication_have_the_same_limit(secured_kafka, devbroker):
    """Frames over 512 KiB, sasl.server.max.receive.size, are rejected before authentication."""
    for port in (port_of(address(secured_kafka, "SASLPLAIN")), devbroker.port):
        with RawClient(port) as client:
            client.send_bytes(struct.pack(">i", 512 * 1024 + 1))
            assert client.is_closed()


JAVA = {
    "SSL": {"ssl.keystore.type": "PKCS12"},
    "SASL_SSL": {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{USER}" password="{PASSWORD}";',
    },
}


@pytest.mark.kafka
@pytest.mark.parametrize("protocol", JAVA)
def test_java_clients_authenticate(certificates, tmp_path, protocol):
    """Java's console clients authenticate with a certificate, and with SCRAM over TLS."""
    made = listener(protocol, certificates, users={USER: PASSWORD})
    settings = {"security.protocol": protocol, **JAVA[protocol]}
    settings["ssl.truststore.type"] = "PKCS12"
    settings["ssl.truststore.location"] = str(certificates.authority.pkcs12_file)
    settings["ssl.truststore.password"] = STORE_PASSWORD
    if protocol == "SSL":
        settings["ssl.keystore.location"] = str(certificates.client.pkcs12_file)
        settings["ssl.keystore.password"] = STORE_PASSWORD
        made = replace(
            made,
            tls=server_tls(certificates.server, clients=certificates.authority),
            client_auth=ClientAuth.REQUIRED,
        )
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with DevBroker(topics={"t": 1}, listeners=[made]) as broker:
        common = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t")
        common += ("--command-config", str(config))
        try:
            run_java_tool("org.apache.kafka.tools.ConsoleProducer", *common, stdin="one\ntwo\n")
            read = run_java_tool(
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                *common,
                *("--from-beginning", "--max-messages", "2", "--timeout-ms", "60000"),
            )
        except KafkaUnavailableError as error:
            skip_or_fail(error, os.environ)

    assert ["one", "two"] == read.split()
