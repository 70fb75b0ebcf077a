"""Sends batches (Kafka's Sender) and transactional requests; `BatchCompletion` handles outcomes.

`Sender` runs on the network thread's event loop. `run_once` only checks and starts. Batches that
can be sent now are sent; connections, metadata and answers that others need are requested, and
every answer wakes the loop again unless nothing is left to do. So does every batch that fails in
`run_once` itself, because an open batch behind it may be sendable now. A batch that cannot be
delivered fails alone; only an error that ends the whole producer (see `error_rules`) fails
everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.errors import DecodeError, KafkaError, NetworkError, TransactionAbortedError
from spark_kafka_sink.network.connection.broker_connection import CLOSED_UNSENT, BrokerConnection
from spark_kafka_sink.network.exponential_backoff import NEVER, ExponentialBackoff
from spark_kafka_sink.producer.batch.error_rules import delivery_timeout
from spark_kafka_sink.producer.batch.set_aside import SetAsideTray
from spark_kafka_sink.producer.sending.batch_completion import BatchCompletion, produce_request
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import CoordinatorType

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.errors import BrokerError, DeliveryTimeoutError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.producer.batch.batch_compression import (
        BatchCompression,
        RunAside,
        WorkOutcome,
    )
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.records.partitioner import NodeLatencies
    from spark_kafka_sink.producer.sender_metrics import SenderMetrics
    from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
    from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
    from spark_kafka_sink.producer.sending.txn_request_handlers import TxnRequestHandler
    from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
    from spark_kafka_sink.protocol.schema import ApiResponse

logger = logging.getLogger(__name__)

#: The last Produce version that does not add partitions to a transaction itself (KIP-890), and so
#: the last for TV1.
LAST_PRODUCE_WITHOUT_ADD = 11
#: Seconds between checks of a batch whose expiry is postponed because its broker throttles.
POSTPONED_EXPIRY_INTERVAL = 1.0


class TransactionRequestSender:
    """The sender of TransactionManager's requests to their brokers, one at a time.

    It holds the next request until it is sent, and passes the answer to the manager. This is the IO
    half of Java's Sender.maybeSendAndPollTransactionalRequest. Like the loop of `Sender`, `advance`
    only checks and starts: it never waits, and returns when to call it again.
    """

    def __init__(
        self,
        client: NetworkClient,
        manager: TransactionManager,
        *,
        retry_backoff: ExponentialBackoff,
        request_timeout: float,
        clock: Callable[[], float],
        start: Callable[[Coroutine[Any, Any, None]], object],
        wakeup: Callable[[], None],
    ) -> None:
        """Create it; `start` runs a coroutine on the loop, `wakeup` calls `advance` again soon."""
        self._client = client
        self._manager = manager
        self._retry_backoff = retry_backoff
        self._request_timeout = request_timeout
        self._clock = clock
        self._start = start
        self._wakeup = wakeup
        #: The request that is waiting for its back-off or its connection.
        self._waiting: TxnRequestHandler | None = None
        self._send_at = 0.0
        self._give_up_at = 0.0
        #: Why the last request that was answered is to be sent again; None if it is not.
        self.postponed_by: BrokerError | None = None

    def advance(self, now: float, *, has_incomplete_batches: bool) -> float:
        """Send the next request if possible; return the latest time at which to call this again."""
        while True:
            if self._waiting is None:
                handler = self._manager.next_request(has_incomplete_batches=has_incomplete_batches)
                if handler is None:
                    return NEVER
                self._waiting = handler
                self._send_at = now + self._delay(handler)
                self._give_up_at = self._send_at + self._request_timeout
            if self._send_at > now:
                return self._send_at
            run_again_at = self._try_to_send(self._waiting, now)
            if run_again_at is not None:
                return run_again_at

    def _delay(self, handler: TxnRequestHandler) -> float:
        if not handler.attempts:
            return 0.0
        if handler.retry_delay is not None:
            return handler.retry_delay
        return self._retry_backoff.delay(handler.attempts - 1)

    def _try_to_send(self, handler: TxnRequestHandler, now: float) -> float | None:
        """Return when to check again if it must wait; None if the next request may be tried."""
        if handler.coordinator_type is None:
            self._waiting = None
            self._start(self._send_to_any(handler))
            return None
        node = self._manager.coordinator(handler)
        if node is None:
            self._waiting = None
            self._manager.find_coordinator(handler)
            return None
        connection = self._client.ready_connection(node)
        if connection is None:
            return self._wait_for_connection(handler, node, now)
        self._waiting = None
        self._send(handler, connection)
        return None

    def _wait_for_connection(
        self, handler: TxnRequestHandler, node: Node, now: float
    ) -> float | None:
        throttled_until = self._client.throttled_until(node)
        if throttled_until > now:
            self._give_up_at = throttled_until + self._request_timeout
            return throttled_until
        # A failed connection is backing off: by its end another broker may be the coordinator.
        if self._client.ready_at(node) > now or now >= self._give_up_at:
            self._waiting = None
            self._manager.find_coordinator_and_retry(handler)
            return None
        return self._give_up_at

    async def _send_to_any(self, handler: TxnRequestHandler) -> None:
        try:
            connection = await self._client.least_loaded_connection(
                self._clock() + self._request_timeout
            )
        except NetworkError:
            # The client stores it as its last error, for the message of a timeout.
            self.postponed_by = None
            self._manager.retry(handler)
        except Exception as error:  # noqa: BLE001  the caller that waits gets it
            self._fail(handler, error)
        else:
            self._send(handler, connection)
        self._wakeup()

    def _send(self, handler: TxnRequestHandler, connection: BrokerConnection) -> None:
        versions = connection.api_versions
        if handler.coordinator_type is CoordinatorType.TRANSACTION:
            _, init_producer_id_version = versions.versions.get(ApiKey.INIT_PRODUCER_ID, (0, 0))
            self._manager.handle_coordinator_ready(
                init_producer_id_version=init_producer_id_version,
                transaction_version=versions.transaction_version,
            )
        try:
            handler.prepare(self._client.metadata.snapshot.topic_id)
            version = versions.version_for(handler.api_key, handler.max_version)
            handler.was_sent = True
            future = connection.send(handler.request(version), max_version=version)
        except NetworkError:
            self._manager.find_coordinator_and_retry(handler)
        except Exception as error:  # noqa: BLE001  the caller that waits gets it
            self._fail(handler, error)
        else:
            future.add_done_callback(lambda done: self._on_answer(handler, done))

    def _on_answer(self, handler: TxnRequestHandler, done: asyncio.Future[ApiResponse]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            try:
                self.postponed_by = self._manager.handle_response(handler, done.result())
                if self.postponed_by is not None and self.postponed_by.invalid_metadata:
                    self._client.metadata.request_update()
            except Exception as raised:  # noqa: BLE001  the caller that waits gets it
                # With an IllegalStateError the manager has ended the producer (KAFKA-14831).
                self._fail(handler, raised)
        elif isinstance(error, NetworkError):
            self.postponed_by = None
            self._manager.find_coordinator_and_retry(handler)
        else:
            self._fail(handler, error)
        self._wakeup()

    def _fail(self, handler: TxnRequestHandler, error: BaseException) -> None:
        """Fail a request, whoever waits for it, and the producer."""
        if not isinstance(error, KafkaError):
            unexpected = error
            error = KafkaError(f"the request {handler.api_key.name} failed: {unexpected!r}")
            error.__cause__ = unexpected
        self._manager.handle_failure(handler, error)
        # The batches fail, too.
        self._wakeup()


class _Shipment(NamedTuple):
    """The request that contains a batch, from its sending until its outcome is known."""

    connection: BrokerConnection
    outcome: asyncio.Future[ProduceResponse] | asyncio.Future[None]


class Sender:
    """The loop between the accumulator and the brokers."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        transaction_manager: TransactionManager | None,
        compression: BatchCompression,
        run_aside: RunAside,
        gather: Callable[[float], float] = lambda _: NEVER,
        has_open: Callable[[], bool] = lambda: False,
        latencies: NodeLatencies,
        listener: SenderMetrics,
        clock: Callable[[], float] | None = None,
        tray: SetAsideTray | None = None,
    ) -> None:
        """Create a sender.

        `run_aside(work, then)` runs work that would take too long here (see `WorkerThread`).
        `gather(now)` queues the open batches that are due, and returns when the next one will be;
        `has_open()` returns whether there are any, or staged records.
        `latencies` records which nodes cannot keep up. `clock` defaults to that of the event loop.
        `tray` takes the rows that brokers refuse for themselves, while it is open.
        """
        self._config = config
        self._client = client
        self._accumulator = accumulator
        self._run_aside = run_aside
        self._transaction_manager = transaction_manager
        self._gather = gather
        self._has_open = has_open
        self._latencies = latencies
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        #: Done when the sender is closed or has failed; None until it runs.
        self._end: asyncio.Future[None] | None = None
        self._next_turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._close_at: float | None = None
        self._request_timeout = config.request_timeout_ms / 1000
        self._delivery_timeout = config.delivery_timeout_ms / 1000
        self._retry_backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        self._txn_requests = (
            None
            if transaction_manager is None
            else TransactionRequestSender(
                client,
                transaction_manager,
                retry_backoff=self._retry_backoff,
                request_timeout=self._request_timeout,
                clock=self._clock,
                start=self._start,
                wakeup=self.wakeup,
            )
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._shipments: dict[ProducerBatch, _Shipment] = {}
        #: What becomes of batches; also the acknowledgements so far.
        self.completion = BatchCompletion(
            metadata=client.metadata,
            accumulator=accumulator,
            transaction_manager=transaction_manager,
            compression=compression,
            run_aside=self._work,
            retries=config.retries,
            retry_backoff=self._retry_backoff,
            listener=listener,
            tray=tray or SetAsideTray(),
        )

    # --- the loop

    def _work(self, work: Callable[[], Any], then: Callable[[WorkOutcome, float], None]) -> None:
        def done(outcome: WorkOutcome) -> None:
            then(outcome, self._clock())
            self.wakeup()

        self._run_aside(work, done)

    def wakeup(self) -> None:
        """Schedule a turn, for example after a connection was made or lost.

        What wakes the sender in one round of the loop shares a turn. Must be called on the loop's
        thread.
        """
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self.turn)

    def initiate_close(self, timeout: float = 0.0) -> None:
        """End the loop when all is sent and answered, at the latest after `timeout` seconds.

        A transaction that is still open then is aborted if there is time. Batches that are neither
        acknowledged nor refused by then remain so. If this is called again, the earlier end
        applies.
        """
        close_at = self._clock() + timeout
        self._close_at = close_at if self._close_at is None else min(self._close_at, close_at)
        self.wakeup()

    async def run(self) -> None:
        """Send until closed."""
        try:
            await self.begin()
        finally:
            await self.end()

    def begin(self) -> asyncio.Future[None]:
        """Begin to send; the future is done when the sender is closed or has failed."""
        self._end = asyncio.get_running_loop().create_future()
        self.turn()
        return self._end

    async def end(self) -> None:
        """Stop: there are no turns from now on."""
        if self._end is not None:
            self._end.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._transaction_manager is not None:
            self.warn_of_open_transaction("the producer was closed")
            self._transaction_manager.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def turn(self) -> None:
        """Run once now, and end `run` when closed; do nothing while the sender is not running."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._end is None or self._end.done():
            return
        try:
            now = self._clock()
            if self._is_closed(now):
                self._end.set_result(None)
                return
            next_check_at = self.run_once(now)
            if self._close_at is not None:
                next_check_at = min(next_check_at, self._close_at)
            self._check_at(next_check_at, now)
        except BaseException as error:  # noqa: BLE001  whatever it is, `run` raises it
            self._end.set_exception(error)

    def turn_for_batches(self) -> None:
        """Run a turn that only sends what is queued, if nothing else can be due."""
        manager = self._transaction_manager
        if (
            self._end is None
            or self._end.done()
            or self._next_turn is not None
            or self._close_at is not None
            or self._client.refusal is not None
            or self._has_open()
            or not (manager is None or manager.is_settled)
        ):
            self.turn()
            return
        try:
            now = self._clock()
            if manager is not None:
                manager.sequences.follow_topics(self._client.metadata.snapshot.topics)
            next_check_at = min(self.send_producer_data(now), self._accumulator.next_expiry_at())
            self._check_at(min(next_check_at, self._client.metadata.next_update_at()), now)
        except BaseException as error:  # noqa: BLE001  whatever it is, `run` raises it
            self._end.set_exception(error)

    def _check_at(self, next_check_at: float, now: float) -> None:
        """Take a turn at this time, unless an earlier one is scheduled, which will set the next."""
        if next_check_at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = next_check_at
        self._timer = self._loop.call_later(max(next_check_at - now, 0), self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self.turn()

    def warn_of_open_transaction(self, event: str) -> None:
        """Log that a transaction is left open, if one is; `event` says what happened."""
        manager = self._transaction_manager
        if manager is not None and manager.state.has_ongoing_transaction:
            logger.warning(
                "%s while a transaction of transactional.id %r was open. The coordinator ends it "
                "after transaction.timeout.ms (%d ms), or when a producer with this id next calls "
                "init_transactions(). Until then, read_committed consumers cannot read past its "
                "records",
                event,
                manager.state.transactional_id,
                self._config.transaction_timeout_ms,
            )

    def _is_closed(self, now: float) -> bool:
        if self._close_at is None:
            return False
        if now >= self._close_at:
            return True
        if self._accumulator.has_incomplete:
            return False
        manager = self._transaction_manager
        if manager is None or not manager.state.has_ongoing_transaction:
            return True
        if not manager.state.is_completing:
            try:
                manager.begin_abort()
            except KafkaError:
                # Another thread is in the middle of another operation: the coordinator will abort
                # it.
                return True
        return False

    def run_once(self, now: float) -> float:
        """Start everything that is possible at `now`; return the latest time of the next check."""
        if self._client.refusal is not None:
            # A wrong password is not tried repeatedly: that may lock the account.
            self.fail(self._client.refusal)
            return NEVER
        next_check_at = min(self._gather(now), self._fail_expired(now))
        manager, requests = self._transaction_manager, self._txn_requests
        if manager is not None and requests is not None:
            if manager.state.has_fatal_error:
                self.fail(manager.state.error or KafkaError("the producer has failed"))
                return self._maybe_update_metadata(now)
            manager.sequences.follow_topics(self._client.metadata.snapshot.topics)
            if not manager.is_settled:
                run_again_at = self._advance_transaction(manager, requests, now)
                next_check_at = min(next_check_at, run_again_at)
        if self._accumulator.has_incomplete:
            next_check_at = min(next_check_at, self.send_producer_data(now))
        return min(next_check_at, self._maybe_update_metadata(now))

    def _advance_transaction(
        self, manager: TransactionManager, requests: TransactionRequestSender, now: float
    ) -> float:
        error = manager.take_authorization_error()
        if error is not None:
            # Without an id nothing can be sent; once access is granted, the next batches may be.
            for batch in self._accumulator.expired_batches(NEVER):
                self._accumulator.fail_batch(batch, error)
                self.wakeup()
        if manager.state.has_abortable_error:
            self._abort_undrained_batches(
                manager.state.error or TransactionAbortedError("the transaction failed")
            )
        elif manager.state.is_aborting:
            self._abort_undrained_batches(
                TransactionAbortedError("not sent because the transaction was aborted")
            )
        if self._accumulator.has_incomplete:
            manager.bump_idempotent_epoch_and_reset_id_if_needed()
        # The order matters: once the end of a transaction has begun, all of its batches are known.
        may_end = manager.state.is_completing or manager.state.has_abortable_error
        has_incomplete_batches = not may_end or self._accumulator.has_incomplete
        run_again_at = requests.advance(now, has_incomplete_batches=has_incomplete_batches)
        if may_end and not manager.state.has_ongoing_transaction:
            # It was empty, and ended without a request whose answer would wake the loop.
            self.wakeup()
        return run_again_at

    def _abort_undrained_batches(self, error: Exception) -> None:
        if self._accumulator.abort_undrained_batches(error):
            self.wakeup()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Expected errors are handled inside the task; any other is fatal.
            self.fail(error)
        self.wakeup()

    def fail(self, error: BaseException) -> None:
        """End the producer: every batch fails, and every later call raises this error."""
        if not isinstance(error, Exception):
            error = KafkaError(f"the producer's network thread was terminated by {error!r}")
        if self._transaction_manager is not None:
            self._transaction_manager.transition_to_fatal_error(error)
        self._accumulator.fail(error)

    def _maybe_update_metadata(self, now: float) -> float:
        due_at = self._client.metadata.next_update_at()
        if due_at > now:
            return due_at
        if not self._client.is_updating_metadata:
            self._start(self._update_metadata(now))
        return NEVER

    async def _update_metadata(self, now: float) -> None:
        with contextlib.suppress(NetworkError, DecodeError):
            # Stored as the client's last error; the metadata's back-off decides when to retry.
            await self._client.update_metadata(now + self._request_timeout)

    # --- sending

    def send_producer_data(self, now: float) -> float:
        """Send to every node that can accept a request; return when to check again."""
        snapshot = self._client.metadata.snapshot
        ready = self._accumulator.ready(snapshot, now)
        next_check_at = ready.next_check_at
        if ready.unknown_leader_topics:
            for topic in ready.unknown_leader_topics:
                # It may have been removed as idle while its batches waited.
                self._client.metadata.add_topic(topic, now)
            self._client.metadata.request_update()
        for node in ready.ready_nodes:
            connection = self._client.ready_connection(node)
            self._latencies.update(node.node_id, now, can_drain=connection is not None)
            while connection is not None:
                batches = self._accumulator.drain(
                    snapshot, node, self._config.max_request_size, now
                )
                if not batches:
                    break
                self._send_produce_request(connection, snapshot, batches)
                # After it: this takes its time while the broker is at work.
                self._listener.on_batches_drained(batches, now)
                if not self._accumulator.has_queued:
                    break
                connection = self._client.ready_connection(node)
            ready_at = self._client.ready_at(node)
            if ready_at > now:
                next_check_at = min(next_check_at, ready_at)
        return next_check_at

    def _send_produce_request(
        self,
        connection: BrokerConnection,
        snapshot: MetadataSnapshot,
        batches: list[ProducerBatch],
    ) -> None:
        manager = self._transaction_manager
        request = produce_request(
            batches,
            snapshot,
            transactional_id=None if manager is None else manager.state.transactional_id,
            acks=self._config.acks,
            timeout_ms=self._config.request_timeout_ms,
        )
        max_version = None
        if (
            manager is not None
            and manager.state.is_transactional
            and not manager.epochs.is_transaction_v2
        ):
            max_version = LAST_PRODUCE_WITHOUT_ADD
        outcome: asyncio.Future[ProduceResponse] | asyncio.Future[None]
        try:
            if self._config.acks == 0:
                outcome = connection.send_without_response(request, max_version=max_version)
                outcome.add_done_callback(
                    lambda done: self._on_sent_without_response(batches, done)
                )
            else:
                # In the round that receives the response: a caller is waiting for it.
                outcome = connection.send(
                    request,
                    max_version=max_version,
                    on_done=lambda done: self._on_produce_response(
                        connection.node, request, batches, done
                    ),
                )
        except NetworkError as error:
            self.completion.on_unanswered(batches, error, self._clock())
        except KafkaError as error:
            # The broker has no version that can express the request, which no retry can change.
            self._accumulator.no_longer_held(batches)
            self.fail(error)
        else:
            self._shipments.update(dict.fromkeys(batches, _Shipment(connection, outcome)))

    def _end_shipment(self, batches: list[ProducerBatch]) -> None:
        for batch in batches:
            del self._shipments[batch]

    def _on_sent_without_response(
        self, batches: list[ProducerBatch], sent: asyncio.Future[None]
    ) -> None:
        self._end_shipment(batches)
        if sent.cancelled():
            return
        error = sent.exception()
        if error is not None:
            self.completion.on_unanswered(batches, error, self._clock())
        else:
            self.completion.on_sent_without_response(batches)
        self.wakeup()

    def _on_produce_response(
        self,
        node: Node,
        request: ProduceRequest,
        batches: list[ProducerBatch],
        done: asyncio.Future[ProduceResponse],
    ) -> None:
        self._end_shipment(batches)
        if done.cancelled():
            return
        error, now = done.exception(), self._clock()
        if error is not None:
            self.completion.on_unanswered(batches, error, now)
        else:
            self.completion.on_response(node, request, batches, done.result(), now)
        if not self._is_idle():
            self.wakeup()

    def _is_idle(self) -> bool:
        """Return whether a turn would find nothing to start.

        What comes later wakes the sender on its own: a batch that a caller opens or queues after
        this has looked, a batch that waits in the worker, an answer, a connection, new metadata.
        The timer of the last turn stays, so metadata must not be due before it.
        """
        manager = self._transaction_manager
        return (
            self._close_at is None
            and not self._accumulator.has_queued
            and not self._has_open()
            and (manager is None or manager.is_settled)
            and self._client.metadata.next_update_at() >= self._timer_at
        )

    # --- time

    def _fail_expired(self, now: float) -> float:
        """Fail batches whose delivery.timeout.ms has passed; return when the next one expires.

        A batch whose broker throttles us (KIP-219) could not be sent in time. It gets
        request.timeout.ms from the end of the throttle.
        """
        next_expiry_at = self._accumulator.next_expiry_at()
        if next_expiry_at > now:
            return next_expiry_at
        postponed = False
        for batch in self._accumulator.expired_batches(now):
            if self._postponed_until(batch) > now:
                postponed = True
                continue
            if batch.is_done or self._is_about_to_end(batch):
                # The batch before it may have ended the producer, and with it all other batches.
                continue
            self.completion.fail_batch(batch, self._expiry(batch), now=now, outcome_known=False)
            self.wakeup()
        if postponed:
            return now + POSTPONED_EXPIRY_INTERVAL
        return self._accumulator.next_expiry_at()

    def _is_about_to_end(self, batch: ProducerBatch) -> bool:
        """Return whether the outcome of an expired batch's request is processed right after this.

        Either it is known already, or the connection is closed now: as long as the socket has not
        accepted a whole request, the broker cannot have the batch, and must not receive it after it
        has been reported as failed.
        """
        shipment = self._shipments.get(batch)
        if shipment is None:
            return False
        if not shipment.outcome.done() and shipment.connection.is_unsent(shipment.outcome):
            shipment.connection.close(CLOSED_UNSENT)
        return shipment.outcome.done()

    def _postponed_until(self, batch: ProducerBatch) -> float:
        expires_at = batch.created_at + self._delivery_timeout
        leader = self._client.metadata.snapshot.leader_of(batch.topic_partition)
        if leader is None:
            return expires_at
        throttled_until = self._client.throttled_until(leader)
        if throttled_until < expires_at:
            return expires_at
        return throttled_until + self._request_timeout

    def _expiry(self, batch: ProducerBatch) -> DeliveryTimeoutError:
        leader = self._client.metadata.snapshot.leader_of(batch.topic_partition)
        # An attempt may have failed long ago, and no connection could be made for the next one.
        cause = (
            self._client.connect_error(leader)
            or batch.last_error
            or (self._txn_requests and self._txn_requests.postponed_by)
            or self._client.cause(leader)
            or self._cause_without_error(batch)
        )
        return delivery_timeout(batch, cause, self._config.delivery_timeout_ms)

    def _cause_without_error(self, batch: ProducerBatch) -> str:
        if self._client.metadata.snapshot.leader_of(batch.topic_partition) is None:
            return "the partition has no leader"
        return "no broker answered"
