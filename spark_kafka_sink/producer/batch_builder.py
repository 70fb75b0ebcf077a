"""Turns columns into closed batches, on the writing thread.

The kernel fills open batches in bulk and comes back when it cannot go on; what then has to be done
(another block, a larger one, the next sticky partition) is decided here, once per batch, never per
row. A batch is closed when full, when memory runs short, or when its writer says that no more will
come. Closing compresses it, so a slow network makes the writing thread wait for memory, not grow.

How large a batch gets. Its block starts at what the partition's last batch grew to and grows
fourfold, up to `batch.size` divided by the compression ratio seen so far, as long as that is no
more than half of the free memory or a fair share of all. So one busy partition writes full batches,
and ten thousand quiet ones fit into the same `buffer.memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_kafka_sink.errors import (
    BufferExhaustedError,
    InvalidPartitionError,
    InvalidTopicError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.batch_split import split_batch
from spark_kafka_sink.producer.buffer_pool import MIN_BLOCK_BYTES, BufferPool, block_bytes
from spark_kafka_sink.producer.open_batches import NO_SLOT, OpenBatches, TopicSlots
from spark_kafka_sink.producer.partitioner import BuiltInPartitioner
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.compression_ratio import CompressionRatioEstimator
from spark_kafka_sink.record.kernel import AppendStatus, SlotStatus, append_rows, assign_slots
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.kernel import AppendResult

GROWTH = 4
FIRST_BLOCK_BYTES = 16_384
#: A closed batch may exceed batch.size by this much (a broker's default message.max.bytes exceeds
#: our default batch.size by as much); a larger one is split before it gets a sequence number.
OVERSHOOT = 1.048


class BatchBuilder:
    """Fills, closes and hands over batches. Not thread-safe: one thread at a time."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        pool: BufferPool,
        compressor: Compressor,
        batch_size_of: Callable[[str], int],
        enqueue: Callable[[ProducerBatch], None],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """Hand closed batches to `enqueue`.

        `batch_size_of` tells how many bytes a topic's batches may have on the wire; `clock` gives
        monotonic seconds.
        """
        self._pool = pool
        self._enqueue = enqueue
        self._clock = clock
        self._partitioner = BuiltInPartitioner(rng)
        self._asked_batch_size_of = batch_size_of
        self._ignore_keys = config.partitioner_ignore_keys
        self._max_block = config.max_block_ms / 1000
        self._max_record_bytes = (
            min(config.max_request_size, config.buffer_memory) - RECORD_BATCH_OVERHEAD
        )
        self._compression = CompressionType.from_name(config.compression_type)
        self._compressor = compressor
        self._ratios = CompressionRatioEstimator()
        self._open = OpenBatches()
        self._open_bytes = 0

    def _batch_size_of(self, topic: str) -> int:
        # batch.size=0 switches batching off; any record exceeds 1 as well, and 1 can be divided by.
        return max(self._asked_batch_size_of(topic), 1)

    # --- appending

    def append(
        self,
        columns: RecordColumns,
        partitions_of: Callable[[str], Sequence[int]],
        *,
        partition_counts: Sequence[int],
        first_row: int,
        now_ms: int,
    ) -> None:
        """Append all rows.

        `partition_counts` has an entry for each of `columns.topics`; `partitions_of` lists a
        topic's partitions that have a leader; `first_row` is the number of the first row, for
        errors; `now_ms` is the timestamp of rows that have none.

        Raises InvalidTopicError, InvalidPartitionError or RecordTooLargeError for a bad row,
        BufferExhaustedError when memory does not come free within max.block.ms.
        """
        topics = [
            self._open.topic(name, count)
            for name, count in zip(columns.topics, partition_counts, strict=True)
        ]
        row_slots = self._assign_slots(columns, topics, first_row)
        indexes = np.array([topic.index for topic in topics], dtype=np.int64)
        sticky = self._open.sticky[indexes]
        row = 0
        try:
            while True:
                result = append_rows(
                    columns,
                    row_slots,
                    row,
                    self._open.slots,
                    sticky,
                    now_ms,
                    self._max_record_bytes,
                )
                row = result.next_row
                match result.status:
                    case AppendStatus.ALL_APPENDED:
                        return
                    case AppendStatus.BATCH_FULL:
                        self._make_room(result.slot, result.record_bytes, first_row + row)
                    case AppendStatus.STICKY_FULL:
                        index = int(columns.topic_index[row])
                        topic = columns.topics[index]
                        self._move_sticky(
                            sticky[index],
                            topics[index],
                            available=partitions_of(topic),
                            batch_size=self._batch_size_of(topic),
                        )
                    case AppendStatus.RECORD_TOO_LARGE:
                        raise self._too_large(result, columns, first_row)
        finally:
            self._open.sticky[indexes] = sticky

    def _assign_slots(
        self, columns: RecordColumns, topics: Sequence[TopicSlots], first_row: int
    ) -> NDArray[np.int32]:
        result = assign_slots(
            columns,
            np.array([topic.first_slot for topic in topics], dtype=np.int32),
            np.array([topic.partition_count for topic in topics], dtype=np.int32),
            ignore_keys=self._ignore_keys,
        )
        match result.status:
            case SlotStatus.ALL_ASSIGNED:
                return result.row_slots
            case SlotStatus.NULL_TOPIC:
                raise InvalidTopicError(
                    "the topic is null",
                    row=first_row + result.row,
                    advice="Give every row a topic, or set the topic for all rows",
                )
            case SlotStatus.INVALID_PARTITION:
                index = int(columns.topic_index[result.row])
                count = topics[index].partition_count
                raise InvalidPartitionError(
                    f"the topic has no such partition: it has {count}, numbered from 0",
                    row=first_row + result.row,
                    topic=columns.topics[index],
                    partition=int(columns.partition[result.row]),
                    advice="Correct the partition, or leave it null to let the producer choose",
                )

    def _too_large(
        self, result: AppendResult, columns: RecordColumns, first_row: int
    ) -> RecordTooLargeError:
        row = result.next_row
        # A row without a key that finds no sticky partition yet has no place either.
        place = None if result.slot == NO_SLOT else self._open.topic_partition(result.slot)
        return RecordTooLargeError(
            f"the record takes {result.record_bytes} bytes, and at most {self._max_record_bytes} "
            "fit into max.request.size and buffer.memory",
            row=first_row + row,
            topic=columns.topics[int(columns.topic_index[row])],
            partition=None if place is None else place.partition,
            advice="Raise max.request.size (and max.message.bytes of the topic), or write less",
        )

    def _move_sticky(
        self, sticky: np.void, topic: TopicSlots, *, available: Sequence[int], batch_size: int
    ) -> None:
        current = None if sticky["slot"] == NO_SLOT else int(sticky["slot"]) - topic.first_slot
        # Partitions that the topic has been given since these rows were counted have no slots yet.
        slotted = [partition for partition in available if partition < topic.partition_count]
        partition = self._partitioner.next_partition(
            slotted or range(topic.partition_count), current
        )
        sticky["slot"] = topic.first_slot + partition
        sticky["bytes"] = 0
        sticky["limit"] = batch_size

    # --- memory

    def _make_room(self, slot: int, record_bytes: int, row: int) -> None:
        """Give a slot room for a record of this size: a larger block, or a new batch."""
        if slot in self._open:
            used = self._open.used_bytes(slot)
            if used + record_bytes <= self._target_bytes(slot) and self._grow(
                slot, used + record_bytes
            ):
                return
            self.close(slot, row - 1)
        target = self._target_bytes(slot)
        start = int(self._open.last_bytes[slot]) or FIRST_BLOCK_BYTES
        needed = RECORD_BATCH_OVERHEAD + record_bytes
        # The largest record takes all the memory there is; rounded up it would never get it.
        size = min(block_bytes(max(min(start, target), needed)), self._pool.total_bytes)
        block = self._allocate(size, slot, row)
        self._open_bytes += block.nbytes
        # `record_bytes` was measured behind other records, where it takes some bytes more.
        self._open.open(slot, block, min(max(target, needed), size), row)

    def _grow(self, slot: int, needed: int) -> bool:
        target = self._target_bytes(slot)
        size = min(
            block_bytes(max(GROWTH * self._open.block_bytes(slot), needed)), block_bytes(target)
        )
        if size <= self._open.block_bytes(slot):
            return False
        block = self._pool.try_allocate(size)
        if block is None:
            return False
        old = self._open.grow(slot, block, min(size, target))
        self._open_bytes += block.nbytes - old.nbytes
        self._pool.deallocate(old)
        return True

    def _target_bytes(self, slot: int) -> int:
        """Tell how far a slot's batch may grow, in uncompressed bytes with the header."""
        topic = self._open.topic_partition(slot).topic
        full = self._batch_size_of(topic)
        if self._compression is not CompressionType.NONE:
            full = int(full / self._ratios.estimation(topic, self._compression))
        fair_share = self._pool.total_bytes // (2 * (len(self._open) + 1))
        return max(min(full, max(fair_share, self._pool.available_bytes // 2)), MIN_BLOCK_BYTES)

    def _allocate(self, size: int, slot: int, row: int) -> NDArray[np.uint8]:
        deadline = self._clock() + self._max_block
        while (block := self._pool.try_allocate(size)) is None:
            if size > self._pool.total_bytes - self._open_bytes:
                # Waiting could not help: the memory is in batches that nobody has closed yet.
                self.close(self._open.fullest(), row - 1)
            elif not self._pool.wait_for(size, max(deadline - self._clock(), 0)):
                raise BufferExhaustedError(
                    f"no memory came free within {self._max_block:g} s (max.block.ms) for row "
                    f"{row}, {self._open.topic_partition(slot)}: {self._pool.total_bytes} bytes "
                    "(buffer.memory) hold records that no broker has acknowledged. Check that the "
                    "brokers keep up, or raise max.block.ms or buffer.memory"
                )
        return block

    # --- closing

    def close_all(self, last_row: int) -> None:
        """Close every open batch; `last_row` is the number of the last row appended."""
        for slot in self._open.open_slots():
            self.close(slot, last_row)

    def close(self, slot: int, last_row: int) -> None:
        """Close one open batch and hand it over, in parts if compression did less than hoped."""
        filled = self._open.take(slot)
        self._open_bytes -= filled.block.nbytes
        if filled.record_count == 0:
            self._pool.deallocate(filled.block)
            return
        records = filled.block.data[RECORD_BATCH_OVERHEAD : filled.used_bytes]
        batch = ProducerBatch(
            topic_partition=filled.topic_partition,
            payload=records,
            record_count=filled.record_count,
            base_timestamp=filled.base_timestamp,
            max_timestamp=filled.max_timestamp,
            compression=self._compression,
            first_row=filled.first_row,
            last_row=last_row,
            closed_at=self._clock(),
        )
        if self._compression is CompressionType.NONE:
            batch.block = filled.block
            batch.header = filled.block.data[:RECORD_BATCH_OVERHEAD]
            self._enqueue(batch)
            return
        batches = self._compressed(batch)
        self._pool.reserve(sum(part.size_bytes for part in batches))
        self._pool.deallocate(filled.block)
        for part in batches:
            self._enqueue(part)

    def _compressed(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Compress a batch; in as many parts as it takes for each to be of batch.size or so."""
        batch_size = self._batch_size_of(batch.topic_partition.topic)
        records = batch.payload
        batch.payload = memoryview(self._compressor.compress(records))
        topic = batch.topic_partition.topic
        self._ratios.update_estimation(topic, self._compression, len(batch.payload) / len(records))
        if batch.size_bytes <= batch_size * OVERSHOOT or batch.record_count == 1:
            return [batch]
        self._ratios.set_estimation(topic, self._compression, len(batch.payload) / len(records))
        parts = split_batch(batch, records, -(-batch.size_bytes // batch_size))
        return [piece for part in parts for piece in self._compressed(part)]
