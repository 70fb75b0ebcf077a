"""The parts of one producer, put together, and the two places where its threads meet.

`KafkaProducer` is the public class; this is its implementation. The sections of the class name the
thread that runs their methods; services for the parts are called on either.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, NetworkError, ProducerClosedError
from spark_kafka_sink.metrics.client_metrics import create_metrics
from spark_kafka_sink.model import AcksByPartition, TopicPartition
from spark_kafka_sink.network.authentication.connection_security import read_security
from spark_kafka_sink.network.connection_waits import look_for_brokers
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.network_thread import JOIN_TIMEOUT, NetworkThread
from spark_kafka_sink.producer.batch.batch_compression import (
    BatchCompression,
    BatchSizes,
    WorkerThread,
)
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.batch.produce_result import CallbackQueue
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
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.records.partitioner import Partitioner
    from spark_kafka_sink.producer.sending.transaction_state import TransactionalRequestResult
    from spark_kafka_sink.record.kernel.key_sample import KeySample
    from spark_kafka_sink.record.key_hashes import KeyRule


logger = logging.getLogger(__name__)

_BUSY: Final = (
    "because a callback kept it busy. Keep callbacks short, and do not call the producer while "
    "holding a lock that a callback waits for"
)


class ProducerCore:
    """A gatherer, an accumulator, a sender and its thread."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        partitioner: KeyRule | Partitioner,
        lingers: bool,
        undo: ExitStack,
        make_sender: Callable[..., Sender] = Sender,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Put the parts together; only metrics reporters run yet, and `undo` closes them.

        `make_sender` takes the arguments of `Sender`.
        Both clocks return seconds: `clock` is for waits and ages, `wall_clock` for timestamps.
        """
        self._config = config
        self._make_sender = make_sender
        self.clock = clock
        self._max_block = config.max_block_ms / 1000
        self._partition_counts: dict[str, int] = {}
        self._on_end: Callable[[], None] = lambda: None
        self._wakeup_pending = False
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
        pool = BufferPool(config.buffer_memory)
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
        self.callbacks = CallbackQueue(self._schedule_callbacks)
        open_batches = OpenBatches(self.callbacks.add)
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
            callbacks=self.callbacks,
        )
        self._thread = NetworkThread(
            self._serve,
            name=f"kafka-producer-network-thread | {config.client_id}",
            closed=lambda: ProducerClosedError("the producer was closed by another thread"),
            busy=_BUSY,
        )
        self._worker = WorkerThread(self._thread.call_soon, client_id=config.client_id)

    def start(self, *, on_end: Callable[[], None], undo: ExitStack) -> None:
        """Start the network thread; `undo` stops it.

        The network thread calls `on_end` when the producer has ended.
        """
        self._on_end = on_end
        self._thread.start(undo)

    # --- the network thread

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: self._end(
                context.get("exception") or KafkaError(str(context["message"]))
            )
        )
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
            gather=self.gatherer.gather,
            has_open=self.gatherer.has_open,
            latencies=self._latencies,
            listener=self.sender_metrics,
            tray=self.tray,
        )
        self._thread.started()
        try:
            await self._sender.run()
        except BaseException as error:  # noqa: BLE001 - reported to the callers, whatever it is
            self._end(error)
        finally:
            self._end(ProducerClosedError("the producer is closed"))
            self._worker.close()
            # One turn of the loop delivers the outcomes of the worker's last jobs.
            await asyncio.sleep(0)
            self.callbacks.end()
            await self._client.close()

    def _end(self, error: BaseException) -> None:
        """End the producer, so that a commit cannot ignore records that failed with it."""
        fatal = _fatal(error)
        if self.transaction_manager is not None:
            self.transaction_manager.transition_to_fatal_error(fatal)
        self.accumulator.fail(fatal)

    def _on_change(self) -> None:
        self._sender.wakeup()

    def _schedule_callbacks(self, run: Callable[[], None]) -> None:
        self._thread.call_soon(partial(self._call_back, run))

    def _call_back(self, run: Callable[[], None]) -> None:
        run()
        # Callbacks may have sent records.
        self._sender.wakeup()

    def _wakeup(self) -> None:
        self._wakeup_pending = False
        self._sender.turn()

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

        Their transaction can only be aborted.
        """
        self.sender_metrics.on_send_failed(self.clock(), records)
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

    def wake_network_thread(self) -> None:
        """Wake the network thread soon; calls before it runs are merged into one."""
        if not self._wakeup_pending:
            try:
                self._wakeup_pending = True
                self._thread.call_soon(self._wakeup)
            except BaseException:
                # The caller was interrupted. With the flag set, the thread would never be woken
                # again.
                self._wakeup_pending = False
                raise

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

    # --- the callers' threads

    @property
    def is_transactional(self) -> bool:
        """Whether records are sent in transactions."""
        return self._config.transactional_id is not None

    @property
    def is_network_thread(self) -> bool:
        """Whether the caller is the network thread, which compresses nothing itself."""
        return self._thread.is_current

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

    def await_topics(self, topics: Iterable[str], give_up_at: float) -> list[int]:
        """Return the partition counts of topics; see `await_partition`."""
        return [self.await_partition(topic, give_up_at=give_up_at) for topic in topics]

    def await_partition(
        self, topic: str, partition: int | None = None, *, give_up_at: float | None = None
    ) -> int:
        """Return a topic's partition count, waiting for its metadata if needed.

        Waits until `give_up_at`, by default up to max.block.ms. If `partition` is set, waits until
        the topic has it. Raises KafkaTimeoutError, BrokerError if the topic is refused,
        NetworkError if no broker answers.
        """
        count = self.count_partitions(topic)
        known = self._client.metadata.snapshot.partition_count(topic)
        if known and (partition is None or partition < known):
            return count
        if self.is_network_thread:
            raise KafkaTimeoutError(
                f"the metadata of topic {topic!r} is not available yet, and a callback cannot wait "
                "for it on the network thread. Send to the topic from another thread first"
            )
        with self.timed(TimedCall.METADATA_WAIT):
            deadline = self.give_up_at() if give_up_at is None else give_up_at
            self._await(self._wait_for_topic(topic, partition, deadline), deadline)
        return self.count_partitions(topic)

    async def _wait_for_topic(self, topic: str, partition: int | None, deadline: float) -> None:
        try:
            await self._find_brokers(deadline)
            await self._client.wait_for_topics([topic], deadline, partition=partition)
        except (KafkaTimeoutError, NetworkError):
            # A later call finds what this one could not wait for, as with max.block.ms=0.
            self.wake_network_thread()
            raise

    def find_brokers(self, give_up_at: float) -> None:
        """Raise NetworkError after a few seconds if nothing listens at any broker's address.

        A cluster that was reached once may restart: it is waited for.
        """
        if not self._expects_brokers:
            self._await(self._find_brokers(give_up_at), give_up_at)

    async def _find_brokers(self, deadline: float) -> None:
        if not self._expects_brokers:
            await look_for_brokers(self._client, deadline)
            self._expects_brokers = self._client.metadata.updated_at is not None

    def refresh_metadata(self, timeout: float) -> None:
        """Refresh the metadata of all topics, and wait for the answer.

        Waits at most `timeout` seconds, or max.block.ms if that is shorter.

        Raises NetworkError or DecodeError if there is no valid answer, AuthenticationError or
        ConfigError if the settings do not allow a connection to a broker.
        """
        with self.timed(TimedCall.METADATA_WAIT):
            deadline = min(self.give_up_at(), self.clock() + timeout)
            self._await(self._client.refresh_metadata(deadline), deadline)

    def _await(self, waiting: Coroutine[Any, Any, None], deadline: float) -> None:
        try:
            self._thread.run(waiting, max(deadline - self.clock(), 0))
        except ProducerClosedError:
            self.accumulator.raise_if_failed()
            raise

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

    def flush(self, timeout: float | None) -> None:
        """Close every batch, and wait until all records queued by then have been handled."""
        self.accumulator.raise_if_failed()
        self._send_all(timeout)
        self.accumulator.raise_if_failed()

    def _send_all(self, timeout: float | None) -> None:
        deadline = None if timeout is None else self.clock() + timeout
        self.gatherer.close_batches(deadline)
        results = self.accumulator.unsettled()
        self.wake_network_thread()
        for result in results:
            if not result.wait_for_all(deadline, self.clock):
                raise KafkaTimeoutError(f"not all records were acknowledged within {timeout} s")
        # Callbacks of records that were added to no batch are waited for, too.
        left = None if deadline is None else max(deadline - self.clock(), 0)
        if not self.callbacks.wait(left):
            raise KafkaTimeoutError(f"not all delivery callbacks were called within {timeout} s")

    def await_transaction(self, result: TransactionalRequestResult, give_up_at: float) -> None:
        """Wake the sender for an operation, and wait until `give_up_at` for its result."""
        self.wake_network_thread()
        left = max(give_up_at - self.clock(), 0)
        result.wait(left, self._client.cause, limit=self._max_block)

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction has begun and not ended; a prepared one is another process's."""
        manager = self.transaction_manager
        return manager is not None and manager.state.has_ongoing_transaction

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

    def close(self, timeout: float | None) -> None:
        """Send all records, then stop the network thread; with `timeout` 0 at once.

        Raises KafkaTimeoutError for records that were given up, or else the error that lost rows
        without futures. The error that ended the producer is not raised: it may occur at any
        moment, and futures and transactional calls report it.
        """
        started = self.clock()
        try:
            if timeout != 0 and not self.has_ended:
                self._send_all(timeout)
        except KafkaError as error:
            if error is not self.accumulator.failed_by:
                raise
        except (KeyboardInterrupt, SystemExit):
            # Whoever interrupts the wait does not want to begin another one.
            timeout = 0
            raise
        finally:
            if self._thread.is_alive:
                # An open transaction is aborted if there is time.
                if self.has_ended and not self.has_open_transaction:
                    left = 0.0
                elif timeout is None:
                    left = self._max_block
                else:
                    left = max(started + timeout - self.clock(), 0)
                self._thread.call_soon(partial(self._sender.initiate_close, left))
                if not self._thread.join(left + JOIN_TIMEOUT):
                    self._warn_of_running_thread()
            self.metrics.close()
        if timeout != 0:
            self.accumulator.raise_if_lost()

    def _warn_of_running_thread(self) -> None:
        reason = (
            "a delivery callback or an interceptor has not returned"
            if self.callbacks.is_running
            else "see the stack"
        )
        logger.warning(
            "the producer %r is closed, but its network thread is still running after %g more "
            "seconds: %s. The thread ends when that call returns, or with the process. Its stack:"
            "\n%s",
            self._config.client_id,
            JOIN_TIMEOUT,
            reason,
            self._thread.stack(),
        )


def _fatal(error: BaseException) -> Exception:
    if isinstance(error, KafkaError):
        return error
    fatal = KafkaError(f"the producer's network thread failed: {error!r}")
    fatal.__cause__ = error
    return fatal
