"""The slot that each row is assigned to: by its partition, its key or the sticky partition."""

from __future__ import annotations

import numpy as np
import pytest

from spark_kafka_sink.record.columns import NULL_PARTITION
from spark_kafka_sink.record.kernel.kernel import (
    REFUSED_SLOT,
    STICKY_SLOT,
    SlotStatus,
    assign_slots,
)
from spark_kafka_sink.record.kernel.kernel_hashes import murmur2
from tests.support.record.record_columns import columns


def int32s(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_an_explicit_partition_takes_precedence():
    """The partition column takes precedence over the key, and the key over the sticky partition."""
    made = columns(
        [b"v"] * 4, keys=[b"foobar", None, b"foobar", None], partitions=[None, None, 2, 1]
    )
    result = assign_slots(made, int32s(100), int32s(7))
    hashed = 100 + (murmur2(b"foobar") & 0x7FFFFFFF) % 7
    assert (SlotStatus.ALL_ASSIGNED, 4) == result[:2]
    assert [hashed, STICKY_SLOT, 102, 101] == list(result.row_slots)


def test_keys_can_be_ignored():
    """With partitioner.ignore.keys, only an explicit partition counts."""
    made = columns([b"v"] * 2, keys=[b"k", b"k"], partitions=[None, 1])
    result = assign_slots(made, int32s(10), int32s(3), ignore_keys=True)
    assert [STICKY_SLOT, 11] == list(result.row_slots)


def test_an_empty_key_is_a_key():
    """An empty key is hashed; only null keys go to the sticky partition."""
    result = assign_slots(columns([b"v"], keys=[b""]), int32s(0), int32s(1000))
    assert [(murmur2(b"") & 0x7FFFFFFF) % 1000] == list(result.row_slots)


def test_each_topic_has_its_own_slots():
    """A topic's slots start at its first slot, and its keys use its own partition count."""
    made = columns(
        [b"v"] * 3, keys=[b"k"] * 3, topics=["few", "many", "few"], partitions=[None, None, 1]
    )
    result = assign_slots(made, int32s(5, 100), int32s(2, 50))
    positive = murmur2(b"k") & 0x7FFFFFFF
    assert [5 + positive % 2, 100 + positive % 50, 6] == list(result.row_slots)


@pytest.mark.parametrize("partition", [-1, 3, 2**31 - 1, NULL_PARTITION + 1])
def test_the_first_invalid_partition_is_reported(partition):
    """The first row with an invalid partition is reported; earlier rows are assigned."""
    made = columns([b"v"] * 3, partitions=[2, partition, 99])
    result = assign_slots(made, int32s(0), int32s(3))
    assert (SlotStatus.INVALID_PARTITION, 1) == result[:2]
    assert 2 == result.row_slots[0]


def test_the_first_null_topic_is_reported():
    """The first row with a null topic is reported, even if its partition is invalid too."""
    made = columns([b"v"] * 3, topics=["t", None, None], partitions=[0, -5, 0])
    assert (SlotStatus.NULL_TOPIC, 1) == assign_slots(made, int32s(0), int32s(1))[:2]


def test_bad_rows_can_be_skipped():
    """Then those without a topic or a partition have a slot that says so; the others are placed."""
    made = columns(
        [b"v"] * 6,
        topics=["t", None, "t", "t", None, "t"],
        partitions=[2, None, 3, None, 99, -1],
    )
    result = assign_slots(made, int32s(10), int32s(3), skips_bad_rows=True)
    bad = REFUSED_SLOT
    assert [12, bad, bad, STICKY_SLOT, bad, bad] == list(result.row_slots)
    assert (SlotStatus.ALL_ASSIGNED, 6) == result[:2]
    assert [1, 2, 4, 5] == list(result.refused)


def test_an_empty_batch_is_assigned():
    """An empty batch is not an error."""
    result = assign_slots(columns([]), int32s(0), int32s(1))
    assert (SlotStatus.ALL_ASSIGNED, 0, []) == (*result[:2], list(result.row_slots))


@pytest.mark.parametrize(
    ("first_slots", "counts"), [((), (1,)), ((0,), ()), ((0, 1), (1,)), ((0,), (1, 1))]
)
def test_tables_of_another_length_are_rejected(first_slots, counts):
    """Tables of the wrong length are rejected, since reading past their end is undefined."""
    with pytest.raises(ValueError, match="expected slots and partition counts for 1 topics"):
        assign_slots(columns([b"v"]), int32s(*first_slots), int32s(*counts))


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_without_partitions_is_rejected(count):
    """A row with a key cannot be assigned to a topic without partitions."""
    with pytest.raises(ValueError, match="topic 't' has no partitions"):
        assign_slots(columns([b"v"], keys=[b"k"]), int32s(0), int32s(count))
