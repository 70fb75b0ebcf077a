"""How open batches are filled and closed, and what a closed one takes of buffer.memory."""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.batch_builder import BatchBuilder
from spark_kafka_sink.producer.batch_compression import BatchCompression
from spark_kafka_sink.producer.buffer_pool import BufferPool, block_bytes
from spark_kafka_sink.producer.open_batches import OpenBatches
from spark_kafka_sink.producer.partitioner import NodeLatencies
from spark_kafka_sink.producer.row_placement import RowPlacement
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE
from tests.support.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer_batch import ProducerBatch


class _Built:
    """A builder, the batches that it closed, and the pool that they draw on."""

    def __init__(self, **settings: object) -> None:
        config = ProducerConfig.from_mapping(
            {"bootstrap.servers": "127.0.0.1:9", "compression.type": "none", **settings}
        )
        self.batches: list[ProducerBatch] = []
        self.pool = BufferPool(config.buffer_memory)
        #: What the cluster tells of its partitions: all three are led.
        self.led: list[int] = [0, 1, 2]
        open_batches = OpenBatches()
        self.builder = BatchBuilder(
            config,
            open_batches=open_batches,
            placement=RowPlacement(
                config,
                open_batches,
                partitioner=DEFAULT_KEY_RULE,
                cluster=self,
                latencies=NodeLatencies(0),
                rng=random.Random(1),
            ),
            pool=self.pool,
            compression=BatchCompression(
                Compressor(CompressionType.from_name(config.compression_type)),
                lambda topic: config.batch_size,
            ),
            batch_size_of=lambda topic: config.batch_size,
            enqueue=self.batches.append,
            clock=lambda: 0.0,
        )

    def leaders(self, topic: str) -> list[int]:
        """See `row_placement.ClusterView`."""
        return [0 if partition in self.led else -1 for partition in range(max(self.led) + 1)]

    def queue_sizes(self, topic: str) -> dict[int, int]:
        """See `row_placement.ClusterView`: nothing waits."""
        return {}

    def append(self, *args, partition_count: int = 3, led=None, first_row=0, **given) -> None:
        """Append rows whose topics all have as many partitions."""
        self.led = list(range(partition_count)) if led is None else led
        rows = columns(*args, **given)
        self.builder.append(
            rows,
            partition_counts=[partition_count] * len(rows.topics),
            first_row=first_row,
            now_ms=0,
        )

    def sizes(self) -> dict[str, int]:
        """Close all, and count the records of each partition."""
        self.builder.close_all()
        counts: dict[str, int] = {}
        for batch in self.batches:
            place = str(batch.topic_partition)
            counts[place] = counts.get(place, 0) + batch.record_count
        return counts


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_record_that_only_just_fits_into_the_memory_gets_all_of_it(codec):
    """No size of block is rounded up beyond buffer.memory."""
    built = _Built(
        **{"buffer.memory": 100_000, "max.request.size": 100_000, "compression.type": codec}
    )
    built.append([bytes(99_900)])
    assert 1 == sum(built.sizes().values())


def test_a_partition_that_is_newer_than_the_rows_is_left_for_the_next_append():
    """Metadata may grow a topic in mid-append: the slots behind its own are another topic's."""
    built = _Built(**{"batch.size": 100})
    built.append([b"a", b"b"], topics=["t", "u"], led=[0])
    built.append([b"v"] * 50, led=[0, 3])
    assert {"t-0": 51, "u-0": 1} == built.sizes()
    built.append([b"v"] * 50, led=[3], partition_count=4)
    sizes = built.sizes()
    assert (101, 1) == (sizes["t-0"] + sizes["t-3"], sizes["u-0"])
    assert sizes["t-3"] > 0


@pytest.mark.parametrize(("size", "records"), [(1, 1), (107, 1), (200, 2), (300, 5), (511, 9)])
def test_a_small_batch_size_is_kept(size, records):
    """Below the smallest block of memory, too, no batch of several records exceeds it."""
    built = _Built(**{"batch.size": size, "compression.type": "none"})
    built.append([bytes(40)] * 60)
    built.builder.close_all()
    assert records == max(batch.record_count for batch in built.batches)
    assert 60 == sum(batch.record_count for batch in built.batches)
    assert all(b.size_bytes <= size for b in built.batches if b.record_count > 1)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_with_a_batch_size_of_zero_each_record_is_a_batch(codec):
    """batch.size=0 switches batching off, as in Java."""
    built = _Built(**{"batch.size": 0, "compression.type": codec})
    built.append([os.urandom(1_000)] * 6)
    built.builder.close_all()
    assert [1] * 6 == [batch.record_count for batch in built.batches]


def test_a_batch_grows_in_large_steps_and_the_next_begins_with_what_the_last_needed():
    """Each larger block has to be copied into, and takes four times what the one before took."""
    built = _Built(**{"batch.size": 1_000_000})

    def blocks(rows: int) -> list[int]:
        taken = []
        for _ in range(rows):
            built.append([bytes(1_000)], partitions=[0])
            taken.append(built.pool.total_bytes - built.pool.available_bytes)
        return [size for size, _ in itertools.groupby(taken)]

    assert [2**14, 2**16, 2**18, 2**20] == blocks(900)
    built.builder.close_all()
    built.pool.deallocate(built.batches.pop().block)
    assert [block_bytes(900_000)] == blocks(800)
