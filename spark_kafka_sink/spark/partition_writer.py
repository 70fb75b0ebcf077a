"""A task: Arrow batches in, a commit message out, with a producer of its own in between.

- The producer is made here, in the worker, for this task alone, and only when there is a row: an
  empty partition costs nothing.
- It is always closed, and closing never hides the error that ended the write.
- Nothing is reported that was not acknowledged: the acknowledged records are counted against the
  rows before the message is made.
- Rows are numbered through the whole task, so that an error names the row as the task saw it.

The kernels, and numba with them, are imported when the first row is there: Spark imports this
module on the driver too.
"""

from __future__ import annotations

import gc
import logging
from functools import cache
from typing import TYPE_CHECKING, Protocol

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
from spark_kafka_sink.spark.commit_message import KafkaCommitMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.model import PartitionAcks, TopicPartition
    from spark_kafka_sink.record.columns import RecordColumns

logger = logging.getLogger(__name__)


class Producer(Protocol):
    """What a task needs of `producer.kafka_producer.KafkaProducer`."""

    def append(self, columns: RecordColumns, *, first_row: int = 0) -> None:
        """Take all rows of `columns`, numbered from `first_row`."""

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is acknowledged."""

    def acks(self) -> dict[TopicPartition, PartitionAcks]:
        """Tell what has been acknowledged."""

    def metrics_snapshot(self) -> MetricsSnapshot:
        """Tell what was measured."""

    def close(self, timeout: float | None = None) -> None:
        """Stop; with `timeout` 0 at once."""


def start_producer(config: ProducerConfig) -> Producer:
    """Start the real producer."""
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer

    _spare_the_garbage_collector()
    return KafkaProducer(config, lingers=False)


@cache
def _spare_the_garbage_collector() -> None:
    """Take what the imports made out of the collector's sight, once per worker.

    PySpark's daemon runs a full collection after every task. numba and its compiler are hundreds of
    thousands of objects that stay for good: walking them took a seventh of a warm worker's time.
    """
    gc.freeze()


def write_partition(
    batches: Iterable[pa.RecordBatch],
    *,
    config: ProducerConfig,
    topic: str | None,
    partition_id: int,
    task_attempt_id: int,
    start: Callable[[ProducerConfig], Producer] = start_producer,
) -> KafkaCommitMessage:
    """Write all rows and wait for their acknowledgements.

    Rows go to `topic`, or to that of their `topic` column when it is None. Raises RecordError (row,
    topic, partition, and what to do) for a row that cannot be sent, DeliveryError and the other
    KafkaErrors for what the cluster did not take; what had been acknowledged by then stays.
    """
    writer = _Writer(config, topic, start)
    try:
        for batch in batches:
            writer.append(batch)
        acks = writer.finish()
    finally:
        writer.close()
    return KafkaCommitMessage(
        partition_id=partition_id,
        task_attempt_id=task_attempt_id,
        rows=writer.rows,
        acks=tuple(sorted(acks.items())),
        metrics=writer.metrics,
    )


class _Writer:
    """Counts the rows, and keeps the producer from the first one on."""

    def __init__(
        self,
        config: ProducerConfig,
        topic: str | None,
        start: Callable[[ProducerConfig], Producer],
    ) -> None:
        self._config = config
        self._topic = topic
        self._start = start
        self._producer: Producer | None = None
        self.rows = 0
        self.metrics = MetricsSnapshot()

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        from spark_kafka_sink.record.arrow import record_columns

        columns = record_columns(batch, topic=self._topic, first_row=self.rows)
        if self._producer is None:
            self._producer = self._start(self._config)
        self._producer.append(columns, first_row=self.rows)
        self.rows += batch.num_rows

    def finish(self) -> dict[TopicPartition, PartitionAcks]:
        if self._producer is None:
            return {}
        self._producer.flush()
        acks = self._producer.acks()
        self.metrics = self._producer.metrics_snapshot()
        acknowledged = sum(partition.records for partition in acks.values())
        if acknowledged != self.rows:
            raise KafkaError(
                f"{self.rows} rows were written, but {acknowledged} records acknowledged; "
                "this should never happen: please report it"
            )
        return acks

    def close(self) -> None:
        """Stop at once: either all is acknowledged, or the write has failed already."""
        if self._producer is None:
            return
        try:
            self._producer.close(timeout=0)
        except Exception:  # whatever it is, it must not hide why the write failed
            logger.warning("the producer could not be closed cleanly", exc_info=True)
