"""Producers and consumers outlive a token source that is away for a while, and say what they miss.

As with Java's client: a login that gets no token fails for now, and the next token ends the outage.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.devbroker import DevBroker, Listener, SaslSettings
from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.network import network_client
from spark_kafka_sink.network.authentication import sasl_authenticator
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.security.sasl import moment
from tests.support.consumer.embedded_consuming import wait_until
from tests.support.network.leaps import MILLISECONDS, leap
from tests.support.security.secured import sasl
from tests.support.security.token_endpoint import jwt
from tests.support.security.token_exchanges import BEARER, HANDLER

#: Seconds; no test takes as long, so that a token expires only where a clock moves.
LIFETIME = 1_000.0
PASSWORD = "planted-secret"  # noqa: S105


class Clocks:
    """The wall clocks of a broker and its clients, and the source of tokens.

    The clock of the clients stands still until a test moves it; the broker's runs, for its waits.
    """

    def __init__(self):
        self.client = self.began = time.time()
        self.ahead = 0.0
        self.is_away = False
        self.refused_calls = threading.Semaphore(0)
        self.tokens = []

    def token(self):
        """Return a new token, or raise an error while the source is away."""
        if self.is_away:
            self.refused_calls.release()
            raise RuntimeError("planted-secret")
        self.tokens.append(jwt("alice", lifetime=LIFETIME, now=self.client))
        return self.tokens[-1]

    def broker(self):
        """Return the time of the broker."""
        return time.time() + self.ahead

    def pass_by(self, seconds):
        """Move both clocks."""
        self.client += seconds
        self.ahead += seconds


@pytest.fixture
def clocks(monkeypatch):
    made = Clocks()
    monkeypatch.setattr(network_client, "time", SimpleNamespace(time=lambda: made.client))
    return made


@pytest.fixture
def broker(clocks):
    bearers = SaslSettings(mechanisms=("OAUTHBEARER",))
    listener = Listener(security_protocol="SASL_PLAINTEXT", sasl=bearers)
    with DevBroker(listeners=[listener], topics={"events": 1}, clock=clocks.broker) as started:
        yield started


@pytest.fixture
def settings(broker, clocks):
    return {"bootstrap.servers": broker.bootstrap_servers, **BEARER, HANDLER: clocks.token}


def test_a_producer_whose_token_has_expired_waits_for_the_next(settings, clocks):
    """While the source is away, records wait; when it is back, they are delivered."""
    with KafkaProducer(settings) as producer:
        producer.send("events", b"1").result(120)
        clocks.is_away = True
        clocks.pass_by(LIFETIME + 500)
        waiting = producer.send("events", b"2")
        for _ in range(2):
            assert clocks.refused_calls.acquire(timeout=120)
        clocks.is_away = False
        assert [1, 2] == [
            each.result(120).offset for each in (waiting, producer.send("events", b"3"))
        ]


def test_the_error_of_an_outage_names_the_token_and_its_end(settings, clocks):
    """A record that cannot wait longer fails with both."""
    patience = {"delivery.timeout.ms": MILLISECONDS, "request.timeout.ms": MILLISECONDS // 2}
    with KafkaProducer({**settings, **patience}) as producer:
        producer.send("events", b"1").result(120)
        clocks.is_away = True
        clocks.pass_by(LIFETIME + 500)
        lost = producer.send("events", b"2")
        for _ in range(2):
            assert clocks.refused_calls.acquire(timeout=120)
        leap(producer)
        # The sender of records has kept the clock from before.
        producer._core._sender._clock = producer._core._client._loop.time
        producer._core._client._loop.call_soon_threadsafe(producer._core._sender.wakeup)
        with pytest.raises(DeliveryError) as caught:
            lost.result(120)
        text = str(caught.value)
        assert (
            f"the token for 'alice' (OAUTHBEARER) expired at {moment(clocks.began + LIFETIME)}, "
            "and no new one could be fetched: sasl.login.callback.handler.class"
        ) in text
        assert "raised RuntimeError instead of returning a token" in text
        assert clocks.tokens[0] not in text
        assert PASSWORD not in text


def test_a_consumer_whose_token_has_expired_waits_for_the_next(settings, clocks):
    """Records that are written during the outage are read after it."""
    reading = {**settings, "group.id": "readers", "auto.offset.reset": "earliest"}
    with KafkaProducer(settings) as producer, KafkaConsumer(reading) as consumer:
        producer.send("events", b"1").result(120)
        consumer.subscribe(["events"])
        read = []

        def reads(count):
            read.extend(record.value for each in consumer.poll(0.1).values() for record in each)
            return len(read) >= count

        wait_until(lambda: reads(1))
        clocks.is_away = True
        clocks.pass_by(LIFETIME + 500)
        late = producer.send("events", b"2")
        for _ in range(4):
            wait_until(lambda: consumer.poll(0.01) or clocks.refused_calls.acquire(blocking=False))
        clocks.is_away = False
        late.result(120)
        wait_until(lambda: reads(2))
        assert [b"1", b"2"] == read


def test_a_token_that_has_expired_for_the_broker_alone_is_replaced(settings, clocks):
    """A broker's clock that is ahead refuses the last moments of a token, and not the producer."""
    with KafkaProducer(settings) as producer:
        producer.send("events", b"1").result(120)
        clocks.client += LIFETIME - 1
        clocks.ahead += LIFETIME + 1
        waiting = producer.send("events", b"2")
        client = producer._core._client
        wait_until(lambda: "and the next one is tried" in str(client.last_error))
        assert 1 == len(clocks.tokens)
        clocks.client += 2
        assert 1 == waiting.result(120).offset
        assert 2 == len(clocks.tokens)


def test_a_renewal_that_comes_too_soon_ends_only_the_connection(monkeypatch):
    """A broker that refuses it does use SASL: the client connects again, and nothing is lost."""
    for name in ("RENEWAL_SHARE", "RENEWAL_JITTER", "MIN_INTERVAL"):
        monkeypatch.setattr(sasl_authenticator, name, 0.0)
    users = SaslSettings(users={"alice": PASSWORD}, max_reauth_ms=600_000)
    listener = Listener(security_protocol="SASL_PLAINTEXT", sasl=users)
    now = time.time()
    # A second renewal of a connection is always too soon on a clock that stands still.
    with (
        DevBroker(listeners=[listener], topics={"events": 1}, clock=lambda: now) as broker,
        KafkaProducer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "linger.ms": 0,
                **sasl("PLAIN", "alice", PASSWORD),
            }
        ) as producer,
    ):
        offsets = [producer.send("events", b"v").result(120).offset for _ in range(5)]
        assert "the session could not be renewed" in str(producer._core._client.last_error)
    assert [*range(5)] == offsets
