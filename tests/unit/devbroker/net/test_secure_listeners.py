"""Listeners with TLS and SASL over real sockets: who can connect and how others are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import socket
import ssl
import struct

import pytest

from spark_kafka_sink.devbroker import DevBroker, Listener, SaslSettings
from spark_kafka_sink.devbroker.base.authorizer import Acl
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.security.subject_name import subject_name
from spark_kafka_sink.security.tls import ClientAuth, TlsSettings
from tests.support.network.raw_client import RawClient
from tests.support.security.certificates import STORE_PASSWORD
from tests.support.security.secure_listeners import (
    PASSWORD,
    USER,
    USERS,
    all_listeners,
    listener,
    server_tls,
)

API_VERSIONS = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
METADATA = MetadataRequest(topics=())
HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")


def plain(user=USER, password=PASSWORD):
    return SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode())


def port_of(broker, protocol):
    return int(broker.address(protocol).rpartition(":")[2])


def trusting(certificates, client=None):
    """Return a client context that trusts the authority, with a client certificate if given."""
    context = ssl.create_default_context(cafile=certificates.authority.pem_file)
    if client is not None:
        context.load_cert_chain(client.pem_file)
    return context


@pytest.fixture
def broker(certificates):
    with DevBroker(topics={"t": 1}, listeners=all_listeners(certificates)) as broker:
        yield broker


@pytest.fixture
def sasl_client(broker):
    with RawClient(port_of(broker, "SASL_PLAINTEXT")) as client:
        yield client


@pytest.mark.parametrize("protocol", SecurityProtocol)
def test_each_listener_returns_its_own_addresses(broker, certificates, protocol):
    """In each API that returns addresses, clients get those of the listener they connected to."""
    tls = trusting(certificates) if "SSL" in protocol else None
    with RawClient(port_of(broker, protocol), tls) as client:
        if "SASL" in protocol:
            client.ask(HANDSHAKE, 1)
            assert ErrorCode.NONE == client.ask(plain(), 2).error_code
        addresses = {
            (node.host, node.port)
            for nodes in (
                client.ask(METADATA, 12).brokers,
                client.ask(
                    DescribeClusterRequest(include_cluster_authorized_operations=False), 2
                ).brokers,
                client.ask(
                    FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), 6
                ).coordinators,
            )
            for node in nodes
        }

    assert {("127.0.0.1", port_of(broker, protocol))} == addresses


def test_an_advertised_host_is_the_listeners_own():
    """Each listener may have an advertised host of its own."""
    listeners = [
        Listener(advertised_host="inside.test"),
        Listener(name="OUTSIDE", advertised_host="outside.test"),
    ]
    with DevBroker(listeners=listeners) as broker:
        told = []
        for name in ("PLAINTEXT", "OUTSIDE"):
            with RawClient(port_of(broker, name)) as client:
                told += [node.host for node in client.ask(METADATA, 12).brokers]

    assert ["inside.test", "outside.test"] == told


def test_ports_stay_over_a_restart(broker):
    """After a stop every listener opens at its previous port."""
    before = [broker.address(protocol) for protocol in SecurityProtocol]
    broker.stop()
    broker.start()
    assert before == [broker.address(protocol) for protocol in SecurityProtocol]


@pytest.mark.parametrize("request_", [METADATA, plain()], ids=["metadata", "authenticate"])
def test_a_request_before_sasl_closes_the_connection(sasl_client, request_):
    """A request before the handshake gets no response."""
    sasl_client.send(request_, 2)
    assert sasl_client.is_closed()


def test_all_steps_sent_at_once_are_answered_in_order(sasl_client):
    """A client need not wait for the responses."""
    stream = b"".join(
        sasl_client.frame(request, version)
        for request, version in [(API_VERSIONS, 4), (HANDSHAKE, 1), (plain(), 2), (METADATA, 12)]
    )
    sasl_client.send_bytes(stream)

    answers = [sasl_client.receive() for _ in range(4)]
    assert [0, 1, 2, 3] == [correlation_id for correlation_id, _ in answers]
    assert 1 == len(answers[3][1].brokers)


def test_the_connection_is_closed_after_the_response_to_a_wrong_password(sasl_client):
    """The connection is closed only after the response."""
    sasl_client.ask(HANDSHAKE, 1)
    answer = sasl_client.ask(plain(USER, "wrong"), 2)
    assert ErrorCode.SASL_AUTHENTICATION_FAILED == answer.error_code
    assert sasl_client.is_closed()


def test_requests_after_a_failed_authentication_are_ignored(sasl_client):
    """Requests sent after a wrong password get no response."""
    sasl_client.ask(HANDSHAKE, 1)
    stream = b"".join(
        sasl_client.frame(request, version)
        for request, version in [(plain(USER, "wrong"), 2), (METADATA, 12), (plain(), 2)]
    )
    sasl_client.send_bytes(stream)
    assert ErrorCode.SASL_AUTHENTICATION_FAILED == sasl_client.receive()[1].error_code
    with pytest.raises(ConnectionError):
        sasl_client.receive()


def test_the_response_to_a_failed_authentication_is_delayed(certificates):
    """The response to a wrong password is delayed as configured for the listener."""
    slow = listener("SASL_PLAINTEXT", failed_authentication_delay_ms=60_000)
    with DevBroker(listeners=[slow]) as broker, RawClient(broker.port) as client:
        client.ask(HANDSHAKE, 1)
        client.send(plain(USER, "wrong"), 2)
        assert client.is_silent_for(0.3)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_sasl_out_of_place_is_an_illegal_state(broker, protocol):
    """SASL requests without need get an error, and the connection continues."""
    with RawClient(port_of(broker, protocol)) as client:
        if protocol == "SASL_PLAINTEXT":
            client.ask(HANDSHAKE, 1)
            client.ask(plain(), 2)
        assert ErrorCode.ILLEGAL_SASL_STATE == client.ask(HANDSHAKE, 1).error_code
        assert ErrorCode.ILLEGAL_SASL_STATE == client.ask(plain(), 2).error_code
        assert 1 == len(client.ask(METADATA, 12).brokers)


def test_a_session_that_is_over_closes_the_connection(certificates):
    """The broker's clock decides how long a session lasts."""
    now = [1_700_000_000.0]
    ending = listener("SASL_PLAINTEXT", max_reauth_ms=5000)
    with (
        DevBroker(listeners=[ending], clock=lambda: now[0]) as broker,
        RawClient(broker.port) as client,
    ):
        client.ask(HANDSHAKE, 1)
        assert 5000 == client.ask(plain(), 2).session_lifetime_ms
        now[0] += 4
        client.ask(HANDSHAKE, 1)
        assert 5000 == client.ask(plain(), 2).session_lifetime_ms
        now[0] += 5
        assert 1 == len(client.ask(METADATA, 12).brokers)
        now[0] += 0.1
        client.send(METADATA, 12)
        assert client.is_closed()


def test_frames_are_limited_before_authentication(sasl_client, broker):
    """The limit for frames is half a megabyte before authentication, and 100 MB afterwards."""
    sasl_client.send_bytes(struct.pack(">i", 512 * 1024 + 1))
    assert sasl_client.is_closed()
    with RawClient(port_of(broker, "SASL_PLAINTEXT")) as client:
        client.ask(HANDSHAKE, 1)
        client.ask(plain(), 2)
        client.send_bytes(struct.pack(">i", 512 * 1024 + 1))
        assert client.is_silent_for(0.2)


def test_an_unknown_authority_is_refused_by_the_client(broker, certificates):
    """A client that does not trust the authority cannot connect, and others still can."""
    strange = ssl.create_default_context(cafile=certificates.stranger.pem_file)
    with pytest.raises(ssl.SSLCertVerificationError):
        RawClient(port_of(broker, "SSL"), strange)
    with RawClient(port_of(broker, "SSL"), trusting(certificates)) as client:
        assert ErrorCode.NONE == client.ask(API_VERSIONS, 4).error_code


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x0a" + bytes(10)])
def test_a_client_without_tls_is_disconnected(broker, caplog, greeting):
    """Bytes other than TLS close the connection, and the broker logs no warning."""
    with RawClient(port_of(broker, "SSL")) as client:
        client.send_bytes(greeting)
        received = bytearray()
        with contextlib.suppress(ConnectionError):
            while piece := client._socket.recv(100):  # A TLS alert may come first.
                received += piece
    assert len(received) < 100
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


def client_auth_broker(certificates, client_auth):
    return DevBroker(
        listeners=[
            Listener(
                security_protocol=SecurityProtocol.SSL,
                tls=server_tls(certificates.server, clients=certificates.authority),
                client_auth=client_auth,
            )
        ]
    )


def comes_in(broker, context):
    """Return whether a client with this context gets a response."""
    try:
        with RawClient(broker.port, context) as client:
            return ErrorCode.NONE == client.ask(API_VERSIONS, 4).error_code
    except (ConnectionError, ssl.SSLError):
        return False


@pytest.mark.parametrize(
    ("client_auth", "expected"),
    [
        (ClientAuth.NONE, {"none": True, "known": True, "strange": True}),
        (ClientAuth.REQUESTED, {"none": True, "known": True, "strange": False}),
        (ClientAuth.REQUIRED, {"none": False, "known": True, "strange": False}),
    ],
)
def test_clients_certificates(certificates, client_auth, expected):
    """ssl.client.auth decides whether clients need a certificate, which must be trusted."""
    with client_auth_broker(certificates, client_auth) as broker:
        answered = {
            "none": comes_in(broker, trusting(certificates)),
            "known": comes_in(broker, trusting(certificates, certificates.client)),
            "strange": comes_in(broker, trusting(certificates, certificates.strange_client)),
        }
    assert expected == answered


def test_the_right_is_that_of_the_authenticated_user(certificates):
    """ACLs apply to the SASL user, to the subject of a certificate, or to ANONYMOUS."""
    tls = Listener(
        security_protocol=SecurityProtocol.SSL,
        tls=server_tls(certificates.server, clients=certificates.authority),
        client_auth=ClientAuth.REQUESTED,
    )
    listeners = [Listener(), listener("SASL_PLAINTEXT"), tls]
    encoded = ssl.PEM_cert_to_DER_cert(certificates.client.chain)
    principals = {
        "plain": "User:ANONYMOUS",
        "sasl": f"User:{USER}",
        "tls": f"User:{subject_name(encoded)}",
    }
    topics = dict.fromkeys(principals, 1)
    with DevBroker(listeners=listeners, topics=topics, authorizer=True) as broker:
        broker.call(
            lambda inner: inner.cluster.change_acls(
                _may_describe(topic, principal) for topic, principal in principals.items()
            )
        )

        def seen(protocol, context=None, *, logs_in=False):
            with RawClient(port_of(broker, protocol), context) as client:
                if logs_in:
                    client.ask(HANDSHAKE, 1)
                    client.ask(plain(), 2)
                return [topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics]

        assert ["plain"] == seen("PLAINTEXT")
        assert ["sasl"] == seen("SASL_PLAINTEXT", logs_in=True)
        assert ["tls"] == seen("SSL", trusting(certificates, certificates.client))
        assert ["plain"] == seen("SSL", trusting(certificates))


def _may_describe(topic, principal):
    return Acl(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        principal,
        "127.0.0.1",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )


def test_stores_of_other_kinds(certificates):
    """A listener's key store may be PKCS#12, or PEM within the settings."""
    pkcs12 = TlsSettings(
        keystore_type="PKCS12",
        keystore_location=str(certificates.server.pkcs12_file),
        keystore_password=STORE_PASSWORD,
    )
    pem = TlsSettings(
        keystore_type="PEM",
        keystore_key=certificates.server.encrypted_key(),
        keystore_certificate_chain=certificates.server.chain,
        key_password=STORE_PASSWORD,
    )
    for tls in (pkcs12, pem):
        with DevBroker(listeners=[Listener(security_protocol="SSL", tls=tls)]) as broker:
            assert comes_in(broker, trusting(certificates))


def test_a_restart_loads_a_renewed_certificate(certificates, tmp_path):
    """Key stores are read when the broker starts."""
    store = tmp_path / "server.pem"
    shutil.copy(certificates.expired.pem_file, store)
    tls = dataclasses.replace(server_tls(certificates.server), keystore_location=str(store))
    with DevBroker(listeners=[Listener(security_protocol="SSL", tls=tls)]) as broker:
        assert not comes_in(broker, trusting(certificates))
        broker.stop()
        shutil.copy(certificates.server.pem_file, store)
        broker.start()
        assert comes_in(broker, trusting(certificates))


def test_stopping_does_not_wait_for_handshakes(broker):
    """A client in the middle of its TLS greeting does not delay the stop."""
    with socket.create_connection(("127.0.0.1", port_of(broker, "SSL"))) as client:
        client.sendall(b"\x16\x03\x01")
        broker.stop()
        client.settimeout(120)
        with contextlib.suppress(ConnectionError):
            assert b"" == client.recv(1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"security_protocol": "TLS"}, "'TLS'"),
        ({"client_auth": "maybe"}, "'maybe'"),
        ({"security_protocol": "SSL"}, "SSL.* needs the setting tls"),
        ({"sasl": SaslSettings(users=USERS)}, "PLAINTEXT.* does not use the setting sasl"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs the setting sasl"),
    ],
)
def test_a_listener_that_contradicts_itself_is_refused(settings, reason):
    """TLS needs a key store and SASL needs users, and settings without use are refused."""
    with pytest.raises(ConfigError, match=reason):
        Listener(**settings)


@pytest.mark.parametrize("listeners", [[], [Listener(), Listener()]])
def test_listeners_have_different_names(listeners):
    """A broker has at least one listener, and their names are unique."""
    with pytest.raises(ConfigError, match="listener"):
        DevBroker(listeners=listeners)


@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        (TlsSettings(), "ssl.keystore.location is needed"),
        (TlsSettings(keystore_type="PEM", keystore_location=__file__), "PEM"),
    ],
)
def test_a_listener_that_cannot_open_says_why(tls, reason):
    """An invalid key store makes the start fail, and no listener is left open."""
    listeners = [Listener(), Listener(security_protocol="SSL", tls=tls)]
    broker = DevBroker(listeners=listeners)
    with pytest.raises(ConfigError, match=reason):
        broker.start()


def test_an_unknown_listener_has_no_address(broker):
    """The error for a wrong listener name lists the valid ones."""
    with pytest.raises(ConfigError, match="INSIDE does not exist; the listeners are PLAINTEXT"):
        broker.address("INSIDE")


def test_secrets_are_not_shown(certificates, caplog):
    """Neither a repr nor the log contains a password."""
    caplog.set_level(logging.DEBUG)
    secure = listener("SASL_SSL", certificates)
    with (
        DevBroker(listeners=[secure]) as broker,
        RawClient(broker.port, trusting(certificates)) as client,
    ):
        client.ask(HANDSHAKE, 1)
        client.ask(plain(), 2)
        with RawClient(broker.port, trusting(certificates)) as other:
            other.ask(HANDSHAKE, 1)
            other.ask(plain(USER, "planted"), 2)

    for text in (repr(secure), repr(secure.sasl), caplog.text):
        assert "secret" not in text
        assert "planted" not in text
    assert "user 'alice'" in caplog.text
