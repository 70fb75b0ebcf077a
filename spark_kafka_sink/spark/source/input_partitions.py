"""The ranges of a batch as Spark's input partitions, and what to do about lost offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from spark_kafka_sink.errors import DataLossError
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.spark.source.planning import split_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.spark.source.planning import LostOffsets, OffsetRange, PlannedRanges
    from spark_kafka_sink.spark.source.source_cluster import SourceCluster

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


def _with_ids(
    ranges: Sequence[OffsetRange], cluster: SourceCluster, topic_ids: Mapping[str, UUID]
) -> list[InputPartition]:
    from spark_kafka_sink.consumer.fetching.range_values import PartitionRange

    ids = cluster.ids(dict.fromkeys(one.topic_partition for one in ranges))
    found = []
    for one in ranges:
        place = one.topic_partition
        topic_id, leader_epoch = ids.get(place, (None, NO_LEADER_EPOCH))
        topic_id = topic_ids.get(place.topic, topic_id)
        wanted = PartitionRange(*place, one.start, one.end, topic_id, leader_epoch, one.start_epoch)
        found.append(InputPartition(wanted))
    return found


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
