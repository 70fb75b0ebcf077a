from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.first_batch import Start
from spark_kafka_sink.spark.source.planning import (
    OffsetRange,
    PlannedRanges,
    limit_offsets,
    new_partitions,
    plan_ranges,
    split_ranges,
    within_logs,
)

A, B, C = (TopicPartition(f"t{number}", 1) for number in (1, 2, 3))
SIZES = st.lists(st.integers(0, 10_000), min_size=1, max_size=6)


def ranges_of(*given_ranges):
    return [OffsetRange(*one) for one in given_ranges]


@pytest.mark.parametrize(
    ("minimum", "ranges", "expected"),
    [
        pytest.param(None, [(A, 1, 2)], [(A, 1, 2)], id="no minimum"),
        pytest.param(None, [(A, 1, 2), (B, 1, 1)], [(A, 1, 2)], id="an empty range"),
        pytest.param(None, [(A, 2, 1)], [], id="an inverted range"),
        pytest.param(
            3,
            [(A, 1, 2), (B, 1, 2), (C, 1, 2)],
            [(A, 1, 2), (B, 1, 2), (C, 1, 2)],
            id="as many as wanted",
        ),
        pytest.param(4, [(A, 1, 5)], [(A, 1, 2), (A, 2, 3), (A, 3, 4), (A, 4, 5)], id="one is cut"),
        pytest.param(
            4,
            [(A, 1, 5), (B, 1, 21)],
            [(A, 1, 5), (B, 1, 7), (B, 7, 14), (B, 14, 21)],
            id="the larger is cut",
        ),
        pytest.param(
            4,
            [(A, 1, 1), (B, 1, 21)],
            [(B, 1, 6), (B, 6, 11), (B, 11, 16), (B, 16, 21)],
            id="the empty one does not count",
        ),
        pytest.param(
            4,
            [(A, 1, 2), (B, 1, 1001)],
            [(A, 1, 2), (B, 1, 334), (B, 334, 667), (B, 667, 1001)],
            id="very different sizes",
        ),
        pytest.param(1, [(A, 1, 5), (B, 1, 21)], [(A, 1, 5), (B, 1, 21)], id="more than wanted"),
        pytest.param(
            3, [(A, 1, 11)], [(A, 1, 4), (A, 4, 7), (A, 7, 11)], id="the last takes the rest"
        ),
        pytest.param(
            6,
            [(A, 0, 10), (B, 0, 10), (C, 0, 1)],
            [(A, 0, 3), (A, 3, 6), (A, 6, 10), (B, 0, 3), (B, 3, 6), (B, 6, 10), (C, 0, 1)],
            id="no offset is dropped",
        ),
        pytest.param(
            9,
            [(A, 0, 10_000), (B, 0, 15_000), (C, 0, 20_000)],
            [
                *((A, start, start + 5000) for start in range(0, 10_000, 5000)),
                *((B, start, start + 5000) for start in range(0, 15_000, 5000)),
                *((C, start, start + 5000) for start in range(0, 20_000, 5000)),
            ],
            id="three large ones",
        ),
        pytest.param(
            6,
            [(A, 0, 500), (B, 0, 12_000), (C, 0, 15_001)],
            [
                (A, 0, 500),
                (B, 0, 6000),
                (B, 6000, 12_000),
                (C, 0, 5000),
                (C, 5000, 10_000),
                (C, 10_000, 15_001),
            ],
            id="one small and two large ones",
        ),
        pytest.param(
            6,
            [(A, 0, 1), (B, 0, 1), (C, 0, 10_000)],
            [(A, 0, 1), (B, 0, 1), *((C, start, start + 2500) for start in range(0, 10_000, 2500))],
            id="two small ones and a large one",
        ),
        pytest.param(
            4,
            [(A, 0, 1), (B, 0, 1), (C, 0, 2)],
            [(A, 0, 1), (B, 0, 1), (C, 0, 1), (C, 1, 2)],
            id="one of two offsets is cut",
        ),
        pytest.param(
            2, [(A, 0, 10), (B, 0, 3)], [(A, 0, 10), (B, 0, 3)], id="enough, however skewed"
        ),
        pytest.param(
            4,
            [(A, 0, 10), (B, 0, 10), (C, 0, 10)],
            [(A, 0, 10), (B, 0, 10), (C, 0, 10)],
            id="fewer, since 1.3 parts of each are one",
        ),
        pytest.param(
            5,
            [(A, 0, 3), (B, 0, 3)],
            [(A, 0, 1), (A, 1, 2), (A, 2, 3), (B, 0, 1), (B, 1, 2), (B, 2, 3)],
            id="more, since 2.5 parts of each are three",
        ),
    ],
)
def test_ranges_are_cut_as_spark_cuts_them(minimum, ranges, expected):
    """With minPartitions, large ranges are cut in proportion, and small ones stay whole."""
    assert ranges_of(*expected) == split_ranges(ranges_of(*ranges), min_partitions=minimum)


@pytest.mark.parametrize(
    ("maximum", "minimum", "ranges", "expected"),
    [
        pytest.param(4, None, [(A, 1, 5)], [(A, 1, 5)], id="just fits"),
        pytest.param(3, None, [(A, 1, 5)], [(A, 1, 3), (A, 3, 5)], id="one too many"),
        pytest.param(
            10,
            None,
            [(A, 0, 5), (B, 0, 21)],
            [(A, 0, 5), (B, 0, 7), (B, 7, 14), (B, 14, 21)],
            id="equal parts, not full ones",
        ),
        pytest.param(
            50,
            3,
            [(A, 0, 100), (B, 0, 100)],
            [(A, 0, 50), (A, 50, 100), (B, 0, 50), (B, 50, 100)],
            id="more than the minimum",
        ),
        pytest.param(
            50,
            8,
            [(A, 0, 100), (B, 0, 100)],
            [
                *((A, start, start + 25) for start in range(0, 100, 25)),
                *((B, start, start + 25) for start in range(0, 100, 25)),
            ],
            id="then cut again",
        ),
    ],
)
def test_large_ranges_are_cut_first(maximum, minimum, ranges, expected):
    """The option maxRecordsPerPartition applies before minPartitions."""
    found = split_ranges(
        ranges_of(*ranges), min_partitions=minimum, max_records_per_partition=maximum
    )
    assert ranges_of(*expected) == found


@given(SIZES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 5000))
def test_parts_cover_the_ranges(sizes, minimum, maximum):
    """Whatever the limits, the parts of a partition follow each other from its start to its end."""
    ranges = [OffsetRange(TopicPartition("t", n), 7, 7 + size) for n, size in enumerate(sizes)]
    parts = split_ranges(ranges, min_partitions=minimum, max_records_per_partition=maximum)
    assert all(part.size > 0 for part in parts)
    for one in ranges:
        ends = [one.start]
        for part in parts:
            if part.topic_partition == one.topic_partition:
                assert ends[-1] == part.start
                ends.append(part.end)
        assert one.end == ends[-1]
    if maximum is not None:
        assert all(part.size <= maximum for part in parts)


def test_a_limit_is_divided_in_proportion():
    """Each partition gets its share of the limit, rounded down; the rest waits."""
    latest = {A: 100, B: 200, C: 700}
    expected = {A: 1, B: 2, C: 7}
    assert expected == limit_offsets(10, dict.fromkeys(latest, 0), latest, {})
    assert {A: 1, B: 2, C: 8} == limit_offsets(12, dict.fromkeys(latest, 0), latest, {})


def test_small_partitions_are_not_starved():
    """A share below one offset is rounded up, even if the sum then exceeds the limit."""
    latest = {A: 1, B: 1, C: 1_000_000}
    assert {A: 1, B: 1, C: 9} == limit_offsets(10, dict.fromkeys(latest, 0), latest, {})


def test_a_limit_beyond_the_end_reads_everything():
    """No partition is read beyond its end, however large the limit is."""
    latest = {A: 10, B: 20}
    assert latest == limit_offsets(2**63 - 1, {A: 3, B: 20}, latest, {})


def test_a_limit_counts_new_partitions_from_their_earliest_offset():
    """A new partition's size is counted from its log start, and its end from there, too."""
    assert {A: 5, B: 105} == limit_offsets(10, {A: 0}, {A: 10, B: 110}, {B: 100})


def test_a_limit_leaves_partitions_without_rows_alone():
    """Without new offsets the latest ones are returned, also of a log that has become shorter."""
    latest = {A: 10, B: 5}
    assert latest == limit_offsets(1, {A: 10, B: 7}, latest, {})
    assert {**latest, C: 3} == limit_offsets(1, {A: 10, B: 7}, {**latest, C: 3}, {C: 3})
    assert {**latest, C: 3} == limit_offsets(1, {A: 10, B: 7}, {**latest, C: 3}, {})


@given(st.integers(1, 10**6), SIZES, st.integers(0, 2**62))
def test_a_limited_batch_moves_on(limit, sizes, begin):
    """Limited ends are between start and end, and each partition with rows moves on."""
    assume(any(sizes))
    start = {TopicPartition("t", number): begin for number in range(len(sizes))}
    latest = {one: begin + size for one, size in zip(start, sizes, strict=True)}
    ends = limit_offsets(limit, start, latest, {})
    assert set(latest) == set(ends)
    for one, end in latest.items():
        assert start[one] + min(1, end - start[one]) <= ends[one] <= end
    assert sum(ends.values()) - sum(start.values()) <= limit + len(sizes)


def test_equal_sizes_share_a_limit_as_in_doubles():
    """Shares are computed in doubles, in Spark's order of operations."""
    latest = {A: 3, B: 3, C: 3}
    share = math.floor(7 * (3 / 9.0))
    assert dict.fromkeys(latest, share) == limit_offsets(7, dict.fromkeys(latest, 0), latest, {})


def test_a_batch_reads_from_start_to_end():
    """The ranges of a batch are in order, without the empty ones."""
    start, end = {C: 1, B: 5, A: 0}, {A: 3, B: 5, C: 9}
    assert PlannedRanges(tuple(ranges_of((A, 0, 3), (C, 1, 9))), ()) == plan_ranges(start, end, {})


def test_a_new_partition_is_read_from_its_earliest_offset():
    """A partition that the start lacks begins at 0, and then nothing is lost."""
    end = {A: 3, B: 5}
    assert (B,) == new_partitions({A: 0}, end)
    expected = PlannedRanges(tuple(ranges_of((A, 0, 3), (B, 0, 5))), ())
    assert expected == plan_ranges({A: 0}, end, {B: 0})


def losses_of(planned):
    return [str(loss) for loss in planned.losses]


def test_a_new_partition_without_its_first_rows_is_a_loss():
    """If the log of a new partition does not start at 0, rows are lost; the rest is read."""
    planned = plan_ranges({}, {A: 5}, {A: 2})
    assert ranges_of((A, 2, 5)) == list(planned.ranges)
    expected = ["t1-1: the partition is new, but its log starts at offset 2, not at 0"]
    assert expected == losses_of(planned)


def test_a_new_partition_that_is_gone_is_a_loss():
    """A new partition that was deleted since the end was determined is not read."""
    planned = plan_ranges({}, {A: 5}, {})
    assert () == planned.ranges
    assert ["t1-1: the partition is new and already gone again"] == losses_of(planned)


def test_a_partition_that_is_gone_is_a_loss():
    """A partition that the end lacks is not read."""
    planned = plan_ranges({A: 5, B: 1}, {B: 2}, {})
    assert ranges_of((B, 1, 2)) == list(planned.ranges)
    [loss] = planned.losses
    assert (A, 5, None) == loss[:3]
    assert (
        "t1-1: the partition is gone, or no longer subscribed to, and its records from offset 5 on "
        "with it" == str(loss)
    )


def test_an_end_before_the_start_is_a_loss():
    """A log that ends before the start names both offsets, and is not read."""
    planned = plan_ranges({A: 5}, {A: 3}, {})
    assert () == planned.ranges
    [loss] = planned.losses
    assert (A, 5, 3) == loss[:3]
    assert "t1-1: the log ends at offset 3, before offset 5, which was to be read next" == str(loss)


def test_the_start_of_the_first_batch_may_be_beyond_its_end():
    """If the start was looked up again, a start beyond the end is empty, and nothing is lost."""
    start, end = {A: 5, B: 1, C: 0}, {A: 3, C: 2}
    expected = PlannedRanges(tuple(ranges_of((C, 0, 2))), ())
    assert expected == plan_ranges(start, end, {}, first=Start(start))


def test_a_given_start_beyond_the_end_is_a_loss():
    """An offset from the options is the same each time, so the first batch is no exception."""
    start, end = {A: 5, B: 1, C: 0}, {A: 3, C: 2}
    planned = plan_ranges(start, end, {}, first=Start(start, given=frozenset(start)))
    assert ranges_of((C, 0, 2)) == list(planned.ranges)
    assert [
        (
            "t2-1: the partition is gone, or no longer subscribed to, and its records from "
            "offset 1 on with it"
        ),
        "t1-1: the query starts at offset 5, but the log ended at offset 3",
    ] == losses_of(planned)
    assert (A, 5, 3) == planned.losses[1][:3]
    assert 2 == planned.losses[1].lost


def test_chosen_offsets_within_the_logs_are_read():
    """A batch whose offsets exist reads from start to end."""
    planned = within_logs({A: 2, B: 5}, {A: 7, B: 5}, {A: 2}, {A: 7, B: 9})
    assert PlannedRanges(tuple(ranges_of((A, 2, 7))), ()) == planned


def test_an_end_before_the_start_of_the_log_is_a_loss():
    """The records that were to be read are gone, however far back "earliest" was meant to be."""
    planned = within_logs({A: 5}, {A: 3}, {A: 5}, None)
    assert () == planned.ranges
    [loss] = planned.losses
    assert "t1-1: the read ends at offset 3, but the log starts at offset 5" == str(loss)
    assert (3, 5, 0) == (loss.wanted, loss.available, loss.lost)


def test_chosen_offsets_outside_of_the_logs_are_losses():
    """What is missing is named, and the rest is read."""
    planned = within_logs({A: 2, B: 0, C: 50}, {A: 7, B: 9, C: 60}, {A: 4}, {A: 7, B: 8, C: 9})
    assert ranges_of((A, 4, 7), (B, 0, 8)) == list(planned.ranges)
    assert [
        "t1-1: the read starts at offset 2, but the log starts at offset 4",
        "t2-1: the read ends at offset 9, but the log ends at offset 8",
        "t3-1: the read starts at offset 50, but the log ends at offset 9",
        "t3-1: the read ends at offset 60, but the log ends at offset 9",
    ] == losses_of(planned)
    assert [2, 1, 41, 51] == [loss.lost for loss in planned.losses]


def test_the_ends_of_logs_may_be_unknown():
    """With read_committed, an end beyond the last stable offset is left to the tasks."""
    planned = within_logs({A: 2}, {A: 700}, {}, None)
    assert PlannedRanges(tuple(ranges_of((A, 2, 700))), ()) == planned
