"""What a task tells the driver about the rows it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.metrics.snapshot import MetricsSnapshot

if TYPE_CHECKING:
    from spark_kafka_sink.exactly_once.plan import Prepared
    from spark_kafka_sink.model import PartitionAcks, TopicPartition


class TransactionalPart(NamedTuple):
    """What an exactly-once write adds to a task's message."""

    #: Of the plan that the task wrote under.
    generation: int
    planned_at_ms: int
    #: The task's transaction, left open; None where it had no rows, or nothing was to be written.
    prepared: Prepared | None = None
    #: Whether the batch was in already, and the task has written nothing for that reason.
    is_replay: bool = False
    #: The other writes that the plan knew under the prefix, where it did not know this one.
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCommitMessage(WriterCommitMessage):
    """One task's writes, all of them acknowledged (with acks=0: sent).

    It is pickled on its way to the driver, and holds no setting and no secret.
    """

    #: The Spark partition that was written: its index within the stage.
    partition_id: int
    #: Unique among all task attempts of the application.
    task_attempt_id: int
    rows: int
    #: Per topic-partition, in order.
    acks: tuple[tuple[TopicPartition, PartitionAcks], ...]
    #: What the task's producer measured.
    metrics: MetricsSnapshot = field(default_factory=MetricsSnapshot)
    #: The stream that it belongs to; None in a batch.
    query_id: str | None = None
    #: None in a write that is made at least once.
    transactional: TransactionalPart | None = None

    @property
    def is_replay(self) -> bool:
        """Whether nothing was written, since the batch is in already."""
        return self.transactional is not None and self.transactional.is_replay
