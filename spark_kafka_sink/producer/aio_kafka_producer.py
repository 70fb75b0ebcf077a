"""The producer for asyncio: everything runs on the event loop of the task that creates it.

It has the parts of `KafkaProducer`, and no network thread: a record goes from `send` to the socket
without another round of the loop, if no other is on its way. What blocks a `KafkaProducer`'s
callers is awaited here. `loop_core` holds the parts that talk to the brokers.

A task may be cancelled wherever it waits. Until a record is staged, which needs no waiting, nothing
of it exists; from then on it is delivered whether or not a task waits for it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack, suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self
from weakref import WeakSet

from spark_kafka_sink import display
from spark_kafka_sink.config.arguments import check_group, check_transactional_id, offsets_of
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    ConfigError,
    IllegalStateError,
    InvalidPartitionError,
    KafkaError,
    KafkaTimeoutError,
)
from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName, MetricsByName
from spark_kafka_sink.model import PartitionInfo, RecordMetadata, TopicPartition, host_and_port
from spark_kafka_sink.network.daemon_thread import in_daemon_thread
from spark_kafka_sink.network.network_thread import stop_if_forgotten
from spark_kafka_sink.producer.batch.error_rules import about_row
from spark_kafka_sink.producer.batch.produce_result import call_back
from spark_kafka_sink.producer.loop_core import LoopCore
from spark_kafka_sink.producer.payload_writes import PayloadWrites
from spark_kafka_sink.producer.record_staging import MAX_LIGHT_BYTES, RecordStaging
from spark_kafka_sink.producer.records.interceptors import ProducerRecord, resolve_interceptors
from spark_kafka_sink.producer.records.partitioner import resolve_partitioner
from spark_kafka_sink.producer.records.record_futures import (
    FutureOfFullRecord,
    FutureRecordMetadata,
    table_acks,
    table_error,
)
from spark_kafka_sink.producer.records.record_preparation import (
    RecordPreparation,
    check_place,
    check_timeout,
)
from spark_kafka_sink.producer.records.serializers import resolve_serializers
from spark_kafka_sink.producer.sender_metrics import TimedCall
from spark_kafka_sink.producer.sending.transaction_state import TransactionState
from spark_kafka_sink.record.arrow.record_columns import record_batches, record_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        PartitionAcks,
        PreparedTransaction,
    )
    from spark_kafka_sink.producer.records.record_futures import TablePart
    from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
    from spark_kafka_sink.record.columns import RecordColumns

#: The rows of a table that are written before other tasks get a turn have about this many bytes.
SLICE_BYTES: Final = 1_048_576
_SENT_LATE: Final = (
    "the record was sent while its transaction was ending: send it again in the next transaction"
)


class AIOKafkaProducer:
    """A `KafkaProducer` for asyncio, without threads. `await` its `close`, or use `async with`.

    >>> import asyncio
    >>> async def main():
    ...     settings = {"bootstrap.servers": "localhost:9092", "value.serializer": "json"}
    ...     async with AIOKafkaProducer(settings) as producer:
    ...         return await producer.send("orders", {"item": "book"})
    >>> metadata = asyncio.run(main())
    >>> metadata.topic, metadata.offset
    ('orders', 0)

    `config` has the settings of `KafkaProducer`; errors and metrics are the same, too. Serializers,
    partitioners, interceptors and delivery callbacks are functions, not coroutines, and must not
    block.

    Calls raise IllegalStateError on another event loop or thread than the one that created the
    producer, and ProducerClosedError after `close`.
    """

    def __init__(self, config: ProducerConfig | Mapping[str, object]) -> None:
        """Create a producer on the running event loop; it connects when it is first used.

        Raises IllegalStateError if no loop is running, and ConfigError for invalid or unsupported
        settings.
        """
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise IllegalStateError(
                "no event loop is running: create an AIOKafkaProducer in a coroutine, on the loop "
                "that it is to be used on"
            ) from None
        self._thread_name = threading.current_thread().name
        if not isinstance(config, ProducerConfig):
            config = ProducerConfig.from_mapping(config)
        self._config = config
        self._plug_ins = PlugIns(plug_in_settings(config))
        #: The task that closes the producer.
        self._closing: asyncio.Task[None] | None = None
        self._block = asyncio.Lock()
        self._block_task: asyncio.Task[Any] | None = None
        with ExitStack() as undo:
            undo.callback(self._plug_ins.close)
            self._start(config, undo)
            self._owner_end = stop_if_forgotten(
                self,
                partial(_abandon, self._core, self._plug_ins),
                client_id=config.client_id,
                remedy="await close(), or use it in an `async with` block.",
                effect=" The records that it had are still sent if its event loop keeps running",
            )
            undo.pop_all()
        _producers.add(self)

    def _start(self, config: ProducerConfig, undo: ExitStack) -> None:
        partitioner = resolve_partitioner(config.partitioner_class, self._plug_ins)
        interceptors = resolve_interceptors(config.interceptor_classes, self._plug_ins)
        serializers = resolve_serializers(config, self._plug_ins)
        self._core = core = LoopCore(config, partitioner=partitioner, undo=undo)
        self._preparation = RecordPreparation(
            config, core, partitioner=partitioner, serializers=serializers
        )
        self._staging = RecordStaging(
            core, preparation=self._preparation, interceptors=interceptors
        )
        self._payload_writes = PayloadWrites()
        # What `send` needs for each record, so that it looks up as little as possible.
        self._plain_topics = self._staging.plain_topics
        self._gatherer = core.gatherer
        self._staged_items = core.gatherer.staged.items
        core.start(on_end=self._plain_topics.clear, undo=undo)

    # --- sending

    async def send(  # noqa: PLR0917  as KafkaProducer's
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None = None,
    ) -> RecordMetadata:
        """Send one record; return its `RecordMetadata` when it is acknowledged.

        `headers` are (name, bytes) pairs. `timestamp` is in milliseconds since 1970, by default
        the time at which the record is added to a batch. `partition`, unless it is None, is where
        the record goes; otherwise its `key` decides, or the producer. `on_delivery(metadata,
        error)` is called on the loop when the record is acknowledged (`error` is None) or has
        failed (`metadata` is None).

        The call waits for up to max.block.ms in all for metadata of `topic` and memory, and then
        until the record is acknowledged or has failed. If the task is cancelled while it waits for
        metadata or memory, nothing is sent; afterwards the record is delivered nevertheless.
        Records are sent in the order of the calls of a task; `send_nowait`, or tasks that run at
        the same time, send many in one request.

        Raises what `KafkaProducer.send` and its futures raise, such as TypeError for a `value` that
        is not serialized, KafkaTimeoutError, BufferExhaustedError, DeliveryError, and
        IllegalStateError for a record whose transaction has ended meanwhile.
        """
        if (
            headers is None
            and partition is None
            and timestamp is None
            and on_delivery is None
            and topic in self._plain_topics
            and (outcome := self._send_plain(topic, value, key)) is not None
        ):
            return await outcome
        self._check_can_call()
        record, future, outcome = self._begin(
            ProducerRecord(topic, value, key, headers or (), partition, timestamp), on_delivery
        )
        core = self._core
        give_up_at, transactions = core.give_up_at(), core.transactions
        try:
            check_place(record.topic, record.partition)
            await core.await_partition(record.topic, record.partition, give_up_at=give_up_at)
            await core.await_room(give_up_at)
            if core.is_transactional and transactions != core.transactions:
                raise IllegalStateError(_SENT_LATE)  # noqa: TRY301  as other errors of a record
            core.fail_if_not_ready_for_send()
            self._staging.check_usable()
            prepared = self._preparation.prepare(record)
        except BaseException as error:  # noqa: BLE001  raised again, or by the future
            self._staging.refuse(record, future, error)
        else:
            self._core.write_staged(is_full=self._staging.stage(record, future, prepared))
        return await outcome

    def send_nowait(  # noqa: PLR0917  as KafkaProducer's
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send one record without waiting; return a future of its `RecordMetadata`.

        The topic must be known: `await partitions_for(topic)`, or a `send`, before. The future
        fails with KafkaTimeoutError if it is not, and with BufferExhaustedError if buffer.memory is
        full: `await flush()` then, or `send`, which waits. Cancelling the future does not keep the
        record from being delivered.

        `topic`, `value`, `key`, `headers`, `partition`, `timestamp` (in milliseconds) and
        `on_delivery` are as for `send`. As in `KafkaProducer.send`, errors of a record are raised
        by the future; the call itself raises TypeError, ValueError or SerializationError for an
        invalid record, ProducerClosedError, IllegalStateError, and the error that ended the
        producer or its transaction.
        """
        if (
            headers is None
            and partition is None
            and timestamp is None
            and on_delivery is None
            and topic in self._plain_topics
            and (outcome := self._send_plain(topic, value, key)) is not None
        ):
            return outcome
        self._check_can_call()
        record, future, outcome = self._begin(
            ProducerRecord(topic, value, key, headers or (), partition, timestamp), on_delivery
        )
        try:
            check_place(record.topic, record.partition)
            self._check_room(record.topic, record.partition)
            prepared = self._preparation.prepare(record)
        except BaseException as error:  # noqa: BLE001  raised again, or by the future
            self._staging.refuse(record, future, error)
        else:
            self._core.write_staged(is_full=self._staging.stage(record, future, prepared))
        return outcome

    def _send_plain(
        self, topic: str, value: Any, key: Any
    ) -> asyncio.Future[RecordMetadata] | None:
        """Stage a small record of plain bytes; return None if it is not one, or needs memory."""
        if (
            type(value) is not bytes
            or (key is not None and type(key) is not bytes)
            or len(value) > MAX_LIGHT_BYTES
            or (key is not None and len(key) > MAX_LIGHT_BYTES)
            or self._gatherer.is_full
        ):
            return None
        self._check_loop()
        outcome: asyncio.Future[RecordMetadata] = self._loop.create_future()
        future = FutureOfFullRecord()
        future.chunk = None
        future.error = None
        future.headers = None
        future.partition = None
        future.timestamp = None
        future.callback = partial(_resolve, outcome)
        self._staged_items += (future, topic, key, value)
        self._core.write_staged(is_full=self._gatherer.is_full)
        return outcome

    def _begin(
        self,
        record: ProducerRecord,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None,
    ) -> tuple[ProducerRecord, FutureOfFullRecord, asyncio.Future[RecordMetadata]]:
        if iscoroutinefunction(on_delivery):
            raise TypeError(
                "on_delivery must be a function, not a coroutine function: it can start a task"
            )
        outcome: asyncio.Future[RecordMetadata] = self._loop.create_future()
        record, future = self._staging.begin(
            record,
            on_delivery,
            lambda call: (
                partial(_resolve, outcome)
                if call is None
                else partial(_resolve_and_call, outcome, call, is_reported=on_delivery is not None)
            ),
        )
        return record, future, outcome

    def _check_room(self, topic: str, partition: int | None) -> None:
        if not self._core.known_partitions(topic, partition):
            raise KafkaTimeoutError(
                f"the metadata of topic {topic!r} is not available yet, and send_nowait does not "
                "wait for it. Await partitions_for(topic) or a send first"
            )
        if not self._core.has_room():
            raise BufferExhaustedError(
                "buffer.memory is full of unacknowledged records, and send_nowait does not wait "
                "for memory. Await send, or flush, or raise buffer.memory"
            )

    async def send_table(
        self,
        data: Any,
        *,
        topic: str | None = None,
        key_format: str | None = None,
        value_format: str | None = None,
        key_schema: str | None = None,
        value_schema: str | None = None,
        schema_registry: Mapping[str, object] | None = None,
        format_options: Mapping[str, object] | None = None,
    ) -> dict[TopicPartition, PartitionAcks]:
        """Send all rows of a table; return when all are acknowledged, with the acks by partition.

        `data`, `topic`, `key_format`, `value_format`, `key_schema`, `value_schema`,
        `schema_registry` and `format_options` are those of `KafkaProducer.send_arrow`. Other tasks
        run between slices of about 1 MiB. If the task is cancelled, the rows before some row have
        been sent, and no others.

        Raises the errors of `send_arrow` and of its future: SchemaError for unsupported columns,
        RecordError for a row that cannot be sent, DeliveryError for one that was not delivered,
        and IllegalStateError if its transaction ends meanwhile.
        """
        self._check_can_call()
        self._core.fail_if_not_ready_for_send()
        if topic is not None:
            check_place(topic, None)
        arguments = FormatArguments(
            key_format, value_format, key_schema, value_schema, schema_registry, format_options
        )
        transactions, first_row = self._core.transactions, 0
        parts: list[TablePart] = []
        async for batch in self._encoded(record_batches(data), arguments, topic):
            for rows in _slices(batch):
                if self._core.is_transactional and transactions != self._core.transactions:
                    raise IllegalStateError(_SENT_LATE)
                self._staging.check_usable()
                columns = record_columns(rows, topic=topic, first_row=first_row)
                if columns.num_rows:
                    counts = await self._await_topics(columns, topic, first_row)
                    parts += await self._write_rows(rows, columns, counts, topic, first_row)
                first_row += rows.num_rows
                await asyncio.sleep(0)
        for part in parts:
            await self._core.settled(part.result, None)
        error = table_error(parts)
        if error is not None:
            raise error
        return table_acks(parts)

    async def _encoded(
        self, batches: Sequence[Any], arguments: FormatArguments, topic: str | None
    ) -> AsyncIterator[Any]:
        """Yield the batches as they are sent; formats, and registries, have a thread."""
        if not arguments.are_given:
            for batch in batches:
                yield batch
            return
        name = f"kafka-producer-formats | {self._config.client_id}"
        write = partial(self._payload_writes.encoded, batches, arguments, topic)
        encoded, _ = (await in_daemon_thread(name, write)).get()
        batches_left = iter(encoded)
        while (batch := (await in_daemon_thread(name, next, batches_left, None)).get()) is not None:
            yield batch

    async def _await_topics(
        self, columns: RecordColumns, topic: str | None, first_row: int
    ) -> list[int]:
        give_up_at = self._core.give_up_at()
        try:
            return [
                await self._core.await_partition(name, give_up_at=give_up_at)
                for name in columns.topics
            ]
        except BrokerError as error:
            if topic is not None:
                raise
            raise about_row(error, columns, first_row) from error.__cause__

    async def _write_rows(
        self,
        rows: Any,
        columns: RecordColumns,
        counts: list[int],
        topic: str | None,
        first_row: int,
    ) -> list[TablePart]:
        """Write rows as far as memory allows, wait, and go on, until all are in batches."""
        parts: list[TablePart] = []
        core, is_refreshed = self._core, False
        while True:
            watcher = self._gatherer.watch_table(columns.num_rows)
            try:
                self._gatherer.write_columns(
                    columns, counts, first_row, watcher=watcher, may_wait=False
                )
            except BufferExhaustedError:
                parts += watcher.parts
                if not await core.await_memory(core.give_up_at()):
                    raise
                rows = rows.slice(watcher.next_row)
                first_row += watcher.next_row
                columns = record_columns(rows, topic=topic, first_row=first_row)
            except InvalidPartitionError:
                # Partitions may have been added since the metadata were requested.
                if is_refreshed:
                    raise
                is_refreshed = True
                with suppress(KafkaError):
                    await core.refresh_metadata()
            else:
                return parts + watcher.parts
            counts = [core.count_partitions(name) for name in columns.topics]

    # --- transactions (KIP-98): in blocks, or by single calls as those of `KafkaProducer`.

    def transaction(self) -> AbstractAsyncContextManager[AIOKafkaProducer]:
        """Return a block for `async with`: it begins a transaction, and commits it at its end.

        >>> import asyncio
        >>> async def main():
        ...     settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
        ...     async with AIOKafkaProducer(settings) as producer:
        ...         async with producer.transaction():
        ...             await producer.send("orders", b"a book")
        >>> asyncio.run(main())

        The first one also calls `init_transactions`. If the block raises or is cancelled, or a
        record was not delivered, the transaction is aborted. Blocks of other tasks wait for their
        turn, but a `send` outside of a block belongs to whatever transaction is open. A task that
        is cancelled while it commits does not wait for the outcome; the next block does.
        """
        return _Transaction(self)

    async def init_transactions(self, transactional_id: str | None = None) -> None:
        """Initialize the producer id of transactional.id, or of another `transactional_id`.

        See `KafkaProducer.init_transactions`. Raises KafkaTimeoutError after max.block.ms,
        ConfigError without transactional.id, IllegalStateError when called twice, and BrokerError.
        """
        if transactional_id is not None:
            check_transactional_id(transactional_id)
        manager = self._transaction_manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.INIT_TRANSACTIONS):
            await self._core.find_brokers(give_up_at)
            await self._core.await_operation(
                manager.initialize_transactions(transactional_id), give_up_at
            )

    async def begin_transaction(self) -> None:
        """Begin a transaction; raise IllegalStateError while another one is open."""
        manager = self._transaction_manager()
        with self._core.timed(TimedCall.BEGIN_TRANSACTION):
            self._gatherer.begin_transaction(
                manager.begin_transaction, IllegalStateError(_SENT_LATE)
            )
            self._core.transactions += 1

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit a consumer group's offsets with this transaction.

        `offsets` are those of the next records to read; `group_metadata` names the group. See
        `KafkaProducer.send_offsets_to_transaction`. Tasks may call it at the same time.
        """
        checked = offsets_of(offsets)
        check_group(group_metadata)
        manager = self._transaction_manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.SEND_OFFSETS_TO_TRANSACTION):
            if checked:
                sent = manager.send_offsets_to_transaction(checked, group_metadata)
                await self._core.await_transaction(sent, give_up_at)

    async def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and return the open transaction; see `KafkaProducer.prepare_transaction`."""
        manager = self._transaction_manager()
        with self._core.timed(TimedCall.PREPARE_TRANSACTION):
            await self._core.flush(None)
            return manager.prepare_transaction()

    async def commit_transaction(self) -> None:
        """Flush and commit; raise the error of a record that was not delivered: then abort.

        Raises KafkaTimeoutError after max.block.ms: call it again to continue waiting. If the task
        is cancelled, the commit goes on if it had begun.
        """
        manager, core = self._transaction_manager(), self._core
        give_up_at = core.give_up_at()
        with core.timed(TimedCall.COMMIT_TRANSACTION):
            committed = await core.when_memory_allows(
                partial(self._gatherer.end_transaction, manager.begin_commit, may_wait=False),
                give_up_at,
            )
            await core.await_operation(committed, give_up_at)

    async def abort_transaction(self) -> None:
        """Abort the transaction; unsent records fail with TransactionAbortedError.

        See `KafkaProducer.abort_transaction`. If the task is cancelled, the abort goes on.
        """
        manager, core = self._transaction_manager(), self._core
        give_up_at = core.give_up_at()
        with core.timed(TimedCall.ABORT_TRANSACTION):
            result = manager.begin_abort()
            core.abort_unsent(give_up_at)
            await core.await_operation(result, give_up_at)

    async def _begin_block(self) -> None:
        """Begin the transaction of a block, once those of other tasks have ended."""
        task = asyncio.current_task()
        if self._block_task is task:
            raise IllegalStateError("this task has a transaction already: end its block first")
        manager = self._transaction_manager()
        await self._block.acquire()
        try:
            await self._core.settle()
            if manager.state.has_abortable_error:
                await self.abort_transaction()
            if manager.state.current in {
                TransactionState.UNINITIALIZED,
                TransactionState.INITIALIZING,
            }:
                await self.init_transactions()
            await self.begin_transaction()
        except BaseException:
            self._block.release()
            raise
        self._block_task = task

    async def _end_block(self, error: BaseException | None) -> None:
        try:
            if error is None:
                await self._commit_block()
            else:
                await self._abort_block(error)
        finally:
            self._block_task = None
            self._block.release()

    async def _commit_block(self) -> None:
        try:
            await self.commit_transaction()
        except BaseException as error:
            await self._abort_block(error)
            raise

    async def _abort_block(self, error: BaseException) -> None:
        """Abort after an error, which a failed abort must not hide."""
        manager = self._core.transaction_manager
        if (
            manager is None
            or not manager.state.has_ongoing_transaction
            or manager.state.is_completing
            or self._staging.is_closed
        ):
            # It has failed for good, or a commit is under way, whose outcome the next block awaits.
            return
        try:
            await self.abort_transaction()
        except KafkaError as problem:
            error.add_note(f"the transaction could not be aborted: {problem}")

    # --- waiting

    async def flush(self, timeout: float | None = None) -> None:
        """Send all pending records and wait until each has succeeded or failed.

        `timeout` is in seconds. Errors of records are raised by their futures. Raises
        KafkaTimeoutError when the timeout expires first (delivery.timeout.ms limits the wait in any
        case).
        """
        self._check_can_call()
        check_timeout(timeout)
        with self._core.timed(TimedCall.FLUSH):
            await self._core.flush(timeout)

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of `topic`, after waiting up to max.block.ms for its metadata.

        Raises KafkaTimeoutError if the topic is still unknown then, BrokerError if it is refused.
        """
        self._check_can_call()
        check_place(topic, None)
        count = await self._core.await_partition(topic)
        snapshot = self._core.snapshot
        return [
            PartitionInfo(topic, number, snapshot.leader_of(TopicPartition(topic, number)))
            for number in range(count)
        ]

    # --- what has been done

    def acks(self) -> dict[TopicPartition, PartitionAcks]:
        """Return what has been acknowledged so far, by partition."""
        return self._core.acks()

    def metrics(self) -> Mapping[MetricName, KafkaMetric]:
        """Return the metrics by their names; each `value()` is current when it is called."""
        return MetricsByName(self._core.metrics.metrics())

    def metrics_snapshot(self) -> MetricsSnapshot:
        """Return a summary of the metrics that can be pickled and merged."""
        return self._core.sender_metrics.snapshot()

    # --- closing

    @property
    def has_ended(self) -> bool:
        """Whether the producer is closed or has failed, and accepts no more records."""
        return self._staging.is_closed or self._core.has_ended

    async def close(self, timeout: float | None = None) -> None:
        """Flush, and close all connections; a second call waits for the end of the first.

        After `timeout` seconds (at once with 0) unacknowledged records are given up, and their
        futures fail. An open transaction is aborted if there is time. If the task is cancelled,
        the producer is closed as with a timeout of 0.

        Raises KafkaTimeoutError for records given up because `timeout` expired, except with 0.
        """
        self._check_loop()
        check_timeout(timeout)
        if self._closing is None:
            self._staging.check_usable()
            self._staging.is_closed = True
            self._plain_topics.clear()
            self._owner_end.detach()
            self._closing = self._loop.create_task(_close(self._core, self._plug_ins, timeout))
        elif self._closing.done():
            return
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            if not self._closing.done():
                self._core.give_up()
            raise

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a producer cannot be pickled."""
        raise TypeError(
            "an AIOKafkaProducer cannot be pickled: create one on the loop that uses it"
        )

    async def __aenter__(self) -> Self:
        """Return the producer itself."""
        self._check_can_call()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; do not wait if the block failed, so that its error is not hidden by another.

        A transaction that such a block leaves open is aborted, for which brokers have 5 seconds; a
        commit that has begun is finished. A task that is cancelled once more does not wait for it.
        """
        if exc_type is None:
            await self.close()
            return
        try:
            if self._closing is None:
                await self._core.leave_transaction()
        finally:
            await self.close(0)

    def __repr__(self) -> str:
        """Show the client's id, its brokers and its state."""
        config = self._config
        servers = [host_and_port(*address) for address in config.bootstrap_servers]
        if self._staging.is_closed:
            state = "closed"
        elif self._core.has_ended:
            state = "failed"
        else:
            state = "open"
        return (
            f"<AIOKafkaProducer {config.client_id!r} at {display.listed(servers, most=3)}, {state}>"
        )

    # --- checks of the caller

    def _check_can_call(self) -> None:
        self._check_loop()
        self._staging.check_usable()

    def _check_loop(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            self._staging.check_process()
            here = "without a running event loop" if running is None else f"on {running!r}"
            raise IllegalStateError(
                f"the producer {self._config.client_id!r} belongs to {self._loop!r} of thread "
                f"{self._thread_name!r}, and was called on thread "
                f"{threading.current_thread().name!r} {here}: create a producer for each event "
                "loop, or pass calls to its own with asyncio.run_coroutine_threadsafe"
            )

    def _transaction_manager(self) -> TransactionManager:
        self._check_can_call()
        manager = self._core.transaction_manager
        if manager is None or not self._core.is_transactional:
            raise ConfigError("transactions require transactional.id to be set")
        return manager


class _Transaction:
    """A block of one transaction; see `AIOKafkaProducer.transaction`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> AIOKafkaProducer:
        """Begin the transaction, and return the producer."""
        await self._producer._begin_block()  # noqa: SLF001  of the class above
        return self._producer

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or abort if the block has raised or was cancelled."""
        await self._producer._end_block(exc)  # noqa: SLF001  of the class above


def _resolve(outcome: asyncio.Future[RecordMetadata], future: FutureRecordMetadata) -> None:
    """Resolve the future of the loop, unless its task was cancelled."""
    if outcome.done():
        return
    error = future.exception()
    if error is None:
        outcome.set_result(future.result())
    else:
        outcome.set_exception(error)


def _resolve_and_call(
    outcome: asyncio.Future[RecordMetadata],
    call: Callable[[FutureRecordMetadata], object],
    future: FutureRecordMetadata,
    *,
    is_reported: bool,
) -> None:
    """Resolve the future, and let the loop call the user's functions.

    If a delivery callback reports the outcome, the future need not be awaited.
    """
    _resolve(outcome, future)
    if is_reported and not outcome.cancelled():
        outcome.exception()
    outcome.get_loop().call_soon(call_back, call, future)


def _slices(batch: Any) -> Iterable[Any]:
    rows = max(SLICE_BYTES * batch.num_rows // max(batch.nbytes, 1), 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


async def _close(core: LoopCore, plug_ins: PlugIns, timeout: float | None) -> None:
    try:
        await core.close(timeout)
    finally:
        plug_ins.close()


def _abandon(core: LoopCore, plug_ins: PlugIns) -> None:
    """Close the producer of a caller that has forgotten it, on a thread that is not its loop's."""

    def close() -> None:
        task = core.loop.create_task(_close(core, plug_ins, None))
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    try:
        core.loop.call_soon_threadsafe(close)
    except RuntimeError:
        # The loop is closed.
        core.drop()
        core.metrics.close()
        plug_ins.close()


#: The tasks that close forgotten producers.
_ending: set[asyncio.Task[None]] = set()
#: All producers of this process, for the fork handler.
_producers: WeakSet[AIOKafkaProducer] = WeakSet()


def _refuse_after_fork() -> None:
    for producer in list(_producers):
        producer._plain_topics.clear()  # noqa: SLF001  of the class above


os.register_at_fork(after_in_child=_refuse_after_fork)
