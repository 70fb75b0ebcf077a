"""What a task tells the driver about the rows it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.metrics.snapshot import MetricsSnapshot

if TYPE_CHECKING:
    from spark_kafka_sink.model import PartitionAcks, TopicPartition


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
