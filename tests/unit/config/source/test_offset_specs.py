from __future__ import annotations

import pytest

from spark_kafka_sink.config.source.offset_specs import check_same_partitions
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def refusal(option, named, assigned):
    with pytest.raises(ConfigError) as caught:
        check_same_partitions(option, named, assigned)
    return str(caught.value)


def test_exactly_the_partitions_that_are_read_may_be_named():
    """The partitions may be named in any order."""
    check_same_partitions("startingOffsets", {A0: 1, B0: 2}, [B0, A0])


def test_a_partition_that_is_not_named_is_an_error():
    """The error names the partitions that the JSON lacks, and the offsets that fit any."""
    assert (
        "startingOffsets must name exactly the partitions that are read, but it lacks a-1, b-0; -2 "
        "stands for the earliest offset, -1 for the latest"
        == refusal("startingOffsets", {A0: 1}, [B0, A1, A0])
    )


def test_a_partition_that_is_not_read_is_an_error():
    """The error names the partitions that do not exist, or are not assigned."""
    assert (
        "endingOffsetsByTimestamp must name exactly the partitions that are read, but it lacks b-0 "
        "and the read does not cover a-1"
        == refusal("endingOffsetsByTimestamp", {A0: 1, A1: 1}, [A0, B0])
    )


def test_an_error_names_ten_partitions_at_most():
    """A long list of partitions is cut."""
    many = [TopicPartition("t", number) for number in range(12)]
    ten = "but the read does not cover t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7, t-8, t-9"
    assert refusal("startingOffsets", many[:10], []).endswith(ten)
    assert refusal("startingOffsets", many[:11], []).endswith(f"{ten} and 1 more")
    assert refusal("startingOffsets", many, []).endswith(f"{ten} and 2 more")
