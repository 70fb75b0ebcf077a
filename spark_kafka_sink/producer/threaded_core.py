"""The core of a producer whose sender runs on a thread of its own; callers block while they wait.

`KafkaProducer` is the public class; this is its implementation. The sections of the class name the
thread that runs their methods.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.network.network_thread import JOIN_TIMEOUT, NetworkThread
from spark_kafka_sink.producer.batch.produce_result import CallbackQueue
from spark_kafka_sink.producer.producer_core import ProducerCore
from spark_kafka_sink.producer.sender_metrics import TimedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextlib import ExitStack

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.sending.transaction_state import TransactionalRequestResult

logger = logging.getLogger(__name__)

_BUSY: Final = (
    "because a callback kept it busy. Keep callbacks short, and do not call the producer while "
    "holding a lock that a callback waits for"
)


class ThreadedCore(ProducerCore):
    """A `ProducerCore` and its network thread."""

    def __init__(self, config: ProducerConfig, **parts: Any) -> None:
        """Put the parts together; `parts` are the arguments of `ProducerCore`."""
        self._wakeup_pending = False
        self.callbacks = CallbackQueue(self._schedule_callbacks)
        super().__init__(config, callbacks=self.callbacks, **parts)
        self._thread = NetworkThread(
            self._serve,
            name=f"kafka-producer-network-thread | {config.client_id}",
            closed=lambda: ProducerClosedError("the producer was closed by another thread"),
            busy=_BUSY,
        )

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
        self._create_sender()
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

    def _schedule_callbacks(self, run: Callable[[], None]) -> None:
        self._thread.call_soon(partial(self._run_callbacks, run))

    def _run_callbacks(self, run: Callable[[], None]) -> None:
        run()
        # Callbacks may have sent records.
        self._sender.wakeup()

    def _wakeup(self) -> None:
        self._wakeup_pending = False
        self._sender.turn()

    # --- any thread

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self._thread.call_soon(callback)

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

    @property
    def is_network_thread(self) -> bool:
        """Whether the caller is the network thread, which neither waits nor compresses."""
        return self._thread.is_current

    def may_send_at_once(self) -> bool:
        """Return whether the caller is a thread of the user's: callbacks must be quick."""
        return not self._thread.is_current

    def may_compress(self, batch: ProducerBatch) -> bool:  # noqa: ARG002  of any size
        """Return whether the caller is a thread that writes."""
        return not self._thread.is_current

    def call_back(self, job: Callable[[], object]) -> None:
        """Call a delivery callback on the network thread, or here if that has ended."""
        self.callbacks.add(job)
        self.callbacks.run_rest()

    # --- the callers' threads

    def await_topics(self, topics: Iterable[str], give_up_at: float) -> list[int]:
        """Return the partition counts of topics; see `await_partition`."""
        names = list(topics)
        # The first wait asks for all that are not known.
        counts = [self.known_partitions(name) for name in names]
        return [
            count or self.await_partition(name, give_up_at=give_up_at)
            for name, count in zip(names, counts, strict=True)
        ]

    def await_partition(
        self, topic: str, partition: int | None = None, *, give_up_at: float | None = None
    ) -> int:
        """Return a topic's partition count, waiting for its metadata if needed.

        Waits until `give_up_at`, by default up to max.block.ms. If `partition` is set, waits until
        the topic has it. Raises KafkaTimeoutError, BrokerError if the topic is refused,
        NetworkError if no broker answers.
        """
        count = self.known_partitions(topic, partition)
        if count:
            return count
        if self.is_network_thread:
            raise KafkaTimeoutError(
                f"the metadata of topic {topic!r} is not available yet, and a callback cannot wait "
                "for it on the network thread. Send to the topic from another thread first"
            )
        with self.timed(TimedCall.METADATA_WAIT):
            deadline = self.give_up_at() if give_up_at is None else give_up_at
            self._await(self.wait_for_topic(topic, partition, deadline), deadline)
        return self.count_partitions(topic)

    def find_brokers(self, give_up_at: float) -> None:
        """Raise NetworkError after a few seconds if nothing listens; see `look_for_brokers`."""
        if not self._expects_brokers:
            self._await(self.look_for_brokers(give_up_at), give_up_at)

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

    def leave_transaction(self) -> None:
        """End the open transaction, if there is one, as well as brokers answer soon."""
        if not self._thread.is_alive:
            return
        with suppress(KafkaError):
            if (ending := self.begin_end_of_transaction()) is not None:
                self.await_transaction(*ending)

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
                left = self.time_to_close(timeout, started)
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
