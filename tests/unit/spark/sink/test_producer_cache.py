from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.spark import idle_cache
from spark_kafka_sink.spark.idle_cache import IdleClients, fingerprint
from spark_kafka_sink.spark.sink import producer_cache
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from spark_kafka_sink.spark.sink.producer_cache import (
    CachedProducers,
    CacheKey,
    ProducerCache,
)
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from tests.support.faults.recreated_topic import AFTER, BEFORE, recreate_topic
from tests.support.forked import call_in_fork
from tests.support.producer.sending import records_of
from tests.support.security.secure_front import SaslRules, SecureFront
from tests.support.security.secured import sasl

CONFIG = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
OTHER_CONFIG = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9093"})
KEY = CacheKey("query", "configuration")


class _FakeProducer:
    def __init__(self):
        self.has_ended = False
        self.ends_at_refresh = False
        self.refresh_error = None
        self.refreshes = 0
        self.closed = threading.Event()

    def refresh_metadata(self, timeout):
        assert 3.0 == timeout
        self.refreshes += 1
        self.has_ended = self.ends_at_refresh
        if self.refresh_error is not None:
            raise self.refresh_error

    def close(self, timeout=None):
        self.closed.set()


def of_query(cache, query_id="query", config=CONFIG):
    return CachedProducers(config, query_id, start=lambda _: _FakeProducer(), cache=cache)


def of_batch_write(cache, config=CONFIG):
    return CachedProducers(config, start=lambda _: _FakeProducer(), cache=cache)


def test_a_producer_serves_one_task_after_another():
    """The next task of a query reuses the producer of a finished one."""
    cache = ProducerCache()
    first = of_query(cache).take()
    of_query(cache).finished(first)
    assert first is of_query(cache).take()
    assert not first.closed.is_set()


def test_concurrent_tasks_have_a_producer_each():
    """A producer in use is not shared."""
    cache = ProducerCache()
    assert of_query(cache).take() is not of_query(cache).take()


def test_batch_writes_of_one_configuration_share_a_producer():
    """A batch write reuses the producer of an earlier one, but not that of a stream."""
    cache = ProducerCache()
    of_stream, of_batch = of_query(cache).take(), of_batch_write(cache).take()
    of_query(cache).finished(of_stream)
    assert of_batch not in {of_stream, of_batch_write(cache).take()}
    of_batch_write(cache).finished(of_batch)
    assert of_batch is of_batch_write(cache).take()


def test_a_batch_write_of_another_configuration_closes_the_producers_of_the_last_one():
    """A worker keeps the producers of one configuration of batch writes, and those of streams."""
    cache = ProducerCache()
    of_stream, of_batch = of_query(cache).take(), of_batch_write(cache).take()
    of_query(cache).finished(of_stream)
    of_batch_write(cache).finished(of_batch)
    of_batch_write(cache, OTHER_CONFIG).take()
    assert of_batch.closed.is_set()
    assert not of_stream.closed.is_set()
    assert of_stream is of_query(cache).take()


def test_a_failed_producer_is_closed_and_not_reused():
    """After a failure the next task gets a new producer."""
    cache = ProducerCache()
    first = of_query(cache).take()
    of_query(cache).failed(first)
    assert first.closed.is_set()
    assert first is not of_query(cache).take()


def test_a_producer_that_ended_while_idle_is_closed_and_not_reused():
    """The next task gets an older producer from the cache, or a new one."""
    cache = ProducerCache()
    older, dead = of_query(cache).take(), of_query(cache).take()
    of_query(cache).finished(older)
    of_query(cache).finished(dead)
    dead.has_ended = True
    assert older is of_query(cache).take()
    assert dead.closed.is_set()
    assert not older.closed.is_set()
    older.has_ended = True
    of_query(cache).finished(older)
    assert of_query(cache).take() not in {older, dead}


def test_a_producer_that_was_idle_refreshes_its_metadata_once_for_each_task():
    """A cached producer refreshes its metadata once per task; a new one fetches it anyway."""
    cache = ProducerCache()
    producer = of_query(cache).take()
    assert 0 == producer.refreshes
    for count in (1, 2):
        of_query(cache).finished(producer)
        assert producer is of_query(cache).take()
        assert count == producer.refreshes


def test_the_tasks_of_one_stage_refresh_the_metadata_once():
    """They follow each other as the batches of a task do; another stage may come much later."""
    cache = ProducerCache()

    def of_stage(stage):
        return CachedProducers(CONFIG, stage=stage, start=lambda _: _FakeProducer(), cache=cache)

    producer = of_stage(7).take()
    of_stage(7).finished(producer)
    refreshes = []
    for stage in (7, 7, 8, 8, 7, None, None):
        assert producer is of_stage(stage).take()
        of_stage(stage).finished(producer)
        refreshes.append(producer.refreshes)
    assert [0, 0, 1, 1, 2, 3, 4] == refreshes


def test_a_producer_that_has_ended_serves_no_later_task_of_its_stage():
    """That it need not refresh its metadata does not make it usable."""
    cache = ProducerCache()
    producer = _FakeProducer()
    cache.put_producer(KEY, producer, 7)
    producer.has_ended = True
    assert cache.take_producer(KEY, 7) is None
    assert producer.closed.is_set()


def test_a_task_follows_the_values_of_references(monkeypatch):
    """A pickled writer has the references, whose values may differ from those on the driver."""
    settings = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": "${env:STORE}",
    }
    monkeypatch.setenv("STORE", "one")
    writer = KafkaBatchWriter(SinkOptions.from_mapping(settings), topic="t", report_path=None)
    pickled = pickle.dumps(writer)
    context = SimpleNamespace(stageId=lambda: 7)

    def producers():
        return pickle.loads(pickled)._producers(context)  # noqa: S301 -- our own bytes

    before = producers()
    monkeypatch.setenv("STORE", "two")
    assert before._key != producers()._key


def test_an_unanswered_refresh_does_not_end_the_producer(caplog):
    """The producer writes with old metadata, since brokers may return before its records expire."""
    cache = ProducerCache()
    producer = of_query(cache).take()
    of_query(cache).finished(producer)
    producer.refresh_error = NetworkError("nobody there")
    assert producer is of_query(cache).take()
    assert not producer.closed.is_set()
    assert [
        "could not refresh the metadata of the topics before writing: nobody there"
    ] == caplog.messages


def test_an_interrupt_during_a_refresh_closes_the_producer():
    """The producer is no longer in the cache, so nothing else would close it."""
    cache = ProducerCache()
    producer = of_query(cache).take()
    of_query(cache).finished(producer)
    producer.refresh_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        of_query(cache).take()
    assert producer.closed.is_set()
    assert producer is not of_query(cache).take()


def test_a_producer_that_ends_while_it_refreshes_is_replaced():
    """A login rejected during the refresh does not fail the task."""
    cache = ProducerCache()
    producer = of_query(cache).take()
    of_query(cache).finished(producer)
    producer.ends_at_refresh = True
    producer.refresh_error = NetworkError("refused")
    assert producer is not of_query(cache).take()
    assert producer.closed.is_set()


def test_rows_follow_a_topic_recreated_between_two_micro_batches():
    """No row goes to a partition that the recreated topic does not have."""
    cache = ProducerCache()
    with DevBroker(topics={"events": BEFORE}) as broker:
        servers = broker.bootstrap_servers
        config = ProducerConfig.from_mapping({"bootstrap.servers": servers})
        rows = [b"%d" % row for row in range(100)]

        def micro_batch() -> list[tuple[int, int]]:
            batch = pa.record_batch({"value": pa.array(rows), "key": pa.array(rows)})
            producers = CachedProducers(config, "query", cache=cache)
            written = write_rows([batch], producers=producers, topic="events", config=config)
            return [(place.partition, acks.first_offset) for place, acks in written.acks]

        assert [(partition, 0) for partition in range(BEFORE)] == micro_batch()
        recreate_topic(servers, "events", AFTER)
        assert [(partition, 0) for partition in range(AFTER)] == micro_batch()
        [(_, _, used_last)] = cache._idle._idle
        used_last.producer.close(0)


def test_a_login_rejected_between_two_micro_batches_fails_neither():
    """A producer whose login was rejected while idle is replaced once logins work again."""
    users, cache = {"alice": "secret"}, ProducerCache()
    with (
        DevBroker(topics={"events": 1}) as broker,
        SecureFront(broker.bootstrap_servers, sasl=SaslRules(users=users)) as front,
    ):
        settings = {
            "bootstrap.servers": front.bootstrap_servers,
            "reconnect.backoff.ms": 0,
            **sasl("PLAIN", "alice", "secret"),
        }
        config = ProducerConfig.from_mapping(settings)

        def micro_batch() -> int:
            rows = [pa.record_batch({"value": pa.array([b"v"])})]
            producers = CachedProducers(config, "query", cache=cache)
            return write_rows(rows, producers=producers, topic="events", config=config).rows

        assert 1 == micro_batch()
        [(_, _, (idle, _))] = cache._idle._idle
        front.sasl = SaslRules(users={"alice": "changed"})
        front.hang_up()
        while not idle.has_ended:
            idle._core._thread.join(0.01)
        front.sasl = SaslRules(users=users)
        assert 1 == micro_batch()
        [(_, _, used_last)] = cache._idle._idle
        used_last.producer.close(0)
        assert 2 == len(records_of(broker, "events"))


def test_queries_do_not_share_producers():
    """Queries that write to the same cluster share no producers."""
    cache = ProducerCache()
    first = of_query(cache).take()
    of_query(cache).finished(first)
    assert first is not of_query(cache, "another query").take()


def test_configurations_do_not_share_producers():
    """A query restarted with another setting does not get the old producer."""
    cache = ProducerCache()
    first = of_query(cache).take()
    of_query(cache).finished(first)
    config = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092", "acks": "1"})
    assert first is not of_query(cache, config=config).take()


def test_equal_configurations_have_equal_fingerprints():
    """A configuration parsed again from the same settings is the same one."""
    again = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    assert fingerprint(CONFIG) == fingerprint(again)


def test_the_fingerprint_of_a_reference_follows_its_value(monkeypatch):
    """If the value of a reference changes, so does the fingerprint."""

    def configured(value):
        monkeypatch.setenv("STORE", value)
        settings = {
            "bootstrap.servers": "localhost:9092",
            "security.protocol": "SSL",
            "ssl.truststore.location": "${env:STORE}",
        }
        return ProducerConfig.from_mapping(settings)

    assert fingerprint(configured("one")) != fingerprint(configured("two"))
    assert fingerprint(configured("one")) == fingerprint(configured("one"))


def test_the_fingerprint_has_only_the_hash_of_a_secret():
    """Different secrets give different fingerprints, which contain only their hashes."""
    plain = idle_cache._plain(Password("secret"))
    assert plain != idle_cache._plain(Password("other"))
    assert "secret" not in repr(plain)


def test_producers_that_are_idle_for_too_long_expire():
    """Producers expire by the time of their last use."""
    idle = IdleClients(idle_seconds=10)
    old, new = _FakeProducer(), _FakeProducer()
    idle.put(KEY, old, now=0)
    idle.put(KEY, new, now=5)
    assert 4 == idle.until_next_expiry(now=6)
    assert [] == idle.take_expired(now=9.9)
    assert [old] == idle.take_expired(now=10)
    assert 5 == idle.until_next_expiry(now=10)
    assert new is idle.take(KEY)
    assert idle.until_next_expiry(now=10) is None


def test_producers_expire_after_five_idle_minutes():
    """That is longer than most trigger intervals, and shorter than brokers' idle timeout."""
    idle = IdleClients()
    idle.put(KEY, _FakeProducer(), now=1)
    assert 300 == idle.until_next_expiry(now=1)


def test_the_most_recently_used_producer_is_taken_first():
    """The least recently used producers can then expire."""
    idle = IdleClients()
    old, new = _FakeProducer(), _FakeProducer()
    idle.put(KEY, old, now=0)
    idle.put(KEY, new, now=1)
    assert [new, old, None] == [idle.take(KEY) for _ in range(3)]


class _ScriptedTime:
    """A clock that advances only in `sleep`, once the test allows it."""

    def __init__(self):
        self.now = 0.0
        self.slept = []
        self.asleep = threading.Event()
        self.may_pass = threading.Event()

    def sleep(self, seconds):
        wakes_at = self.now + seconds
        self.slept.append(seconds)
        self.asleep.set()
        assert self.may_pass.wait(60)
        self.now = max(self.now, wakes_at)


def test_the_cache_thread_sleeps_until_the_next_producer_expires():
    """It wakes up only when a producer expires, and ends with the last one."""
    time = _ScriptedTime()
    cache = ProducerCache(10.0, clock=lambda: time.now, sleep=time.sleep)
    first, second, taken = _FakeProducer(), _FakeProducer(), _FakeProducer()
    cache.put_producer(KEY, first)
    assert time.asleep.wait(60)
    time.now = 4.0
    cache.put_producer(KEY, second)
    cache.put_producer(KEY, taken)
    assert taken is cache.take_producer(KEY)
    time.may_pass.set()
    assert second.closed.wait(60)
    assert first.closed.is_set()
    assert not taken.closed.is_set()
    assert [10.0, 4.0] == time.slept


def test_a_cache_has_a_single_daemon_thread(monkeypatch):
    """It is a daemon thread, started once however many producers are added."""
    started = []

    class Thread:
        def __init__(self, *, daemon, **_):
            started.append(daemon)

        def start(self):
            pass

    monkeypatch.setattr(threading, "Thread", Thread)
    cache = ProducerCache()
    for _ in range(2):
        cache.put_producer(KEY, _FakeProducer())
    assert [True] == started


def test_idle_producers_are_closed():
    """An idle producer is closed automatically, and so is one that is added later."""
    cache = ProducerCache(idle_seconds=0.01)
    for _ in range(2):
        producer = _FakeProducer()
        cache.put_producer(KEY, producer)
        assert producer.closed.wait(120)
        assert cache.take_producer(KEY) is None


def test_a_forked_process_starts_with_an_empty_cache(monkeypatch):
    """The threads of its parent's producers do not survive the fork."""
    cache = ProducerCache()
    monkeypatch.setattr(producer_cache, "_cache", cache)
    cache.put_producer(KEY, _FakeProducer())
    assert "None" == call_in_fork(lambda: str(producer_cache._cache.take_producer(KEY)))
    assert cache.take_producer(KEY) is not None
