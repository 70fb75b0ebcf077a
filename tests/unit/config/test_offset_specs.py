from __future__ import annotations

import pytest

from spark_kafka_sink.config.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    accepted_numbers,
    check_same_partitions,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def refusal(option, named, assigned, stand_ins=()):
    with pytest.raises(ConfigError) as caught:
        check_same_partitions(option, named, assigned, stand_ins)
    return str(caught.value)


@pytest.mark.parametrize(
    ("stand_ins", "others"),
    [
        ((), ""),
        ((LATEST_OFFSET,), " or -1 (latest)"),
        ((EARLIEST_OFFSET, LATEST_OFFSET), ", -2 (earliest) or -1 (latest)"),
    ],
)
def test_the_numbers_that_are_accepted_are_listed(stand_ins, others):
    """Errors list the numbers that stand for offsets, with what they mean."""
    assert f"an integer from 0 to 2^63 - 1{others}" == accepted_numbers(stand_ins)


def test_exactly_the_partitions_that_are_read_may_be_named():
    """The partitions may be named in any order."""
    check_same_partitions("startingOffsets", {A0: 1, B0: 2}, [B0, A0])


def test_a_partition_that_is_not_named_is_an_error():
    """The error names the partitions that the JSON lacks, and what stands for a limit there."""
    lacking = "a must name exactly the partitions that are read, but it lacks a-1, b-0"
    earliest = "; -2 stands for the earliest offset"
    latest = "; -1 stands for the latest offset"
    for stand_ins, advice in (
        ((), ""),
        ((EARLIEST_OFFSET,), earliest),
        ((LATEST_OFFSET,), latest),
        ((EARLIEST_OFFSET, LATEST_OFFSET), earliest + latest),
    ):
        assert lacking + advice == refusal("a", {A0: 1}, [B0, A1, A0], stand_ins)


def test_a_partition_that_is_not_read_is_an_error():
    """The error names the partitions that do not exist, or are not assigned."""
    assert (
        "endingOffsetsByTimestamp must name exactly the partitions that are read, but it lacks b-0 "
        "and the read does not cover a-1"
        == refusal("endingOffsetsByTimestamp", {A0: 1, A1: 1}, [A0, B0])
    )
    assert (
        "endingOffsets must name exactly the partitions that are read, but the read does not cover "
        "b-0" == refusal("endingOffsets", {A0: 1, B0: 1}, [A0], (LATEST_OFFSET,))
    )


def test_an_error_names_ten_partitions_at_most():
    """A long list of partitions is cut."""
    many = [TopicPartition("t", number) for number in range(12)]
    ten = "but the read does not cover t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7, t-8, t-9"
    assert refusal("startingOffsets", many[:10], []).endswith(ten)
    assert refusal("startingOffsets", many[:11], []).endswith(f"{ten} and 1 more")
    assert refusal("startingOffsets", many, []).endswith(f"{ten} and 2 more")
