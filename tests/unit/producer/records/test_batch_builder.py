"""How open batches are filled and closed, and how much of buffer.memory a closed batch uses."""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import InvalidPartitionError, RecordTooLargeError
from spark_kafka_sink.producer.batch.batch_compression import BatchCompression, BatchSizes
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool, block_bytes
from spark_kafka_sink.producer.records.batch_builder import BatchBuilder
from spark_kafka_sink.producer.records.open_batches import OpenBatches
from spark_kafka_sink.producer.records.partitioner import NodeLatencies
from spark_kafka_sink.producer.records.row_placement import RowPlacement
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch


class _Built:
    """A builder, the batches that it closed, and the pool that they draw on."""

    def __init__(self, **settings: object) -> None:
        config = ProducerConfig.from_mapping(
            {"bootstrap.servers": "127.0.0.1:9", "compression.type": "none", **settings}
        )
        self.batches: list[ProducerBatch] = []
        #: How often the network thread was woken.
        self.wakes = 0
        self.accumulator = self
        self.pool = BufferPool(config.buffer_memory)
        #: The partitions that have a leader according to the cluster, all three by default.
        self.led: list[int] = [0, 1, 2]
        open_batches = OpenBatches()
        self.builder = BatchBuilder(
            config,
            open_batches=open_batches,
            placement=RowPlacement(
                config,
                open_batches,
                partitioner=DEFAULT_KEY_RULE,
                core=self,
                latencies=NodeLatencies(0),
                rng=random.Random(1),
            ),
            pool=self.pool,
            compression=BatchCompression(
                Compressor(CompressionType.from_name(config.compression_type)),
                BatchSizes(config.batch_size),
            ),
            core=self,
            clock=lambda: 0.0,
            lingers=False,
            listener=Mock(),
        )

    is_network_thread = False
    key_sample = None

    def may_send_at_once(self) -> bool:
        """Return whether the caller is no network thread, as `ThreadedCore` does."""
        return not self.is_network_thread

    def may_compress(self, batch: ProducerBatch) -> bool:
        """Return whether the caller is no network thread, as `ThreadedCore` does."""
        return not self.is_network_thread

    def enqueue(self, batch: ProducerBatch) -> bool:
        """Collect a closed batch; see `ProducerCore`."""
        self.batches.append(batch)
        return True

    def wake_network_thread(self) -> None:
        """Count the call; see `ProducerCore`."""
        self.wakes += 1

    def note_loss(self, error: Exception) -> None:
        """Do nothing; see `ProducerCore`."""

    def leaders(self, topic: str) -> list[int]:
        """Return the leader of each partition, as `ProducerCore` does."""
        return [0 if partition in self.led else -1 for partition in range(max(self.led) + 1)]

    def queue_sizes(self, topic: str) -> dict[int, int]:
        """Return no queue sizes, as if no batch were queued; see `ProducerCore`."""
        return {}

    def append(self, *args, partition_count: int = 3, led=None, first_row=0, **given) -> None:
        """Append rows whose topics all have the same number of partitions."""
        self.led = list(range(partition_count)) if led is None else led
        rows = columns(*args, **given)
        self.builder.append(
            rows,
            partition_counts=[partition_count] * len(rows.topics),
            first_row=first_row,
            now_ms=0,
        )

    def sizes(self) -> dict[str, int]:
        """Close all batches and count the records of each partition."""
        self.builder.close_all()
        counts: dict[str, int] = {}
        for batch in self.batches:
            place = str(batch.topic_partition)
            counts[place] = counts.get(place, 0) + batch.record_count
        return counts


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_record_that_just_fits_gets_all_of_the_memory(codec):
    """The size of a block is never rounded up beyond buffer.memory."""
    built = _Built(
        **{"buffer.memory": 100_000, "max.request.size": 100_000, "compression.type": codec}
    )
    built.append([bytes(99_900)])
    assert 1 == sum(built.sizes().values())


def test_a_partition_added_during_an_append_is_used_by_the_next_one():
    """If metadata adds a partition during an append, the append leaves it alone."""
    built = _Built(**{"batch.size": 100})
    built.append([b"a", b"b"], topics=["t", "u"], led=[0])
    built.append([b"v"] * 50, led=[0, 3])
    assert {"t-0": 51, "u-0": 1} == built.sizes()
    built.append([b"v"] * 50, led=[3], partition_count=4)
    sizes = built.sizes()
    assert (101, 1) == (sizes["t-0"] + sizes["t-3"], sizes["u-0"])
    assert sizes["t-3"] > 0


@pytest.mark.parametrize(("size", "records"), [(1, 1), (107, 1), (200, 2), (300, 5), (511, 9)])
def test_a_small_batch_size_is_not_exceeded(size, records):
    """No batch of several records exceeds batch.size, even below the smallest block size."""
    built = _Built(**{"batch.size": size, "compression.type": "none"})
    built.append([bytes(40)] * 60)
    built.builder.close_all()
    assert records == max(batch.record_count for batch in built.batches)
    assert 60 == sum(batch.record_count for batch in built.batches)
    assert all(b.size_bytes <= size for b in built.batches if b.record_count > 1)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_with_a_batch_size_of_0_each_record_is_a_batch(codec):
    """batch.size=0 disables batching, as in Java."""
    built = _Built(**{"batch.size": 0, "compression.type": codec})
    built.append([os.urandom(1_000)] * 6)
    built.builder.close_all()
    assert [1] * 6 == [batch.record_count for batch in built.batches]


def _used(built: _Built) -> int:
    return built.pool.total_bytes - built.pool.available_bytes


def _block_sizes(built: _Built, rows: int) -> list[int]:
    """Append rows of 1,000 bytes; return the sizes of the block of the open batch."""
    taken = []
    for _ in range(rows):
        built.append([bytes(1_000)], partitions=[0])
        taken.append(_used(built))
    return [size for size, _ in itertools.groupby(taken)]


def _flush(built: _Built) -> None:
    built.builder.close_all()
    built.pool.deallocate(built.batches.pop().block)


def test_a_batch_grows_fourfold_and_the_next_starts_with_its_size():
    """Blocks grow fourfold to limit copying, and the next batch starts with the last size."""
    built = _Built(**{"batch.size": 1_000_000})
    assert [2**14, 2**16, 2**18] == _block_sizes(built, 200)
    _flush(built)
    assert [block_bytes(200_000), 4 * block_bytes(200_000)] == _block_sizes(built, 300)


@pytest.mark.parametrize(("last", "first_block"), [(250, 2**20), (240, block_bytes(242_000))])
def test_a_batch_that_would_grow_once_starts_with_its_full_size(last, first_block):
    """After a batch of a quarter of batch.size the next one starts with a full block."""
    built = _Built(**{"batch.size": 1_000_000})
    _block_sizes(built, last)
    _flush(built)
    assert [first_block] == _block_sizes(built, 200)


def test_the_size_of_a_batch_that_a_flush_ended_says_little():
    """After a batch of one row the next one starts with half of the size before."""
    built = _Built(**{"batch.size": 1_000_000})
    _block_sizes(built, 200)
    _flush(built)
    _block_sizes(built, 1)
    _flush(built)
    assert [block_bytes(100_000)] == _block_sizes(built, 50)


def test_the_initial_size_of_a_batch_depends_on_the_free_memory():
    """A batch may take half of the free memory or its fair share of all, whichever is larger."""
    built = _Built(**{"buffer.memory": 60_000, "batch.size": 60_000})
    taken = [0]
    for partition in range(4):
        built.append([b"v"], partitions=[partition], partition_count=4)
        taken.append(_used(built))
    assert [16_384, 16_384, 14_336, 8_192] == [b - a for a, b in itertools.pairwise(taken)]
    assert [] == built.batches


def test_a_batch_grows_directly_to_the_size_of_a_large_record():
    """If four times its size is too little, a batch grows directly to the size that it needs."""
    built = _Built(**{"batch.size": 1_000_000})
    built.append([bytes(15_000)], partitions=[0])
    assert 16_384 == _used(built)
    built.append([bytes(100_000)], partitions=[0])
    assert (131_072, []) == (_used(built), built.batches)


def test_a_batch_without_room_for_the_next_record_is_closed_without_growing():
    """A batch that has no room for the next record is closed without growing first."""
    built = _Built(**{"batch.size": 100_000})
    built.append([bytes(15_000)], partitions=[0])
    built.append([bytes(90_000)], partitions=[0])
    [closed] = built.batches
    assert 16_384 == closed.block.nbytes
    built.builder.close_all()
    assert [1, 1] == [batch.record_count for batch in built.batches]


@pytest.mark.parametrize(("size", "sizes"), [(1_067, [1_067]), (1_066, [564, 564])])
def test_a_batch_can_be_filled_to_its_last_byte(size, sizes):
    """Here a record takes 503 bytes, including varints, and the batch header takes 61."""
    built = _Built(**{"batch.size": size})
    built.append([bytes(494)] * 2, partitions=[0, 0])
    built.builder.close_all()
    assert sizes == [batch.size_bytes for batch in built.batches]


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max.request.size": 1_000}, 939),
        ({"max.request.size": 1_000, "buffer.memory": 900}, 839),
    ],
    ids=str,
)
def test_the_largest_record_leaves_room_for_the_header_of_its_batch(limits, most):
    """A batch of one record must fit into a request and into buffer.memory."""
    assert most == _Built(**limits).builder.max_record_bytes


# --- row numbers


def _rows(built: _Built) -> list[tuple[int | None, int | None]]:
    built.builder.close_all()
    return [(batch.first_row, batch.last_row) for batch in built.batches]


def test_a_batch_records_its_row_range_across_calls():
    """A batch records its row range across calls if the caller's row numbers are consecutive."""
    built = _Built()
    built.append([b"a", b"b"], partitions=[0, 0], first_row=70)
    built.append([b"c", b"d", b"e"], partitions=[0, 0, 0], first_row=72)
    assert [(70, 74)] == _rows(built)


@pytest.mark.parametrize(("again", "last"), [(71, None), (72, 72), (0, None)])
def test_a_batch_in_which_row_numbers_restart_has_no_row_range(again, last):
    """A restart of the row numbers within a batch makes its last row unknown."""
    built = _Built()
    built.append([b"a", b"b"], partitions=[0, 0], first_row=70)
    built.append([b"c"], partitions=[0], first_row=again)
    assert [(70, last)] == _rows(built)


def test_a_batch_opened_after_row_numbers_restarted_has_a_row_range():
    """A batch opened after row numbers restarted has a range, however often they restarted."""
    built = _Built()
    for _ in range(3):
        built.append([b"a", b"b"], partitions=[0, 0], first_row=0)
        built.builder.close_all()
    assert [(0, 1)] * 3 == _rows(built)


@pytest.mark.parametrize(("first_row", "row"), [(0, 1), (70, 71), (None, None)])
def test_an_error_names_its_row(first_row, row):
    """Errors number rows as the caller does, and have no row number if the caller has none."""
    built = _Built(**{"max.request.size": 1_000})
    with pytest.raises(InvalidPartitionError) as invalid:
        built.append([b"a", b"b"], partitions=[0, 3], first_row=first_row)
    with pytest.raises(RecordTooLargeError) as too_large:
        built.append([b"a", bytes(2_000)], partitions=[0, 2], first_row=first_row)
    assert [(row, "t", 3), (row, "t", 2)] == [
        (raised.value.row, raised.value.topic, raised.value.partition)
        for raised in (invalid, too_large)
    ]


@pytest.mark.parametrize("counts", [[], [3], [3, 3, 3]], ids=str)
def test_append_requires_a_partition_count_for_each_topic(counts):
    """Append raises unless every topic comes with a partition count, and writes nothing."""
    built = _Built()
    rows = columns([b"a", b"b"], topics=["t", "u"])
    with pytest.raises(ValueError, match="zip"):
        built.builder.append(rows, partition_counts=counts, first_row=0, now_ms=0)
    assert {} == built.sizes()


def test_all_batches_are_closed_before_the_network_thread_is_woken():
    """It sends one request for all of them, and does not slow this thread down until then."""
    built = _Built()
    built.append([b"v"] * 30, partitions=[row % 3 for row in range(30)])
    built.builder.close_all()
    assert (3, 1) == (len(built.batches), built.wakes)
    built.builder.close_all()
    assert (3, 1) == (len(built.batches), built.wakes)


def test_the_network_thread_is_woken_early_for_large_batches():
    """Compressing all of them may take long, and the first ones can be sent meanwhile."""
    built = _Built(**{"batch.size": 300_000})
    built.append([bytes(200_000)] * 3, partitions=[0, 1, 2])
    built.builder.close_all()
    assert (3, 2) == (len(built.batches), built.wakes)


def test_the_network_thread_is_woken_for_the_batches_closed_before_an_interrupt(monkeypatch):
    """Nothing else would tell it of them."""
    built = _Built()
    built.append([b"v"] * 30, partitions=[row % 3 for row in range(30)])
    enqueue = built.enqueue

    def enqueue_two(batch):
        if 2 == len(built.batches):
            raise KeyboardInterrupt
        return enqueue(batch)

    monkeypatch.setattr(built, "enqueue", enqueue_two)
    with pytest.raises(KeyboardInterrupt):
        built.builder.close_all()
    assert (2, 1) == (len(built.batches), built.wakes)


def test_a_batch_closed_by_itself_wakes_the_network_thread():
    """Nothing else would tell it of that batch."""
    built = _Built()
    built.append([b"v"], partitions=[0])
    built.builder.close(0)
    assert (1, 1) == (len(built.batches), built.wakes)
