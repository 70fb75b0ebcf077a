"""The writer of a stream, which Spark creates again for each micro-batch, commit and abort.

Spark pickles only the first of these writers, for the tasks of the micro-batch. So creating one
does nothing, and the work that must precede the tasks is done when it is pickled. `commit` and
`abort` run on another object, in another process, with nothing but the tasks' messages. Only tasks
know the query and its batch, from properties that Spark sets for them.

A stream prints at most once a minute: the sum of what it has written since (`next_lines`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from spark_kafka_sink import display
from spark_kafka_sink.config.sink_options import REPORT_FULL, REPORT_NONE, SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.announcements import advise_sockets, announce, report_logger
from spark_kafka_sink.spark.report_store import ReportStore
from spark_kafka_sink.spark.sink.bad_rows import check_bad_rows
from spark_kafka_sink.spark.sink.batch_log import BatchLog
from spark_kafka_sink.spark.sink.driver_checks import check_report_path, check_stream
from spark_kafka_sink.spark.sink.write_report import WriteReport, report_of
from spark_kafka_sink.spark.sink.writers import (
    BATCH_ID,
    JOB_BATCH,
    PlannedWrite,
    RefusedWriteError,
    SinkWriter,
    own_messages,
    reporting,
    task_context,
)
from spark_kafka_sink.spark.source_offsets import commit_source_offsets
from spark_kafka_sink.spark.user_errors import for_user, raising_for_user
from spark_kafka_sink.spark.worker import freeze_imported_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType
    from pyspark.taskcontext import TaskContext

    from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage
    from spark_kafka_sink.spark.sink.write_lineage import StreamLineage

logger = logging.getLogger(__name__)

#: The seconds between two lines of a query.
EVERY_SECONDS: Final = 60.0
#: The local property that contains the query id of a stream's task (`StreamExecution`).
QUERY_ID: Final = "sql.streaming.queryId"


class KafkaStreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """The writer of a stream's micro-batches. `topic` is None if a column names it."""

    def __init__(
        self, options: SinkOptions, *, topic: str | None, columns: StructType, token: str
    ) -> None:
        """Set what to write; `token` is the same for all micro-batches of a query, and no other."""
        self._options = options
        self._topic = topic
        self._columns = columns
        # The micro-batches of a query follow the same pace.
        self._token = self._pace_name = token
        self._is_checked = False
        #: When the writer was first pickled for the tasks, in seconds since 1970.
        self._started_at: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Check the write, and plan it if it is exactly-once: Spark pickles it for the tasks."""
        if not self._is_checked:
            self._started_at = time.time()
            try:
                check_stream(self._options, self._topic)
                if self._options.formats.sides:
                    from spark_kafka_sink.spark.sink.payload_writes import stream_schemas

                    self._schemas = stream_schemas.of(
                        self._token, self._columns, self._options, self._topic
                    )
                exactly_once = self._exactly_once
                if exactly_once is not None:
                    # The query id is not known yet, so the plan covers every query of the prefix.
                    plan = exactly_once.plan(None, self._observe)
                    self._planned = PlannedWrite(exactly_once, plan)
            except KafkaError as error:
                refused = for_user(RefusedWriteError.of(error))
                raise refused from refused.__cause__
            self._is_checked = True
            self._set_context()
            # This worker of the driver plans or commits later micro-batches, too.
            freeze_imported_objects()
        # Tasks ask no registry, and need not know its secrets. They get the columns with the rows.
        state = {**vars(self), "_options": replace(self._options, registry=None)}
        state.pop("_columns", None)
        return state

    @raising_for_user
    def write(  # type: ignore[override]  # as PySpark's own DataSourceStreamArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> KafkaCommitMessage:
        """Write a task's rows (in the worker)."""
        context = task_context()
        query_id = stream_property(context, QUERY_ID)
        is_planned = self._planned is not None
        return self._write_task(
            iterator,
            write_id=query_id,
            batch_id=int(stream_property(context, BATCH_ID)) if is_planned else JOB_BATCH,
            query_id=query_id,
            asked_at=self._started_at,
        )

    @raising_for_user
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Commit an exactly-once micro-batch and report what was written (on the driver)."""
        ours = own_messages(messages)
        check_bad_rows(self._options.on_error, ours)
        self._check_key_order(ours)
        exactly_once = self._exactly_once
        if exactly_once is not None:
            plan = exactly_once.plan_of(ours)
            if plan is not None:
                [message, *_] = ours
                _warn_about_other_streams(message, batchId, exactly_once.options.prefix)
                exactly_once.commit(plan, message.query_id or "", batchId, ours, self._observe)
        self._report(ours, batchId)
        commit_source_offsets(self._options, batchId)
        # As in `__getstate__`: some workers only commit.
        freeze_imported_objects()

    def _report(self, messages: Sequence[KafkaCommitMessage], batch_id: int) -> None:
        """Report what was written; a failure is only logged, since the batch is in Kafka."""
        with reporting(f"batch {batch_id} was written, but there is no report of it"):
            query_id = messages[0].query_id if messages else None
            started_at = messages[0].started_at if messages else None
            report = replace(
                report_of(messages).timed(started_at, time.time()),
                report_id=self._options.report_id,
                query_id=query_id,
                batch_id=batch_id,
                replayed=any(message.is_replay for message in messages),
            )
            with reporting(f"batch {batch_id} was written, but its report was not"):
                self._write_line(report)
            with reporting(f"batch {batch_id} was written, but its report was not kept or printed"):
                self._keep(report)
            lineage = self._lineage()
            if lineage is not None:
                lineage.written(report, messages, at=time.time())

    def _lineage(self) -> StreamLineage | None:
        """Return what sends the lineage of this stream (on the driver); None without it."""
        if self._options.lineage is None:
            return None
        from spark_kafka_sink.spark.sink.write_lineage import StreamLineage, Target

        target = Target.of(self._options, self._columns, self._topic)
        return StreamLineage(self._options, target, self._token)

    def _write_line(self, report: WriteReport) -> None:
        if self._options.report_path is None or report.batch_id is None:
            return
        log = BatchLog(check_report_path(self._options) or "")
        if report.replayed:
            replayed = {**report.as_dict(), "replayed": True}
            log.put_if_missing(report.query_id, report.batch_id, replayed)
        else:
            log.put(report.query_id, report.batch_id, report.as_dict())

    def _keep(self, report: WriteReport) -> None:
        """Keep the report for the user's session, and print what is due."""
        query_id = report.query_id or ""
        # A batch without tasks has no query.
        store = ReportStore.of_driver() if query_id else None
        if store is not None and not (
            report.replayed and report.batch_id in store.batches(query_id)
        ):
            store.put(query_id, report.to_record(), now_ns=time.time_ns())
        if self._options.report == REPORT_NONE or not (report.rows or report.bad_rows):
            return
        state = {} if store is None else store.printed(query_id)
        lines, state = next_lines(
            state, report, now=time.time(), is_full=self._options.report == REPORT_FULL
        )
        if store is not None:
            store.set_printed(query_id, state)
        if lines is not None:
            announce(report_logger, lines)
            advise_sockets(report.tasks)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Abort a failed micro-batch's transactions, or log which rows stay (on the driver).

        It never raises a KafkaError, which would hide why the batch failed.
        """
        ours = own_messages(messages)
        try:
            self._abort(ours, batchId)
        finally:
            lineage = self._lineage()
            if lineage is not None:
                lineage.fail(ours, at=time.time())

    def _abort(self, ours: Sequence[KafkaCommitMessage], batch_id: int) -> None:
        exactly_once = self._exactly_once
        if exactly_once is not None:
            plan = exactly_once.plan_of(ours)
            if plan is not None:
                [message, *_] = ours
                exactly_once.abort(plan, message.query_id or "", batch_id, ours, self._observe)
            return
        report = report_of(ours)
        if report.rows:
            logger.warning(
                "Kafka: batch %d failed; %s of tasks that had finished remain in Kafka, and "
                "will be written again when the query restarts",
                batch_id,
                display.counted(report.rows, "row"),
            )


def stream_property(context: TaskContext, name: str) -> str:
    """Return a property that Spark sets for a stream's tasks; KafkaError if it is not set."""
    value = context.getLocalProperty(name)
    if value is None:
        raise KafkaError(f"this task has no property {name}: it is not part of a micro-batch")
    return value


def next_lines(
    state: Mapping[str, Any], report: WriteReport, *, now: float, is_full: bool
) -> tuple[str | None, dict[str, Any]]:
    """Return what to print after a batch with rows, or None; and the state for the next batch.

    The state, which is empty at first, can be stored as JSON. `now` is in seconds since 1970; a
    clock that was set back does not silence a stream.
    """
    advice = None if state.get("is_advised") else report.advice
    # How many tasks there are is a question about each batch, and not about a sum. A summary needs
    # no partitions; there may be thousands of them.
    report = replace(report if is_full else report.condensed(), task_seconds=None)
    waiting = state.get("waiting")
    total, first = report, report.batch_id
    if waiting is not None:
        try:
            total, first = WriteReport.from_record(waiting).merged(report), state["first_batch"]
        except (TypeError, KeyError, ValueError):
            # Another version of this package has stored it; only a line is lost.
            logger.info("the state of the last lines cannot be read", exc_info=True)
    printed_at = state.get("printed_at")
    if printed_at is not None and 0 <= now - printed_at < EVERY_SECONDS:
        return None, {**state, "waiting": total.to_record(), "first_batch": first}
    batches = (
        f"batch {first}" if first == report.batch_id else f"batches {first} to {report.batch_id}"
    )
    lines = total.to_text() if is_full else total.summary()
    lines = lines.replace("Kafka: ", f"Kafka: {batches} ", 1).rstrip()
    if advice is not None:
        lines += f"\n  batch {report.batch_id}: {advice}"
    return lines, {
        "printed_at": now,
        "is_advised": bool(state.get("is_advised")) or advice is not None,
    }


def _warn_about_other_streams(message: KafkaCommitMessage, batch_id: int, prefix: str) -> None:
    """Log a warning if a new query's prefix was used before: its checkpoint may be lost."""
    part = message.transactional
    if batch_id == 0 and part is not None and part.other_write_ids and not part.is_replay:
        logger.warning(
            "query %s is new under transactionalIdPrefix %r, which was used by %s before: if this "
            "is the same query without its checkpoint, rows that it reads again are written again",
            message.query_id,
            prefix,
            ", ".join(part.other_write_ids),
        )
