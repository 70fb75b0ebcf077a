"""The placement of rows: the slot of each row, and the next sticky partition of a topic.

This runs on the writing thread. Rows with a partition go to it; rows with a key go where the key
rule says; all others go to the topic's sticky partition, which `move_sticky` changes whenever it
has received its share. A partitioner plug-in places rows before all that.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import InvalidPartitionError, InvalidTopicError
from spark_kafka_sink.producer.records.open_batches import NO_SLOT, OpenBatches, TopicSlots
from spark_kafka_sink.producer.records.partitioner import (
    FIRST_TURN_BYTES,
    NO_LOADS,
    BuiltInPartitioner,
    NodeLatencies,
    TopicPartitions,
    led_partitions,
    nearby_partitions,
    partition_loads,
    place_rows,
)
from spark_kafka_sink.record.kernel.kernel import (
    REFUSED_SLOT,
    SlotAssignment,
    SlotStatus,
    assign_slots,
)
from spark_kafka_sink.record.kernel.kernel_hashes import partition_for_key
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE, KeyRule
from spark_kafka_sink.record.refused_rows import RowErrorKind, groups

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.records.partitioner import Partitioner
    from spark_kafka_sink.producer.records.staged_records import StagedRecord
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.refused_rows import RefusedRows


class PlacedRows(NamedTuple):
    """Rows with a slot each."""

    columns: RecordColumns
    topics: Sequence[TopicSlots]
    #: int32[rows]
    row_slots: NDArray[np.int32]
    #: Rows of the sticky table, one for each of `columns.topics`.
    sticky_rows: NDArray[np.int64]


class RowPlacement:
    """The assignment of rows to the slots of `OpenBatches`."""

    def __init__(
        self,
        config: ProducerConfig,
        open_batches: OpenBatches,
        *,
        partitioner: KeyRule | Partitioner,
        core: ProducerCore,
        latencies: NodeLatencies,
        rng: random.Random,
    ) -> None:
        """Place rows by `partitioner`; `latencies` identifies slow nodes."""
        self._open = open_batches
        self._key_rule = partitioner if isinstance(partitioner, KeyRule) else DEFAULT_KEY_RULE
        self._plug_in = None if isinstance(partitioner, KeyRule) else partitioner
        self._ignore_keys = config.partitioner_ignore_keys
        self._by_load = config.partitioner_adaptive_partitioning_enable
        #: None for partitions of any rack.
        self._rack = config.client_rack if config.partitioner_rack_aware else None
        self._core = core
        self._latencies = latencies
        self._rng = rng
        self._built_in: dict[str, BuiltInPartitioner] = {}

    def place(
        self,
        columns: RecordColumns,
        partition_counts: Sequence[int],
        first_row: int | None,
        refused: RefusedRows | None = None,
    ) -> PlacedRows:
        """Assign a slot to every row; `partition_counts` has an entry for each of `columns.topics`.

        Rows without a number (`first_row` is None) are not those of a task: their keys are not
        sampled. Raises InvalidTopicError or InvalidPartitionError, with row numbers starting at
        `first_row`, or at 0.
        With `refused`, such rows are added to it and skipped, and those that it has are skipped; a
        partition that does not exist is an error until `refused.has_fresh_partitions`.
        """
        if self._plug_in is not None:
            cluster = self._core.snapshot
            topics = [
                TopicPartitions(name, count, led_partitions(self._core.leaders(name)), cluster)
                for name, count in zip(columns.topics, partition_counts, strict=True)
            ]
            columns = place_rows(self._plug_in, columns, topics, first_row=first_row or 0)
        slots = [
            self._open.topic(name, count)
            for name, count in zip(columns.topics, partition_counts, strict=True)
        ]
        return PlacedRows(
            columns=columns,
            topics=slots,
            row_slots=self._assign(columns, slots, first_row, refused),
            sticky_rows=np.array([topic.index for topic in slots], dtype=np.int64),
        )

    def place_single(
        self, record: StagedRecord, partition_count: int, size: int, batch_size: int
    ) -> int:
        """Return the slot of a record of `size` bytes: that of `place` and `append_rows`.

        Returns `NO_SLOT` if a plug-in has to choose it, or if the topic has lost the record's
        partition. A full batch has `batch_size` bytes.
        """
        partition = record.future.partition
        if self._plug_in is not None or (partition is not None and partition >= partition_count):
            return NO_SLOT
        topic = self._open.topic(record.topic, partition_count)
        if partition is not None:
            return topic.first_slot + partition
        key_hash, shortest_key = self._key_rule
        key_length = -1 if record.key is None else len(record.key)
        if key_length >= shortest_key and not self._ignore_keys:
            partition = partition_for_key(key_hash, record.key or b"", partition_count)
            return topic.first_slot + partition
        sticky = self._open.sticky[topic.index]
        # All fields at once: each access to one of them costs as much.
        slot, used, limit = sticky.item()
        if slot == NO_SLOT or used >= limit:
            self.move_sticky(sticky, record.topic, topic, batch_size=batch_size)
            slot, used, _ = sticky.item()
        sticky["bytes"] = used + size
        return int(slot)

    def _assign(
        self,
        columns: RecordColumns,
        topics: Sequence[TopicSlots],
        given_row: int | None,
        refused: RefusedRows | None,
    ) -> NDArray[np.int32]:
        result = assign_slots(
            columns,
            np.array([topic.first_slot for topic in topics], dtype=np.int32),
            np.array([topic.partition_count for topic in topics], dtype=np.int32),
            key_rule=self._key_rule,
            ignore_keys=self._ignore_keys,
            skips_bad_rows=refused is not None,
            key_sample=None if given_row is None else self._core.key_sample,
        )
        first_row = given_row or 0
        if refused is not None:
            _refuse(refused, columns, topics, result, first_row)
        elif result.status is SlotStatus.NULL_TOPIC:
            raise _null_topic(first_row + result.row)
        elif result.status is SlotStatus.INVALID_PARTITION:
            error = _invalid_partition(columns, topics, result.row)
            raise error.about_row(first_row + result.row)
        return result.row_slots

    def move_sticky(
        self, sticky: np.void, topic_name: str, topic: TopicSlots, *, batch_size: int
    ) -> None:
        """Choose another sticky partition; a full batch has `batch_size` bytes."""
        partitioner = self._built_in.get(topic_name)
        if partitioner is None:
            partitioner = self._built_in[topic_name] = BuiltInPartitioner(self._rng)
        # Partitions that were added to the topic after these rows were counted have no slots yet.
        leaders = self._core.leaders(topic_name)[: topic.partition_count]
        led = led_partitions(leaders)
        if self._by_load and led:
            sizes = self._core.accumulator.queue_sizes(topic_name)
            # Mostly no queue has a batch: then all weights are equal.
            loads = partition_loads(leaders, sizes, self._latencies) if sizes else NO_LOADS
            partitioner.update_load_stats(*loads)
        choices: Sequence[int] = led or range(topic.partition_count)
        if self._rack is not None and led:
            choices = nearby_partitions(led, leaders, self._core.snapshot.racks, self._rack)
        # All fields at once: each access to one of them takes a microsecond.
        slot, used, _ = sticky.item()
        partition, limit = partitioner.next_turn(
            choices,
            None if slot == NO_SLOT else slot - topic.first_slot,
            used=used,
            largest_batch=partial(self._open.largest_bytes, topic),
            batch_size=batch_size,
        )
        sticky["slot"] = topic.first_slot + partition
        sticky["bytes"] = 0
        sticky["limit"] = limit

    def restart_turns(self) -> None:
        """Make all turns short again: after a task's last batches, the next task's are empty."""
        for partitioner in self._built_in.values():
            partitioner.restart()
        sticky = self._open.sticky
        sticky["bytes"] = 0
        np.minimum(sticky["limit"], FIRST_TURN_BYTES, out=sticky["limit"])


def _refuse(
    refused: RefusedRows,
    columns: RecordColumns,
    topics: Sequence[TopicSlots],
    result: SlotAssignment,
    first_row: int,
) -> None:
    """Add the rows without a place to `refused`, and skip those that it has."""
    earlier = refused.between(first_row, first_row + columns.num_rows)
    found = result.refused.astype(np.int64)
    if found.size:
        indexes = columns.topic_index[found]
        invalid = found if indexes.min() >= 0 else found[indexes >= 0]
        if invalid.size and not refused.has_fresh_partitions:
            known = np.concatenate([found[:0], *(each.rows - first_row for each in earlier)])
            unknown = invalid[~np.isin(invalid, known)]
            if unknown.size:
                row = int(unknown[0])
                raise _invalid_partition(columns, topics, row).about_row(first_row + row)
        if invalid.size < found.size:
            nulls = found[indexes < 0]
            refused.add(RowErrorKind.TOPIC, _null_topic(None), nulls + first_row)
            indexes = indexes[indexes >= 0]
        rows = invalid + first_row
        for group in groups(columns.partition[invalid], indexes):
            reason = _invalid_partition(columns, topics, int(invalid[group[0]]))
            refused.add(RowErrorKind.PARTITION, reason, rows[group])
    for refusal in earlier:
        result.row_slots[refusal.rows - first_row] = REFUSED_SLOT


def _null_topic(row: int | None) -> InvalidTopicError:
    return InvalidTopicError(
        "the topic is null",
        row=row,
        advice="Set a topic in every row, or one topic for all rows",
    )


def _invalid_partition(
    columns: RecordColumns, topics: Sequence[TopicSlots], row: int
) -> InvalidPartitionError:
    """Return the error of a row, without its number in the task."""
    index = int(columns.topic_index[row])
    count = topics[index].partition_count
    return _no_such_partition(columns.topics[index], count, int(columns.partition[row]))


@lru_cache(maxsize=100)
def _no_such_partition(topic: str, count: int, partition: int) -> InvalidPartitionError:
    """Return the error of rows, which is the same object in each batch, and is not raised."""
    return InvalidPartitionError(
        f"the topic has no such partition: it has {counted(count, 'partition')}, numbered from 0",
        row=None,
        topic=topic,
        partition=partition,
        advice="Correct the partition, or leave it null to let the producer choose",
    )
