"""What the tasks of a write cost, and what fewer would save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.spark.report.task_costs import TaskCosts, TaskTimes, costs_of


def tasks(worker, *times, fixed=0.0):
    return [TaskTimes(worker, started, ended, fixed) for started, ended in times]


def test_the_pauses_of_each_worker_and_what_is_fixed_in_a_task_are_its_costs():
    """Two workers pause for 2 and 4 s, and each task has 1 s: 4 s for each two of six tasks."""
    times = [
        *tasks("a", (0.0, 5.0), (7.0, 9.0), (11.0, 12.0), fixed=1.0),
        *tasks("b", (100.0, 101.0), (105.0, 106.0), (110.0, 111.0), fixed=1.0),
    ]
    assert TaskCosts(pytest.approx(6 * (3.0 + 1.0) / 2), 2) == costs_of(times)


def test_one_long_pause_does_not_count():
    """A worker may have had nothing to do, or served another job."""
    times = tasks("a", (0.0, 1.0), (1.5, 2.0), (100.0, 101.0), (101.5, 102.0))
    assert TaskCosts(2.0, 1) == costs_of(times)


def test_the_order_of_the_messages_does_not_matter():
    """Spark sorts them by the index of the task, not by time."""
    times = tasks("a", (0.0, 1.0), (1.5, 2.0), (2.5, 3.0))
    assert costs_of(times) == costs_of(times[::-1])


@pytest.mark.parametrize("times", [[], tasks("a", (0.0, 1.0)) + tasks("b", (3.0, 4.0))], ids=len)
def test_costs_are_unknown_if_no_worker_had_two_tasks(times):
    """There is no pause between tasks."""
    assert costs_of(times) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.floats(0, 10), st.floats(0, 10))
    )
)
def test_costs_are_never_negative(times):
    """Tasks of a worker may overlap, and then there is no pause."""
    costs = costs_of(
        TaskTimes(worker, start, start + lasts, fixed) for worker, start, lasts, fixed in times
    )
    assert costs is None or costs.seconds >= 0


def test_the_advice_has_the_numbers_of_the_write():
    """It says what the tasks took, and what remains with four of them for each worker."""
    assert (
        "200 tasks of about 1,000 rows: 1.2 s of 1.7 s went into starting and ending them; with "
        "df.coalesce(8) the write would take about 0.5 s"
    ) == TaskCosts(1.2, 2).advice(tasks=200, rows=200_000, elapsed=1.7)


@pytest.mark.parametrize(
    ("costs", "count", "elapsed"),
    [
        (TaskCosts(1.2, 2), 50, 1.7),
        (TaskCosts(1.2, 26), 200, 1.7),
        (TaskCosts(0.5, 2), 200, 1.7),
        (TaskCosts(1.2, 2), 200, None),
    ],
    ids=["few tasks", "many workers", "little time", "unknown time"],
)
def test_there_is_no_advice_where_it_would_save_little(costs, count, elapsed):
    """Up to 50 tasks, up to 8 for each worker, or less than 30 % of the time."""
    assert costs.advice(tasks=count, rows=1000, elapsed=elapsed) is None


def test_costs_estimated_above_the_time_count_as_all_of_it():
    """Pauses are a median, so their sum may exceed the time of the write."""
    assert "1.7 s of 1.7 s" in TaskCosts(9.0, 2).advice(tasks=200, rows=1, elapsed=1.7)
