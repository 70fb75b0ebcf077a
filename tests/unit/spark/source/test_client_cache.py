from __future__ import annotations

import logging
import threading

import pytest

from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.spark.idle_cache import fingerprint
from spark_kafka_sink.spark.source import source_cluster
from spark_kafka_sink.spark.source.source_cluster import ClientCache
from tests.support.forked import call_in_fork
from tests.support.spark.fake_source import FakeClient

CONFIG = ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})


def borrowed(cache, config=CONFIG):
    with cache.borrow(config) as client:
        return client


def test_a_client_serves_one_step_after_another():
    """The next step with the same configuration borrows the same client."""
    cache = ClientCache(start=lambda _: FakeClient(), sleep=lambda _: None, clock=lambda: 0.0)
    cache._has_thread = True
    first = borrowed(cache)
    assert first is borrowed(cache)
    other = ConsumerConfig.from_mapping(
        {"bootstrap.servers": "localhost:9092", "isolation.level": "read_committed"}
    )
    assert first is not borrowed(cache, other)
    assert 0 == first.closed


def test_a_client_that_failed_is_closed():
    """An error closes the client, and the next step starts another one."""
    cache = ClientCache(start=lambda _: FakeClient())
    with pytest.raises(NetworkError), cache.borrow(CONFIG) as client:
        raise NetworkError("nobody there")
    assert 1 == client.closed
    assert cache.take(fingerprint(CONFIG)) is None


def test_a_reader_that_ends_early_leaves_its_client():
    """A generator that is closed in the middle gives its client back."""
    cache = ClientCache(start=lambda _: FakeClient(), clock=lambda: 0.0)
    cache._has_thread = True

    def read():
        with cache.borrow(CONFIG) as client:
            yield client
            yield client

    reading = read()
    client = next(reading)
    reading.close()
    assert client is cache.take(fingerprint(CONFIG))
    assert 0 == client.closed


def test_an_idle_client_is_closed():
    """A client that nobody borrows is closed by the cache's thread."""
    closed = threading.Event()

    class Observed(FakeClient):
        def close(self):
            closed.set()

    cache = ClientCache(0.0, start=lambda _: Observed())
    borrowed(cache)
    assert closed.wait(60)


def test_a_client_that_cannot_be_closed_is_logged(caplog):
    """An error while closing never hides why a read failed."""

    class Stuck(FakeClient):
        def close(self):
            raise ValueError("stuck")

    cache = ClientCache(start=lambda _: Stuck())
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(NetworkError, match="nobody there"),
        cache.borrow(CONFIG),
    ):
        raise NetworkError("nobody there")
    assert ["could not close the consumer client cleanly"] == caplog.messages


def test_a_forked_process_starts_with_an_empty_cache(monkeypatch):
    """The threads of its parent's clients do not survive the fork."""
    cache = ClientCache(start=lambda _: FakeClient(), clock=lambda: 0.0)
    cache._has_thread = True
    monkeypatch.setattr(source_cluster, "_cache", cache)
    borrowed(source_cluster.client_cache())

    def take():
        return source_cluster.client_cache().take(fingerprint(CONFIG))

    assert "None" == call_in_fork(lambda: str(take()))
    assert take() is not None
