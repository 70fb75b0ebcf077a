"""What is no argument of a call is refused at once, by name, and changes nothing."""

from __future__ import annotations

import math
import pickle

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

TIMEOUT = 60


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"t": 1}) as started:
        yield started


@pytest.fixture
def producer(broker):
    """Give a producer that keeps what it is sent until it is flushed or closed."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "linger.ms": 60_000,
        "delivery.timeout.ms": 180_000,
    }
    with KafkaProducer(settings) as made:
        yield made


@pytest.mark.parametrize("call", [KafkaProducer.flush, KafkaProducer.close])
@pytest.mark.parametrize(
    ("timeout", "kind", "problem"),
    [
        ("1", TypeError, "must be a number of seconds, or None, not str"),
        (True, TypeError, "must be a number of seconds, or None, not bool"),
        (-1, ValueError, "must be 0 seconds or more, not -1"),
        (math.nan, ValueError, "must be 0 seconds or more, not nan"),
    ],
)
def test_what_is_no_timeout_is_refused(producer, call, timeout, kind, problem):
    """The producer is as open as before, and its records are still sent."""
    future = producer.send("t", b"v")
    with pytest.raises(kind, match=problem):
        call(producer, timeout)
    producer.close(TIMEOUT)
    assert future.exception(0) is None


def test_what_cannot_be_called_is_no_callback(producer):
    """Of a record that was sent nobody could be told, so it is not sent."""
    with pytest.raises(TypeError, match="on_delivery must be a function, not int"):
        producer.send("t", b"v", on_delivery=5)
    producer.flush()
    assert {} == producer.acks()


def test_what_is_no_list_is_no_headers(producer):
    """The error names what was given."""
    with pytest.raises(TypeError, match=r"the headers must be pairs .*, not int"):
        producer.send("t", b"v", headers=5)


@pytest.mark.parametrize("settings", [None, "localhost:9092", [("acks", "all")]])
def test_what_is_no_mapping_is_no_settings(settings):
    """Settings have names."""
    with pytest.raises(ConfigError, match="settings must be a mapping of names to values, not "):
        KafkaProducer(settings)


def test_a_producer_cannot_be_pickled(producer):
    """A function of Spark's that holds one is told what to do instead."""
    with pytest.raises(TypeError, match="cannot be pickled: make one in the process that uses it"):
        pickle.dumps(producer)
