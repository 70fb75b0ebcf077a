"""The writer that Spark pickles for its tasks, and asks on the driver to commit or to abort.

It is made anew whenever Spark wants one, so making it does nothing. A row is delivered when its
task returns, and a task that is run again writes its rows again (at least once); so `commit` only
folds and tells what is already in Kafka, and `abort` has nothing to take back.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.taskcontext import TaskContext

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.commit_message import KafkaCommitMessage
from spark_kafka_sink.spark.partition_writer import ProducerOfTask, write_rows
from spark_kafka_sink.spark.write_report import WriteReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from spark_kafka_sink.config.producer_config import ProducerConfig

logger = logging.getLogger(__name__)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame. `topic` is None where a column names it; `report_path` is absolute."""

    def __init__(
        self, config: ProducerConfig, *, topic: str | None, report_path: str | None
    ) -> None:
        self._config = config
        self._topic = topic
        self._report_path = report_path

    def write(  # type: ignore[override]  # as PySpark's own DataSourceArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> KafkaCommitMessage:
        """Write a task's rows (in the worker)."""
        context = task_context()
        written = write_rows(iterator, producers=ProducerOfTask(self._config), topic=self._topic)
        return KafkaCommitMessage(
            partition_id=context.partitionId(),
            task_attempt_id=context.taskAttemptId(),
            rows=written.rows,
            acks=written.acks,
            metrics=written.metrics,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Tell what was written (on the driver).

        All rows are in Kafka by now: a report that cannot be printed or stored is a warning, since
        a failed job would be run again and write them twice.
        """
        report = WriteReport.from_messages(own_messages(messages))
        try:
            sys.stdout.write(report.to_text())
            sys.stdout.flush()
            if self._report_path is not None:
                report.write_json(self._report_path)
        except OSError as error:
            logger.warning("the write succeeded, but its report could not be given: %s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what stays in Kafka of a write that failed (on the driver); never raises."""
        report = WriteReport.from_messages(own_messages(messages))
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
