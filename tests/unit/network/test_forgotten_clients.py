"""Clients that are garbage-collected without having been closed."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from typing import TYPE_CHECKING, TypeAlias

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.network import network_thread
from spark_kafka_sink.network.network_thread import stop_if_forgotten
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support import leaks

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.producer.records.record_futures import FutureRecordMetadata

    Use: TypeAlias = Callable[[dict[str, object]], object]


def _send(settings: dict[str, object]) -> KafkaProducer:
    producer = KafkaProducer(settings)
    for _ in range(5_000):
        producer.send("t", b"v")
    assert producer.send("t", b"v").result(120).offset >= 0
    return producer


def _read(settings: dict[str, object]) -> KafkaConsumer:
    consumer = KafkaConsumer(settings)
    assert 1 == len(consumer.partitions_for("t"))
    return consumer


def _ask(settings: dict[str, object]) -> AdminClient:
    admin = AdminClient(settings)
    assert {"t"} == set(admin.list_topics())
    return admin


def _forget(use: Use, settings: dict[str, object]) -> None:
    use(settings)
    gc.collect()


def _send_one(settings: dict[str, object]) -> FutureRecordMetadata:
    future = KafkaProducer(settings).send("t", b"v")
    gc.collect()
    return future


#: A client that has not connected, and one that has.
USES: dict[str, Use] = {
    "new producer": KafkaProducer,
    "producer": _send,
    "new consumer": KafkaConsumer,
    "consumer": _read,
    "new admin": AdminClient,
    "admin": _ask,
}


@pytest.fixture
def settings():
    """Yield the settings of clients of a broker with one topic."""
    with DevBroker(topics={"t": 1}) as broker:
        yield {"bootstrap.servers": broker.bootstrap_servers, "client.id": "forgotten"}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_forgotten_client_ends_its_threads_and_says_so(settings, use):
    """Its threads end, its sockets are closed, and a ResourceWarning names it."""
    before = leaks.look()
    with pytest.warns(ResourceWarning, match=r"was not closed \(client.id 'forgotten'\): call clo"):
        _forget(use, settings)
    assert [] == leaks.left_since(before)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_closed_client_warns_of_nothing(settings, use):
    """A client that was closed is not stopped again."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(settings).close()
        gc.collect()


def test_a_forgotten_producer_sends_the_records_that_it_had(settings):
    """Futures of records that were not sent yet still get their offsets."""
    with pytest.warns(ResourceWarning, match="The records that it had are still sent"):
        future = _send_one({**settings, "linger.ms": 60_000})
    assert 0 == future.result(120).offset


def test_a_client_of_another_process_is_not_stopped(monkeypatch):
    """A forked process has neither the threads nor the connections."""
    stopped = threading.Event()
    owner = threading.Event()
    stop_if_forgotten(owner, stopped.set, client_id=None)
    monkeypatch.setattr(network_thread.os, "getpid", lambda: -1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del owner
    assert not stopped.is_set()


def test_a_forgotten_client_is_stopped_although_no_thread_can_be_started(monkeypatch):
    """Python 3.12 and later start none at the end of the process."""

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    stopped = threading.Event()
    owner = threading.Event()
    stop_if_forgotten(owner, stopped.set, client_id=None)
    with pytest.warns(ResourceWarning, match="^Event was not closed"):
        del owner
    assert stopped.wait(120)


class _Messages(logging.Handler):
    """A handler that stores messages, and tells when the first one is there."""

    def __init__(self):
        super().__init__()
        self.stored = []
        self.has_one = threading.Event()

    def emit(self, record):
        self.stored.append(record.getMessage())
        self.has_one.set()


@pytest.fixture
def messages():
    """Yield the messages about forgotten clients."""
    handler = _Messages()
    network_thread.logger.addHandler(handler)
    yield handler
    network_thread.logger.removeHandler(handler)


def test_an_error_while_a_forgotten_client_stops_is_logged(messages):
    """No caller is left to receive it."""

    def stop() -> None:
        raise ValueError("three rows are lost")

    owner = threading.Event()
    stop_if_forgotten(owner, stop, client_id=None)
    with pytest.warns(ResourceWarning, match="^Event was not closed: call close"):
        del owner
    assert messages.has_one.wait(120)
    assert ["a Event that was not closed ended with an error: three rows are lost"] == (
        messages.stored
    )
