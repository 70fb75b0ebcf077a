"""A gatherer with real batches and real memory, but no thread, no broker, and a simulated clock."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import Mock

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.metadata import MetadataSnapshot
from spark_kafka_sink.producer.batch.batch_compression import BatchCompression, BatchSizes
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.batch.produce_result import call_now
from spark_kafka_sink.producer.records.batch_builder import BatchBuilder
from spark_kafka_sink.producer.records.open_batches import OpenBatches
from spark_kafka_sink.producer.records.partitioner import NodeLatencies, resolve_partitioner
from spark_kafka_sink.producer.records.record_futures import (
    FutureOfFullRecord,
    FutureRecordMetadata,
)
from spark_kafka_sink.producer.records.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.records.row_placement import RowPlacement
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.decode import Record, decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch.interrupts import AppendLock
    from spark_kafka_sink.producer.batch.produce_result import CallbackQueue
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.sender_metrics import SenderMetrics

NOW_MS = 1_700_000_000_000


class GathererHarness:
    """A gatherer at time `now` (seconds) that collects closed `batches` and errors (`broken`)."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        lingers: bool = True,
        listener: SenderMetrics | None = None,
        callbacks: CallbackQueue | None = None,
        **settings: object,
    ) -> None:
        """Create a gatherer; settings have Kafka's names, each topic has this many partitions.

        Without `callbacks`, delivery callbacks are called where their records end.
        """
        self.config = config = ProducerConfig.from_mapping(
            {"bootstrap.servers": "127.0.0.1:9", "compression.type": "none", **settings}
        )
        self.now = 0.0
        self.partitions = partitions
        self.batches: list[ProducerBatch] = []
        self.broken: list[Exception] = []
        #: The errors of records that were added to no batch, and how many records each one
        #: affected.
        self.refused: list[tuple[Exception, int]] = []
        #: Whether a closed batch waits for its acknowledgement.
        self.has_incomplete = False
        #: How often the network thread was woken.
        self.wakeups = 0
        self.accumulator = self
        self.pool = BufferPool(config.buffer_memory)
        #: Whether a partition has no closed batch in its queue.
        self.is_queue_empty: Callable[[TopicPartition], bool] = lambda _: True
        #: Whether a partition's batch could be sent at once.
        self.is_drainable: Callable[[TopicPartition], bool] = lambda _: True
        self.compressor = Compressor(CompressionType.from_name(config.compression_type))
        #: Called with each closed batch; returns whether to wake the network thread.
        self.enqueue: Callable[[ProducerBatch], bool] = self._collect
        open_batches = OpenBatches(call_now if callbacks is None else callbacks.add)
        self.builder = BatchBuilder(
            config,
            open_batches=open_batches,
            placement=RowPlacement(
                config,
                open_batches,
                partitioner=resolve_partitioner(config.partitioner_class),
                core=self,
                latencies=NodeLatencies(0),
                rng=random.Random(1),
            ),
            pool=self.pool,
            compression=BatchCompression(self.compressor, BatchSizes(config.batch_size)),
            core=self,
            clock=lambda: self.now,
            lingers=lingers,
            listener=listener or Mock(),
        )
        self.gatherer = RecordGatherer(
            builder=self.builder,
            open_batches=open_batches,
            core=self,
            wall_clock_ms=lambda: NOW_MS,
            clock=lambda: self.now,
            linger=config.linger_ms / 1000 if lingers else None,
            max_block=config.max_block_ms / 1000,
            callbacks=callbacks,
        )

    # --- the way of closed batches, as `ProducerCore` and its accumulator, with `enqueue` and
    # `is_queue_empty`

    is_network_thread = False

    def may_send_at_once(self) -> bool:
        """Return whether the caller is no network thread, as `ThreadedCore` does."""
        return not self.is_network_thread

    def may_compress(self, batch: ProducerBatch) -> bool:
        """Return whether the caller is no network thread, as `ThreadedCore` does."""
        return not self.is_network_thread

    def _collect(self, batch: ProducerBatch) -> bool:
        self.batches.append(batch)
        return False

    def wake_network_thread(self) -> None:
        """Count the call."""
        self.wakeups += 1

    def fail_if_transaction_not_ready(self) -> None:
        """Do nothing: there is no transaction."""

    def sendable_at(self, topic_partition: TopicPartition, now: float) -> float:
        """Return `now` if the test's `is_drainable` allows it."""
        return now if self.is_drainable(topic_partition) else NEVER

    def note_failed_send(self, error: Exception, records: int) -> None:
        """Record the error in `refused`."""
        self.refused.append((error, records))

    def note_loss(self, error: Exception) -> None:
        """Do nothing: `refuse` receives the error, too."""

    def refuse(self, error: Exception) -> None:
        """Record the error in `broken`."""
        self.broken.append(error)

    # --- the producer's interface to its futures

    def write_staged(self, give_up_at: float | None, unless: Callable[[], bool]) -> None:
        """Write the staged records, see `ThreadedStaging.write_staged`."""
        self.gatherer.write_staged(give_up_at, unless)

    def monotonic(self) -> float:
        """Return the real time, since a test that waits for a future really waits."""
        return time.monotonic()

    def check_may_wait(self) -> None:
        """Do nothing: any thread may wait."""

    # --- the cluster (as `ProducerCore`)

    snapshot = MetadataSnapshot()
    key_sample = None

    def count_partitions(self, topic: str) -> int:
        """Return the same number for every topic."""
        return self.partitions

    def leaders(self, topic: str) -> list[int]:
        """Return node 0 as the leader of each partition."""
        return [0] * self.partitions

    def queue_sizes(self, topic: str) -> dict[int, int]:
        """Return no queue sizes."""
        return {}

    # --- the test's actions

    def stage(
        self,
        value: bytes | None,
        *,
        topic: str = "t",
        key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        callback: Callable[[FutureRecordMetadata], object] | None = None,
        future: FutureRecordMetadata | None = None,
    ) -> FutureRecordMetadata:
        """Stage a record, as a send does; with a `future` of its own if that is given."""
        future = FutureOfFullRecord() if future is None else future
        future.producer = self
        if isinstance(future, FutureOfFullRecord):
            future.headers, future.partition, future.timestamp = headers, partition, timestamp
            future.callback = callback
        future.chunk = future.error = None
        self.gatherer.staged.append(future, topic, key, value)
        self.gatherer.note_staged()
        return future

    def stage_plain(
        self, value: bytes | None, *, topic: str = "t", key: bytes | None = None
    ) -> FutureRecordMetadata:
        """Stage a record with nothing else, as most sends do."""
        return self.stage(value, topic=topic, key=key, future=FutureRecordMetadata())

    def gather(
        self, is_drainable: Callable[[TopicPartition], bool] = lambda topic_partition: True
    ) -> float:
        """Gather at the current time, as the network thread does."""
        self.is_drainable = is_drainable
        return self.gatherer.gather(self.now)

    def hold_memory(self) -> int:
        """Reserve all available memory; return its size, so that the test can release it."""
        size = self.pool.available_bytes
        self.pool.reserve(size)
        return size

    def records(self) -> list[Record]:
        """Decode the records in the closed batches, in order."""
        return [record for batch in self.batches for record in records_of(batch)]

    def values(self) -> list[bytes | None]:
        """Return the values in the closed batches, in order."""
        return [record.value for record in self.records()]


@contextmanager
def held(lock: AppendLock) -> Iterator[None]:
    """Hold the lock of the open batches on this thread."""
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def held_elsewhere(lock: AppendLock) -> Iterator[None]:
    """Hold the lock of the open batches on another thread, which signals nothing on release."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        lock.acquire()
        held.set()
        done.wait()
        lock.is_held = False
        lock.unlock()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def records_of(batch: ProducerBatch) -> list[Record]:
    """Decode a closed batch."""
    return list(decode_records(b"".join(bytes(part) for part in batch.buffers())))


def acknowledge(batch: ProducerBatch, base_offset: int = 0) -> None:
    """Complete a batch as a broker's response does."""
    batch.result.complete(base_offset)
