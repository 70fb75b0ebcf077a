"""The reader of a batch: planned once on the driver, read by tasks.

Spark creates it and asks for its partitions once for each DataFrame, before any task runs: there,
"latest" gets its offsets, and whatever is wrong is reported. It is pickled for the tasks, so it
holds plain data only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from spark_kafka_sink.config.offset_specs import BATCH_START, SpecificOffsets
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.report import worker_sockets
from spark_kafka_sink.spark.source.bounds import end_before_start, ending_offsets, starting_offsets
from spark_kafka_sink.spark.source.planning import within_logs
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from spark_kafka_sink.spark.source.task_read import Read, input_partitions
from spark_kafka_sink.spark.user_errors import for_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.source_options import SourceOptions

logger = logging.getLogger(__name__)


class KafkaBatchReader(DataSourceReader):
    """The reader of one DataFrame; `columns` have been checked."""

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self._read = Read(options, columns)

    def partitions(self) -> list[InputPartition]:
        """Resolve the offsets to read, and divide them among tasks (on the driver).

        Raises ConfigError, DataLossError, NetworkError, KafkaTimeoutError or BrokerError.
        """
        try:
            planned = self._plan(SourceCluster(self._read.options, is_stream=False))
        except KafkaError as error:
            raise for_user(error) from error.__cause__
        worker_sockets.advise(len(planned))
        return planned

    def _plan(self, cluster: SourceCluster) -> list[InputPartition]:
        options = self._read.options
        for warning in options.warnings:
            logger.warning("Kafka: %s", warning)
        partitions = cluster.partitions()
        start = starting_offsets(
            options.starting,
            options.starting_option,
            partitions,
            cluster,
            strategy=options.starting_timestamp_strategy,
            accepted=BATCH_START,
        ).offsets
        end = ending_offsets(options.ending, options.ending_option, partitions, cluster)
        # Only offsets that the user has chosen can be outside of the logs. Records of transactions
        # that are still open lie between the last stable offset and the end of the log.
        is_chosen = isinstance(options.starting, SpecificOffsets)
        reversed_ = [partition for partition in partitions if start[partition] > end[partition]]
        earliest = cluster.earliest(partitions if is_chosen else reversed_)
        latest = None
        if (
            is_chosen or isinstance(options.ending, SpecificOffsets)
        ) and not options.consumer.is_read_committed:
            latest = cluster.latest(partitions)
        for partition in reversed_:
            if start[partition] > earliest[partition] and (
                latest is None or start[partition] <= latest[partition]
            ):
                raise end_before_start(
                    partition,
                    options.starting_option,
                    start[partition],
                    options.ending_option,
                    end[partition],
                )
        planned = within_logs(start, end, earliest, latest)
        return input_partitions(planned, options, cluster)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's rows (in the worker)."""
        return self._read.batches(partition)
