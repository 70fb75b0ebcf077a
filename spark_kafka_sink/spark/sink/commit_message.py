"""The message with which a task reports its written rows to the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.metrics.snapshot import MetricsSnapshot

if TYPE_CHECKING:
    from spark_kafka_sink.exactly_once.plan import Prepared
    from spark_kafka_sink.model import PartitionAcks, TopicPartition
    from spark_kafka_sink.spark.report.task_costs import TaskTimes


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
    #: None from a worker that has another version of this package.
    times: TaskTimes | None = None

    @property
    def is_replay(self) -> bool:
        """Whether nothing was written because the batch is already committed."""
        return self.transactional is not None and self.transactional.is_replay
