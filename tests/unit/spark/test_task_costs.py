"""What the tasks of a write cost, and what fewer would save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.spark.task_costs import TaskCosts, TaskTimes, costs_of


def tasks(host, *times, fixed=0.0):
    return [TaskTimes(host, started, ended, fixed) for started, ended in times]


def test_the_pauses_of_each_slot_and_what_is_fixed_in_a_task_are_its_costs():
    """Pauses of 20 and 30 ms and 10 ms in each task: 0.105 s for each half of six tasks."""
    times = [
        *tasks("a", (0.0, 5.0), (5.02, 9.0), (9.02, 12.0), fixed=0.01),
        *tasks("b", (100.0, 101.0), (101.03, 102.0), (102.03, 103.0), fixed=0.01),
    ]
    assert (pytest.approx(6 * (0.025 + 0.01) / 2), 2) == costs_of(times)


def test_processes_that_take_turns_are_one_slot():
    """Spark's pool may have more processes than slots: each then waits while others run tasks."""
    one_after_another = [(n * 1.01, n * 1.01 + 1.0) for n in range(100)]
    assert (pytest.approx(100 * 0.01), 1) == costs_of(tasks("a", *one_after_another))


def test_tasks_side_by_side_have_slots_of_their_own():
    """Each task follows the one that ended last before it began."""
    times = tasks("a", (0.0, 1.0), (0.0, 2.0), (1.01, 3.0), (2.01, 4.0))
    assert (pytest.approx(4 * 0.01 / 2), 2) == costs_of(times)


def test_one_long_pause_does_not_count():
    """A slot may have had nothing to do, or served another job."""
    times = tasks("a", (0.0, 1.0), (1.01, 2.0), (100.0, 101.0), (101.01, 102.0))
    assert (pytest.approx(0.04), 1) == costs_of(times)


def test_long_pauses_and_waits_are_no_costs_of_tasks():
    """Spark may compute rows before it calls a worker, and many bytes take long to send."""
    times = tasks("a", *[(n * 10.0, n * 10.0 + 5.0) for n in range(100)], fixed=4.0)
    assert (pytest.approx(100 * 0.07), 1) == costs_of(times)


def test_a_task_without_rows_takes_its_time_too():
    """It took no producer, and the time in which it found no rows is no pause."""
    times = [
        *tasks("a", (0.0, 1.0), (2.02, 3.0), fixed=0.01),
        *tasks("a", (1.01, 2.01), (3.01, 4.0)),
    ]
    assert (pytest.approx(4 * 0.02), 1) == costs_of(times)


def test_the_order_of_the_messages_does_not_matter():
    """Spark sorts them by the index of the task, not by time."""
    times = tasks("a", (0.0, 1.0), (1.5, 2.0), (2.5, 3.0))
    assert costs_of(times) == costs_of(times[::-1])


@pytest.mark.parametrize(
    "times",
    [[], tasks("a", (0.0, 1.0)) + tasks("b", (3.0, 4.0)), tasks("a", (0.0, 1.0), (0.5, 1.5))],
    ids=["no tasks", "two hosts", "side by side"],
)
def test_costs_are_unknown_if_no_worker_had_two_tasks(times):
    """There is no pause between tasks."""
    assert costs_of(times) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.floats(0, 10), st.floats(0, 10))
    )
)
def test_costs_are_never_negative(times):
    """Nor are there more slots than tasks."""
    costs = costs_of(
        TaskTimes(host, start, start + lasts, fixed) for host, start, lasts, fixed in times
    )
    assert costs is None or (costs.seconds >= 0 and costs.slots < len(times))


def test_the_advice_has_the_numbers_of_the_write():
    """It says what the tasks took, and what remains with four of them for each slot."""
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
    ids=["few tasks", "many slots", "little time", "unknown time"],
)
def test_there_is_no_advice_where_it_would_save_little(costs, count, elapsed):
    """Up to 50 tasks, up to 8 for each slot, or less than 30 % of the time."""
    assert costs.advice(tasks=count, rows=1000, elapsed=elapsed) is None


def test_costs_estimated_above_the_time_count_as_all_of_it():
    """Pauses are a median, so their sum may exceed the time of the write."""
    assert "1.7 s of 1.7 s" in TaskCosts(9.0, 2).advice(tasks=200, rows=1, elapsed=1.7)
