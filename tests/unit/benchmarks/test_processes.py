import math

from benchmarks.processes import _TICKS, CpuTime, cpu_seconds_between


def test_counts_what_each_process_has_used_since():
    """A surviving process counts with the difference, and a new one with all of its time."""
    before = {1: CpuTime(0, 10 * _TICKS, 0)}
    after = {1: CpuTime(0, 12 * _TICKS, 0), 2: CpuTime(1, 3 * _TICKS, 0)}
    assert 5.0 == cpu_seconds_between(before, after)


def test_counts_children_that_came_and_went():
    """A child that started and ended in between counts through its parent's time of children."""
    before = {1: CpuTime(0, 0, 4 * _TICKS)}
    after = {1: CpuTime(0, 0, 11 * _TICKS)}
    assert 7.0 == cpu_seconds_between(before, after)


def test_leaves_out_what_an_ended_child_had_used_before():
    """A parent inherits all time of an ended child, of which only the new part counts."""
    before = {1: CpuTime(0, 0, 0), 2: CpuTime(1, 20 * _TICKS, 5 * _TICKS)}
    after = {1: CpuTime(0, 0, 26 * _TICKS)}
    assert 1.0 == cpu_seconds_between(before, after)


def test_leaves_out_what_an_ended_grandchild_had_used_before():
    """If a child and its own child both end, the surviving process inherits from both."""
    before = {
        1: CpuTime(0, 0, 0),
        2: CpuTime(1, 2 * _TICKS, 0),
        3: CpuTime(2, 20 * _TICKS, 0),
    }
    after = {1: CpuTime(0, 0, 23 * _TICKS)}
    assert 1.0 == cpu_seconds_between(before, after)


def test_a_child_that_nobody_waits_for_takes_nothing_away():
    """Workers that end as orphans do not reduce the total."""
    before = {1: CpuTime(0, 0, 0), 2: CpuTime(1, 20 * _TICKS, 0)}
    after = {1: CpuTime(0, 3 * _TICKS, 0)}
    assert 3.0 == cpu_seconds_between(before, after)


def test_is_not_a_number_where_nothing_can_be_read():
    """Without /proc the result is NaN instead of a wrong number."""
    assert math.isnan(cpu_seconds_between(None, None))
