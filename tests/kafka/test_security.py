"""TLS and SASL with real brokers: successful and failed connections, and their errors."""

from __future__ import annotations

import re
import time

import pytest

from spark_kafka_sink.admin.cluster_check import describe_topics
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.authentication import sasl_authenticator
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.data_source import KafkaSink
from tests.support.kafka.java_tools import run_java_tool
from tests.support.kafka.real_kafka import wait_until
from tests.support.security.secured import jaas, key_store, sasl, tls
from tests.support.security.secured_kafka import PASSWORD, SESSION_MS, USER, address, count_renewals
from tests.support.security.token_endpoint import jwt

PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HANDLER = "sasl.login.callback.handler.class"


def settings(kafka, listener, *parts, **others):
    named = {name.replace("_", "."): value for name, value in others.items()}
    return {
        "bootstrap.servers": address(kafka, listener),
        **{name: value for part in parts for name, value in part.items()},
        **named,
    }


def bearer(subject="alice", protocol="SASL_PLAINTEXT"):
    module = jaas("OAUTHBEARER", unsecuredLoginStringClaim_sub=subject)
    return {
        "security.protocol": protocol,
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": module,
    }


def write(kafka, listener, *parts, **others):
    """Write records to a new topic, and check that their offsets are their numbers."""
    topic = kafka.create_topic(1)
    with KafkaProducer(settings(kafka, listener, *parts, **others)) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert list(range(10)) == [future.result(60).offset for future in futures]


def refusal(kafka, listener, *parts, **others):
    """Return the error of a producer that fails to connect, long before its max.block.ms."""
    producer = KafkaProducer(settings(kafka, listener, *parts, max_block_ms=10**7, **others))
    try:
        with pytest.raises(AuthenticationError) as caught:
            producer.send("events", b"v").result(60)
    finally:
        producer.close(0)
    assert PASSWORD not in str(caught.value)
    return str(caught.value).replace(address(kafka, listener), "ADDRESS")


# --- successful connections


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_records_are_written_over_tls(secured_kafka, certificates, version):
    """Records are written over TLS with the selected version."""
    write(secured_kafka, "TLS", tls(certificates.authority), ssl_enabled_protocols=version)


@pytest.mark.parametrize("form", ["pem", "pkcs12"])
def test_a_client_presents_its_certificate(secured_kafka, certificates, form):
    """A client presents its certificate if the listener requires one."""
    store = {
        "pem": key_store(certificates.client),
        "pkcs12": {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(certificates.client.pkcs12_file),
            "ssl.keystore.password": "store-password",
        },
    }[form]
    write(secured_kafka, "MTLS", tls(certificates.authority), store)


@pytest.mark.parametrize("mechanism", PASSWORDS)
@pytest.mark.parametrize("listener", ["SASLPLAIN", "SASLTLS"])
def test_plain_and_scram_clients_are_accepted(secured_kafka, certificates, mechanism, listener):
    """PLAIN and SCRAM work over plain TCP and over TLS."""
    parts = [sasl(mechanism, USER, PASSWORD)]
    if listener == "SASLTLS":
        parts.append(tls(certificates.authority, "SASL_SSL"))
    write(secured_kafka, listener, *parts)


@pytest.mark.parametrize("listener", ["SASLPLAIN", "SASLTLS"])
def test_oauthbearer_clients_are_accepted(secured_kafka, certificates, listener):
    """OAUTHBEARER works over plain TCP and over TLS."""
    parts = [bearer()]
    if listener == "SASLTLS":
        parts.append(tls(certificates.authority, "SASL_SSL"))
    write(secured_kafka, listener, *parts)


def test_a_login_callback_can_be_a_function(secured_kafka):
    """A login callback may be a function that returns the token."""
    given = {**bearer(), HANDLER: lambda: jwt("alice")}
    del given["sasl.jaas.config"]
    write(secured_kafka, "SASLPLAIN", given)


def test_a_delegation_token_is_accepted(secured_kafka, tmp_path):
    """A delegation token from Kafka's own tool works as user and password of SCRAM (KIP-48)."""
    properties = tmp_path / "client.properties"
    login = sasl("SCRAM-SHA-256", USER, PASSWORD)
    properties.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    printed = run_java_tool(
        "org.apache.kafka.tools.DelegationTokenCommand",
        *("--bootstrap-server", address(secured_kafka, "SASLPLAIN"), "--create"),
        *("--command-config", str(properties), "--max-life-time-period", "-1"),
    )
    found = re.search(r"^(\S{22})\s+(\S{80,})\s", printed, re.MULTILINE)
    assert found is not None, printed
    module = jaas("SCRAM-SHA-256", username=found[1], password=found[2], tokenauth="true")
    write(secured_kafka, "SASLPLAIN", login, sasl_jaas_config=module)


# --- failed connections


def test_a_certificate_of_an_untrusted_authority_is_rejected(secured_kafka, certificates):
    """A broker whose certificate is not signed by a trusted authority is rejected."""
    message = refusal(secured_kafka, "TLS", tls(certificates.stranger))
    assert "ADDRESS: the broker's certificate is not trusted (" in message


def test_an_expired_certificate_is_rejected(secured_kafka, certificates):
    """A broker's expired certificate is rejected."""
    message = refusal(secured_kafka, "EXPIRED", tls(certificates.authority))
    assert "certificate, or one in its chain, has expired (" in message


def test_a_certificate_for_another_host_is_rejected(secured_kafka, certificates):
    """A broker's certificate must be for the host, unless hostname verification is disabled."""
    message = refusal(secured_kafka, "OTHERHOST", tls(certificates.authority))
    assert "the broker's certificate is not for the host 'localhost' (" in message
    anyone = {"ssl.endpoint.identification.algorithm": ""}
    write(secured_kafka, "OTHERHOST", tls(certificates.authority), anyone)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("shown", ["none", "a stranger's"])
def test_a_client_without_a_trusted_certificate_is_rejected(
    secured_kafka, certificates, version, shown
):
    """A listener that requires a certificate rejects clients without a trusted one."""
    store = {} if shown == "none" else key_store(certificates.strange_client)
    message = refusal(
        secured_kafka, "MTLS", tls(certificates.authority), store, ssl_enabled_protocols=version
    )
    assert "ADDRESS: the broker rejected the TLS connection (" in message
    assert "ssl.keystore.*" in message


def test_a_plaintext_client_at_a_tls_listener_is_an_error(secured_kafka):
    """A client without TLS gets an error that says that the listener uses TLS."""
    assert refusal(secured_kafka, "TLS").startswith("ADDRESS: this listener uses TLS")


@pytest.mark.parametrize(("listener", "protocol"), [("SASLPLAIN", "PLAINTEXT"), ("SASLTLS", "SSL")])
def test_a_client_without_sasl_at_a_sasl_listener_is_an_error(
    secured_kafka, certificates, listener, protocol
):
    """A client without SASL gets an error that says that the listener requires it."""
    trust = tls(certificates.authority) if protocol == "SSL" else {}
    message = refusal(secured_kafka, listener, trust)
    assert message.startswith("ADDRESS: this listener requires SASL (it offers ")
    assert "set security.protocol to SASL_PLAINTEXT" in message


@pytest.mark.parametrize("listener", ["SASLPLAIN", "plain"])
def test_a_tls_client_at_a_plaintext_listener_is_an_error(secured_kafka, certificates, listener):
    """A client with TLS gets an error that says that the listener does not use it."""
    where = {} if listener != "plain" else {"bootstrap.servers": secured_kafka.bootstrap_servers}
    message = refusal(secured_kafka, "SASLPLAIN", tls(certificates.authority), where)
    assert "this listener does not use TLS" in message


@pytest.mark.parametrize("mechanism", PASSWORDS)
@pytest.mark.parametrize("user", [USER, "nobody"])
def test_the_error_of_a_wrong_password_names_the_user(secured_kafka, mechanism, user):
    """The error names broker, mechanism and user, and has the broker's message."""
    message = refusal(secured_kafka, "SASLPLAIN", sasl(mechanism, user, "wrong"))
    assert message.startswith(
        f"ADDRESS: {mechanism} authentication of user {user!r} failed: Authentication failed"
    )
    assert message.endswith("the cluster has this user for this mechanism")


def test_an_expired_token_is_rejected(secured_kafka):
    """The broker rejects an expired token, even if the callback reports a later expiry."""
    given = {**bearer(), HANDLER: lambda: (jwt("alice", lifetime=-600), time.time() + 600)}
    del given["sasl.jaas.config"]
    message = refusal(secured_kafka, "SASLPLAIN", given)
    assert "ADDRESS: OAUTHBEARER authentication of user 'alice' failed: {" in message
    assert "invalid_token" in message


def test_the_error_of_disjoint_mechanisms_lists_both_sides(secured_kafka):
    """The error lists the mechanisms of both sides."""
    message = refusal(secured_kafka, "SCRAMONLY", sasl("PLAIN", USER, PASSWORD))
    assert "The broker offers: SCRAM-SHA-512; this client supports: PLAIN, SCRAM-SHA-256" in message
    assert message.endswith("set sasl.mechanism to SCRAM-SHA-512")


def test_a_sasl_client_at_a_listener_without_sasl_is_an_error(secured_kafka):
    """A client with SASL gets an error that says that the listener does not use it."""
    where = {"bootstrap.servers": secured_kafka.bootstrap_servers}
    message = refusal(secured_kafka, "SASLPLAIN", sasl("PLAIN", USER, PASSWORD), where)
    assert "this listener does not use SASL" in message


# --- on the driver, and under Spark


def test_the_driver_checks_with_the_security_settings_of_the_job(secured_kafka, certificates):
    """The driver's check and the admin client use the same security settings."""
    topic = secured_kafka.create_topic(3)
    good = settings(secured_kafka, "SASLTLS", sasl("SCRAM-SHA-512", USER, PASSWORD))
    good.update(tls(certificates.authority, "SASL_SSL"))
    config = ProducerConfig.from_mapping(good)
    assert 3 == describe_topics(config, [topic], is_dry_run=True, timeout=60)[topic].partitions
    with DriverClient(config) as admin:
        assert isinstance(admin.list_transactions(lambda _: True, timeout=60), list)


def test_spark_writes_with_the_options_of_the_jvm_sink(secured_kafka, certificates, spark):
    """The options of Spark's own sink work unchanged in the check, the driver and the tasks."""
    topic = secured_kafka.create_topic(2)
    login = sasl("SCRAM-SHA-256", USER, PASSWORD)
    trust = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(certificates.authority.pkcs12_file),
        "ssl.truststore.password": "store-password",
    }
    given = settings(secured_kafka, "SASLTLS", login, trust, security_protocol="SASL_SSL")
    options = {"topic": topic, **{f"kafka.{name}": value for name, value in given.items()}}
    df = spark.range(1_000).selectExpr("cast(id as string) as value")
    assert 2 == KafkaSink.check(df, options).partitions
    df.write.format("pykafka").mode("append").options(**options).save()
    assert 1_000 == sum(secured_kafka.end_offsets(topic).values())
    wrong = jaas("SCRAM-SHA-256", username=USER, password="wrong")  # noqa: S106
    with pytest.raises(AuthenticationError, match="authentication of user 'alice' failed"):
        KafkaSink.check(df, {**options, "kafka.sasl.jaas.config": wrong})


# --- sessions


def test_a_renewal_that_comes_too_soon_ends_only_the_connection(
    secured_kafka, certificates, monkeypatch
):
    """A broker refuses a second one within a second; the client connects again."""
    for name in ("RENEWAL_SHARE", "RENEWAL_JITTER", "MIN_INTERVAL"):
        monkeypatch.setattr(sasl_authenticator, name, 0.0)
    topic = secured_kafka.create_topic(1)
    login, trust = bearer(protocol="SASL_SSL"), tls(certificates.authority, "SASL_SSL")
    offsets = []
    with KafkaProducer(settings(secured_kafka, "REAUTH", login, trust, linger_ms=0)) as producer:

        def is_refused():
            offsets.append(producer.send(topic, b"v").result(120).offset)
            return "the session could not be renewed" in str(producer._core._client.last_error)

        wait_until(is_refused, seconds=120, what="a renewal that comes too soon")
        offsets += [producer.send(topic, b"v").result(120).offset for _ in range(3)]
    assert [*range(len(offsets))] == offsets


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_sessions_are_reauthenticated_under_load(
    secured_kafka, certificates, mechanism, monkeypatch
):
    """Connections re-authenticate every few seconds, and no record is lost or duplicated."""
    renewed = count_renewals(monkeypatch)
    topic = secured_kafka.create_topic(1)
    login = bearer() if mechanism == "OAUTHBEARER" else sasl(mechanism, USER, PASSWORD)
    trust = tls(certificates.authority, "SASL_SSL")
    given = settings(secured_kafka, "REAUTH", login, trust, linger_ms=0, batch_size=2_000)
    give_up_at = time.monotonic() + 60
    futures = []
    with KafkaProducer(given) as producer:
        # Wait for two renewals of the connection that carries the records.
        while max(renewed.values(), default=0) < 2 and time.monotonic() < give_up_at:
            futures += [producer.send(topic, b"%d" % len(futures)) for _ in range(200)]
            futures[-1].result(60)
        producer.flush(60)
        assert [*range(len(futures))] == [future.result(0).offset for future in futures]
    # If the machine stalls at the end of a session, the connection is lost and batches are retried;
    # no record may be lost or duplicated by that.
    assert max(renewed.values()) >= 2, f"no session of {SESSION_MS} ms was renewed twice"
