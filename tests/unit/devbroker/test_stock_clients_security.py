"""Clients of other projects authenticate in every way and read what the others wrote."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import warnings

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from spark_kafka_sink.devbroker import DevBroker, Listener
from spark_kafka_sink.security.oauth_bearer import unsecured_token
from tests.support.kafka.real_kafka import wait_until
from tests.support.security.certificates import STORE_PASSWORD
from tests.support.security.secure_listeners import (
    PASSWORD,
    USER,
    all_listeners,
    listener,
    server_tls,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function of Python.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:read_text is deprecated"),
    pytest.mark.usefixtures("kafka_python_sockets_closed"),
]

TIMEOUT = 60.0
#: How often a test is tried again whose client paused for longer than it may.
ATTEMPTS = 5
TOPIC = "t"
VALUES = [b"v%d" % n for n in range(100)]
WAYS = [
    ("SSL", None),
    *(
        (protocol, mechanism)
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    ),
]


class Tokens(AbstractTokenProvider):
    """A provider of unsigned tokens."""

    def token(self):
        """Return a token that is valid for a minute."""
        return unsecured_token({"sub": USER}, now=time.time(), lifetime=60.0).value


class Confluent:
    """A client of librdkafka with one security protocol and mechanism."""

    def __init__(self, address, way, certificates, *, trusted=None, password=PASSWORD):
        protocol, mechanism = way
        self.errors = []
        self.config = {
            "bootstrap.servers": address,
            "security.protocol": protocol,
            "ssl.ca.location": str((trusted or certificates.authority).pem_file),
            "error_cb": self.errors.append,
            "logger": logging.getLogger("confluent"),
        }
        if mechanism == "OAUTHBEARER":
            self.config |= {
                "sasl.mechanism": mechanism,
                "enable.sasl.oauthbearer.unsecure.jwt": True,
                "sasl.oauthbearer.config": f"principal={USER}",
            }
        elif mechanism:
            self.config |= {
                "sasl.mechanism": mechanism,
                "sasl.username": USER,
                "sasl.password": password,
            }

    def write(self):
        """Write all values and wait for their acknowledgement."""
        producer = confluent_kafka.Producer(self.config)
        failures = []
        for value in VALUES:
            producer.produce(
                TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None
            )
        assert 0 == producer.flush(TIMEOUT)
        assert [] == failures

    def read(self, count):
        """Read `count` values from the start."""
        consumer = confluent_kafka.Consumer({**self.config, "group.id": "unused"})
        try:
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
            values = []
            while len(values) < count:
                messages = consumer.consume(count - len(values), timeout=TIMEOUT)
                assert messages, f"{len(values)} of {count}"
                values += [message.value() for message in messages if not message.error()]
            return values
        finally:
            consumer.close()

    def first_error(self):
        """Connect and return the first error that concerns a single broker."""
        producer = confluent_kafka.Producer(self.config)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            producer.poll(0.1)
            for error in self.errors:
                if error.code() != confluent_kafka.KafkaError._ALL_BROKERS_DOWN:
                    return error
        raise AssertionError("no error")


class KafkaPython:
    """A client of kafka-python with one security protocol and mechanism."""

    def __init__(self, address, way, certificates, *, trusted=None, password=PASSWORD):
        protocol, mechanism = way
        self.config = {
            "bootstrap_servers": address,
            "security_protocol": protocol,
            "ssl_cafile": str((trusted or certificates.authority).pem_file),
        }
        if mechanism:
            self.config["sasl_mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            self.config["sasl_oauth_token_provider"] = Tokens()
        elif mechanism:
            self.config |= {"sasl_plain_username": USER, "sasl_plain_password": password}

    def write(self):
        """Write all values and wait for their acknowledgement."""
        producer = kafka.KafkaProducer(**self.config)
        try:
            for future in [producer.send(TOPIC, value) for value in VALUES]:
                future.get(timeout=TIMEOUT)
        finally:
            producer.close(timeout=TIMEOUT)

    def read(self, count):
        """Read `count` values from the start."""
        consumer = kafka.KafkaConsumer(group_id=None, **self.config)
        try:
            partition = kafka.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            values = []
            while len(values) < count:
                polled = consumer.poll(timeout_ms=TIMEOUT * 1000)
                assert polled, f"{len(values)} of {count}"
                values += [record.value for record in polled[partition]]
            return values
        finally:
            consumer.close()

    def refusal(self, expected):
        """Connect, and return what the client logs until it gives up.

        If it gives up without what is expected, it gets more time, as a busy machine may need.
        This runs in a process of its own, since a client that cannot connect leaves sockets and a
        thread behind.
        """
        logged = ""
        for bootstrap_timeout_ms in (1_000, 20_000):
            config = {**self.config, "bootstrap_timeout_ms": bootstrap_timeout_ms}
            process = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, "-W", "ignore", "-c", CONNECT, json.dumps(config)],
                stderr=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            assert 1 == process.returncode
            logged = process.stderr
            if expected in logged:
                break
        return logged


CONNECT = """
import json, logging, sys, kafka
logging.basicConfig(level=logging.WARNING)
kafka.KafkaProducer(**json.loads(sys.argv[1]))
"""
CLIENTS = [Confluent, KafkaPython]


@pytest.fixture
def broker(certificates):
    with DevBroker(topics={TOPIC: 1}, listeners=all_listeners(certificates)) as broker:
        yield broker


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_stock_clients_authenticate_and_read_each_others_records(broker, certificates, way):
    """Two clients write and read with TLS, with SASL and with both, with every mechanism."""
    clients = [client(broker.address(way[0]), way, certificates) for client in CLIENTS]
    for client in clients:
        client.write()

    for client in clients:
        assert VALUES * 2 == client.read(2 * len(VALUES)), type(client).__name__


def test_stock_clients_show_their_certificates(certificates, caplog):
    """Both clients can connect to a listener that requires certificates."""
    caplog.set_level(logging.INFO, "spark_kafka_sink.devbroker")
    mutual = Listener(
        security_protocol="SSL",
        tls=server_tls(certificates.server, clients=certificates.authority),
        client_auth="required",
    )
    with DevBroker(topics={TOPIC: 1}, listeners=[mutual]) as broker:
        way = ("SSL", None)
        confluent = Confluent(broker.bootstrap_servers, way, certificates)
        confluent.config |= {
            "ssl.keystore.location": str(certificates.client.pkcs12_file),
            "ssl.keystore.password": STORE_PASSWORD,
        }
        other = KafkaPython(broker.bootstrap_servers, way, certificates)
        other.config |= {
            "ssl_certfile": str(certificates.client.chain_file),
            "ssl_keyfile": str(certificates.client.key_file),
        }
        confluent.write()
        other.write()
        assert VALUES * 2 == other.read(2 * len(VALUES))
        without = Confluent(broker.bootstrap_servers, way, certificates)
        admin = AdminClient(without.config)
        with pytest.raises(confluent_kafka.KafkaException):
            admin.list_topics(timeout=2)
        # The client connects again and again, also after the call has timed out.
        wait_until(
            lambda: "PEER_DID_NOT_RETURN_A_CERTIFICATE" in caplog.text,
            seconds=TIMEOUT,
            what="the refusal",
        )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_stock_clients_report_a_wrong_password(broker, certificates, mechanism):
    """Both clients report that the authentication failed."""
    way = ("SASL_SSL", mechanism)
    wrong = {"password": "wrong"}
    error = Confluent(broker.address("SASL_SSL"), way, certificates, **wrong).first_error()
    assert confluent_kafka.KafkaError._AUTHENTICATION == error.code()
    assert "Authentication failed" in error.str()

    other = KafkaPython(broker.address("SASL_SSL"), way, certificates, **wrong)
    assert "Authentication failed" in other.refusal("Authentication failed")


def test_stock_clients_refuse_an_unknown_authority(broker, certificates):
    """Both clients report that the certificate cannot be verified."""
    way = ("SSL", None)
    strange = {"trusted": certificates.stranger}
    error = Confluent(broker.address("SSL"), way, certificates, **strange).first_error()
    assert "certificate verify failed" in error.str()

    other = KafkaPython(broker.address("SSL"), way, certificates, **strange)
    assert "CERTIFICATE_VERIFY_FAILED" in other.refusal("CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize(
    ("client", "mechanism"), [(Confluent, "SCRAM-SHA-256"), (KafkaPython, "PLAIN")]
)
def test_stock_clients_authenticate_again(certificates, client, mechanism, caplog):
    """A producer continues past the end of its session on the same connection (KIP-368)."""
    caplog.set_level(logging.INFO, "spark_kafka_sink.devbroker")
    for _ in range(ATTEMPTS):
        caplog.clear()
        try:
            written, end = _write_through_renewals(client, mechanism, certificates, caplog)
        except (kafka.errors.KafkaError, AssertionError):
            # A pause of the client's last 200 ms ends its session.
            if "session has expired" not in caplog.text:
                raise
        else:
            if "session has expired" not in caplog.text:
                break
    assert "session has expired" not in caplog.text
    assert written == end


def _renewals(caplog):
    return [it for it in caplog.records if it.getMessage().endswith(" again")]


def _write_through_renewals(client, mechanism, certificates, caplog):
    """Write until two renewals; return how many records were acknowledged, and the log's end."""
    ending = listener("SASL_PLAINTEXT", max_reauth_ms=2000)
    with DevBroker(topics={TOPIC: 1}, listeners=[ending]) as broker:
        made = client(broker.bootstrap_servers, ("SASL_PLAINTEXT", mechanism), certificates)
        deadline = time.monotonic() + TIMEOUT
        written = 0
        if client is Confluent:
            producer = confluent_kafka.Producer(made.config)
            while len(_renewals(caplog)) < 2 and time.monotonic() < deadline:
                producer.produce(TOPIC, b"x")
                assert 0 == producer.flush(TIMEOUT)
                written += 1
        else:
            producer = kafka.KafkaProducer(**made.config)
            try:
                while len(_renewals(caplog)) < 2 and time.monotonic() < deadline:
                    producer.send(TOPIC, b"x").get(TIMEOUT)
                    written += 1
            finally:
                producer.close(timeout=TIMEOUT)
        assert 2 <= len(_renewals(caplog))
        return written, broker.call(
            lambda b: b.cluster.topic(TOPIC).partitions[0].log.log_end_offset
        )
