"""Invalid arguments are rejected at once, by name, and change nothing."""

from __future__ import annotations

import math
import pickle

import pytest

from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import ConsumerGroupMetadata
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

TIMEOUT = 60


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"t": 1}) as started:
        yield started


@pytest.fixture
def producer(broker):
    """Yield a producer that holds its records until it is flushed or closed."""
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
def test_an_invalid_timeout_is_rejected(producer, call, timeout, kind, problem):
    """An invalid timeout leaves the producer open, and its records are still sent."""
    future = producer.send("t", b"v")
    with pytest.raises(kind, match=problem):
        call(producer, timeout)
    producer.close(TIMEOUT)
    assert future.exception(0) is None


def test_a_callback_that_cannot_be_called_is_rejected(producer):
    """A record with an invalid callback is not sent, because its outcome could not be reported."""
    with pytest.raises(TypeError, match="on_delivery must be a function, not int"):
        producer.send("t", b"v", on_delivery=5)
    producer.flush()
    assert {} == producer.acks()


def test_headers_that_are_not_a_list_are_rejected(producer):
    """The error for invalid headers names their type."""
    with pytest.raises(TypeError, match=r"the headers must be pairs .*, not int"):
        producer.send("t", b"v", headers=5)


@pytest.mark.parametrize("settings", [None, "localhost:9092", [("acks", "all")]])
def test_settings_that_are_not_a_mapping_are_rejected(settings):
    """Settings that are not a mapping are rejected."""
    with pytest.raises(ConfigError, match="settings must be a mapping of names to values, not "):
        KafkaProducer(settings)


def test_a_producer_cannot_be_pickled(producer):
    """Pickling a producer, as a Spark function that uses one would, raises an error with advice."""
    with pytest.raises(
        TypeError, match="cannot be pickled: create one in the process that uses it"
    ):
        pickle.dumps(producer)


GROUP = ConsumerGroupMetadata("g")


@pytest.mark.parametrize(
    ("offsets", "group", "kind"),
    [
        ([("t", 0)], GROUP, TypeError),
        ({("t", 0): "1"}, GROUP, TypeError),
        ({("t", 0): -1}, GROUP, ValueError),
        ({("t", 0): 2**63}, GROUP, ValueError),
        ({("t", 0): 1}, "g", TypeError),
        ({("t", 0): 1}, GROUP._replace(generation_id=1), ValueError),
    ],
)
def test_invalid_offsets_of_a_transaction_are_rejected(broker, offsets, group, kind):
    """The call raises, and the transaction commits other offsets, which may be numbers."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "arguments"}
    with KafkaProducer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(kind):
            producer.send_offsets_to_transaction(offsets, group)
        producer.send_offsets_to_transaction({("t", 0): 7}, GROUP)
        producer.commit_transaction()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}
    with KafkaConsumer(settings) as consumer:
        assert 7 == consumer.committed([("t", 0)])[("t", 0)].offset
