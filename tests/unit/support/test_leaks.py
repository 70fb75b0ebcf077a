"""The fixture that fails a test for leaked threads and sockets, and for nothing else."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support import leaks


@pytest.fixture
def impatient(monkeypatch):
    """Set the time that the fixture waits to zero."""
    monkeypatch.setattr(leaks, "_PATIENCE_SECONDS", 0.0)


def test_nothing_opened_is_nothing_leaked():
    """A test that opens nothing, or closes what it opened, leaks nothing."""
    with socket.socket():
        before = leaks.look()
        socket.socket().close()
        assert [] == leaks.left_since(before)


def test_a_running_thread_is_a_leak(impatient):
    """A running thread is reported by name until it ends."""
    go_on = threading.Event()
    before = leaks.look()
    thread = threading.Thread(target=go_on.wait, name="forgotten", daemon=True)
    thread.start()
    assert ["the thread 'forgotten' runs"] == leaks.left_since(before)
    go_on.set()
    thread.join()
    assert [] == leaks.left_since(before)


def test_an_open_socket_is_a_leak(impatient):
    """An open socket is reported even without a thread."""
    before = leaks.look()
    with socket.socket():
        assert [True] == [" is open" in each for each in leaks.left_since(before)]
    assert [] == leaks.left_since(before)


def test_a_thread_that_is_about_to_end_is_waited_for():
    """A daemon thread that is never joined is not a leak if it ends soon."""
    go_on = threading.Event()
    before = leaks.look()
    threading.Thread(target=go_on.wait, daemon=True).start()
    threading.Timer(0.01, go_on.set).start()
    assert [] == leaks.left_since(before)


def test_a_socket_in_a_cycle_of_a_thread_that_ends_is_waited_for():
    """A socket is not a leak if a thread that ends soon leaves it to the garbage collector."""
    go_on = threading.Event()

    class Client:
        def __init__(self):
            self.itself = self
            self.descriptor = socket.socket().detach()

        def __del__(self):
            os.close(self.descriptor)

    def run():
        client = Client()
        go_on.wait()
        assert client.itself is client

    before = leaks.look()
    threading.Thread(target=run, daemon=True).start()
    threading.Timer(0.3, go_on.set).start()
    assert [] == leaks.left_since(before)


def test_producers_and_brokers_are_found_by_their_threads(impatient):
    """Producers and brokers are reported until they are closed."""
    before = leaks.look()
    broker = DevBroker()
    broker.start()
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "p"})
    left = leaks.left_since(before)
    producer.close()
    broker.stop()
    assert {
        "the thread 'devbroker' runs",
        "the thread 'kafka-producer-network-thread | p' runs",
    } <= set(left)
