"""The writer that Spark pickles for its tasks, and asks on the driver to commit or to abort.

It is made anew whenever Spark wants one, so making it does nothing.

- At least once: a row is delivered when its task returns, and a task that is run again writes its
  rows again; so `commit` only folds and tells what is already in Kafka, and `abort` has nothing to
  take back.
- Exactly once: the write is planned when Spark pickles the writer. Tasks leave transactions open,
  and `commit`, which gets the same pickle, decides on them.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.taskcontext import TaskContext

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.commit_message import KafkaCommitMessage
from spark_kafka_sink.spark.partition_writer import ProducerOfTask, write_rows
from spark_kafka_sink.spark.refused_write import RefusedWriteError
from spark_kafka_sink.spark.write_report import WriteReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.exactly_once.plan import Plan
    from spark_kafka_sink.exactly_once.points import Point
    from spark_kafka_sink.spark.exactly_once_write import ExactlyOnceWrite

logger = logging.getLogger(__name__)

#: A job has this batch alone.
JOB_BATCH: Final = 0


class PlannedWrite(NamedTuple):
    """An exactly-once write with its plan, as a pickled writer takes them to the tasks."""

    write: ExactlyOnceWrite
    plan: Plan


class SinkWriter:
    """What the writers of batches and of streams share."""

    _options: SinkOptions

    @property
    def _exactly_once(self) -> ExactlyOnceWrite | None:
        options = self._options.exactly_once
        if options is None:
            return None
        from spark_kafka_sink.spark.exactly_once_write import ExactlyOnceWrite

        return ExactlyOnceWrite(self._options.producer, options)

    def _observe(self, point: Point) -> None:
        """Be told of each named point of an exactly-once write: the tests die there."""


class KafkaBatchWriter(SinkWriter, DataSourceArrowWriter):
    """Writes one DataFrame. `topic` is None where a column names it; `report_path` is absolute."""

    def __init__(self, options: SinkOptions, *, topic: str | None, report_path: str | None) -> None:
        self._options = options
        self._topic = topic
        self._report_path = report_path
        #: Of an exactly-once write, from the pickling on, as the write's id.
        self._planned: PlannedWrite | None = None
        self._write_id = ""

    def __getstate__(self) -> dict[str, Any]:
        """Plan an exactly-once write: Spark pickles the writer, for the tasks and for `commit`."""
        exactly_once = self._exactly_once
        if exactly_once is not None and self._planned is None:
            # A job without an id of its own is another one whenever it is run.
            self._write_id = exactly_once.options.write_id or uuid.uuid4().hex
            try:
                plan = exactly_once.plan(self._write_id, self._observe)
            except KafkaError as error:
                raise RefusedWriteError.of(error) from None
            self._planned = PlannedWrite(exactly_once, plan)
        return vars(self)

    def write(  # type: ignore[override]  # as PySpark's own DataSourceArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> KafkaCommitMessage:
        """Write a task's rows (in the worker)."""
        context = task_context()
        planned = self._planned
        transactional = None
        if planned is None:
            producers = ProducerOfTask(self._options.producer)
            written = write_rows(
                iterator, producers=producers, topic=self._topic, config=self._options.producer
            )
        else:
            written, transactional = planned.write.write(
                planned.plan, self._write_id, JOB_BATCH, iterator, self._topic
            )
        return KafkaCommitMessage(
            partition_id=context.partitionId(),
            task_attempt_id=context.taskAttemptId(),
            rows=written.rows,
            acks=written.acks,
            metrics=written.metrics,
            transactional=transactional,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the write visible, if it is not, and tell what was written (on the driver)."""
        ours = own_messages(messages)
        planned = self._planned
        if planned is not None:
            if not planned.plan.must_write(self._write_id, JOB_BATCH):
                sys.stdout.write(f"Kafka: write {self._write_id!r} was in already\n")
                sys.stdout.flush()
                return
            options = planned.write.options
            retention_ms = options.write_id_retention_ms if options.write_id else 0
            planned.write.commit(
                planned.plan,
                self._write_id,
                JOB_BATCH,
                ours,
                self._observe,
                expires_at_ms=int(time.time() * 1000) + retention_ms,
            )
        self._report(ours)

    def _report(self, messages: Sequence[KafkaCommitMessage]) -> None:
        """Tell what was written.

        All rows are in Kafka by now: a report that cannot be printed or stored is a warning, since
        a failed job would be run again and write them twice.
        """
        report = WriteReport.from_messages(messages)
        try:
            sys.stdout.write(report.to_text())
            sys.stdout.flush()
            if self._report_path is not None:
                report.write_json(self._report_path)
        except OSError as error:
            logger.warning("the write succeeded, but its report could not be given: %s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Take back what can be taken back of a write that failed, or say what stays.

        On the driver. It never raises a KafkaError: why the write failed is what has to be read.
        """
        ours = own_messages(messages)
        planned = self._planned
        if planned is not None:
            planned.write.abort(planned.plan, self._write_id, JOB_BATCH, ours, self._observe)
            return
        report = WriteReport.from_messages(ours)
        if report.rows:
            logger.warning(
                "the write did not finish; %d rows of finished tasks are in Kafka and stay there, "
                "and a new run will write them again",
                report.rows,
            )


def own_messages(messages: Sequence[WriterCommitMessage | None]) -> list[KafkaCommitMessage]:
    """Keep what tasks of ours returned; Spark puts None for those that did not."""
    return [message for message in messages if isinstance(message, KafkaCommitMessage)]


def task_context() -> TaskContext:
    """Give the context of the task that runs here; KafkaError where none does."""
    context = TaskContext.get()
    if context is None:
        raise KafkaError("write() is for Spark's tasks, and this is none")
    return context
