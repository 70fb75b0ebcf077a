"""The writer that Spark pickles for its tasks, and that commits or aborts on the driver.

Spark creates a new one whenever it needs one, so creating it does nothing.

- At least once: a row is delivered when its task returns, and a task that is run again writes its
  rows again; so `commit` only reports what is already in Kafka, and `abort` cannot undo anything.
- Exactly once: the write is planned, or rejected with a `RefusedWriteError`, when Spark pickles the
  writer. Tasks leave their transactions open, and `commit`, which runs on the same pickle, decides
  their outcome.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from spark_kafka_sink import display
from spark_kafka_sink.config.sink_options import (
    KEY_ORDER_FAIL,
    KEY_ORDER_OFF,
    REPORT_FULL,
    REPORT_NONE,
    SinkOptions,
)
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.announcements import (
    advise_sockets,
    announce,
    progress_logger,
    report_logger,
    with_progress,
)
from spark_kafka_sink.spark.report_store import ReportStore
from spark_kafka_sink.spark.sink.bad_rows import check_bad_rows, mention_on_error
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage, write_rows
from spark_kafka_sink.spark.sink.producer_cache import NO_QUERY, CachedProducers
from spark_kafka_sink.spark.sink.write_report import WriteReport, report_of, spread_keys
from spark_kafka_sink.spark.user_errors import for_user, raising_for_user
from spark_kafka_sink.spark.worker import preparing_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.exactly_once.plan import Job, Plan
    from spark_kafka_sink.exactly_once.two_phase_commit import Point
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.spark.lineage_events import SparkApplication
    from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter
    from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite
    from spark_kafka_sink.spark.sink.pacing import Pacer
    from spark_kafka_sink.spark.sink.trace_context import TaskTrace
    from spark_kafka_sink.spark.sink.write_lineage import BatchLineage

logger = logging.getLogger(__name__)

#: The batch id of a job, which has only one batch.
JOB_BATCH: Final = 0
#: The local property that contains the batch id of a stream's task (`MicroBatchExecution`).
BATCH_ID: Final = "streaming.sql.batchId"


class RefusedWriteError(KafkaError, pickle.PickleError):
    """A write was rejected while its writer was pickled for the tasks.

    PySpark passes PickleErrors on unchanged and replaces the message of every other error.
    """

    @classmethod
    def of(cls, error: KafkaError) -> RefusedWriteError:
        """Return an error caused by this one, which Spark shows by the name of this one."""
        kind = type(error)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        refused: RefusedWriteError = type(kind.__name__, (cls,), names)(str(error))
        refused.__cause__ = error
        return refused


class KeyOrderError(KafkaError):
    """Tasks have written rows with the same keys, and keyOrder=fail forbids it."""


class PlannedWrite(NamedTuple):
    """An exactly-once write and its plan, which a pickled writer carries to the tasks."""

    write: ExactlyOnceWrite
    plan: Plan
    #: None for a stream.
    job: Job | None = None


class SinkWriter:
    """The base class of the batch writer and the stream writer."""

    _options: SinkOptions
    #: None if a column names it.
    _topic: str | None
    #: Those of keys and values that have a format.
    _schemas: Mapping[Side, PayloadSchema] | None = None
    #: Set when an exactly-once write is pickled.
    _planned: PlannedWrite | None = None
    #: The name of the pace that all tasks of the write share, and no others.
    _pace_name = ""
    #: The trace context of the driver, as headers; set when a writer is pickled.
    _context: Mapping[str, str] | None = None

    @property
    def _exactly_once(self) -> ExactlyOnceWrite | None:
        options = self._options.exactly_once
        if options is None:
            return None
        from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite

        return ExactlyOnceWrite(self._options.producer, options)

    def _producers(self, context: TaskContext, query_id: str | None = None) -> CachedProducers:
        return CachedProducers(
            self._options.producer, query_id or NO_QUERY, stage=context.stageId()
        )

    def _pacer(self, context: TaskContext) -> Pacer | None:
        """Return what paces a task; None without a limit."""
        options = self._options
        if options.pace is None:
            return None
        from spark_kafka_sink.spark.sink.pacing import pacer_of

        return pacer_of(
            options.pace,
            self._pace_name,
            context.getLocalProperty,
            transaction_seconds=(
                None
                if options.exactly_once is None
                else options.exactly_once.transaction_timeout_ms / 1000
            ),
        )

    def _check_key_order(self, messages: Sequence[KafkaCommitMessage]) -> None:
        """Raise KeyOrderError with keyOrder=fail if tasks share keys (on the driver)."""
        if self._options.key_order != KEY_ORDER_FAIL:
            return
        spread = spread_keys(message.keys for message in messages)
        if not spread.spread:
            return
        raise KeyOrderError(
            f"keyOrder=fail: {spread}. "
            + (
                "The rows are in the topic, since deliveryGuarantee=at_least_once cannot undo them"
                if self._options.exactly_once is None
                else "None of the rows is visible"
            )
        )

    def _with_progress(
        self, batches: Iterator[pa.RecordBatch], task: int
    ) -> Iterator[pa.RecordBatch]:
        """Return the batches; with the option `progress`, the task prints how far it is."""
        if not self._options.progress:
            return batches
        return with_progress(
            batches, task=task, clock=time.monotonic, say=partial(announce, progress_logger)
        )

    def _bad_rows(self, context: TaskContext, query_id: str | None) -> BadRowWriter | None:
        """Return what takes the bad rows of a task; None if they end it."""
        on_error = self._options.on_error
        if on_error is None:
            return None
        with preparing_writer():
            from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
        batch_id = None if query_id is None else context.getLocalProperty(BATCH_ID)
        origin = RowOrigin(
            context.partitionId(), query_id, None if batch_id is None else int(batch_id)
        )
        return BadRowWriter(on_error, origin, self._options.producer, self._topic)

    def _application(self, context: TaskContext) -> SparkApplication | None:
        """Return what a task tells the driver about its application, for lineage."""
        if self._options.lineage is None:
            return None
        from spark_kafka_sink.spark.sink.write_lineage import application_of

        return application_of(context.getLocalProperty)

    def _set_context(self) -> None:
        """Set the trace context of the driver, for the tasks."""
        if self._options.trace is not None and self._context is None:
            from spark_kafka_sink.spark.sink.trace_context import driver_context

            self._context = driver_context(self._options.trace, os.environ)

    def _trace(self, context: TaskContext, query_id: str | None) -> TaskTrace | None:
        """Start the span of a task; None without trace context."""
        if self._options.trace is None:
            return None
        from spark_kafka_sink.spark.sink.trace_context import TaskTrace

        attributes: dict[str, str | int] = {
            "spark.partition.id": context.partitionId(),
            "spark.task.attempt.id": context.taskAttemptId(),
        }
        if query_id is not None:
            attributes["spark.query.id"] = query_id
            attributes["spark.batch.id"] = int(context.getLocalProperty(BATCH_ID) or 0)
        return TaskTrace(self._context or {}, topic=self._topic, attributes=attributes)

    def _encoded(
        self, batches: Iterator[pa.RecordBatch], bad_rows: BadRowWriter | None
    ) -> Iterator[pa.RecordBatch]:
        """Return the batches of a task with keys and values that have a format encoded."""
        if not self._schemas:
            return batches
        from spark_kafka_sink.spark.sink.payload_writes import encoded_task

        return encoded_task(
            batches,
            self._schemas,
            self._options.formats,
            None if bad_rows is None else bad_rows.refused,
        )

    def _write_task(
        self,
        batches: Iterator[pa.RecordBatch],
        *,
        write_id: str,
        batch_id: int = JOB_BATCH,
        query_id: str | None = None,
        asked_at: float | None = None,
    ) -> KafkaCommitMessage:
        """Write the rows of a task (in the worker); `query_id` is None in a batch."""
        trace = self._trace(task_context(), query_id)
        try:
            message = self._write_traced(
                batches, trace, write_id, batch_id, query_id=query_id, asked_at=asked_at
            )
        except BaseException as error:
            if trace is not None:
                trace.fail(error)
            raise
        if trace is not None:
            trace.finish(message.rows)
        return message

    def _write_traced(
        self,
        batches: Iterator[pa.RecordBatch],
        trace: TaskTrace | None,
        write_id: str,
        batch_id: int,
        *,
        query_id: str | None,
        asked_at: float | None,
    ) -> KafkaCommitMessage:
        started_at = time.monotonic()
        context = task_context()
        batches = self._with_progress(batches, context.partitionId())
        bad_rows = self._bad_rows(context, query_id)
        batches = self._encoded(batches, bad_rows)
        if trace is not None:
            batches = trace.with_headers(batches)
        shown: tuple[str, ...] = ()
        if self._schemas:
            from spark_kafka_sink.formats.payload_schemas import shown_schemas

            shown = shown_schemas(self._schemas)
        planned = self._planned
        pacer = self._pacer(context)
        samples_keys = self._options.key_order != KEY_ORDER_OFF
        transactional = None
        try:
            if planned is None:
                written = write_rows(
                    batches,
                    producers=self._producers(context, query_id),
                    topic=self._topic,
                    config=self._options.producer,
                    pacer=pacer,
                    bad_rows=bad_rows,
                    samples_keys=samples_keys,
                )
            else:
                written, transactional = planned.write.write(
                    planned.plan,
                    write_id,
                    batch_id,
                    batches,
                    self._topic,
                    stage=context.stageId(),
                    pacer=pacer,
                    bad_rows=bad_rows,
                    samples_keys=samples_keys,
                )
        except KafkaError as error:
            mention_on_error(error, self._options.on_error)
            raise
        return KafkaCommitMessage(
            partition_id=context.partitionId(),
            task_attempt_id=context.taskAttemptId(),
            rows=written.rows,
            acks=written.acks,
            metrics=written.metrics,
            query_id=query_id,
            started_at=asked_at,
            times=written.times_since(started_at),
            schemas=shown,
            paced_seconds=written.paced_seconds,
            bad_rows=written.bad_rows,
            keys=written.keys,
            application=self._application(context),
            transactional=transactional,
        )

    def _observe(self, point: Point) -> None:
        """Handle a named point of an exactly-once write; tests override this to crash there."""


class KafkaBatchWriter(SinkWriter, DataSourceArrowWriter):
    """The writer of one DataFrame.

    `topic` is None if a column names it; `report_path` is absolute; `columns` are those of the
    DataFrame, for lineage.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        topic: str | None,
        report_path: str | None,
        schemas: Mapping[Side, PayloadSchema] | None = None,
        columns: StructType | None = None,
    ) -> None:
        self._options = options
        self._topic = topic
        self._schemas = schemas
        self._report_path = report_path
        self._columns = columns
        #: Set when a write with lineage is pickled.
        self._lineage: BatchLineage | None = None
        self._pace_name = uuid.uuid4().hex
        #: Set when an exactly-once write is pickled.
        self._write_id = ""
        self._started_at = time.time()

    def __getstate__(self) -> dict[str, Any]:
        """Plan an exactly-once write, and begin its lineage.

        Spark pickles the writer for the tasks and for `commit`.
        """
        exactly_once = self._exactly_once
        if exactly_once is not None and self._planned is None:
            # Without a writeId, each run of a job is a write of its own.
            self._write_id = exactly_once.options.write_id or uuid.uuid4().hex
            job = exactly_once.job(self._topic)
            try:
                plan = exactly_once.plan(self._write_id, self._observe, job)
            except KafkaError as error:
                refused = for_user(RefusedWriteError.of(error))
                raise refused from refused.__cause__
            self._planned = PlannedWrite(exactly_once, plan, job)
        self._set_context()
        if self._options.lineage is not None and self._columns is not None:
            from spark_kafka_sink.spark.sink.write_lineage import BatchLineage

            columns, self._columns = self._columns, None
            self._lineage = BatchLineage.begin(
                self._options, columns, self._topic, at=self._started_at
            )
        return vars(self)

    @raising_for_user
    def write(  # type: ignore[override]  # as PySpark's own DataSourceArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> KafkaCommitMessage:
        """Write a task's rows (in the worker)."""
        return self._write_task(iterator, write_id=self._write_id)

    @raising_for_user
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit an exactly-once write and report what was written (on the driver)."""
        ours = own_messages(messages)
        check_bad_rows(self._options.on_error, ours)
        self._check_key_order(ours)
        planned = self._planned
        if planned is not None:
            if not planned.plan.must_write(self._write_id, JOB_BATCH):
                self._report(ours, replayed=True)
                return
            planned.write.commit(
                planned.plan,
                self._write_id,
                JOB_BATCH,
                ours,
                self._observe,
                job=planned.job,
            )
        self._report(ours)

    def _report(self, messages: Sequence[KafkaCommitMessage], *, replayed: bool = False) -> None:
        """Report what was written, or that it was `replayed`: committed before.

        All rows are in Kafka by now. A report that cannot be printed or stored is only a warning,
        since a failed job would be run again and write them twice.
        """
        with reporting("the write succeeded, but there is no report of it"):
            report = replace(
                report_of(messages).timed(self._started_at, time.time()),
                report_id=self._options.report_id,
                replayed=replayed,
            )
            with reporting(
                "the write succeeded, but its report could not be written to reportPath"
            ):
                if self._report_path is not None and not replayed:
                    report.write_json(self._report_path)
            with reporting("the write succeeded, but its report could not be printed"):
                if self._options.report != REPORT_NONE:
                    announce(report_logger, self._lines(report))
                    advise_sockets(report.tasks)
            with reporting("the write succeeded, but its report could not be kept for last_report"):
                store = ReportStore.of_driver()
                if store is not None:
                    store.put(None, report.to_record(), now_ns=time.time_ns())
            if self._lineage is not None:
                self._lineage.complete(report, messages, at=time.time())

    def _lines(self, report: WriteReport) -> str:
        if report.replayed:
            return f"Kafka: wrote nothing; write {self._write_id!r} was committed before"
        lines = report.to_text() if self._options.report == REPORT_FULL else report.summary()
        return lines.rstrip()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort a failed write's transactions, or log which rows stay (on the driver).

        It never raises a KafkaError, which would hide why the write failed.
        """
        ours = own_messages(messages)
        try:
            self._abort(ours)
        finally:
            if self._lineage is not None:
                self._lineage.fail(ours, at=time.time())

    def _abort(self, ours: Sequence[KafkaCommitMessage]) -> None:
        planned = self._planned
        if planned is not None:
            planned.write.abort(planned.plan, self._write_id, JOB_BATCH, ours, self._observe)
            return
        report = report_of(ours)
        if report.rows:
            logger.warning(
                "Kafka: the write failed; %s of tasks that had finished remain in Kafka, and "
                "a new run will write them again",
                display.counted(report.rows, "row"),
            )


@contextmanager
def reporting(failure: str) -> Iterator[None]:
    """Log any error as `failure` with its reason: the rows that a report is about are in Kafka."""
    try:
        yield
    except Exception as error:  # whatever it is, a failed commit would write the rows again
        logger.warning("%s: %s", failure, error, exc_info=not isinstance(error, OSError))


def own_messages(messages: Sequence[WriterCommitMessage | None]) -> list[KafkaCommitMessage]:
    """Return the messages of tasks that finished; Spark passes None for the others."""
    return [message for message in messages if isinstance(message, KafkaCommitMessage)]


def task_context() -> TaskContext:
    """Return the context of the current task; KafkaError outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise KafkaError("write() must be called in a Spark task")
    return context
