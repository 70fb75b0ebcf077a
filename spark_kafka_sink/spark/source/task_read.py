"""The reading of a range in a task, which a batch and a stream share.

Spark asks for `InputPartition(None)` when a batch has no partitions, PySpark 4.1 for None: both
read as empty. A task that ends early, as with LIMIT, leaves the client usable for the next one; a
client that failed is closed.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, cast

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.between_tasks import prepare_next_tasks
from spark_kafka_sink.spark.source.client_cache import client_cache
from spark_kafka_sink.spark.source.columns import arrow_columns
from spark_kafka_sink.spark.user_errors import for_user
from spark_kafka_sink.spark.worker_memory import freeze_imported_objects

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.consumer.fetching.range_values import DataLoss, PartitionRange

logger = logging.getLogger(__name__)


class Read(NamedTuple):
    """What a task must know besides its range: plain data, which Spark pickles with the reader."""

    options: SourceOptions
    columns: StructType

    def batches(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the range of a task, if it has one (in the worker)."""
        try:
            yield from self._batches(partition)
        except KafkaError as error:
            raise for_user(error) from error.__cause__

    def _batches(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        wanted: PartitionRange | None = None if partition is None else partition.value
        if wanted is None or wanted.start >= wanted.end:
            return
        from spark_kafka_sink.consumer.range_reader import read_range

        freeze_imported_objects()
        prepare_next_tasks()
        started = time.monotonic()
        rows = size = 0
        with client_cache().borrow(self.options.consumer) as client:
            batches = read_range(
                client,
                wanted,
                arrow_columns(self.columns),
                fail_on_data_loss=self.options.fail_on_data_loss,
                on_data_loss=_warn,
                poll_timeout=self.options.poll_timeout_ms / 1000,
            )
            with closing(cast("Generator[pa.RecordBatch]", batches)):
                for batch in batches:
                    rows += batch.num_rows
                    size += batch.nbytes
                    yield batch
        logger.info(
            "read %s-%d from offset %d to %d: %d rows, %d bytes in %.3f s",
            wanted.topic,
            wanted.partition,
            wanted.start,
            wanted.end,
            rows,
            size,
            time.monotonic() - started,
        )


def _warn(loss: DataLoss) -> None:
    logger.warning("%s", loss)
