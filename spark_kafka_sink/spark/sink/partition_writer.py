"""The writing of a task's rows: Arrow batches in, acknowledgements out, with a borrowed producer.

A `KafkaCommitMessage` reports the written rows to the driver.

- A producer is taken only when there is a row, so an empty partition costs nothing.
- It is always released: as finished when everything is acknowledged, otherwise as failed. An error
  while releasing it never hides the error that ended the write.
- Only acknowledged rows are reported: the acknowledged records are counted against the rows first.
- Rows are numbered through the whole task, so that an error names the row's index in the task.

The kernels are imported with the first row: Spark imports this module on the driver too.
"""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.errors import BrokerError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.task_costs import TaskTimes
from spark_kafka_sink.spark.worker import prepare_next_tasks, preparing_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.exactly_once.plan import Prepared
    from spark_kafka_sink.model import PartitionAcks, TopicPartition
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.kernel.key_sample import KeySample
    from spark_kafka_sink.spark.lineage_events import SparkApplication
    from spark_kafka_sink.spark.sink.bad_rows import BadRows
    from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter
    from spark_kafka_sink.spark.sink.pacing import Pacer

logger = logging.getLogger(__name__)

_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name


class TransactionalPart(NamedTuple):
    """The fields that an exactly-once write adds to a task's message."""

    #: The generation of the plan under which the task wrote.
    generation: int
    planned_at_ms: int
    #: The task's open transaction; None if it had no rows or the batch is already committed.
    prepared: Prepared | None = None
    #: Whether the task wrote nothing because the batch is already committed.
    is_replay: bool = False
    #: The other writes under the prefix, if the plan did not contain this one.
    other_write_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCommitMessage(WriterCommitMessage):
    """One task's writes, all of them acknowledged (with acks=0: sent).

    It is pickled on its way to the driver, so it contains no settings and no secrets.
    """

    #: The index of the Spark partition within its stage.
    partition_id: int
    #: Unique among all task attempts of the application.
    task_attempt_id: int
    rows: int
    #: Per topic-partition, in order.
    acks: tuple[tuple[TopicPartition, PartitionAcks], ...]
    #: The metrics of the task's producer.
    metrics: MetricsSnapshot = field(default_factory=MetricsSnapshot)
    #: The stream's query id; None in a batch write.
    query_id: str | None = None
    #: When the driver asked the stream's tasks to write, in seconds since 1970.
    started_at: float | None = None
    #: None in an at-least-once write.
    transactional: TransactionalPart | None = None
    #: None if the task did not measure them.
    times: TaskTimes | None = None
    #: How keys and values with a format were encoded, such as "values by schema 7".
    schemas: tuple[str, ...] = ()
    #: How long the task paused to keep the pace of the write; None without a limit.
    paced_seconds: float | None = None
    #: The rows that could not be sent; None if there are none, or if one ends the write.
    bad_rows: BadRows | None = None
    #: The hashes of a sample of the keys (`KeySample`); empty without keys, or with keyOrder=off.
    keys: tuple[int, ...] = ()
    #: What the task knows of its application; None without lineage.
    application: SparkApplication | None = None

    @property
    def is_replay(self) -> bool:
        """Whether nothing was written because the batch is already committed."""
        return self.transactional is not None and self.transactional.is_replay


Start: TypeAlias = "Callable[[ProducerConfig], KafkaProducer]"


class Producers(Protocol):
    """A source of producers for tasks; a task takes at most one."""

    def take(self) -> KafkaProducer:
        """Return a producer that is not in use and has no unsent records."""

    def finished(self, producer: KafkaProducer) -> None:
        """Take back a producer whose records are all acknowledged."""

    def failed(self, producer: KafkaProducer) -> None:
        """Take back a producer whose write failed; never raises."""


def start_producer(config: ProducerConfig) -> KafkaProducer:
    """Start a `KafkaProducer`."""
    with preparing_writer():
        from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    prepare_next_tasks()
    return KafkaProducer(config, lingers=False)


def close_quietly(producer: KafkaProducer) -> None:
    """Close a producer at once; only log an error, so that it cannot hide why a write failed."""
    try:
        producer.close(timeout=0)
    except Exception:
        logger.warning("could not close the producer cleanly", exc_info=True)


class Written(NamedTuple):
    """The rows that a task has written, all of them acknowledged (with acks=0: sent)."""

    rows: int
    #: Per topic-partition, in order.
    acks: tuple[tuple[TopicPartition, PartitionAcks], ...]
    metrics: MetricsSnapshot
    #: How long taking a producer and waiting for the last acknowledgements took.
    fixed_seconds: float = 0.0
    #: How long the task paused to keep the pace of the write; None without a limit.
    paced_seconds: float | None = None
    #: The rows that could not be sent; None if there are none, or if one ends the write.
    bad_rows: BadRows | None = None
    #: The hashes of a sample of the keys.
    keys: tuple[int, ...] = ()

    def times_since(self, started_at: float) -> TaskTimes:
        """Return the times of a task that ends now."""
        return TaskTimes(platform.node(), started_at, time.monotonic(), self.fixed_seconds)


def write_rows(
    batches: Iterable[pa.RecordBatch],
    *,
    producers: Producers,
    topic: str | None,
    config: ProducerConfig,
    pacer: Pacer | None = None,
    bad_rows: BadRowWriter | None = None,
    samples_keys: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Written:
    """Write all rows and wait for their acknowledgements.

    Rows go to `topic`, or if it is None to the topic in their `topic` column. `config` is used to
    list the existing topics when a row names a missing one; a `pacer`, which this closes, says when
    rows may be sent; with `samples_keys`, the result has a sample of the keys; `clock` returns
    seconds. Raises RecordError (row, topic, partition, and what to do) for a row that cannot be
    sent, unless `bad_rows` takes it, and DeliveryError or another KafkaError for rows that the
    cluster did not accept; rows acknowledged by then stay written.
    """
    writer = _Writer(
        producers,
        topic,
        config,
        pacer=pacer,
        bad_rows=bad_rows,
        clock=clock,
        samples_keys=samples_keys,
    )
    try:
        for batch in batches:
            if pacer is None:
                writer.append(batch)
            elif batch.num_rows:
                for part in pacer.parts(batch, writer.flush):
                    writer.append(part)
        return writer.finish()
    except BaseException:
        writer.give_up()
        raise
    finally:
        if pacer is not None:
            pacer.close()


class _Writer:
    """The state of one write: the row count, and the producer from the first row on."""

    def __init__(
        self,
        producers: Producers,
        topic: str | None,
        config: ProducerConfig,
        *,
        pacer: Pacer | None,
        bad_rows: BadRowWriter | None,
        clock: Callable[[], float],
        samples_keys: bool,
    ) -> None:
        self._producers = producers
        self._topic = topic
        self._config = config
        self._producer: KafkaProducer | None = None
        self._measured_before = MetricsSnapshot()
        self._rows = 0
        self._pacer = pacer
        self._samples_keys = samples_keys
        self._sample: KeySample | None = None
        #: Bytes of batches sent before the last `flush`.
        self._sent = 0
        self._bad_rows = bad_rows
        self._clock = clock
        self._fixed_seconds = 0.0

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        from spark_kafka_sink.record.arrow.record_columns import record_columns

        bad_rows = self._bad_rows
        columns = record_columns(
            batch,
            topic=self._topic,
            first_row=self._rows,
            refused=None if bad_rows is None else bad_rows.refused,
        )
        producer = self._producer or self._take_producer()
        try:
            if bad_rows is None:
                producer.append(columns, first_row=self._rows)
            else:
                bad_rows.append(producer, batch, columns, self._rows, self._missing_topics)
        except KafkaTimeoutError as error:
            if self._topic is None and _is_of_unknown_topic(error):
                named = _with_row(error, columns, self._rows, self._config)
                if named is not None:
                    raise named from error
            raise
        except BrokerError as error:
            if self._topic is not None:
                raise
            from spark_kafka_sink.producer.batch.error_rules import about_row

            raise about_row(error, columns, self._rows) from error.__cause__
        self._rows += batch.num_rows

    def _take_producer(self) -> KafkaProducer:
        begun = self._clock()
        self._producer = producer = self._producers.take()
        self._measured_before = producer.begin_metrics_period()
        if self._bad_rows is not None:
            producer.set_refused_aside(is_on=True)
        if self._pacer is not None:
            self._pacer.begin()
        self._fixed_seconds += self._clock() - begun
        self._sample_keys(producer)
        return producer

    def _missing_topics(self, error: KafkaTimeoutError, columns: RecordColumns) -> set[str]:
        """Return the topics that do not exist, if that is what an error is about."""
        if self._topic is not None or not _is_of_unknown_topic(error):
            return set()
        from spark_kafka_sink.admin.cluster_check import missing_topics

        try:
            return missing_topics(self._config, columns.topics)
        except KafkaError:
            # Nothing is known of the row, and the error says why.
            return set()

    def _sample_keys(self, producer: KafkaProducer) -> None:
        if not self._samples_keys:
            return
        from spark_kafka_sink.record.kernel.key_sample import KeySample

        self._sample = KeySample()
        producer.sample_keys(self._sample)

    def flush(self) -> int:
        """Send all rows so far; return how many bytes were sent since the last call."""
        if self._producer is None:
            return 0
        self._producer.flush()
        batches = self._producer.metrics_snapshot().since(self._measured_before).batch_size
        sent, self._sent = self._sent, int(batches.total)
        return self._sent - sent

    def finish(self) -> Written:
        paced_seconds = None if self._pacer is None else self._pacer.waited_seconds
        if self._producer is None:
            return Written(0, (), MetricsSnapshot(), paced_seconds=paced_seconds)
        begun = self._clock()
        bad = self._bad_rows
        if bad is not None:
            bad.write_letters(self._producer)
        if self._pacer is None:
            self._producer.flush()
        else:
            # The tasks that go on must know what this one has sent.
            self._pacer.settle(self.flush)
        while bad is not None and bad.take_refused(self._producer):
            bad.write_letters(self._producer)
            self._producer.flush()
        acks = self._producer.take_acks()
        metrics = self._producer.metrics_snapshot().since(self._measured_before)
        acknowledged = sum(partition.records for partition in acks.values())
        rows = self._rows if bad is None else self._rows - bad.count
        written = rows if bad is None else rows + bad.letters
        if acknowledged != written:
            raise KafkaError(
                f"{written} rows were written, but {acknowledged} records were acknowledged. "
                "This is a bug in pykafka: please report it"
            )
        bad_rows = None if bad is None else bad.finish()
        producer, self._producer = self._producer, None
        if bad is not None:
            producer.set_refused_aside(is_on=False)
        if self._sample is not None:
            producer.sample_keys(None)
        self._producers.finished(producer)
        self._fixed_seconds += self._clock() - begun
        return Written(
            rows,
            tuple(sorted(acks.items())),
            metrics,
            self._fixed_seconds,
            paced_seconds,
            bad_rows,
            () if self._sample is None else self._sample.hashes(),
        )

    def give_up(self) -> None:
        """Release the producer as failed, unless it has been released already."""
        if self._producer is not None:
            self._producers.failed(self._producer)


def _is_of_unknown_topic(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, BrokerError) and error.name == _UNKNOWN_TOPIC:
            return True
        error = error.__cause__
    return False


def _with_row(
    error: KafkaTimeoutError, columns: RecordColumns, first_row: int, config: ProducerConfig
) -> KafkaTimeoutError | None:
    """Add which row named the missing topic, and which topics have similar names.

    Returns None if all topics exist by now, because the missing one was created meanwhile.
    """
    from spark_kafka_sink.admin.cluster_check import list_topics, similar_names

    try:
        existing = list_topics(config)
    except KafkaError as failure:
        return KafkaTimeoutError(f"{error}. The cluster's topics could not be listed ({failure})")
    for index, topic in enumerate(columns.topics):
        if topic not in existing:
            row = first_row + int((columns.topic_index == index).argmax())
            return KafkaTimeoutError(
                f"row {row}, topic {topic!r}: {error}; {similar_names(topic, existing)}"
            )
    return None
