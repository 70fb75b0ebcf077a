"""The producer: a thread that writes, and a thread that talks to the brokers (KafkaProducer).

The caller's thread appends; it blocks only for memory and for the metadata of a new topic, never
longer than max.block.ms. All sockets belong to one asyncio loop on a daemon thread of ours. Nothing
relies on `atexit` or on the garbage collector: a worker may be killed at any moment, and what was
not acknowledged by then was never reported as written.

A producer is made in the process that uses it, and is never pickled.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from spark_kafka_sink.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordError,
)
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.batch_builder import BatchBuilder
from spark_kafka_sink.producer.buffer_pool import BufferPool
from spark_kafka_sink.producer.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.sender import Sender
from spark_kafka_sink.producer.transaction_manager import TransactionManager
from spark_kafka_sink.record.compression import CompressionType, Compressor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from types import TracebackType

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.model import PartitionAcks, TopicPartition
    from spark_kafka_sink.producer.producer_batch import ProducerBatch
    from spark_kafka_sink.record.columns import RecordColumns

#: How long `close` waits for the network thread after telling it to stop.
JOIN_TIMEOUT = 10.0


class KafkaProducer:
    """Writes columns of records to Kafka.

    After an error that lost records every call raises that error again. Use it as a context
    manager, or `close` it.
    """

    def __init__(self, config: ProducerConfig) -> None:
        """Start the network thread; connect to nothing yet."""
        self._config = config
        self._process_id = os.getpid()
        self._append_lock = threading.Lock()
        self._closed = False
        self._last_row = 0
        self._size_limits: dict[str, int] = {}
        self._compressor = Compressor(
            CompressionType.from_name(config.compression_type), config.compression_level
        )
        transaction_manager = TransactionManager() if config.enable_idempotence else None
        pool = BufferPool(config.buffer_memory)
        self._accumulator = RecordAccumulator(
            pool=pool,
            delivery_timeout=config.delivery_timeout_ms / 1000,
            transaction_manager=transaction_manager,
            guarantee_order=config.max_in_flight_requests_per_connection == 1,
        )
        self._builder = BatchBuilder(
            config,
            pool=pool,
            compressor=self._compressor,
            batch_size_of=self._batch_size_of,
            enqueue=self._enqueue,
            clock=time.monotonic,
            rng=random.Random(),
        )
        self._loop = asyncio.new_event_loop()
        self._wakeup_pending = False
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._run_network_thread,
            args=(transaction_manager,),
            name="kafka-producer-network-thread",
            daemon=True,
        )
        self._thread.start()
        self._started.wait()

    # --- the network thread

    def _run_network_thread(self, transaction_manager: TransactionManager | None) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(transaction_manager))
        finally:
            self._started.set()

    async def _serve(self, transaction_manager: TransactionManager | None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: self._accumulator.fail(
                _fatal(context.get("exception") or KafkaError(str(context["message"])))
            )
        )
        self._client = NetworkClient(self._config, on_change=self._on_change)
        self._sender = Sender(
            self._config,
            client=self._client,
            accumulator=self._accumulator,
            transaction_manager=transaction_manager,
            compressor=self._compressor,
            on_message_too_large=self._lower_batch_size,
        )
        self._started.set()
        try:
            await self._sender.run()
        except BaseException as error:  # noqa: BLE001 - told to the writing thread, whatever it is
            self._accumulator.fail(_fatal(error))
        finally:
            self._accumulator.fail(ProducerClosedError("the producer is closed"))
            await self._client.close()

    def _on_change(self) -> None:
        self._sender.wakeup()

    def _wakeup(self) -> None:
        self._wakeup_pending = False
        self._sender.wakeup()

    def _enqueue(self, batch: ProducerBatch) -> None:
        self._accumulator.enqueue(batch)
        # One wake-up serves all batches enqueued before the loop comes to it.
        if not self._wakeup_pending:
            self._wakeup_pending = True
            self._call_soon(self._wakeup)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        # A loop that has just closed needs no telling; the accumulator knows what it ended of.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _lower_batch_size(self, topic: str, refused_bytes: int) -> None:
        self._size_limits[topic] = min(self._batch_size_of(topic), refused_bytes // 2)

    def _batch_size_of(self, topic: str) -> int:
        return self._size_limits.get(topic, self._config.batch_size)

    def _on_network_thread(self, coroutine: Coroutine[Any, Any, None], timeout: float) -> None:
        """Run what ends by itself within `timeout` seconds, and wait for it."""
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
        else:
            # A loop that ends at this moment may never begin it, and so never answer.
            wait([answer], timeout + JOIN_TIMEOUT)
            with suppress(CancelledError):
                if answer.done():
                    return answer.result()
        # The network thread has ended; the accumulator knows of what.
        self._accumulator.raise_if_failed()
        raise ProducerClosedError("the producer was closed by another thread")

    # --- the caller's thread

    def _check_usable(self) -> None:
        if os.getpid() != self._process_id:
            raise ProducerClosedError(
                "this producer belongs to the process that made it: make one after the fork"
            )
        if threading.current_thread() is self._thread:
            raise ProducerClosedError("the producer's own network thread must not wait for itself")
        if self._closed:
            raise ProducerClosedError("the producer is closed")

    @contextmanager
    def _filling_batches(self) -> Iterator[None]:
        """Have the open batches to oneself; end the producer if they may have lost rows."""
        with self._append_lock:
            self._accumulator.raise_if_failed()
            try:
                yield
            except (RecordError, KafkaTimeoutError):
                # Raised before the row was touched: those before it are where they should be.
                raise
            except BaseException as error:
                # An interrupt, say, may strike between a batch's closing and its queue. Going on
                # would acknowledge everything but that batch.
                self._accumulator.refuse(_broken_off(error))
                raise

    def _partition_count(self, topic: str) -> int:
        count = self._client.metadata.snapshot.partition_count(topic)
        if not count:
            max_block = self._config.max_block_ms / 1000
            waiting = self._client.wait_for_topics([topic], time.monotonic() + max_block)
            self._on_network_thread(waiting, max_block)
            count = self._client.metadata.snapshot.partition_count(topic)
        return count

    def _led_partitions(self, topic: str) -> Sequence[int]:
        known = self._client.metadata.snapshot.topics.get(topic)
        if known is None:
            return ()
        return [index for index, p in enumerate(known.partitions) if p.leader_id >= 0]

    def append(self, columns: RecordColumns, *, first_row: int = 0) -> None:
        """Append all rows of `columns`; return when they are in batches, not when they are sent.

        `first_row` is the number of the first row, for errors: what the caller appended before.

        Raises RecordError (which row, and what to do) for a row that can never be sent,
        KafkaTimeoutError when metadata or memory did not come within max.block.ms, BrokerError
        when a topic is refused, DeliveryError when an earlier batch could not be delivered.
        """
        self._check_usable()
        self._accumulator.raise_if_failed()
        if not columns.num_rows:
            return
        counts = [self._partition_count(topic) for topic in columns.topics]
        with self._filling_batches():
            self._last_row = max(self._last_row, first_row + columns.num_rows - 1)
            self._builder.append(
                columns,
                self._led_partitions,
                partition_counts=counts,
                first_row=first_row,
                now_ms=int(time.time() * 1000),
            )

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until it is acknowledged; `timeout` in seconds.

        Raises DeliveryError when something was not delivered, KafkaTimeoutError when the time was
        too short (delivery.timeout.ms bounds the wait in any case).
        """
        self._check_usable()
        with self._filling_batches():
            self._builder.close_all(self._last_row)
        if not self._accumulator.await_all_done(timeout):
            raise KafkaTimeoutError(f"not everything was acknowledged within {timeout} s")

    def acks(self) -> dict[TopicPartition, PartitionAcks]:
        """Tell what has been acknowledged so far, by partition."""
        return dict(self._sender.acks)

    def close(self, timeout: float | None = None) -> None:
        """Flush, stop the network thread, close all connections. May be called twice.

        With `timeout` 0 nothing is sent any more, and what is not acknowledged is given up.
        Raises what `flush` raises, after everything has been closed.
        """
        if self._closed:
            return
        self._check_usable()
        try:
            if timeout != 0:
                self.flush(timeout)
        finally:
            self._closed = True
            if self._thread.is_alive():
                self._call_soon(self._sender.initiate_close)
                self._thread.join(JOIN_TIMEOUT)

    def __enter__(self) -> Self:
        """Give the producer itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; at once when the block failed, so that its error is not hidden by ours."""
        self.close(timeout=None if exc_type is None else 0)


def _broken_off(error: BaseException) -> KafkaError:
    broken_off = KafkaError(
        f"the producer was broken off in the middle of a batch, whose rows may be lost: {error!r}"
    )
    broken_off.__cause__ = error
    return broken_off


def _fatal(error: BaseException) -> Exception:
    if isinstance(error, KafkaError):
        return error
    fatal = KafkaError(f"the producer's network thread failed: {error!r}")
    fatal.__cause__ = error
    return fatal
