"""The producer of one task attempt in an exactly-once write, with an open transaction of its own.

- The transaction begins with the first row. Its transactional id belongs to this process, and no
  other attempt of the plan uses it (`exactly_once.ledger.transactional_ids`). InitProducerId
  precedes each transaction, so that a late EndTxn for the previous one cannot end this one.
- Once every record is acknowledged, the transaction is left open for the driver. After a failure it
  is left open too: the driver aborts every transaction that no task has reported.
- A worker that runs many tasks of one plan uses an id for each, but few producers: the next task
  takes the producer of the last one from the worker's cache, and gives it another id.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from spark_kafka_sink.exactly_once.ledger.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.ledger.transactional_ids import Slots, WorkerId
from spark_kafka_sink.exactly_once.plan import Plan, Prepared
from spark_kafka_sink.spark.idle_cache import fingerprint
from spark_kafka_sink.spark.sink.partition_writer import Producer, close_quietly, start_producer
from spark_kafka_sink.spark.sink.producer_cache import CacheKey, producer_cache

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.model import PartitionAcks, PreparedTransaction, TopicPartition
    from spark_kafka_sink.spark.sink.partition_writer import Start
    from spark_kafka_sink.spark.sink.producer_cache import ProducerCache


class TransactionalProducer(Producer, Protocol):
    """The transactional methods of `producer.kafka_producer.KafkaProducer` that an attempt uses."""

    def init_transactions(self, transactional_id: str) -> None:
        """Acquire a transactional id with a new epoch."""

    def begin_transaction(self) -> None:
        """Begin a transaction."""

    def prepare_transaction(self) -> PreparedTransaction:
        """Leave the transaction open and return its identity."""


@cache
def slots_of(prefix: str, configuration: str) -> Slots:
    """Return this process's slots; the first call creates their worker id."""
    del configuration  # only a cache key: each configuration has transactional ids of its own
    return Slots(prefix)


os.register_at_fork(after_in_child=slots_of.cache_clear)


class ProducerOfAttempt:
    """The source of one task attempt's producer; implements `Producers`."""

    def __init__(
        self,
        config: ProducerConfig,
        plan: Plan,
        *,
        transaction_timeout_ms: int,
        stage: int | None = None,
        start: Start = start_producer,
        cache: ProducerCache | None = None,
    ) -> None:
        """Store the settings, and the id of the task's stage; nothing is started yet."""
        self._config = config
        self._plan = plan
        self._transaction_timeout_ms = transaction_timeout_ms
        self._stage = stage
        self._start = start
        self._cache = cache or producer_cache()
        configuration = fingerprint(config) + str(transaction_timeout_ms)
        self._key = CacheKey(plan.prefix, configuration)
        self._slots = slots_of(plan.prefix, configuration)
        self._worker_id: WorkerId | None = None
        self._prepared: PreparedTransaction | None = None

    def take(self) -> Producer:
        """Begin a transaction and return its producer."""
        self._worker_id = self._slots.take(self._plan.generation)
        transactional_id = str(self._worker_id)
        producer = self._cache.take_producer(self._key, self._stage) or self._start(
            replace(
                self._config,
                transactional_id=transactional_id,
                transaction_timeout_ms=self._transaction_timeout_ms,
            )
        )
        transactional = cast("TransactionalProducer", producer)
        try:
            transactional.init_transactions(transactional_id)
            transactional.begin_transaction()
        except BaseException:
            self.failed(producer)
            raise
        return producer

    def finished(self, producer: Producer) -> None:
        """Prepare the fully acknowledged transaction and leave it open for the driver."""
        try:
            self._prepared = cast("TransactionalProducer", producer).prepare_transaction()
        except BaseException:
            self.failed(producer)
            raise
        self._release()
        self._cache.put_producer(self._key, producer, self._stage)

    def failed(self, producer: Producer) -> None:
        """Close the producer at once; its transaction stays open and belongs to no batch."""
        close_quietly(producer)
        self._release()

    def prepared(self, acks: tuple[tuple[TopicPartition, PartitionAcks], ...]) -> Prepared | None:
        """Return what the driver needs to commit; None if the attempt had no rows."""
        if self._prepared is None or self._worker_id is None:
            return None
        ranges = tuple(
            OffsetRange(written, one.first_offset, one.last_offset, one.records)
            for written, one in acks
        )
        winner = Winner(str(self._worker_id), *self._prepared, ranges)
        return Prepared(self._plan.generation, winner)

    def _release(self) -> None:
        if self._worker_id is None:
            raise RuntimeError("no producer was taken")
        self._slots.release(self._worker_id)
