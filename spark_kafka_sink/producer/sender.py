"""Sends what has been gathered, and ends each batch by what the broker says (Kafka's Sender).

Runs on the network thread's event loop. `run_once` only looks and starts: what can be sent now is
sent, what needs a connection, metadata or a producer id has that asked for, and every answer wakes
the loop again. A batch that cannot be delivered ends the producer: the writing thread must fail
rather than go on beside a hole.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import (
    BrokerError,
    DecodeError,
    DeliveryTimeoutError,
    KafkaError,
    NetworkError,
)
from spark_kafka_sink.model import (
    UNKNOWN_OFFSET,
    Node,
    PartitionAcks,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.producer.batch_split import split_refused_batch
from spark_kafka_sink.producer.delivery_errors import delivery_error
from spark_kafka_sink.producer.record_accumulator import NEVER
from spark_kafka_sink.protocol.error_codes import (
    ErrorCode,
    broker_error,
    is_invalid_metadata,
    is_retriable,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.network.broker_connection import BrokerConnection
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.producer.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.record_accumulator import RecordAccumulator
    from spark_kafka_sink.producer.transaction_manager import TransactionManager
    from spark_kafka_sink.protocol.messages.produce import (
        PartitionProduceResponse,
        ProduceResponse,
    )
    from spark_kafka_sink.record.compression import Compressor

#: What a broker ignores unless a transaction is asked for.
NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1
LOG_APPEND_TIME_NOT_USED = -1


class Sender:
    """The loop between the accumulator and the brokers."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        transaction_manager: TransactionManager | None,
        compressor: Compressor,
        on_message_too_large: Callable[[str, int], None],
    ) -> None:
        """`on_message_too_large` is told a topic and the size its broker refused."""
        self._config = config
        self._client = client
        self._accumulator = accumulator
        self._transaction_manager = transaction_manager
        self._compressor = compressor
        self._on_message_too_large = on_message_too_large
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._closing = False
        self._retry_backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        self._producer_id_request: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.acks: dict[TopicPartition, PartitionAcks] = {}

    def wakeup(self) -> None:
        """Look again soon: something was enqueued, answered, connected or lost."""
        self._wakeup.set()

    def initiate_close(self) -> None:
        """Stop the loop; what is not acknowledged by now stays so."""
        self._closing = True
        self.wakeup()

    async def run(self) -> None:
        """Send until closed."""
        try:
            while not self._closing:
                self._wakeup.clear()
                now = self._loop.time()
                next_check_at = self.run_once(now)
                try:
                    timeout = None if next_check_at == NEVER else max(next_check_at - now, 0)
                    await asyncio.wait_for(self._wakeup.wait(), timeout)
                except TimeoutError:
                    continue
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def run_once(self, now: float) -> float:
        """Start all that can be started at `now`; return when to look again at the latest."""
        self._fail_expired(now)
        if not self._accumulator.has_incomplete:
            return self._maybe_update_metadata(now)
        manager = self._transaction_manager
        if manager is not None and not manager.has_producer_id:
            self._request_producer_id(manager)
            return min(self._maybe_update_metadata(now), self._accumulator.next_expiry_at())
        return min(
            self.send_producer_data(now),
            self._maybe_update_metadata(now),
            self._accumulator.next_expiry_at(),
        )

    def _start(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Expected errors are handled inside the task; what escapes is fatal.
            self.fail(error)
        self.wakeup()

    def fail(self, error: BaseException) -> None:
        """End the producer: every batch fails, and every later call raises this error."""
        if not isinstance(error, Exception):
            error = KafkaError(f"the network thread was ended by {error!r}")
        self._accumulator.fail(error)

    # --- metadata and producer id

    def _maybe_update_metadata(self, now: float) -> float:
        due_at = self._client.metadata.next_update_at()
        if due_at > now:
            return due_at
        if not self._client.is_updating_metadata:
            self._start(self._loop.create_task(self._update_metadata(now)))
        return NEVER

    async def _update_metadata(self, now: float) -> None:
        try:
            await self._client.update_metadata(now + self._config.request_timeout_ms / 1000)
        except (NetworkError, DecodeError):
            # Kept as the client's last error; the metadata's back-off decides when to ask again.
            return

    def _request_producer_id(self, manager: TransactionManager) -> None:
        if self._producer_id_request is None:
            self._producer_id_request = self._start(
                self._loop.create_task(self._obtain_producer_id(manager))
            )

    async def _obtain_producer_id(self, manager: TransactionManager) -> None:
        attempts = 0
        try:
            while True:
                try:
                    manager.producer_id_and_epoch = await self._ask_for_producer_id()
                except (NetworkError, BrokerError) as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(self._retry_backoff.delay(attempts))
                    attempts += 1
                else:
                    return
        finally:
            self._producer_id_request = None

    async def _ask_for_producer_id(self) -> ProducerIdAndEpoch:
        deadline = self._loop.time() + self._config.request_timeout_ms / 1000
        connection = await self._client.least_loaded_connection(deadline)
        response = await connection.send(
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
            )
        )
        if response.error_code:
            raise broker_error(
                response.error_code,
                f"{connection.node} gave no producer id (enable.idempotence=true needs one)",
            )
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    # --- sending

    def send_producer_data(self, now: float) -> float:
        """Send to every node that can take a request; return when a batch leaves its back-off."""
        snapshot = self._client.metadata.snapshot
        ready = self._accumulator.ready(snapshot, now)
        next_check_at = ready.next_check_at
        if ready.unknown_leader_topics:
            self._client.metadata.request_update()
        for node in ready.ready_nodes:
            while (connection := self._client.ready_connection(node)) is not None:
                batches = self._accumulator.drain(
                    snapshot, node, self._config.max_request_size, now
                )
                if not batches:
                    break
                self._send_produce_request(connection, batches)
            ready_at = self._client.ready_at(node)
            if ready_at > now:
                next_check_at = min(next_check_at, ready_at)
        return next_check_at

    def _send_produce_request(
        self, connection: BrokerConnection, batches: list[ProducerBatch]
    ) -> None:
        request = ProduceRequest(
            acks=self._config.acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=_by_topic(batches),
        )
        if self._config.acks == 0:
            connection.send_without_response(request).add_done_callback(
                lambda sent: self._on_sent_without_response(batches, sent)
            )
            return
        response = connection.send(request)
        response.add_done_callback(
            lambda done: self._on_produce_response(connection.node, batches, done)
        )

    def _on_sent_without_response(
        self, batches: list[ProducerBatch], sent: asyncio.Future[None]
    ) -> None:
        now = self._loop.time()
        error = None if sent.cancelled() else sent.exception()
        for batch in batches:
            batch.is_in_flight = False
            if batch.is_done or sent.cancelled():
                continue
            if error is None:
                self._complete(batch, UNKNOWN_OFFSET, log_append_time=False)
            elif isinstance(error, Exception):
                self._retry_or_fail(batch, error, can_retry=True, now=now)
        self.wakeup()

    def _on_produce_response(
        self, node: Node, batches: list[ProducerBatch], done: asyncio.Future[ProduceResponse]
    ) -> None:
        for batch in batches:
            batch.is_in_flight = False
        live = [batch for batch in batches if not batch.is_done]
        now = self._loop.time()
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            response = done.result()
            if response.throttle_time_ms:
                self._client.throttle(node, response.throttle_time_ms / 1000)
            answers = {
                TopicPartition(topic.name, partition.index): partition
                for topic in response.responses
                for partition in topic.partition_responses
            }
            for batch in live:
                self._on_partition_response(node, batch, answers.get(batch.topic_partition), now)
        else:
            for batch in live:
                self._retry_or_fail(
                    batch, _as_exception(error), can_retry=isinstance(error, NetworkError), now=now
                )
        self.wakeup()

    def _on_partition_response(
        self,
        node: Node,
        batch: ProducerBatch,
        answer: PartitionProduceResponse | None,
        now: float,
    ) -> None:
        if answer is None:
            error = DecodeError(f"{node} did not answer for {batch.topic_partition}")
            self._retry_or_fail(batch, error, can_retry=True, now=now)
            return
        code = answer.error_code
        if code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            # A duplicate of a batch older than the broker's memory: it is in, where is forgotten.
            offset = answer.base_offset if code == ErrorCode.NONE else UNKNOWN_OFFSET
            # Of a duplicate the broker tells the latest timestamp, whoever has set it.
            log_append_time = answer.log_append_time_ms not in {
                LOG_APPEND_TIME_NOT_USED,
                batch.max_timestamp,
            }
            self._complete(batch, offset, log_append_time=log_append_time)
            return
        if is_invalid_metadata(code):
            self._client.metadata.request_update()
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._on_message_too_large(batch.topic_partition.topic, batch.size_bytes)
            self._accumulator.replace(batch, split_refused_batch(batch, self._compressor))
            return
        context = f"{node} refused the batch"
        if answer.record_errors:
            first = answer.record_errors[0]
            context += f" (record {first.batch_index} of it: {first.batch_index_error_message})"
        elif answer.error_message:
            context += f" ({answer.error_message})"
        self._retry_or_fail(
            batch, broker_error(code, context), can_retry=self._can_retry(batch, code), now=now
        )

    def _can_retry(self, batch: ProducerBatch, code: int) -> bool:
        if self._transaction_manager is not None:
            return self._transaction_manager.can_retry(batch, code)
        return is_retriable(code)

    def _complete(self, batch: ProducerBatch, offset: int, *, log_append_time: bool) -> None:
        known = offset != UNKNOWN_OFFSET
        acks = PartitionAcks(
            first_offset=offset,
            last_offset=offset + batch.record_count - 1 if known else UNKNOWN_OFFSET,
            records=batch.record_count,
            bytes=batch.size_bytes,
            log_append_time=log_append_time,
        )
        earlier = self.acks.get(batch.topic_partition)
        self.acks[batch.topic_partition] = acks if earlier is None else earlier.merged(acks)
        self._accumulator.complete(batch)

    def _retry_or_fail(
        self, batch: ProducerBatch, error: Exception, *, can_retry: bool, now: float
    ) -> None:
        if not can_retry or batch.attempts >= self._config.retries:
            self.fail(delivery_error(batch, error))
            return
        batch.last_error = error
        batch.retry_at = now + self._retry_backoff.delay(batch.attempts)
        batch.attempts += 1
        self._accumulator.reenqueue([batch])

    def _fail_expired(self, now: float) -> None:
        for batch in self._accumulator.expired_batches(now)[:1]:
            cause = batch.last_error or self._client.last_error or self._cause_without_error(batch)
            timeout = DeliveryTimeoutError(
                f"not acknowledged within {self._config.delivery_timeout_ms} ms "
                f"(delivery.timeout.ms) after {batch.attempts} failed attempts; last cause: {cause}"
            )
            self.fail(delivery_error(batch, timeout))

    def _cause_without_error(self, batch: ProducerBatch) -> str:
        if self._client.metadata.snapshot.leader_of(batch.topic_partition) is None:
            return "the partition has no leader"
        return "no broker answered"


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else KafkaError(repr(error))


def _by_topic(batches: list[ProducerBatch]) -> tuple[TopicProduceData, ...]:
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        topics.setdefault(batch.topic_partition.topic, []).append(
            PartitionProduceData(index=batch.topic_partition.partition, records=batch.buffers())
        )
    return tuple(
        TopicProduceData(name=topic, partition_data=tuple(partitions))
        for topic, partitions in topics.items()
    )
