"""Consumers that are garbage-collected without having been closed."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest

from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.consumer.threaded_core import ThreadedCore
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import NeverAnswer
from tests.support import leaks
from tests.support.consumer.embedded_consuming import GROUP, consuming, poll_until
from tests.support.consumer.reading import fill


class Closable:
    """A deserializer that records how often it was closed."""

    closed = 0

    def deserialize(self, _topic: str, _headers: object, data: bytes) -> bytes:
        """Return the bytes."""
        return data

    def close(self) -> None:
        """Count."""
        Closable.closed += 1


@pytest.fixture
def broker():
    """Return a broker with one record in topic `t` of one partition."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", [b"a"])
        yield broker


def forget(broker, *, reads):
    """Create a consumer, which may join its group and read, and let it be collected."""
    settings = {
        **GROUP,
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": "forgotten",
        "value.deserializer": Closable,
    }
    consumer = KafkaConsumer(settings)
    if reads:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
    del consumer
    gc.collect()


@pytest.mark.parametrize("reads", [False, True])
def test_a_forgotten_consumer_ends_its_thread_and_says_so(broker, monkeypatch, reads):
    """Its sockets and deserializers are closed as well."""
    monkeypatch.setattr(Closable, "closed", 0)
    before = leaks.look()
    with pytest.warns(ResourceWarning, match="'forgotten'.* call close"):
        forget(broker, reads=reads)
    assert [] == leaks.left_since(before)
    assert 1 == Closable.closed


def test_a_forgotten_consumer_is_collected_while_it_looks_up_an_end(broker):
    """The network thread knows the consumer's core, and never the consumer."""
    broker.on("list-offsets", NeverAnswer(), expect=False)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "forgotten"}

    def forget_in_a_look_up():
        consumer = KafkaConsumer(settings)
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        assert consumer.current_lag(("t", 0)) is None
        gone = weakref.ref(consumer)
        del consumer
        gc.collect()
        assert gone() is None

    with pytest.warns(ResourceWarning, match="'forgotten'.* call close"):
        forget_in_a_look_up()


def test_a_closed_consumer_warns_of_nothing(broker):
    """Nor does one that could not be created."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with consuming(broker, value_deserializer=Closable) as consumer:
            consumer.assign([("t", 0)])
        del consumer
        gc.collect()


def test_a_consumer_that_is_not_created_warns_of_nothing(broker, monkeypatch):
    """The error after its thread has started ends the thread, and is the only one."""
    begin = ThreadedCore.stop_with

    def interrupted(*given):
        begin(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadedCore, "stop_with", interrupted)
    before = leaks.look()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            forget(broker, reads=False)
        gc.collect()
    assert [] == leaks.left_since(before)
