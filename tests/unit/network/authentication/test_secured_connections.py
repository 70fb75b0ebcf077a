"""TLS and SASL, from the settings of a producer to a listener that requires them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress

import pytest

from spark_kafka_sink.admin.cluster_check import describe_topics
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import CloseConnection
from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.security.certificates import STORE_PASSWORD
from tests.support.security.secure_front import SaslRules, SecureFront, server_context
from tests.support.security.secured import jaas, key_store, sasl, tls

USERS = {"alice": "planted-secret", "a,b=c": "other"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"events": 2}) as started:
        yield started


@pytest.fixture
def secured(front, certificates):
    """Return a listener with both."""
    front.tls = server_context(certificates.server)
    front.sasl = SaslRules(users=USERS)
    return front


def settings(front, *parts, **others):
    """Build settings; keywords have underscores for dots."""
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {
        "bootstrap.servers": front.bootstrap_servers,
        **{name: value for part in parts for name, value in part.items()},
        **named,
    }


def send(front, *parts, **others):
    """Send a record and wait until it is acknowledged."""
    with KafkaProducer(settings(front, *parts, **others)) as producer:
        assert producer.send("events", b"v").result(60).offset >= 0


def refusal(front, *parts, kind=AuthenticationError, **others):
    """Return the error of a producer that cannot connect, without waiting for max.block.ms."""
    producer = KafkaProducer(settings(front, *parts, max_block_ms=10**7, **others))
    try:
        with pytest.raises(kind) as caught:
            producer.send("events", b"v").result(60)
        with pytest.raises(kind):
            # The producer has ended, and raises the same error from now on.
            producer.flush()
    finally:
        producer.close(0)
    assert "planted-secret" not in str(caught.value)
    return str(caught.value).replace(front.bootstrap_servers, "ADDRESS")


# --- TLS


def test_every_security_protocol_works(front, certificates):
    """security.protocol combines TLS and SASL in any way."""
    for protocol in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        front.tls = server_context(certificates.server) if "SSL" in protocol else None
        front.sasl = SaslRules(users=USERS) if "SASL" in protocol else None
        parts = [tls(certificates.authority)] if "SSL" in protocol else []
        parts += [sasl("PLAIN", "alice", "planted-secret")] if "SASL" in protocol else []
        send(front, *parts, security_protocol=protocol)
    assert [("PLAIN", "alice")] * 4 == front.authenticated
    assert {"TLSv1.3"} == {version for version, _ in front.cipher_names}
    assert [] == front.violations


@pytest.mark.parametrize("form", ["text", "pem", "pkcs12", "pkcs12 called JKS"])
def test_every_kind_of_truststore_works(front, certificates, form):
    """Trusted certificates come as text, as a PEM file, or as PKCS12 with its password."""
    front.tls = server_context(certificates.server)
    authority = certificates.authority
    store = {
        "text": {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem},
        "pem": {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.pem_file)},
        "pkcs12": {
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": str(authority.pkcs12_file),
            "ssl.truststore.password": STORE_PASSWORD,
        },
        "pkcs12 called JKS": {
            "ssl.truststore.location": str(authority.pkcs12_file),
            "ssl.truststore.password": STORE_PASSWORD,
        },
    }[form]
    send(front, store, security_protocol="SSL")


@pytest.mark.parametrize("form", ["text", "encrypted text", "pem", "encrypted pem", "pkcs12"])
def test_every_kind_of_keystore_works(front, certificates, form):
    """A client's certificate comes as text, PEM or PKCS12, with or without an encrypted key."""
    front.tls = server_context(certificates.server, trusted=certificates.authority.pem)
    client = certificates.client
    pem, chain = {"ssl.keystore.type": "PEM"}, {"ssl.keystore.certificate.chain": client.chain}
    store = {
        "text": {**pem, **chain, "ssl.keystore.key": client.key},
        "encrypted text": {
            **pem,
            **chain,
            "ssl.keystore.key": client.encrypted_key(),
            "ssl.key.password": STORE_PASSWORD,
        },
        "pem": key_store(client),
        "encrypted pem": {
            **pem,
            "ssl.keystore.location": str(client.encrypted_pem_file),
            "ssl.key.password": STORE_PASSWORD,
        },
        "pkcs12": {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(client.pkcs12_file),
            "ssl.keystore.password": STORE_PASSWORD,
        },
    }[form]
    send(front, tls(certificates.authority), store)
    assert {"alice"} == set(front.client_names)


@pytest.mark.parametrize(
    ("chosen", "version", "cipher"),
    [
        ({"ssl_protocol": "TLSv1.2"}, "TLSv1.2", ""),
        ({"ssl_enabled_protocols": "TLSv1.2"}, "TLSv1.2", ""),
        ({"ssl_enabled_protocols": "TLSv1.3"}, "TLSv1.3", ""),
        (
            {"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
            "TLSv1.2",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
    ],
)
def test_tls_versions_and_cipher_suites_can_be_chosen(front, certificates, chosen, version, cipher):
    """The connection uses a version and a suite that the settings allow."""
    front.tls = server_context(certificates.server)
    send(front, tls(certificates.authority), **chosen)
    assert {version} == {spoken for spoken, _ in front.cipher_names}
    assert all(cipher in used for _, used in front.cipher_names)


def test_a_certificate_of_an_unknown_authority_is_refused(front, certificates):
    """The error for a certificate of an unknown authority says where to add the authority."""
    front.tls = server_context(certificates.server)
    message = refusal(front, tls(certificates.stranger))
    assert "ADDRESS: the broker's certificate is not trusted (" in message
    assert message.endswith("to ssl.truststore.location or ssl.truststore.certificates")


def test_the_systems_authorities_are_used_without_a_truststore(front, certificates):
    """Without a truststore the system's own authorities are used."""
    front.tls = server_context(certificates.server)
    assert "is not trusted" in refusal(front, security_protocol="SSL")


def test_an_expired_certificate_is_refused(front, certificates):
    """The error says that the certificate has expired."""
    front.tls = server_context(certificates.expired)
    message = refusal(front, tls(certificates.authority))
    assert "ADDRESS: the broker's certificate, or one in its chain, has expired" in message


def test_the_certificate_must_match_the_host(front, certificates):
    """A certificate for another host is refused, unless host names are not checked."""
    front.tls = server_context(certificates.other_host)
    trusting = tls(certificates.authority)
    assert "certificate is not for the host 'localhost'" in refusal(front, trusting)
    send(front, trusting, ssl_endpoint_identification_algorithm="")


@pytest.mark.parametrize("form", ["PEM", "PKCS12"])
def test_the_certificate_must_match_the_host_with_a_truststore_file(front, certificates, form):
    """The source of the trusted certificates does not matter for this."""
    front.tls = server_context(certificates.other_host)
    authority = certificates.authority
    store = {
        "security.protocol": "SSL",
        "ssl.truststore.type": form,
        "ssl.truststore.location": str(
            authority.pem_file if form == "PEM" else authority.pkcs12_file
        ),
        **({} if form == "PEM" else {"ssl.truststore.password": STORE_PASSWORD}),
    }
    assert "certificate is not for the host 'localhost'" in refusal(front, store)
    send(front, store, ssl_endpoint_identification_algorithm="")


def test_the_certificate_must_contain_the_address(broker, certificates):
    """If the host is an address, the certificate has to contain it as an address."""
    context = server_context(certificates.server)
    with SecureFront(broker.bootstrap_servers, tls=context, host="127.0.0.1") as front:
        send(front, tls(certificates.authority))
    context = server_context(certificates.other_host)
    with SecureFront(broker.bootstrap_servers, tls=context, host="127.0.0.1") as front:
        assert "not for the host '127.0.0.1'" in refusal(front, tls(certificates.authority))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_the_error_says_that_the_listener_requires_a_certificate(front, certificates, version):
    """The client's error says so at whichever point of the handshake the listener refuses."""
    front.tls = server_context(certificates.server, trusted=certificates.authority.pem)
    message = refusal(front, tls(certificates.authority), ssl_protocol=version)
    assert "ADDRESS: the broker rejected the TLS connection (" in message
    assert "ssl.keystore.*" in message


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_certificate_that_the_listener_does_not_trust_is_refused(front, certificates, version):
    """The error says that the authority of the client's certificate is unknown."""
    front.tls = server_context(certificates.server, trusted=certificates.authority.pem)
    shown = key_store(certificates.strange_client)
    message = refusal(front, tls(certificates.authority), shown, ssl_protocol=version)
    assert "(UNKNOWN_CA): it does not trust the issuer of this client's certificate" in message


def test_the_error_says_that_there_is_no_common_tls_version(front, certificates):
    """If client and broker have no TLS version in common, the error names the settings."""
    front.tls = server_context(certificates.server)
    front.tls.maximum_version = ssl.TLSVersion.TLSv1_2
    message = refusal(front, tls(certificates.authority), ssl_enabled_protocols="TLSv1.3")
    assert "(PROTOCOL_VERSION): it supports none of the TLS versions in ssl.enabled" in message


def test_a_plain_client_at_a_tls_listener_is_an_error_at_once(front, certificates):
    """The error is immediate if a client without TLS connects to a TLS listener."""
    front.tls = server_context(certificates.server)
    assert (
        "ADDRESS: this listener uses TLS, but security.protocol does not: set it to "
        "SSL or SASL_SSL, or use the port of a listener without TLS"
    ) == refusal(front)


def test_a_tls_client_at_a_plain_listener_is_an_error_at_once(front, certificates):
    """The error is immediate if a TLS client connects to a plain listener of Kafka."""
    assert "ADDRESS: this listener does not use TLS: use the port" in refusal(
        front, tls(certificates.authority)
    )


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        (
            {"ssl.truststore.location": "/no/such/file"},
            "ssl.truststore.location /no/such/file cannot be read: No such file or directory",
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "planted-secret"},
            "ssl.truststore.certificates contains no certificate in PEM",
        ),
    ],
)
def test_an_unusable_store_fails_the_producer(front, store, problem):
    """The error for a file that is missing or has other contents names its setting."""
    assert refusal(front, store, kind=ConfigError, security_protocol="SSL").startswith(problem)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ssl.keystore.key": "planted-secret"}, "ssl.keystore.key and ssl.keystore.certificate"),
        ({"ssl.truststore.password": "planted-secret"}, "ssl.truststore.password requires ssl."),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols must be some of: TLSv1.2"),
        ({"ssl.cipher.suites": "RC4"}, "ssl.cipher.suites: 'RC4' is unknown or insecure"),
        ({"sasl.jaas.config": "planted-secret"}, "sasl.jaas.config must begin with a login module"),
    ],
)
def test_contradictory_settings_are_refused_at_once(front, given, problem):
    """The producer's constructor raises the error, with the names that the user wrote."""
    protocol = "SSL" if next(iter(given)).startswith("ssl") else "SASL_PLAINTEXT"
    others = {"security.protocol": protocol, "sasl.mechanism": "PLAIN"}
    if protocol == "SSL":
        del others["sasl.mechanism"]
    config = ProducerConfig.from_mapping(settings(front, others, given), prefix="kafka.")
    with pytest.raises(ConfigError) as caught:
        KafkaProducer(config)
    assert str(caught.value).startswith(f"kafka.{problem}")
    assert "planted-secret" not in str(caught.value)
    assert 0 == front.connections


def test_a_renewed_certificate_is_used_by_the_next_connection(front, certificates, tmp_path):
    """The keystore is read for each connection, and the last one kept if it is unusable."""
    front.tls = server_context(certificates.server, trusted=certificates.authority.pem)
    store = tmp_path / "client.pem"
    store.write_bytes(certificates.client.pem_file.read_bytes())
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    renewed = certificates.authority.issue("renewed", "client.test", common_name="renewed")
    with KafkaProducer(settings(front, tls(certificates.authority), own)) as producer:
        producer.send("events", b"1").result(60)
        store.write_text("half of a file")
        front.hang_up()
        producer.send("events", b"2").result(60)
        assert {"alice"} == set(front.client_names)
        store.write_bytes(renewed.pem_file.read_bytes())
        front.hang_up()
        producer.send("events", b"3").result(60)
    assert "renewed" == front.client_names[-1]


def test_a_store_that_cannot_be_reloaded_is_logged_as_a_warning(
    certificates, tmp_path, caplog, front
):
    """The previous content of the store stays in use, and a warning is logged."""
    front.tls = server_context(certificates.server)
    store = tmp_path / "trust.pem"
    store.write_text(certificates.authority.pem)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(store)}
    with (
        caplog.at_level(logging.WARNING),
        KafkaProducer(settings(front, trust, security_protocol="SSL")) as producer,
    ):
        producer.send("events", b"1").result(60)
        store.unlink()
        front.hang_up()
        producer.send("events", b"2").result(60)
    assert f"ssl.truststore.location {store} cannot be read: No such file" in caplog.text
    assert "its previous content remains in use" in caplog.text


# --- SASL


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", USERS)
def test_every_mechanism_works(secured, certificates, mechanism, user):
    """Username and password in sasl.jaas.config work with every mechanism."""
    trusting = tls(certificates.authority, "SASL_SSL")
    send(secured, sasl(mechanism, user, USERS[user]), trusting)
    assert {(mechanism, user)} == set(secured.authenticated)
    assert [] == secured.violations


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_fails_the_producer(front, mechanism):
    """The error names broker, mechanism and user, and the broker is not tried again."""
    front.sasl = SaslRules(users={"alice": "another"})
    assert (
        f"ADDRESS: {mechanism} authentication of user 'alice' failed: Authentication "
        "failed: nobody knows this user. Check username and password in sasl.jaas.config, and that "
        "the cluster has this user for this mechanism"
    ) == refusal(front, sasl(mechanism, "alice", "planted-secret"))
    assert front.refused <= 2


def test_a_password_quoted_by_the_broker_is_hidden(front):
    """The broker's message is shown without our secret and without unprintable characters."""
    front.sasl = SaslRules(message=lambda said: f"\x1bno: {said.decode()}")
    message = refusal(front, sasl("PLAIN", "alice", "planted-secret"))
    assert "failed: ?no: ?alice?[hidden]. Check" in message


def test_a_listener_that_does_not_know_the_password_is_refused(front):
    """A listener that cannot compute SCRAM's signature is sent no records."""
    front.sasl = SaslRules(users=USERS, honest=False)
    message = refusal(front, sasl("SCRAM-SHA-256", "alice", "planted-secret"))
    assert "the broker's SCRAM signature is wrong: it does not know this user's password" in message


def test_mechanisms_of_both_sides_are_named(front):
    """If the listener has other mechanisms, the error lists both sides' and what to do."""
    front.sasl = SaslRules(mechanisms=("SCRAM-SHA-512", "NTLM"))
    message = refusal(front, sasl("PLAIN", "alice", "planted-secret"))
    assert "The broker offers: NTLM, SCRAM-SHA-512; this client supports: PLAIN, SCRAM" in message
    assert message.endswith("set sasl.mechanism to SCRAM-SHA-512")


def test_the_error_says_that_the_listener_has_no_sasl(front):
    """The error says that the listener has no SASL."""
    assert "ADDRESS: this listener does not use SASL: set security.protocol" in refusal(
        front, sasl("PLAIN", "alice", "planted-secret")
    )


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_the_error_says_that_the_listener_requires_sasl(front, certificates, protocol):
    """After the listener has hung up on the client, it is asked once whether it needs SASL."""
    front.sasl = SaslRules(users=USERS)
    trust = {}
    if protocol == "SSL":
        front.tls = server_context(certificates.server)
        trust = tls(certificates.authority)
    message = refusal(front, trust)
    assert message.startswith("ADDRESS: this listener requires SASL (it offers 'PLAIN', ")
    assert "set security.protocol to SASL_PLAINTEXT" in message


def test_a_broker_without_sasl_may_close_a_connection():
    """A listener without SASL is asked once, says no, and gets the record."""
    with DevBroker(topics={"events": 1}) as broker:
        asked = broker.on(ApiKey.SASL_HANDSHAKE, lambda *_: None)
        broker.on(ApiKey.METADATA, CloseConnection(), times=1)
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            assert 0 == producer.send("events", b"v").result(60).offset
        assert 1 == asked.seen


def test_an_authentication_failure_fails_a_running_producer(front):
    """If the password changes while a producer runs, its next connection ends it."""
    front.sasl = SaslRules(users=USERS)
    producer = KafkaProducer(settings(front, sasl("PLAIN", "alice", "planted-secret")))
    producer.send("events", b"v").result(60)
    front.sasl = SaslRules(users={"alice": "changed"})
    front.hang_up()

    def send_until_it_ends() -> None:
        while True:
            with suppress(NetworkError):
                producer.send("events", b"v").result(60)

    with pytest.raises(AuthenticationError, match="PLAIN authentication of user 'alice' failed"):
        send_until_it_ends()
    producer.close(0)


# --- in the driver


def test_the_drivers_check_uses_the_same_settings(secured, certificates):
    """The check of the cluster before a job is secured like the job, and fails like it."""
    good = settings(secured, sasl("PLAIN", "alice", "planted-secret"))
    good.update(tls(certificates.authority, "SASL_SSL"))
    described = describe_topics(
        ProducerConfig.from_mapping(good), ["events"], is_dry_run=True, timeout=15
    )
    assert 2 == described["events"].partitions
    bad = {**good, "sasl.jaas.config": jaas("PLAIN", username="alice", password="wrong-secret")}  # noqa: S106
    with pytest.raises(AuthenticationError, match="PLAIN authentication of user 'alice'") as caught:
        describe_topics(ProducerConfig.from_mapping(bad), ["events"], is_dry_run=True, timeout=15)
    assert "wrong-secret" not in str(caught.value)


def test_the_admin_client_uses_the_same_settings(secured, certificates):
    """A driver's requests about transactions use connections that are secured the same way."""
    good = settings(secured, sasl("SCRAM-SHA-512", "alice", "planted-secret"))
    good.update(tls(certificates.authority, "SASL_SSL"))
    with DriverClient(ProducerConfig.from_mapping(good)) as admin:
        assert [] == admin.list_transactions(lambda _: True, timeout=60)
    bad = {**good, "sasl.jaas.config": jaas("SCRAM-SHA-512", username="alice", password="x")}  # noqa: S106
    with (
        DriverClient(ProducerConfig.from_mapping(bad)) as admin,
        pytest.raises(AuthenticationError, match="SCRAM-SHA-512 authentication of user 'alice'"),
    ):
        admin.list_transactions(lambda _: True, timeout=600)


def test_a_client_can_connect_after_a_refusal(front):
    """A client that survives a refusal can connect once the cause is gone."""
    front.sasl = SaslRules(users={})
    config = ProducerConfig.from_mapping(
        settings(front, sasl("PLAIN", "alice", "planted-secret"), reconnect_backoff_ms=0)
    )

    async def run() -> None:
        client = NetworkClient(config)
        deadline = asyncio.get_running_loop().time() + 60
        with pytest.raises(AuthenticationError):
            await client.update_metadata(deadline)
        assert isinstance(client.refusal, AuthenticationError)
        front.sasl = SaslRules(users=USERS)
        await client.update_metadata(deadline)
        assert client.refusal is None
        await client.close()

    asyncio.run(run())
