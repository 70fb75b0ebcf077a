"""The core of a producer that runs on its caller's event loop; callers await what others block for.

`AIOKafkaProducer` is the public class; this is its implementation. Everything runs on the thread of
the loop: the locks of the parts are always free, and no call may block. So the parts are asked to
write what fits into memory now; a coroutine waits for the rest, and asks again.

A thread of its own has only what would delay the loop: the compression of large batches, names of
hosts, and Kerberos.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafka_sink.errors import (
    BufferExhaustedError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
)
from spark_kafka_sink.network.network_thread import JOIN_TIMEOUT
from spark_kafka_sink.network.timeout_check import done_by
from spark_kafka_sink.producer.batch.error_rules import no_memory
from spark_kafka_sink.producer.producer_core import ProducerCore
from spark_kafka_sink.producer.sender_metrics import TimedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import ExitStack

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.batch.produce_result import ProduceResult
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.sending.transaction_state import TransactionalRequestResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A batch of at most this many bytes is compressed at once: lz4 and zstd take less time for it than
#: another thread takes to start.
MAX_COMPRESSED_AT_ONCE: Final = 16_384


class LoopWaiter:
    """A task that waits for one of the parts, which would otherwise release a thread's lock."""

    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()

    def locked(self) -> bool:
        """Return whether the task still waits."""
        return not self._future.done()

    def release(self) -> None:
        """Wake the task."""
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, deadline: float | None) -> bool:
        """Wait until released; return False at `deadline`, by the loop's clock."""
        if deadline is None:
            await self._future
            return True
        return await done_by(self._future, deadline)


class LoopCore(ProducerCore):
    """A `ProducerCore` on the running loop."""

    def __init__(self, config: ProducerConfig, **parts: Any) -> None:
        """Put the parts together, and begin; `parts` are the arguments of `ProducerCore`."""
        #: The loop that all calls must be made on.
        self.loop = asyncio.get_running_loop()
        self._is_gathering = False
        #: Whether a call of the user's runs the sender itself when it has written its record, and
        #: whether the sender has something to do then.
        self._takes_turn = self._is_woken = False
        #: An operation whose caller was cancelled, or has timed out: no other may begin before.
        self._unsettled: TransactionalRequestResult | None = None
        #: The tasks that wait for the cluster.
        self._waits: set[asyncio.Task[Any]] = set()
        #: How many transactions have begun.
        self.transactions = 0
        self._served: asyncio.Task[None]
        super().__init__(config, lingers=True, clock=self.loop.time, **parts)
        self._create_sender()

    def start(self, *, on_end: Callable[[], None], undo: ExitStack) -> None:
        """Begin to send; `on_end` is called when the producer has ended, and `undo` ends it."""
        self._on_end = on_end
        self._served = self.loop.create_task(
            self._serve(self._sender.begin()), name=f"kafka-producer | {self.client_id}"
        )
        undo.callback(self._served.cancel)

    async def _serve(self, ended: asyncio.Future[None]) -> None:
        try:
            await ended
        except GeneratorExit:
            # The loop was closed, and nothing can be awaited on it.
            self.drop()
            raise
        except asyncio.CancelledError:
            self._end(
                ProducerClosedError(
                    "the producer's event loop ended before the producer was closed: await "
                    "close(), or use `async with`"
                )
            )
        except BaseException as error:  # noqa: BLE001 - reported to the callers, whatever it is
            self._end(error)
        try:
            self._end(ProducerClosedError("the producer is closed"))
            for wait in self._waits:
                wait.cancel()
            await self._sender.end()
            worker = LoopWaiter(self.loop)
            self._worker.end_soon(worker.release)
            await worker.wait(None)
            await self._client.close()
        finally:
            self._client.drop()

    def drop(self) -> None:
        """Close the sockets: the loop was closed before the producer."""
        if not self._served.done():
            # Its end was forced; the owner's ResourceWarning says what to do.
            self._served._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        self._worker.end_soon(lambda: None)
        self._client.drop()

    # --- what the parts need

    def _call_soon(self, callback: Callable[[], None]) -> None:
        # On a closed loop, no task waits.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback)

    def _gather(self, now: float) -> float:
        self._is_gathering = True
        try:
            return self.gatherer.gather(now)
        finally:
            self._is_gathering = False

    def wake_network_thread(self) -> None:
        """Schedule a turn of the sender, unless the caller takes it itself (`write_staged`)."""
        if self._takes_turn:
            self._is_woken = True
        else:
            self._sender.wakeup()

    @property
    def is_network_thread(self) -> bool:
        """Return true: no caller may block the loop."""
        return True

    def may_send_at_once(self) -> bool:
        """Return true: the sender is no other thread."""
        return True

    def may_compress(self, batch: ProducerBatch) -> bool:
        """Return whether the batch is small."""
        return batch.uncompressed_bytes <= MAX_COMPRESSED_AT_ONCE

    def call_back(self, job: Callable[[], object]) -> None:
        """Call the job, which resolves a future of the loop: that runs no code of the user's."""
        job()

    def enqueue(self, batch: ProducerBatch) -> bool:
        """Add a batch just closed to its queue; return whether the sender must look for it.

        The error that ended the producer is raised by futures and by later calls.
        """
        is_first = False
        with suppress(KafkaError):
            is_first = self.accumulator.enqueue(batch)
        if not batch.is_compressed and not batch.is_done:
            # Its end wakes the sender.
            self._sender.completion.compress(batch)
            return False
        # A turn that gathers is about to look for batches.
        return is_first and not self._is_gathering

    def write_staged(self, *, is_full: bool) -> None:
        """Do what follows the staging of a record; a record that waits for no other is sent now.

        With `is_full`, the staged records are written into batches as far as memory is free.
        """
        if self._takes_turn or self._is_gathering:
            # A function of the user's sends, in the middle of this or of a turn.
            self._write_staged(is_full=is_full)
            return
        self._takes_turn = True
        try:
            self._write_staged(is_full=is_full)
        finally:
            self._takes_turn = False
            if self._is_woken:
                self._is_woken = False
                # A turn that was scheduled would cost the loop a round.
                self._sender.turn_for_batches()

    def _write_staged(self, *, is_full: bool) -> None:
        if is_full:
            self.gatherer.write_without_waiting()
        self.gatherer.note_staged()

    # --- calls of users

    async def await_partition(
        self, topic: str, partition: int | None = None, *, give_up_at: float | None = None
    ) -> int:
        """Return a topic's partition count; see `ThreadedCore.await_partition`."""
        count = self.known_partitions(topic, partition)
        if count:
            return count
        with self.timed(TimedCall.METADATA_WAIT):
            deadline = self.give_up_at() if give_up_at is None else give_up_at
            await self._unless_ended(self.wait_for_topic(topic, partition, deadline))
        return self.count_partitions(topic)

    async def refresh_metadata(self) -> None:
        """Refresh the metadata of all topics; see `ThreadedCore.refresh_metadata`."""
        with self.timed(TimedCall.METADATA_WAIT):
            await self._unless_ended(self._client.refresh_metadata(self.give_up_at()))

    async def find_brokers(self, give_up_at: float) -> None:
        """Raise NetworkError after a few seconds if nothing listens; see `look_for_brokers`."""
        if not self._expects_brokers:
            await self._unless_ended(self.look_for_brokers(give_up_at))

    async def _unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, unless the producer ends before."""
        task = self.loop.create_task(waiting)
        self._waits.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._waits.discard(task)
        if task.cancelled():
            self.accumulator.raise_if_failed()
            raise ProducerClosedError("the producer was closed meanwhile")
        return task.result()

    async def await_room(self, give_up_at: float) -> None:
        """Wait until a record may be staged.

        Raises BufferExhaustedError if no memory was free by `give_up_at`.
        """
        while not self.has_room():
            if not await self.await_memory(give_up_at):
                raise no_memory(self._config.buffer_memory, self._config.max_block_ms)

    def has_room(self) -> bool:
        """Return whether a record may be staged, after writing staged ones if they are many."""
        if self.gatherer.is_full:
            self.gatherer.write_without_waiting()
        return not self.gatherer.is_full

    async def await_memory(self, deadline: float | None) -> bool:
        """Wait for the memory that was not free the last time; return False at `deadline`.

        Raises the error that has ended the producer.
        """
        size, pool, waiter = self.gatherer.short_of, self.pool, LoopWaiter(self.loop)
        started, enough = self.clock(), False
        try:
            pool.add_waiter(size, waiter)
            enough = await waiter.wait(deadline)
            self.accumulator.raise_if_failed()
        finally:
            pool.remove_waiter(size, waiter)
            now = self.clock()
            self.sender_metrics.on_buffer_wait(now - started, now)
        if not enough:
            self.sender_metrics.on_buffer_exhausted(now)
        return enough

    async def when_memory_allows(self, write: Callable[[], T], give_up_at: float | None) -> T:
        """Return what `write` returns, which raises BufferExhaustedError as long as it must wait.

        Raises that error at `give_up_at`.
        """
        while True:
            try:
                return write()
            except KafkaTimeoutError as error:
                if not isinstance(error.__cause__ or error, BufferExhaustedError):
                    raise
                if not await self.await_memory(give_up_at):
                    raise

    async def flush(self, timeout: float | None) -> None:
        """Close every batch, and wait until all records queued by then have been handled."""
        self.accumulator.raise_if_failed()
        await self._send_all(timeout)
        self.accumulator.raise_if_failed()

    async def _send_all(self, timeout: float | None) -> None:
        deadline = None if timeout is None else self.clock() + timeout
        await self.when_memory_allows(
            partial(self.gatherer.close_batches, may_wait=False), deadline
        )
        results = self.accumulator.unsettled()
        self.wake_network_thread()
        for result in results:
            if not await self.settled(result, deadline):
                raise KafkaTimeoutError(f"not all records were acknowledged within {timeout} s")
        # Callbacks were scheduled before this task.
        await asyncio.sleep(0)

    async def settled(self, result: ProduceResult, deadline: float | None) -> bool:
        """Wait until a whole batch has ended; return False if it has not by `deadline`."""
        while not result.is_settled:
            if result.parts:
                for part in result.parts:
                    if not await self.settled(part, deadline):
                        return False
                return True
            waiter = LoopWaiter(self.loop)
            if result.add_waiter(waiter):
                try:
                    if not await waiter.wait(deadline):
                        return False
                finally:
                    result.remove_waiter(waiter)
        return True

    async def await_transaction(
        self, result: TransactionalRequestResult, give_up_at: float
    ) -> None:
        """Wake the sender for an operation, and wait until `give_up_at` for its result."""
        self.wake_network_thread()
        waiter = LoopWaiter(self.loop)
        result.call_when_ended(waiter.release)
        await waiter.wait(give_up_at)
        result.wait(0, self._client.cause, limit=self._max_block)

    async def await_operation(self, result: TransactionalRequestResult, give_up_at: float) -> None:
        """Do the same for an operation that `settle` awaits if the caller is cancelled."""
        self._unsettled = result
        await self.await_transaction(result, give_up_at)
        self._unsettled = None

    async def settle(self) -> None:
        """Wait for an operation whose caller no longer waits, whatever its outcome is."""
        if self._unsettled is not None and not self._unsettled.is_acked:
            with suppress(KafkaError):
                await self.await_transaction(self._unsettled, self.give_up_at())
        self._unsettled = None

    async def leave_transaction(self) -> None:
        """End the open transaction, if there is one, as well as brokers answer soon."""
        if self._served.done():
            return
        with suppress(KafkaError):
            if (ending := self.begin_end_of_transaction()) is not None:
                await self.await_transaction(*ending)

    def give_up(self) -> None:
        """End a close that is under way at once."""
        self._sender.initiate_close(0)

    async def close(self, timeout: float | None) -> None:
        """Send all records, then end; with `timeout` 0 at once. See `ThreadedCore.close`."""
        started = self.clock()
        try:
            if timeout != 0 and not self.has_ended:
                await self._send_all(timeout)
        except KafkaError as error:
            if error is not self.accumulator.failed_by:
                raise
        except asyncio.CancelledError:
            # Whoever cancels the wait does not want another one.
            timeout = 0
            raise
        finally:
            if not self._served.done():
                left = self.time_to_close(timeout, started)
                self._sender.initiate_close(left)
                await asyncio.wait({self._served}, timeout=left + JOIN_TIMEOUT)
                if not self._served.done():
                    logger.warning(
                        "the producer %r is closed, but still ending after %g more seconds",
                        self.client_id,
                        JOIN_TIMEOUT,
                    )
            self.metrics.close()
        if timeout != 0:
            self.accumulator.raise_if_lost()
