"""The reader of a batch, planned once on the driver, and the reading of tasks, also for a stream.

Spark creates the reader and asks for its partitions once for each DataFrame, before any task runs:
there, "latest" gets its offsets, and whatever is wrong is reported.

Each input partition has the range of one task. Spark asks for `InputPartition(None)` when a batch
has no partitions, PySpark 4.1 for None: both read as empty. A task that ends early, as with LIMIT,
leaves the client usable for the next one; a client that failed is closed.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_kafka_sink.config.offset_specs import BATCH_START, SpecificOffsets
from spark_kafka_sink.errors import ConfigError, DataLossError, KafkaError
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.spark.announcements import advise_sockets
from spark_kafka_sink.spark.arrow_types import arrow_columns
from spark_kafka_sink.spark.source.planning import split_ranges, within_logs
from spark_kafka_sink.spark.source.source_cluster import (
    SourceCluster,
    client_cache,
    ending_offsets,
    starting_offsets,
)
from spark_kafka_sink.spark.user_errors import for_user
from spark_kafka_sink.spark.worker import freeze_imported_objects, prepare_next_tasks

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from uuid import UUID

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.consumer.fetch.range_fetch import DataLoss, PartitionRange
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.spark.source.planning import LostOffsets, OffsetRange, PlannedRanges
    from spark_kafka_sink.spark.source.read_lineage import ReadLineage

logger = logging.getLogger(__name__)

#: How many losses an error names.
_MOST_NAMED: Final = 5


def input_partitions(
    planned: PlannedRanges,
    options: SourceOptions,
    cluster: SourceCluster,
    topic_ids: Mapping[str, UUID] | None = None,
) -> list[InputPartition]:
    """Return the input partitions of a batch, in order.

    `topic_ids` are those of the topics in which the offsets were found, if that was earlier.

    Raises DataLossError if offsets are lost, unless failOnDataLoss is false.
    """
    report_losses(planned.losses, fail=options.fail_on_data_loss)
    ranges = split_ranges(
        planned.ranges,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
    )
    return _with_ids(ranges, cluster, topic_ids or {})


def report_losses(losses: Sequence[LostOffsets], *, fail: bool) -> None:
    """Raise a DataLossError about the losses of a batch, or log each of them."""
    if not losses:
        return
    if not fail:
        for loss in losses:
            logger.warning(
                "%s; %s lost, and the read goes on without them (failOnDataLoss=false)",
                loss,
                f"{loss.lost} offsets are" if loss.lost else "records are",
            )
        return
    first = losses[0]
    more = len(losses) - _MOST_NAMED
    text = "; ".join(str(loss) for loss in losses[:_MOST_NAMED])
    raise DataLossError(
        f"{text}{f'; and {more} more partitions' if more > 0 else ''}. To go on without these "
        "offsets, set failOnDataLoss=false",
        topic=first.topic_partition.topic,
        partition=first.topic_partition.partition,
        wanted=first.wanted,
        available=-1 if first.available is None else first.available,
        lost=first.lost,
    )


class TaskReader:
    """The part of a reader that tasks use: plain data only, which Spark pickles for them.

    `columns` have been checked.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: StructType,
        schemas: Mapping[Side, PayloadSchema] | None = None,
    ) -> None:
        """Set what to read; `schemas` are those of keys and values that have a format."""
        self._options = options
        self._columns = columns
        self._schemas = schemas

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the range of a task, if it has one (in the worker)."""
        try:
            yield from self._batches(partition)
        except KafkaError as error:
            raise for_user(error) from error.__cause__

    def _batches(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        partition_range: PartitionRange | None = None if partition is None else partition.value
        if partition_range is None or partition_range.start >= partition_range.end:
            return
        from spark_kafka_sink.consumer.range_reader import read_range

        freeze_imported_objects()
        prepare_next_tasks()
        started = time.monotonic()
        rows = size = 0
        failure: KafkaError | None = None
        columns = arrow_columns(self._columns)
        payloads = None
        if self._schemas:
            from spark_kafka_sink.consumer.payload_columns import payload_columns

            payloads = payload_columns(
                self._options.formats, self._options.registry, columns, self._schemas
            )
        with client_cache().borrow(self._options.consumer) as client:
            batches = read_range(
                client,
                partition_range,
                columns if payloads is None else payloads.raw_schema,
                fail_on_data_loss=self._options.fail_on_data_loss,
                on_data_loss=_warn,
                poll_timeout=self._options.poll_timeout_ms / 1000,
            )
            with closing(cast("Generator[pa.RecordBatch]", batches)):
                for batch in batches:
                    rows += batch.num_rows
                    size += batch.nbytes
                    if payloads is None:
                        yield batch
                        continue
                    try:
                        yield from payloads.batches(batch, partition_range.topic_partition)
                    except KafkaError as error:
                        # The client has not failed: another task may have it.
                        failure = error
                        break
        if failure is not None:
            raise failure
        logger.info(
            "read %s-%d from offset %d to %d: %d rows, %d bytes in %.3f s",
            partition_range.topic,
            partition_range.partition,
            partition_range.start,
            partition_range.end,
            rows,
            size,
            time.monotonic() - started,
        )


def _with_ids(
    ranges: Sequence[OffsetRange], cluster: SourceCluster, topic_ids: Mapping[str, UUID]
) -> list[InputPartition]:
    from spark_kafka_sink.consumer.fetch.range_fetch import PartitionRange

    ids = cluster.ids(dict.fromkeys(offset_range.topic_partition for offset_range in ranges))
    partitions = []
    for offset_range in ranges:
        topic_partition = offset_range.topic_partition
        topic_id, leader_epoch = ids.get(topic_partition, (None, NO_LEADER_EPOCH))
        topic_id = topic_ids.get(topic_partition.topic, topic_id)
        partition_range = PartitionRange(
            *topic_partition,
            offset_range.start,
            offset_range.end,
            topic_id,
            leader_epoch,
            offset_range.start_epoch,
        )
        partitions.append(InputPartition(partition_range))
    return partitions


def _warn(loss: DataLoss) -> None:
    logger.warning("%s", loss)


def lineage_of_read(
    options: SourceOptions, columns: StructType, *, is_stream: bool = False
) -> ReadLineage | None:
    """Return what sends the lineage of a read; None without it (on the driver)."""
    if options.lineage is None:
        return None
    from spark_kafka_sink.spark.source.read_lineage import ReadLineage

    return ReadLineage(options, columns, is_stream=is_stream)


class KafkaBatchReader(TaskReader, DataSourceReader):
    """The reader of one DataFrame."""

    def partitions(self) -> list[InputPartition]:
        """Resolve the offsets to read, and divide them among tasks (on the driver).

        Raises ConfigError, DataLossError, NetworkError, KafkaTimeoutError or BrokerError.
        """
        lineage = lineage_of_read(self._options, self._columns)
        try:
            planned = self._plan(SourceCluster(self._options, is_stream=False))
        except KafkaError as error:
            if lineage is not None:
                lineage.refused(error)
            raise for_user(error) from error.__cause__
        if lineage is not None:
            lineage.planned(planned)
        advise_sockets(len(planned))
        return planned

    def _plan(self, cluster: SourceCluster) -> list[InputPartition]:
        options = self._options
        for warning in options.warnings:
            logger.warning("Kafka: %s", warning)
        partitions = cluster.partitions()
        start = starting_offsets(options, partitions, cluster, BATCH_START).offsets
        end = ending_offsets(options, partitions, cluster)
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
                raise ConfigError(
                    f"{partition}: the read starts at offset {start[partition]} "
                    f"({options.starting_option}), after its end, offset {end[partition]} "
                    f"({options.ending_option}): choose an end that is not before the start"
                )
        planned = within_logs(start, end, earliest, latest)
        return input_partitions(planned, options, cluster)
