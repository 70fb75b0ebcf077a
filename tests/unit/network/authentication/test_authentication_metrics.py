"""What a producer's metrics report about the authentication of its connections."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import AuthenticationError, KafkaError
from spark_kafka_sink.network.authentication import sasl_authenticator
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.security.secure_front import SaslRules, server_context
from tests.support.security.secured import sasl, tls

PASSWORD = "planted-secret"  # noqa: S105
ALICE = sasl("PLAIN", "alice", PASSWORD)
NONE = {
    "successful-authentication-total": 0,
    "successful-authentication-no-reauth-total": 0,
    "failed-authentication-total": 0,
    "successful-reauthentication-total": 0,
    "failed-reauthentication-total": 0,
}


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"events": 1}) as started:
        yield started


def _measured(producer) -> dict[str, float]:
    return {
        name.name: metric.value()
        for name, metric in producer.metrics().items()
        if "authentication" in name.name
    }


def _totals(producer) -> dict[str, float]:
    return {name: value for name, value in _measured(producer).items() if name in NONE}


@pytest.mark.parametrize("layer", ["ssl", "sasl", "neither"])
def test_successful_authentications_are_counted(front, certificates, layer):
    """TLS and SASL are counted alike, and a connection without them is not counted."""
    settings: dict[str, object] = {"bootstrap.servers": front.bootstrap_servers}
    if layer == "ssl":
        front.tls = server_context(certificates.server)
        settings |= tls(certificates.authority)
    elif layer == "sasl":
        front.sasl = SaslRules(users={"alice": PASSWORD})
        settings |= ALICE
    with KafkaProducer(settings) as producer:
        producer.send("events", b"v").result(60)
        totals = _totals(producer)
    expected = 0 if layer == "neither" else front.connections
    assert front.connections > 0
    assert totals == {
        **NONE,
        "successful-authentication-total": expected,
        "successful-authentication-no-reauth-total": expected,
    }


def test_failed_authentications_are_counted(front):
    """It counts as a failed authentication and as a closed connection."""
    front.sasl = SaslRules(users={"alice": "another"})
    producer = KafkaProducer({"bootstrap.servers": front.bootstrap_servers, **ALICE})
    with pytest.raises(AuthenticationError):
        producer.send("events", b"v").result(60)
    assert _totals(producer) == {**NONE, "failed-authentication-total": 1}
    producer.close(0)


def test_reauthentications_are_counted_separately(front, monkeypatch):
    """A renewed session has a latency, and a refused renewal is counted as a failure of its own."""
    for name in ("RENEWAL_SHARE", "RENEWAL_JITTER", "MIN_INTERVAL"):
        monkeypatch.setattr(sasl_authenticator, name, 0.0)
    front.sasl = SaslRules(users={"alice": PASSWORD}, session_ms=600_000)
    producer = KafkaProducer({"bootstrap.servers": front.bootstrap_servers, **ALICE})
    producer.send("events", b"v").result(60)
    producer.send("events", b"v").result(60)
    renewed = _measured(producer)
    assert renewed["successful-authentication-total"] == front.connections
    # Another renewal may be under way.
    renewals = len(front.authenticated) - front.connections
    assert renewals - 1 <= renewed["successful-reauthentication-total"] <= renewals
    assert renewed["successful-reauthentication-total"] > 0
    assert 0 <= renewed["reauthentication-latency-avg"] <= renewed["reauthentication-latency-max"]
    assert 0 == renewed["failed-reauthentication-total"]
    front.sasl.users = {"alice": "changed"}
    with pytest.raises(KafkaError, match="nobody knows this user"):
        producer.send("events", b"v").result(60)
    refused = _totals(producer)
    assert 1 <= refused["failed-reauthentication-total"]
    assert 0 == refused["failed-authentication-total"]
    producer.close(0)
