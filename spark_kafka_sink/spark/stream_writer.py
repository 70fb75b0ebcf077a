"""The writer of a stream: what Spark makes before each micro-batch, commit and abort.

Of these writers Spark pickles the first one alone, for the tasks of the micro-batch. So making one
does nothing, and what has to be done before the tasks is done when it is pickled. `commit` and
`abort` run on another object, in another process, with nothing but the tasks' messages; a query and
its batch are known to the tasks only, by properties that Spark sets for them.
"""

from __future__ import annotations

import logging
import pickle
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.batch_log import BatchLog
from spark_kafka_sink.spark.commit_message import KafkaCommitMessage
from spark_kafka_sink.spark.driver_checks import check_report_path, check_stream
from spark_kafka_sink.spark.partition_writer import write_rows
from spark_kafka_sink.spark.producer_cache import ProducerOfQuery
from spark_kafka_sink.spark.write_report import WriteReport
from spark_kafka_sink.spark.writers import own_messages, task_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.taskcontext import TaskContext

    from spark_kafka_sink.config.sink_options import SinkOptions

logger = logging.getLogger(__name__)

#: The name under which Spark tells a stream's tasks their query (`StreamExecution`).
QUERY_ID: Final = "sql.streaming.queryId"


class RefusedWriteError(KafkaError, pickle.PickleError):
    """A write was refused while Spark pickled its writer: only PickleErrors get through as is."""


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. `topic` is None where a column names it."""

    def __init__(self, options: SinkOptions, *, topic: str | None) -> None:
        self._options = options
        self._topic = topic
        self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        """Check what has to be right before the tasks; Spark pickles the writer for them."""
        if not self._is_checked:
            try:
                check_stream(self._options, self._topic)
            except KafkaError as error:
                raise RefusedWriteError(f"{type(error).__name__}: {error}") from None
            self._is_checked = True
        return vars(self)

    def write(  # type: ignore[override]  # as PySpark's own DataSourceStreamArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> KafkaCommitMessage:
        """Write a task's rows (in the worker)."""
        context = task_context()
        query_id = stream_property(context, QUERY_ID)
        producers = ProducerOfQuery(self._options.producer, query_id)
        written = write_rows(iterator, producers=producers, topic=self._topic)
        return KafkaCommitMessage(
            partition_id=context.partitionId(),
            task_attempt_id=context.taskAttemptId(),
            rows=written.rows,
            acks=written.acks,
            metrics=written.metrics,
            query_id=query_id,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Tell what the micro-batch has written (on the driver); its rows are in Kafka by now."""
        ours = own_messages(messages)
        report = WriteReport.from_messages(ours)
        query_id = ours[0].query_id if ours else None
        try:
            if report.rows:
                sys.stdout.write(f"Kafka: batch {batchId} {report.to_line()}\n")
                sys.stdout.flush()
            if self._options.report_path is not None:
                path = check_report_path(self._options) or ""
                BatchLog(path).put(query_id, batchId, report.as_dict())
        except (OSError, KafkaError) as error:
            logger.warning("batch %d is written, but its report was not: %s", batchId, error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Say what stays in Kafka of a micro-batch that failed (on the driver); never raises."""
        report = WriteReport.from_messages(own_messages(messages))
        if report.rows:
            logger.warning(
                "batch %d did not finish; %d rows of finished tasks are in Kafka and stay there, "
                "and a restart of the query will write them again",
                batchId,
                report.rows,
            )


def stream_property(context: TaskContext, name: str) -> str:
    """Give what Spark tells the tasks of a stream; KafkaError where it does not."""
    value = context.getLocalProperty(name)
    if value is None:
        raise KafkaError(f"this task has no {name}: it is not one of a stream's micro-batch")
    return value
