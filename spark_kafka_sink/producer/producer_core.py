"""The parts of one producer, put together around an event loop that runs the sender.

Nothing here waits, except for the coroutines, which run on that loop. Whose loop it is, and how
callers wait, is decided by a subclass: `ThreadedCore` runs a loop on a thread of its own and blocks
its callers.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import (
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    TransactionAbortedError,
)
from spark_kafka_sink.metrics.client_metrics import create_metrics
from spark_kafka_sink.model import AcksByPartition, TopicPartition
from spark_kafka_sink.network.authentication.connection_security import read_security
from spark_kafka_sink.network.connection_waits import look_for_brokers
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.batch.batch_compression import (
    BatchCompression,
    BatchSizes,
    WorkerThread,
)
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.batch.produce_result import call_now
from spark_kafka_sink.producer.batch.producer_batch import MAX_ROWS, MAX_ROWS_SET_ASIDE
from spark_kafka_sink.producer.batch.set_aside import SetAsideTray
from spark_kafka_sink.producer.records.batch_builder import BatchBuilder
from spark_kafka_sink.producer.records.open_batches import OpenBatches
from spark_kafka_sink.producer.records.partitioner import (
    NodeLatencies,
    TopicPartitions,
    led_partitions,
)
from spark_kafka_sink.producer.records.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.records.row_placement import RowPlacement
from spark_kafka_sink.producer.sender_metrics import SenderMetrics, TimedCall
from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
from spark_kafka_sink.record.compression import CompressionType, Compressor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.batch.produce_result import CallbackQueue
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.records.partitioner import Partitioner
    from spark_kafka_sink.producer.sending.transaction_state import TransactionalRequestResult
    from spark_kafka_sink.record.kernel.key_sample import KeySample
    from spark_kafka_sink.record.key_hashes import KeyRule


#: Seconds for which a transaction's end is awaited after an error of its owner, at most.
_TIME_TO_END = 5.0


class ProducerCore(ABC):
    """A gatherer, an accumulator and a sender."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        partitioner: KeyRule | Partitioner,
        lingers: bool,
        undo: ExitStack,
        callbacks: CallbackQueue | None = None,
        make_sender: Callable[..., Sender] = Sender,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Put the parts together; only metrics reporters run yet, and `undo` closes them.

        `callbacks` calls delivery callbacks; without it they are called where their records end.
        `make_sender` takes the arguments of `Sender`.
        Both clocks return seconds: `clock` is for waits and ages, `wall_clock` for timestamps.
        """
        self._config = config
        self._make_sender = make_sender
        self.clock = clock
        self._max_block = config.max_block_ms / 1000
        self._partition_counts: dict[str, int] = {}
        self._on_end: Callable[[], None] = lambda: None
        #: The sample to which rows of columns add their keys; None for none.
        self.key_sample: KeySample | None = None
        #: Whether the cluster was reached before: by this producer, or, without lingering, by the
        #: driver of a Spark write.
        self._expects_brokers = not lingers
        read_security(config.security)
        self._compression = BatchCompression(
            Compressor(
                CompressionType.from_name(config.compression_type), config.compression_level
            ),
            BatchSizes(config.batch_size),
        )
        self.metrics = create_metrics(config, clock)
        undo.callback(self.metrics.close)
        self.sender_metrics = SenderMetrics(
            self.metrics, topic_expiration=config.metadata_max_idle_ms / 1000
        )
        self.transaction_manager = (
            TransactionManager(
                transactional_id=config.transactional_id,
                transaction_timeout_ms=config.transaction_timeout_ms,
            )
            if config.enable_idempotence
            else None
        )
        #: The memory for records that are not acknowledged yet.
        self.pool = pool = BufferPool(config.buffer_memory)
        self.sender_metrics.observe_buffer(pool)
        self.accumulator = RecordAccumulator(
            pool=pool,
            delivery_timeout=config.delivery_timeout_ms / 1000,
            transaction_manager=self.transaction_manager,
            guarantee_order=config.max_in_flight_requests_per_connection == 1,
            on_failed=self._fail,
        )
        #: The rows that brokers refuse for themselves, if it is open.
        self.tray = SetAsideTray()
        open_batches = OpenBatches(call_now if callbacks is None else callbacks.add)
        self._latencies = NodeLatencies(config.partitioner_availability_timeout_ms / 1000)
        builder = BatchBuilder(
            config,
            open_batches=open_batches,
            placement=RowPlacement(
                config,
                open_batches,
                partitioner=partitioner,
                core=self,
                latencies=self._latencies,
                rng=random.Random(),
            ),
            pool=pool,
            compression=self._compression,
            core=self,
            clock=clock,
            lingers=lingers,
            listener=self.sender_metrics,
        )
        self.max_record_bytes = builder.max_record_bytes
        self._history = builder.history
        self.gatherer = RecordGatherer(
            builder=builder,
            open_batches=open_batches,
            core=self,
            wall_clock_ms=lambda: int(wall_clock() * 1000),
            clock=clock,
            linger=config.linger_ms / 1000 if lingers else None,
            max_block=self._max_block,
            callbacks=callbacks,
        )
        self._worker = WorkerThread(self._call_soon, client_id=config.client_id)

    # --- what a subclass decides

    @abstractmethod
    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop soon; any thread may call this."""

    @abstractmethod
    def wake_network_thread(self) -> None:
        """Schedule a turn of the sender; calls before it runs are merged into one."""

    @property
    @abstractmethod
    def is_network_thread(self) -> bool:
        """Whether the caller is the thread of the loop, which must not wait."""

    @abstractmethod
    def may_send_at_once(self) -> bool:
        """Return whether a record of this caller that finds no other may be sent at once."""

    @abstractmethod
    def may_compress(self, batch: ProducerBatch) -> bool:
        """Return whether the caller may compress a batch itself; otherwise the worker does."""

    @abstractmethod
    def call_back(self, job: Callable[[], object]) -> None:
        """Call a delivery callback, after those of records that ended before; no lock is held."""

    # --- the loop

    def _create_sender(self) -> None:
        """Create the parts that belong to the running loop."""
        self._client = NetworkClient(
            self._config, on_change=self._on_change, listener=self.sender_metrics
        )
        self.sender_metrics.observe_client(
            requests_in_flight=lambda: self._client.requests_in_flight,
            metadata_updated_at=lambda: self._client.metadata.updated_at,
        )
        self._sender = self._make_sender(
            self._config,
            client=self._client,
            accumulator=self.accumulator,
            transaction_manager=self.transaction_manager,
            compression=self._compression,
            run_aside=self._worker.run_aside,
            gather=self._gather,
            has_open=self.gatherer.has_open,
            latencies=self._latencies,
            listener=self.sender_metrics,
            tray=self.tray,
        )

    def _gather(self, now: float) -> float:
        return self.gatherer.gather(now)

    def _end(self, error: BaseException) -> None:
        """End the producer, so that a commit cannot ignore records that failed with it."""
        fatal = _fatal(error)
        if self.transaction_manager is not None:
            self.transaction_manager.transition_to_fatal_error(fatal)
        self.accumulator.fail(fatal)

    def _on_change(self) -> None:
        self._sender.wakeup()

    def _fail(self, error: Exception) -> None:
        """Fail the records that the accumulator has never seen; the producer has ended."""
        self._on_end()
        self._client.close_unsent()
        self.gatherer.fail_all(error)

    # --- services for the parts: the way of closed batches

    def fail_if_transaction_not_ready(self) -> None:
        """Raise the error of a transactional producer whose transaction accepts no records."""
        if self.is_transactional and self.transaction_manager is not None:
            self.transaction_manager.fail_if_not_ready_for_send()

    def sendable_at(self, topic_partition: TopicPartition, now: float) -> float:
        """Return when a batch of this partition, if closed now, could be sent; `now` for at once.

        Returns `NEVER` if that depends on an event that wakes the network thread anyway. Only the
        network thread may call this.
        """
        if not self.accumulator.is_queue_empty(topic_partition):
            return NEVER
        leader = self._client.metadata.snapshot.leader_of(topic_partition)
        if leader is None:
            self._client.metadata.request_update()
            return NEVER
        if self._client.ready_connection(leader) is not None:
            return now
        # Answers and connections wake the sender, but nothing signals the end of a throttle or
        # back-off.
        ready_at = self._client.ready_at(leader)
        return ready_at if ready_at > now else NEVER

    def enqueue(self, batch: ProducerBatch) -> bool:
        """Add a batch just closed to its queue; raise the error that ended the producer, if any.

        Returns whether the network thread, unless it is the caller, must be woken to send it.
        """
        is_first = False
        try:
            is_first = self.accumulator.enqueue(batch)
        except KafkaError:
            if not self.is_network_thread:
                raise
            # The network thread must go on: it still handles the batches in the queues.
        if not self.is_network_thread:
            return is_first
        # The network thread itself is about to check the queues.
        if not batch.is_compressed and not batch.is_done:
            self._sender.completion.compress(batch)
        return False

    def note_failed_send(self, error: Exception, records: int = 1) -> None:
        """Count records that this error kept from being added to a batch.

        Their transaction can only be aborted, unless its end has begun without them.
        """
        self.sender_metrics.on_send_failed(self.clock(), records)
        manager = self.transaction_manager
        if manager is None or not manager.state.is_completing:
            self._fail_transaction(error)

    def _fail_transaction(self, error: Exception) -> None:
        if self.is_transactional and self.transaction_manager is not None:
            self.transaction_manager.maybe_transition_to_error_state(error)

    def refuse(self, error: Exception) -> None:
        """Make every later call raise `error`: rows may have been lost on their way to a batch.

        An open transaction can only be aborted then.
        """
        self.accumulator.refuse(error)
        self._fail_transaction(error)

    # --- services for the parts: the cluster as the producer knows it

    def count_partitions(self, topic: str) -> int:
        """Return the partition count of a known topic; the last one if the topic was deleted."""
        metadata = self._client.metadata
        metadata.add_topic(topic, self.clock())
        count = metadata.snapshot.partition_count(topic)
        if count:
            self._partition_counts[topic] = count
        return count or self._partition_counts.get(topic, 0)

    def leaders(self, topic: str) -> Sequence[int]:
        """Return the node id of each partition's leader, negative for none."""
        known = self._client.metadata.snapshot.topics.get(topic)
        return [partition.leader_id for partition in known.partitions] if known is not None else ()

    def topic_partitions(self, topic: str) -> TopicPartitions:
        """Return the state of a topic, as partitioners receive it."""
        leaders = self.leaders(topic)
        return TopicPartitions(topic, len(leaders), led_partitions(leaders))

    @property
    def snapshot(self) -> MetadataSnapshot:
        """The current metadata of the cluster."""
        return self._client.metadata.snapshot

    # --- calls of users

    @property
    def is_transactional(self) -> bool:
        """Whether records are sent in transactions."""
        return self._config.transactional_id is not None

    @property
    def has_ended(self) -> bool:
        """Whether an error has ended the producer."""
        return self.accumulator.has_failed

    def fail_if_not_ready_for_send(self) -> None:
        """Raise the error that ended the producer, or that keeps records from being sent now."""
        self.accumulator.raise_if_failed()
        self.fail_if_transaction_not_ready()

    def give_up_at(self) -> float:
        """Return the time at which all waits of a call that begins now must end (max.block.ms)."""
        return self.clock() + self._max_block

    def known_partitions(self, topic: str, partition: int | None = None) -> int:
        """Return a topic's partition count; 0 if it is not known, or has no such partition yet."""
        count = self.count_partitions(topic)
        known = self._client.metadata.snapshot.partition_count(topic)
        return count if known and (partition is None or partition < known) else 0

    async def wait_for_topic(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until a topic is known, and has this partition unless that is None.

        Raises KafkaTimeoutError at the deadline, BrokerError if the topic is refused, NetworkError
        if no broker answers.
        """
        try:
            await self.look_for_brokers(deadline)
            await self._client.wait_for_topics([topic], deadline, partition=partition)
        except (KafkaTimeoutError, NetworkError):
            # A later call finds what this one could not wait for, as with max.block.ms=0.
            self.wake_network_thread()
            raise

    async def look_for_brokers(self, deadline: float) -> None:
        """Raise NetworkError after a few seconds if nothing listens at any broker's address.

        A cluster that was reached once may restart: it is waited for.
        """
        if not self._expects_brokers:
            await look_for_brokers(self._client, deadline)
            self._expects_brokers = self._client.metadata.updated_at is not None

    @contextmanager
    def timed(self, call: TimedCall) -> Iterator[None]:
        """Record the time that a call takes."""
        started = self.clock()
        try:
            yield
        finally:
            now = self.clock()
            self.sender_metrics.on_timed_call(call, now - started, now)

    def set_refused_aside(self, *, is_on: bool) -> None:
        """Set aside rows that brokers refuse for themselves; by default their batches fail."""
        self._history.max_rows = MAX_ROWS_SET_ASIDE if is_on else MAX_ROWS
        if is_on:
            self.tray.is_open = True
        else:
            self.tray.close()

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction has begun and not ended; a prepared one is another process's."""
        manager = self.transaction_manager
        return manager is not None and manager.state.has_ongoing_transaction

    def begin_end_of_transaction(self) -> tuple[TransactionalRequestResult, float] | None:
        """Begin to end the transaction that an error of its owner leaves open, if there is one.

        Returns the operation, and the time until which to wait for it: those who read committed
        records would otherwise wait for transaction.timeout.ms. Raises KafkaError if it cannot be
        ended now.
        """
        manager = self.transaction_manager
        if manager is None or not manager.state.has_ongoing_transaction:
            return None
        result = manager.begin_end()
        give_up_at = self.clock() + min(self._max_block, _TIME_TO_END)
        if manager.state.is_aborting:
            self.abort_unsent(give_up_at)
        return result, give_up_at

    def abort_unsent(self, give_up_at: float) -> None:
        """Fail the records of an aborted transaction that are in no closed batch.

        Raises KafkaTimeoutError when another thread keeps their lock until `give_up_at`.
        """
        error = "the record was not sent because its transaction was aborted"
        self.gatherer.abort(TransactionAbortedError(error), give_up_at)

    def warn_of_open_transaction(self) -> None:
        """Log that the process ends with an open transaction, if there is one."""
        self._sender.warn_of_open_transaction("the process ended")

    @property
    def unsent_records(self) -> int:
        """The number of records that are neither acknowledged nor failed.

        It is not exact while other threads send or write.
        """
        return self.gatherer.unwritten_records + self.accumulator.incomplete_records

    @property
    def failed_records(self) -> int:
        """The number of records that have failed so far."""
        return self.sender_metrics.snapshot().record_error_total

    @property
    def last_error(self) -> Exception | None:
        """The last error of a connection to a broker."""
        return self._client.last_error

    @property
    def client_id(self) -> str:
        """The name that the brokers know."""
        return self._config.client_id

    def acks(self) -> AcksByPartition:
        """Return what has been acknowledged so far, by partition."""
        return AcksByPartition(self._sender.completion.acks)

    def take_acks(self) -> AcksByPartition:
        """Return what has been acknowledged since the last call, and reset it."""
        return AcksByPartition(self._sender.completion.take_acks())

    def time_to_close(self, timeout: float | None, started: float) -> float:
        """Return the seconds that the sender has left of a close that began at `started`.

        An open transaction is aborted if there is time.
        """
        if self.has_ended and not self.has_open_transaction:
            return 0.0
        if timeout is None:
            return self._max_block
        return max(started + timeout - self.clock(), 0)


def _fatal(error: BaseException) -> Exception:
    if isinstance(error, KafkaError):
        return error
    fatal = KafkaError(f"the producer's network thread failed: {error!r}")
    fatal.__cause__ = error
    return fatal
