"""The producer: callers that write, and a thread that talks to the brokers (Kafka's KafkaProducer).

Calling threads stage records or write columns. They block only for memory and for the metadata of a
new topic, and never longer than max.block.ms. A daemon thread runs one asyncio loop that owns all
sockets. No delivery relies on `atexit` or on the garbage collector: a worker may be killed at any
moment, and a record that was not acknowledged by then was never reported as written. But a script
that ends without `close` still sends its records (`OpenProducers`).

A producer must be created in the process that uses it, and is never pickled. `record_staging`
handles the records that `send` does not stage itself, and `threaded_core` holds the parts that talk
to the brokers.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar
from weakref import WeakSet

from spark_kafka_sink import display
from spark_kafka_sink.config.arguments import check_group, check_transactional_id, offsets_of
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    IllegalStateError,
    InvalidPartitionError,
    KafkaError,
)
from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName, MetricsByName
from spark_kafka_sink.model import PartitionInfo, RecordMetadata, TopicPartition, host_and_port
from spark_kafka_sink.network.network_thread import stop_if_forgotten
from spark_kafka_sink.producer.batch.error_rules import about_row
from spark_kafka_sink.producer.payload_writes import PayloadWrites
from spark_kafka_sink.producer.record_staging import MAX_LIGHT_BYTES, ThreadedStaging
from spark_kafka_sink.producer.records.interceptors import ProducerRecord, resolve_interceptors
from spark_kafka_sink.producer.records.partitioner import resolve_partitioner
from spark_kafka_sink.producer.records.record_futures import (
    FutureRecordMetadata,
    FutureTableMetadata,
)
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS
from spark_kafka_sink.producer.records.record_preparation import (
    RecordPreparation,
    check_place,
    check_timeout,
)
from spark_kafka_sink.producer.records.serializers import resolve_serializers
from spark_kafka_sink.producer.sender_metrics import PRODUCER_GROUP, TimedCall
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.threaded_core import ThreadedCore
from spark_kafka_sink.record.arrow.record_columns import record_batches, record_columns
from spark_kafka_sink.record.columns import RECORD_FIELDS, RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        PartitionAcks,
        PreparedTransaction,
    )
    from spark_kafka_sink.producer.batch.set_aside import SetAsideRows
    from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
    from spark_kafka_sink.record.kernel.key_sample import KeySample
    from spark_kafka_sink.record.refused_rows import RefusedRows

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: The seconds that the flush of all producers may take together.
EXIT_SECONDS: Final = 5.0
#: The number of staged items that make a full chunk.
CHUNK_ITEMS = CHUNK_RECORDS * RECORD_FIELDS
#: The metrics that a notebook shows, in words.
_SHOWN_METRICS = {
    "record-send-rate": "records per second",
    "outgoing-byte-rate": "bytes per second",
    "request-latency-avg": "ms per request",
    "record-retry-total": "records retried",
    "record-error-total": "records failed",
}


class OpenProducers:
    """The producers of a process that must be flushed when it ends.

    They were not closed, or are still closing after they were dropped. At exit, Python waits for
    the non-daemon threads, calls the functions of `atexit`, and only then stops the daemon threads.
    So network threads still send while `end` waits for them. It flushes for a few seconds at most,
    since a dead broker must not keep a process alive, and logs what was lost. An open transaction
    is not ended: only its owner knows whether it is complete.

    Nothing here may need a new thread: Python 3.12 and later start none at this point. Delivery
    never relies on it either, because a process that is killed calls no function of `atexit`.
    """

    def __init__(self) -> None:
        #: A producer whose network thread has ended may be garbage-collected.
        self._cores: WeakSet[ThreadedCore] = WeakSet()
        # Producers that were dropped are closed by threads of their own.
        self._lock = threading.RLock()

    def add(self, core: ThreadedCore) -> None:
        """Add a producer that was just started."""
        with self._lock:
            self._cores.add(core)

    def discard(self, core: ThreadedCore) -> None:
        """Remove a producer that is closed, if it is there."""
        with self._lock:
            self._cores.discard(core)

    def forget_all(self) -> None:
        """Remove all producers: they belong to the process that this one was forked from."""
        self._cores, self._lock = WeakSet(), threading.RLock()

    def end(self) -> None:
        """Flush all producers within `EXIT_SECONDS`, and log what is not sent then.

        Ctrl-C ends the flush. Producers with an open transaction are not flushed.
        """
        with self._lock:
            cores = list(self._cores)
        flushed = {core: core.failed_records for core in cores if not core.has_open_transaction}
        with suppress(KeyboardInterrupt):
            give_up_at = {core: core.clock() + EXIT_SECONDS for core in flushed}
            # All of them first, so that they send at the same time.
            for core in flushed:
                _flush(core, 0)
            for core in flushed:
                _flush(core, max(give_up_at[core] - core.clock(), 0))
        for core in cores:
            if core not in flushed:
                core.warn_of_open_transaction()
            elif lost := core.unsent_records + core.failed_records - flushed[core]:
                logger.warning(
                    "%s of the producer %r had not been acknowledged when the process ended, and "
                    "may be lost: call flush() or close() before the end. Last error of a "
                    "connection: %s",
                    "1 record" if lost == 1 else f"{lost} records",
                    core.client_id,
                    core.last_error or "none",
                )


#: The producers of this process.
open_producers: Final = OpenProducers()
atexit.register(open_producers.end)


class KafkaProducer:
    """A client that sends records to Kafka. Thread-safe; `close` it or use it in a `with` block.

    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "key.serializer": "string",
    ...     "value.serializer": "json",
    ... }
    >>> with KafkaProducer(settings) as producer:
    ...     future = producer.send("orders", {"item": "book"}, key="alice")
    ...     metadata = future.result(timeout=30)
    >>> metadata.topic, metadata.offset
    ('orders', 0)

    The main settings of `config`, with Kafka's names, and their defaults:

    - `bootstrap.servers` (required): the brokers' addresses, host:port, separated by commas
    - `key.serializer`, `value.serializer` (`bytes`): string, int, float, json, or your own function
    - `acks` (`all`): or 1, or 0
    - `compression.type` (`lz4`): none, gzip, snappy, lz4 or zstd
    - `linger.ms` (`5`), `batch.size` (`1000000`): how long a batch waits, and its size in bytes
    - `delivery.timeout.ms` (`120000`): how long a record is retried
    - `max.block.ms` (`60000`): how long a call waits for metadata or memory
    - `security.protocol` (`PLAINTEXT`), `sasl.mechanism`, `sasl.jaas.config`,
      `ssl.truststore.location`: encryption and login
    - `transactional.id`: for transactions; without it, their calls raise ConfigError

    `python -m spark_kafka_sink.config.options_table kafka` prints all settings, with the `kafka.`
    that their names begin with in Spark.

    Calls raise ProducerClosedError after `close`, in a forked process, and in callbacks that would
    wait for themselves.
    """

    def __init__(
        self, config: ProducerConfig | Mapping[str, object], *, lingers: bool = True
    ) -> None:
        """Create a producer, which connects when it is first used.

        Without `lingers`, linger.ms closes no batch: a batch closes only when it is full, when
        memory runs short, and on `flush`; nothing is flushed when the process ends. The cluster is
        then taken to be one that was reached before, and waited for up to max.block.ms even if
        nothing listens there.

        Raises ConfigError for invalid or unsupported settings.
        """
        if not isinstance(config, ProducerConfig):
            config = ProducerConfig.from_mapping(config)
        self._config = config
        self._plug_ins = PlugIns(plug_in_settings(config))
        with ExitStack() as undo:
            undo.callback(self._plug_ins.close)
            self._start(config, undo, lingers=lingers)
            self._owner_end = stop_if_forgotten(
                self,
                partial(_close, self._core, self._plug_ins, timeout=None),
                client_id=config.client_id,
                effect=(
                    " The records that it had are still sent, but once the process ends for at "
                    f"most {EXIT_SECONDS:g} s"
                ),
            )
            undo.callback(self._owner_end.detach)
            undo.pop_all()
        _producers.add(self)
        if lingers:
            # The rows of a Spark task that has not flushed are written again by another attempt.
            open_producers.add(self._core)

    def _start(self, config: ProducerConfig, undo: ExitStack, *, lingers: bool) -> None:
        partitioner = resolve_partitioner(config.partitioner_class, self._plug_ins)
        interceptors = resolve_interceptors(config.interceptor_classes, self._plug_ins)
        serializers = resolve_serializers(config, self._plug_ins)
        self._core = core = ThreadedCore(
            config,
            partitioner=partitioner,
            lingers=lingers,
            undo=undo,
            make_sender=self._make_sender(),
        )
        self._staging = ThreadedStaging(
            core,
            preparation=RecordPreparation(
                config, core, partitioner=partitioner, serializers=serializers
            ),
            interceptors=interceptors,
        )
        self._payload_writes = PayloadWrites()
        # What `send` needs for each record, so that it looks up as little as possible.
        self._plain_topics = self._staging.plain_topics
        self._gatherer = core.gatherer
        self._staged_items = core.gatherer.staged.items
        self._spare = core.gatherer.staged.spare
        core.start(on_end=self._plain_topics.clear, undo=undo)

    def _make_sender(self) -> Callable[..., Sender]:
        """Return what makes the sender; it takes the arguments of `Sender`."""
        return Sender

    # --- sending

    def send(  # noqa: PLR0917  by keyword only they would be looked up for every call
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None = None,
    ) -> FutureRecordMetadata:
        """Send one record and return at once with a future of its `RecordMetadata`.

        `headers` are (name, bytes) pairs. `timestamp` is in milliseconds since 1970, by default
        the time at which the record is added to a batch.

        `on_delivery(metadata, error)` is called when the record is acknowledged (`error` is None)
        or has failed (`metadata` is None), in order for the acknowledged records of a partition.
        It must be quick, since nothing is sent meanwhile, and may send but must not wait: a record
        for which there is no memory then fails with BufferExhaustedError.

        The call waits for up to max.block.ms in all for metadata, memory and other threads. As in
        Java, errors of a record or its topic are raised by the future. The call itself raises
        TypeError, ValueError or SerializationError for an invalid record, SchemaRegistryError if a
        serializer cannot have its schema, ProducerClosedError, and the error that ended the
        producer or its transaction.
        """
        if (
            headers is not None
            or partition is not None
            or timestamp is not None
            or on_delivery is not None
            or topic not in self._plain_topics
            or type(value) is not bytes
            or (key is not None and type(key) is not bytes)
        ):
            return self._staging.send(
                ProducerRecord(topic, value, key, headers or (), partition, timestamp), on_delivery
            )
        if len(value) > MAX_LIGHT_BYTES or (key is not None and len(key) > MAX_LIGHT_BYTES):
            return self._staging.send_heavy(topic, value, key)
        try:
            future = self._spare.pop()
        except IndexError:
            future = FutureRecordMetadata()
            future.producer = self._staging
            future.chunk = None
            future.error = None
        # This is `StagedRecords.append`, inlined to save the call.
        items = self._staged_items
        items += (future, topic, key, value)
        if len(items) >= CHUNK_ITEMS:
            self._staging.write_full_chunk(future)
        elif self._gatherer.staged_since is None:
            self._gatherer.note_staged()
        return future

    def send_arrow(
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
    ) -> FutureTableMetadata:
        """Send all rows of an Arrow table, record batch or object that exports an Arrow stream.

        The columns of `data` are matched by name as in a Spark write (`value`, `key`, `topic`,
        `partition`, `headers`, `timestamp`); the `topic` argument takes precedence over a column of
        that name. Returns when all rows are in batches, with a future of the acknowledgements of
        each partition.

        With `value_format="avro"` the column `value` is encoded by a schema, and so is `key` with
        `key_format`. `value_schema` (or `key_schema`) is "latest", "version:7", "id:42" or the text
        of a schema; `schema_registry` has the settings of the Schema Registry (`{"url": ...}`), and
        `format_options` all other options of formats by the names that they have in Spark, such as
        `{"valueSubject": "orders", "autoRegisterSchemas": True}`. The schemas are looked up, or
        registered, by the first call for a type of column, and kept as long as the producer lives;
        the future's `schemas` names them.

        Raises SchemaError for unsupported columns, RecordError for a row that cannot be sent,
        PayloadError for one that a schema does not have (the rows before it may be sent),
        SchemaRegistryError, KafkaTimeoutError, and BrokerError for a topic that is refused.
        max.block.ms limits the waits until rows are added to batches; then the limit starts again.
        """
        self._check_can_call()
        self._core.fail_if_not_ready_for_send()
        if topic is not None:
            check_place(topic, None)
        arguments = FormatArguments(
            key_format, value_format, key_schema, value_schema, schema_registry, format_options
        )
        given = record_batches(data)
        batches, schemas = self._payload_writes.encoded(given, arguments, topic)
        parts = []
        first_row = 0
        for batch in batches:
            columns = record_columns(batch, topic=topic, first_row=first_row)
            if columns.num_rows:
                give_up_at = self._core.give_up_at()
                try:
                    counts = self._core.await_topics(columns.topics, give_up_at)
                except BrokerError as error:
                    if topic is not None:
                        raise
                    raise about_row(error, columns, first_row) from error.__cause__
                write = partial(self._gatherer.write_table, columns)
                parts += self._write(write, columns, counts, first_row, give_up_at)
            first_row += batch.num_rows
        return FutureTableMetadata(self._staging, parts, schemas)

    def append(self, columns: RecordColumns, *, first_row: int = 0) -> None:
        """Write all rows of `columns`; return when they are in batches, not when they are sent.

        This is for rows without futures: from the first call on, a lost record makes every later
        call fail with its error. `first_row` is the number of the first row, for use in errors: the
        number of rows the caller appended before.

        Raises RecordError for a row that can never be sent (its message names the row and the
        remedy), KafkaTimeoutError when metadata or memory was not available within max.block.ms,
        BrokerError when a topic is refused, and DeliveryError when an earlier batch could not be
        delivered.
        """
        self.append_good(columns, first_row=first_row)

    def append_good(
        self, columns: RecordColumns, *, first_row: int, refused: RefusedRows | None = None
    ) -> None:
        """Write rows as `append` does, except for those in `refused`.

        Rows that can never be sent are added to it; without it they are errors.
        """
        give_up_at, counts = self._begin_append(columns)
        if columns.num_rows:
            write = partial(self._gatherer.write_columns, columns, refused=refused)
            self._write(write, columns, counts, first_row, give_up_at, refused=refused)

    def append_unnumbered(
        self, columns: RecordColumns, placed: int = 0
    ) -> Sequence[Callable[[], tuple[int, int]]]:
        """Write rows as `append` does, among those of a caller that do not count as its rows.

        Errors do not number them. Returns functions for the first `placed` rows, each of which
        returns partition and offset after `flush`.
        """
        give_up_at, counts = self._begin_append(columns)
        watcher = self._gatherer.watch_places(placed, columns.num_rows) if placed else None
        if columns.num_rows:
            write = partial(self._gatherer.write_columns, columns, watcher=watcher)
            self._write(write, columns, counts, None, give_up_at)
        if watcher is None:
            return []
        return watcher.places

    def _begin_append(self, columns: RecordColumns) -> tuple[float, list[int]]:
        """Return when waits end, and how many partitions each topic has."""
        self._check_can_call()
        self._core.accumulator.remember_losses()
        self._core.fail_if_not_ready_for_send()
        if not columns.num_rows:
            return 0.0, []
        give_up_at = self._core.give_up_at()
        return give_up_at, self._core.await_topics(columns.topics, give_up_at)

    def sample_keys(self, sample: KeySample | None) -> None:
        """Add the keys of rows with numbers to a sample from now on; None for none."""
        self._core.key_sample = sample

    def set_refused_aside(self, *, is_on: bool) -> None:
        """Set aside rows that brokers refuse for themselves; by default their batches fail.

        This is for rows that are appended by their numbers. The others of a batch are sent again.
        """
        self._core.set_refused_aside(is_on=is_on)

    def take_refused(self) -> list[SetAsideRows]:
        """Return the rows that brokers refused since the last call; all of them after `flush`."""
        return self._core.tray.take()

    def _write(
        self,
        write: Callable[[list[int], int | None, float], T],
        columns: RecordColumns,
        partition_counts: list[int],
        first_row: int | None,
        give_up_at: float,
        *,
        refused: RefusedRows | None = None,
    ) -> T:
        """Write rows; look once for partitions that were added since the metadata were requested.

        That may be metadata.max.age.ms ago. Java waits for such a partition until max.block.ms; a
        row with a wrong number fails sooner here.
        """
        try:
            return write(partition_counts, first_row, give_up_at)
        except InvalidPartitionError:
            # No row is written before each of them has a partition.
            with suppress(KafkaError):
                self._core.refresh_metadata(give_up_at - self._core.clock())
            newer = [self._core.count_partitions(topic) for topic in columns.topics]
            if refused is not None:
                # Bad rows do not cost a request for each batch.
                refused.has_fresh_partitions = True
            elif newer == partition_counts:
                raise
        return write(newer, first_row, give_up_at)

    # --- transactions (KIP-98): init_transactions, then begin, send and commit for each of them.
    # A call that has timed out can be repeated: it continues to wait for the same operation.

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Initialize the producer id of transactional.id; call this once, before any other call.

        Call it again after each `prepare_transaction`, before the next transaction: with another
        `transactional_id`, which replaces that of the configuration, the prepared one stays open.

        It ends any transaction that an earlier producer with this transactional.id left open, and
        fences that producer. Raises KafkaTimeoutError after max.block.ms, IllegalStateError when
        called twice, and BrokerError.
        """
        if transactional_id is not None:
            check_transactional_id(transactional_id)
        manager = self._transaction_manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.INIT_TRANSACTIONS):
            self._core.find_brokers(give_up_at)
            self._core.await_transaction(
                manager.initialize_transactions(transactional_id), give_up_at
            )

    def begin_transaction(self) -> None:
        """Begin a transaction; raise IllegalStateError while another one is open."""
        manager = self._transaction_manager()
        with self._core.timed(TimedCall.BEGIN_TRANSACTION):
            # Once no thread is writing records of the last transaction.
            self._gatherer.begin_transaction(
                manager.begin_transaction,
                IllegalStateError(
                    "the record was sent while its transaction was ending: send it again in the "
                    "next transaction"
                ),
                self._core.give_up_at(),
            )

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit a consumer group's offsets with this transaction.

        `offsets` are those of the next records to read; `group_metadata` names the group. Raises
        KafkaTimeoutError after max.block.ms (a repeated call with equal arguments continues to wait
        for the same request), IllegalStateError outside of a transaction, and BrokerError for
        offsets that the brokers refuse.
        """
        checked = offsets_of(offsets)
        check_group(group_metadata)
        manager = self._transaction_manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.SEND_OFFSETS_TO_TRANSACTION):
            if checked:
                sent = manager.send_offsets_to_transaction(checked, group_metadata)
                self._core.await_transaction(sent, give_up_at)

    def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and return the open transaction in a form that another process can end.

        Call `init_transactions` before the next transaction, but under the same transactional.id
        only once the other process has requested the end of this one: it aborts a transaction that
        is still open. Closing the producer leaves the transaction open. Raises the error of a
        record that was not delivered: then abort, or close.
        """
        manager = self._transaction_manager()
        with self._core.timed(TimedCall.PREPARE_TRANSACTION):
            self._core.flush(None)
            return manager.prepare_transaction()

    def commit_transaction(self) -> None:
        """Flush and commit; raise the error of a record that was not delivered: then abort.

        Raises KafkaTimeoutError after max.block.ms: call it again to continue waiting.
        """
        manager = self._transaction_manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.COMMIT_TRANSACTION):
            committed = self._gatherer.end_transaction(manager.begin_commit, give_up_at)
            self._core.await_transaction(committed, give_up_at)

    def abort_transaction(self) -> None:
        """Abort the transaction; unsent records fail with TransactionAbortedError.

        Offsets that no broker has received yet, such as those of a group without a coordinator, are
        dropped, too.

        Raises KafkaTimeoutError after max.block.ms: call it again to continue waiting.
        """
        manager = self._transaction_manager()
        give_up_at = self._core.give_up_at()
        with self._core.timed(TimedCall.ABORT_TRANSACTION):
            result = manager.begin_abort()
            # A thread that is writing may wait long for memory: the abort begins meanwhile.
            self._core.wake_network_thread()
            self._core.abort_unsent(give_up_at)
            self._core.await_transaction(result, give_up_at)

    # --- waiting

    def flush(self, timeout: float | None = None) -> None:
        """Send all pending records and wait until each has succeeded or failed.

        `timeout` is in seconds. Errors of single records are raised by their futures; the first
        error of rows from `append` is raised here. Raises KafkaTimeoutError when the timeout
        expires first (delivery.timeout.ms limits the wait in any case).
        """
        self._check_can_call()
        check_timeout(timeout)
        with self._core.timed(TimedCall.FLUSH):
            self._core.flush(timeout)

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """Return a topic's partitions, after waiting up to max.block.ms for its metadata.

        Raises KafkaTimeoutError if the topic is still unknown then, BrokerError if it is refused.
        """
        self._check_can_call()
        check_place(topic, None)
        count = self._core.await_partition(topic)
        snapshot = self._core.snapshot
        return [
            PartitionInfo(topic, number, snapshot.leader_of(TopicPartition(topic, number)))
            for number in range(count)
        ]

    def refresh_metadata(self, timeout: float) -> None:
        """Refresh the metadata of all topics in use, and wait at most `timeout` seconds for it.

        max.block.ms applies if it is shorter. This is meant for a producer that was idle, because a
        topic may have been recreated meanwhile. Raises NetworkError if no broker answers,
        AuthenticationError if one refuses the login.
        """
        self._check_can_call()
        self._core.refresh_metadata(timeout)

    # --- what has been done

    def acks(self) -> dict[TopicPartition, PartitionAcks]:
        """Return what has been acknowledged so far, by partition."""
        return self._core.acks()

    def take_acks(self) -> dict[TopicPartition, PartitionAcks]:
        """Return what has been acknowledged since the last call, and reset it.

        Use it after `flush` when one producer serves several writes in sequence.
        """
        return self._core.take_acks()

    def metrics(self) -> Mapping[MetricName, KafkaMetric]:
        """Return the metrics by their names; each `value()` is current when it is called."""
        return MetricsByName(self._core.metrics.metrics())

    def metrics_snapshot(self) -> MetricsSnapshot:
        """Return a summary of the metrics that can be pickled and merged."""
        return self._core.sender_metrics.snapshot()

    def begin_metrics_period(self) -> MetricsSnapshot:
        """Return a summary of the metrics; the maxima of later ones are of values from now on.

        All else is the total since the producer was created: subtract this summary with
        `MetricsSnapshot.since`.
        """
        return self._core.sender_metrics.begin_period()

    # --- closing

    @property
    def has_ended(self) -> bool:
        """Whether the producer is closed or has failed, and accepts no more records."""
        return self._staging.is_closed or self._core.has_ended

    def close(self, timeout: float | None = None) -> None:
        """Flush, stop the network thread and close all connections; a second call does nothing.

        After `timeout` seconds (at once with 0) unacknowledged records are given up, and their
        futures fail. An open transaction is aborted if there is time. With 0, or if no broker
        answers, it is left to its coordinator, which aborts it after transaction.timeout.ms.

        After everything has been closed, raises the errors that were not reported elsewhere:
        KafkaTimeoutError for records given up because `timeout` expired, or the first error that
        lost rows of `append`; with 0 neither. All other errors are raised by futures and by
        transactional calls.
        """
        if self._staging.is_closed:
            return
        self._check_can_call()
        check_timeout(timeout)
        self._staging.is_closed = True
        self._plain_topics.clear()
        self._owner_end.detach()
        _close(self._core, self._plug_ins, timeout)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a producer cannot be pickled, for example into a Spark task."""
        raise TypeError(
            "a KafkaProducer cannot be pickled: create one in the process that uses it, such as in "
            "the function passed to foreachPartition"
        )

    def __enter__(self) -> Self:
        """Return the producer itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; do not wait if the block failed, so that its error is not hidden by another.

        A transaction that such a block leaves open is aborted, for which brokers have 5 seconds; a
        commit that has begun is finished.
        """
        if self._staging.is_forked or self._staging.is_closed:
            return
        if exc_type is None:
            self.close()
            return
        try:
            self._core.leave_transaction()
        finally:
            self.close(0)

    # --- showing it

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
        return f"<KafkaProducer {config.client_id!r} at {display.listed(servers, most=3)}, {state}>"

    def _repr_html_(self) -> str:
        """Show what has been acknowledged, and the rates of the last minute."""
        title = repr(self).strip("<>")
        # After a fork, a lock may be held by a thread that does not exist here.
        if self._staging.is_forked:
            return display.block(title, notes=("it belongs to another process",))
        rates = {
            name.name: metric.value()
            for name, metric in self._core.metrics.metrics().items()
            if name.group == PRODUCER_GROUP and name.name in _SHOWN_METRICS
        }
        return display.block(
            title,
            display.facts(
                {_SHOWN_METRICS[name]: rates.get(name) for name in _SHOWN_METRICS}, aligned=True
            ),
            self._core.acks()._repr_html_(),
        )

    # --- checks of the caller

    def _check_can_call(self) -> None:
        self._staging.check_usable()
        self._staging.check_may_wait()

    def _transaction_manager(self) -> TransactionManager:
        self._check_can_call()
        manager = self._core.transaction_manager
        if manager is None or not self._core.is_transactional:
            raise ConfigError("transactions require transactional.id to be set")
        return manager


def _flush(core: ThreadedCore, timeout: float) -> None:
    # What is not sent in time is counted; no error may keep the others from being flushed.
    with suppress(Exception):
        core.flush(timeout)


def _close(core: ThreadedCore, plug_ins: PlugIns, timeout: float | None) -> None:
    try:
        core.close(timeout)
    finally:
        open_producers.discard(core)
        plug_ins.close()


#: All producers of this process, for the fork handler.
_producers: WeakSet[KafkaProducer] = WeakSet()


def _refuse_after_fork() -> None:
    open_producers.forget_all()
    # Comparing process ids for every record would cost as much as staging it.
    for producer in list(_producers):
        producer._plain_topics.clear()  # noqa: SLF001  of the class above


os.register_at_fork(after_in_child=_refuse_after_fork)
