from __future__ import annotations

import pytest

from spark_kafka_sink.config.source.offset_specs import (
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    Timestamps,
    check_same_partitions,
    named_partitions,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def refusal(option, named, assigned):
    with pytest.raises(ConfigError) as caught:
        check_same_partitions(option, named, assigned)
    return str(caught.value)


@pytest.mark.parametrize("spec", [SpecificOffsets({A0: 5, B0: -1}), Timestamps({A0: 5, B0: 7})])
def test_offsets_and_timestamps_name_partitions(spec):
    """Offsets and timestamps by partition name partitions."""
    assert {A0, B0} == named_partitions(spec)


@pytest.mark.parametrize("spec", [Earliest(), Latest(), GlobalTimestamp(5)])
def test_other_positions_hold_for_any_partition(spec):
    """Earliest, latest and a single timestamp name no partition."""
    assert named_partitions(spec) is None


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
    assert refusal("startingOffsets", many, []).endswith(
        "but the read does not cover t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7, t-8, t-9 and 2 more"
    )
