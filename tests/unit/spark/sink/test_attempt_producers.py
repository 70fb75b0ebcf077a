from __future__ import annotations

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.plan import Plan, Prepared
from spark_kafka_sink.model import (
    PartitionAcks,
    PreparedTransaction,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.spark.sink import exactly_once_write
from spark_kafka_sink.spark.sink.exactly_once_write import ProducerOfAttempt
from spark_kafka_sink.spark.sink.producer_cache import ProducerCache

CONFIG = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
PRODUCER = ProducerIdAndEpoch(7, 3)
ACKS = (
    (
        TopicPartition("t", 1),
        PartitionAcks(first_offset=5, last_offset=9, records=4, bytes=80),
    ),
)


class _FakeProducer:
    def __init__(self, config):
        self.config = config
        self.calls = []
        self.ids = []
        self.fails_at = None
        self.has_ended = False

    def __getattr__(self, name):
        def call(*arguments, **__):
            self.calls.append(name)
            if name == "init_transactions":
                self.ids += arguments
            if name == self.fails_at:
                raise KafkaTimeoutError(name)
            return PreparedTransaction(PRODUCER, 2)

        return call


class _Worker:
    """A process and its producer cache."""

    def __init__(self):
        self.cache = ProducerCache()
        self.started = []
        self.fails_at = None

    def start(self, config):
        producer = _FakeProducer(config)
        producer.fails_at = self.fails_at
        self.started.append(producer)
        return producer

    def attempt(self, generation, stage=None):
        return ProducerOfAttempt(
            CONFIG,
            Plan("orders", generation, 0, {}),
            transaction_timeout_ms=5_000,
            stage=stage,
            start=self.start,
            cache=self.cache,
        )


@pytest.fixture
def worker():
    exactly_once_write.slots_of.cache_clear()
    yield _Worker()
    exactly_once_write.slots_of.cache_clear()


def slots(worker):
    """Return the slots of each producer's transactions."""
    return [[int(name.rsplit(".")[-1]) for name in producer.ids] for producer in worker.started]


def test_an_attempt_has_a_transaction_of_its_own(worker):
    """It is begun, left open once everything is acknowledged, and reported to the driver."""
    attempt = worker.attempt(1)
    producer = attempt.take()
    attempt.finished(producer)
    assert ["init_transactions", "begin_transaction", "prepare_transaction"] == producer.calls
    assert 5_000 == producer.config.transaction_timeout_ms
    assert [producer.config.transactional_id] == producer.ids
    ranges = (OffsetRange(TopicPartition("t", 1), 5, 9, 4),)
    winner = Winner(producer.config.transactional_id, PRODUCER, 2, ranges)
    assert Prepared(1, winner) == attempt.prepared(ACKS)


def test_an_attempt_without_rows_prepares_no_transaction(worker):
    """It takes no producer and prepares no transaction."""
    assert worker.attempt(1).prepared(()) is None
    assert [] == worker.started


def test_attempts_of_one_plan_have_different_ids(worker):
    """Within a generation no id is reused, whether earlier attempts finished or failed."""
    for finish in (True, False, True):
        attempt = worker.attempt(1)
        producer = attempt.take()
        (attempt.finished if finish else attempt.failed)(producer)
    assert [[0, 1], [2]] == slots(worker)


def test_a_later_plan_reuses_ids_and_producers(worker):
    """One producer writes the transactions of all tasks, in the next generation too."""
    for generation in (1, 2):
        for _ in range(3):
            attempt = worker.attempt(generation)
            attempt.finished(attempt.take())
    assert [[0, 1, 2, 0, 1, 2]] == slots(worker)


def test_tasks_at_the_same_time_have_producers_of_their_own(worker):
    """A producer in use is not shared, and each task reports the id of its own transaction."""
    attempts = [worker.attempt(1) for _ in range(2)]
    producers = [attempt.take() for attempt in attempts]
    for attempt, producer in zip(attempts, producers, strict=True):
        attempt.finished(producer)
    assert [[0], [1]] == slots(worker)
    assert [producer.ids[0] for producer in producers] == [
        attempt.prepared(ACKS).transaction.transactional_id for attempt in attempts
    ]


def test_metadata_are_refreshed_once_for_the_tasks_of_a_stage(worker):
    """As without transactions, only the first task of a stage asks for them again."""
    for stage in (4, 4, 4, 5, 5):
        attempt = worker.attempt(1, stage)
        attempt.finished(attempt.take())
    assert 1 == worker.started[0].calls.count("refresh_metadata")


def test_a_producer_that_ended_while_idle_gets_no_further_transaction(worker):
    """It is closed, and a new producer takes over its transactional id."""
    attempt = worker.attempt(1)
    attempt.finished(attempt.take())
    worker.started[0].has_ended = True
    assert worker.attempt(2).take() is worker.started[1]
    assert [[0], [0]] == slots(worker)
    assert "close" == worker.started[0].calls[-1]
    assert 1 == worker.started[0].calls.count("init_transactions")


def test_the_id_of_a_failed_attempt_gets_a_new_producer(worker):
    """A failed producer is closed, and a later one with the same id fences it."""
    attempt = worker.attempt(1)
    attempt.failed(attempt.take())
    assert "close" == worker.started[0].calls[-1]
    worker.attempt(2).take()
    assert [[0], [0]] == slots(worker)


@pytest.mark.parametrize("call", ["init_transactions", "begin_transaction"])
def test_a_failed_begin_closes_the_producer_and_frees_the_slot(worker, call):
    """The error is raised, the producer is closed, and the next plan can use the slot."""
    worker.fails_at = call
    with pytest.raises(KafkaTimeoutError, match=call):
        worker.attempt(1).take()
    assert "close" == worker.started[0].calls[-1]
    worker.fails_at = None
    worker.attempt(2).take()
    assert [[0], [0]] == slots(worker)


def test_a_failed_prepare_closes_the_producer_and_is_not_reported(worker):
    """The error is raised, the producer is closed, and the driver gets no transaction."""
    worker.fails_at = "prepare_transaction"
    attempt = worker.attempt(1)
    producer = attempt.take()
    with pytest.raises(KafkaTimeoutError):
        attempt.finished(producer)
    assert "close" == producer.calls[-1]
    assert attempt.prepared(ACKS) is None
