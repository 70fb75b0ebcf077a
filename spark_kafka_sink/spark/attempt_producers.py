"""A task attempt's producer in an exactly-once write: a transaction of its own, left open.

- Begun with the first row, under a transactional id that this process owns and that no other
  attempt of the plan has (`exactly_once.transactional_ids`); InitProducerId comes before each
  transaction, since a late end of the last one must not end this one.
- When all is acknowledged the transaction is left to the driver. So it is after a failure: the
  driver aborts what nobody tells it of.
- A slot is used again by a later plan only, and its producer with it, through the worker's cache.
  Of the many slots that a worker with many tasks in one batch needs, few keep their producer.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, cast

from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.plan import Plan, Prepared
from spark_kafka_sink.exactly_once.transactional_ids import Slots, WorkerId
from spark_kafka_sink.spark.partition_writer import Producer, close_quietly, start_producer
from spark_kafka_sink.spark.producer_cache import CacheKey, fingerprint, producer_cache

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.model import PartitionAcks, PreparedTransaction, TopicPartition
    from spark_kafka_sink.spark.partition_writer import Start
    from spark_kafka_sink.spark.producer_cache import ProducerCache

#: Slots below this keep their producers: a worker runs one task at a time, and speculation a few.
KEPT_SLOTS: Final = 4


class TransactionalProducer(Producer, Protocol):
    """What an attempt needs of `producer.kafka_producer.KafkaProducer` beside writing."""

    def init_transactions(self) -> None:
        """Take the transactional id over, with a new epoch."""

    def begin_transaction(self) -> None:
        """Begin."""

    def prepare_transaction(self) -> PreparedTransaction:
        """Leave the transaction open, and tell which one it is."""


@cache
def slots_of(prefix: str, configuration: str) -> Slots:
    """Give this process's slots, of a worker id that is made when they are first asked for."""
    del configuration  # producers of other settings have ids of their own
    return Slots(prefix)


os.register_at_fork(after_in_child=slots_of.cache_clear)


class ProducerOfAttempt:
    """The producer of one task attempt; see the module, and `Producers`."""

    def __init__(
        self,
        config: ProducerConfig,
        plan: Plan,
        *,
        transaction_timeout_ms: int,
        start: Start = start_producer,
        cache: ProducerCache | None = None,
    ) -> None:
        """Begin nothing yet."""
        self._config = config
        self._plan = plan
        self._transaction_timeout_ms = transaction_timeout_ms
        self._start = start
        self._cache = cache or producer_cache()
        self._configuration = fingerprint(config) + str(transaction_timeout_ms)
        self._slots = slots_of(plan.prefix, self._configuration)
        self._worker_id: WorkerId | None = None
        self._prepared: PreparedTransaction | None = None

    def take(self) -> Producer:
        """Begin a transaction, and give the producer that has it."""
        self._worker_id = worker_id = self._slots.take(self._plan.generation)
        producer = self._cache.take(self._key(worker_id)) or self._start(
            replace(
                self._config,
                transactional_id=str(worker_id),
                transaction_timeout_ms=self._transaction_timeout_ms,
            )
        )
        transactional = cast("TransactionalProducer", producer)
        try:
            transactional.init_transactions()
            transactional.begin_transaction()
        except BaseException:
            self.failed(producer)
            raise
        return producer

    def finished(self, producer: Producer) -> None:
        """Leave the transaction, all of which is acknowledged, to the driver."""
        try:
            self._prepared = cast("TransactionalProducer", producer).prepare_transaction()
        except BaseException:
            self.failed(producer)
            raise
        worker_id = self._release()
        if worker_id.slot < KEPT_SLOTS:
            self._cache.put(self._key(worker_id), producer)
        else:
            close_quietly(producer)

    def failed(self, producer: Producer) -> None:
        """Stop it at once; its transaction stays open, and belongs to no batch."""
        close_quietly(producer)
        self._release()

    def prepared(self, acks: tuple[tuple[TopicPartition, PartitionAcks], ...]) -> Prepared | None:
        """Give what the driver has to know; None for an attempt that had no rows."""
        if self._prepared is None or self._worker_id is None:
            return None
        ranges = tuple(
            OffsetRange(written, one.first_offset, one.last_offset, one.records)
            for written, one in acks
        )
        winner = Winner(str(self._worker_id), *self._prepared, ranges)
        return Prepared(self._plan.generation, winner)

    def _key(self, worker_id: WorkerId) -> CacheKey:
        return CacheKey(str(worker_id), self._configuration)

    def _release(self) -> WorkerId:
        worker_id = self._worker_id
        if worker_id is None:
            raise RuntimeError("no producer was taken")
        self._slots.release(worker_id)
        return worker_id
