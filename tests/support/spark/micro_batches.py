"""Run the sink's writers as Spark does, in one process and without Spark.

A writer is created and pickled for the tasks of a micro-batch; another one is created right before
commit and abort; messages are pickled too. Tasks run one after another, as attempts in one worker.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.taskcontext import TaskContext

from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.sink import exactly_once_write, producer_cache
from spark_kafka_sink.spark.sink.producer_cache import ProducerCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage

SCHEMA = StructType([StructField("value", StringType()), StructField("topic", StringType())])
PREFIX = "orders"
LEDGER = "ledger"
TASKS = 2


def travel(value: Any) -> Any:
    """Pickle and unpickle a value, as on the way to a task or to the driver."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 -- our own bytes


def rows(batch_id: int, task: int) -> list[str]:
    """Return the rows of a task, which are the same for every attempt."""
    return [f"b{batch_id}.t{task}.{row}" for row in range(3)]


def each_once(*batches: int) -> list[str]:
    """Return the values that are visible if these batches were written exactly once."""
    return sorted(
        value for batch in batches for task in range(TASKS) for value in rows(batch, task)
    )


class Source:
    """The options that all writes of a test share."""

    def __init__(self, broker: DevBroker, **options: Any) -> None:
        """Store the options of an exactly-once write to the topic `data`, and others."""
        self._given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.retry.backoff.ms": "5",
            "topic": "data",
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": PREFIX,
            "ledgerTopic": LEDGER,
            **options,
        }

    @property
    def sink(self) -> KafkaSink:
        """A new data source, as Spark creates one whenever it needs it."""
        return KafkaSink(CaseInsensitiveDict(self._given))


class Query(Source):
    """A stream with these options."""

    def __init__(self, broker: DevBroker, query_id: str = "query-1", **options: Any) -> None:
        """Store the options."""
        super().__init__(broker, **{"checkpointLocation": "/nowhere", **options})
        self.query_id = query_id

    def writer(self) -> Any:
        """Create a writer, as Spark does before each step."""
        return self.sink.streamWriter(SCHEMA, overwrite=False)

    def plan(self) -> Any:
        """Return the writer in the form that the tasks of a micro-batch receive."""
        return travel(self.writer())

    def run_task(
        self, planned: Any, batch_id: int, task: int, values: Sequence[str] | None = None
    ) -> KafkaCommitMessage:
        """Run an attempt of a task."""
        written = rows(batch_id, task) if values is None else values
        with self.task_context(batch_id, task):
            return travel(travel(planned).write(arrow_of(written)))

    def task_context(self, batch_id: int, task: int) -> AbstractContextManager[None]:
        """Set the task context of a task of a micro-batch."""
        properties = {
            "sql.streaming.queryId": self.query_id,
            "streaming.sql.batchId": str(batch_id),
        }
        return task_context(task, properties)

    def run_tasks(self, planned: Any, batch_id: int) -> list[KafkaCommitMessage]:
        """Run all tasks of a micro-batch."""
        return [self.run_task(planned, batch_id, task) for task in range(TASKS)]

    def commit(self, messages: Sequence[KafkaCommitMessage | None], batch_id: int) -> None:
        """Commit with a new writer."""
        self.writer().commit(messages, batch_id)

    def abort(self, messages: Sequence[KafkaCommitMessage | None], batch_id: int) -> None:
        """Abort with a new writer."""
        self.writer().abort(messages, batch_id)

    def run_batch(self, batch_id: int) -> None:
        """Run a whole micro-batch."""
        self.commit(self.run_tasks(self.plan(), batch_id), batch_id)


class BatchJob(Source):
    """A batch write with these options."""

    def plan(self) -> Any:
        """Return the writer in the form that the tasks and the commit receive."""
        return travel(self.sink.writer(SCHEMA, overwrite=False))

    def run_task(self, planned: Any, task: int, values: Sequence[str] | None = None) -> Any:
        """Run an attempt of a task."""
        with task_context(task, {}):
            return travel(
                travel(planned).write(arrow_of(rows(0, task) if values is None else values))
            )

    def run(self) -> None:
        """Run the whole job."""
        planned = self.plan()
        planned.commit([self.run_task(planned, task) for task in range(TASKS)])


@contextmanager
def process_of_its_own() -> Iterator[None]:
    """Start without the producers and connections of other tests, and close the new ones."""
    before = producer_cache._cache
    own = producer_cache._cache = ProducerCache()
    try:
        yield
    finally:
        producer_cache._cache = before
        for _, _, idle in own._idle._idle:
            idle.producer.close(timeout=0)
        forget_connections()


def forget_connections() -> None:
    """Close and remove the driver's connections, as if its process was new."""
    for kept in exactly_once_write._kept.values():
        kept.admin.close()
    exactly_once_write._kept.clear()


def arrow_of(values: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows in the form in which Spark passes them to a task."""
    if values:
        yield pa.record_batch({"value": pa.array(values, pa.string())})


@contextmanager
def task_context(task: int, properties: dict[str, str]) -> Iterator[None]:
    """Set the task context, as Spark's worker does."""
    context = object.__new__(TaskContext)
    context._partitionId = task
    context._taskAttemptId = 100 + task
    context._localProperties = properties
    before, TaskContext._taskContext = TaskContext._taskContext, context
    try:
        yield
    finally:
        TaskContext._taskContext = before
