"""What the tasks of a write cost beside their rows, and how many fewer there could be.

Spark hands each task to a Python worker and takes its result back, and the task itself takes a
producer and waits for its last acknowledgements. With few rows, that is most of a job's time. The
first part is the pause between two tasks in one of the slots in which Spark runs them, and the task
measures the second one. Both are bounded: longer pauses are rows that Spark computes before it
calls the worker, and longer waits are bytes. So the costs are at least what is said.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Up to this number of tasks, they cost too little to speak of.
MANY_TASKS: Final = 50
#: How many tasks for each slot even out differences between them.
_TASKS_PER_SLOT: Final = 4
#: The share of a write's time from which on its tasks are too many.
_TOO_MUCH: Final = 0.3
#: What a hand-over between JVM and worker, and a task's producer and last acknowledgements, may
#: take, in seconds.
_MOST_PAUSE: Final = 0.05
_MOST_FIXED: Final = 0.02


class TaskTimes(NamedTuple):
    """When a task ran, in seconds of its host's monotonic clock, which all processes share."""

    host: str
    started_at: float
    ended_at: float
    #: How long taking a producer and waiting for the last acknowledgements took; 0 without rows.
    fixed_seconds: float


class TaskCosts(NamedTuple):
    """The time that starting and ending tasks took of a write."""

    #: Seconds of the write, not of all slots together.
    seconds: float
    #: How many tasks ran side by side.
    slots: int

    def advice(self, *, tasks: int, rows: int, elapsed: float | None) -> str | None:
        """Return what fewer tasks would save; None if it is little.

        `elapsed` is the time of the write in seconds; None if it is unknown.
        """
        fewer = _TASKS_PER_SLOT * self.slots
        if elapsed is None or tasks <= max(MANY_TASKS, 2 * fewer):
            return None
        taken = min(self.seconds, elapsed)
        if taken < _TOO_MUCH * elapsed:
            return None
        without = elapsed - taken * (1 - fewer / tasks)
        return (
            f"{tasks:,} tasks of about {rows // tasks:,} rows: {taken:,.1f} s of {elapsed:,.1f} s "
            f"went into starting and ending them; with df.coalesce({fewer}) the write would take "
            f"about {without:,.1f} s"
        )


def costs_of(times: Iterable[TaskTimes]) -> TaskCosts | None:
    """Return what the tasks of one write cost; None if no slot has run two of them.

    The median pause counts for each task, so that a long one, in which a slot had nothing to do or
    served another job, does not.
    """
    by_host: dict[str, list[TaskTimes]] = {}
    for task in times:
        by_host.setdefault(task.host, []).append(task)
    slots = 0
    pauses: list[float] = []
    for tasks in by_host.values():
        host_slots, here = _pauses(tasks)
        slots += host_slots
        pauses += here
    if not pauses:
        return None
    count = slots + len(pauses)
    fixed = [
        task.fixed_seconds for tasks in by_host.values() for task in tasks if task.fixed_seconds
    ]
    each_task = min(statistics.median(pauses), _MOST_PAUSE)
    each_task += min(statistics.median(fixed), _MOST_FIXED) if fixed else 0.0
    return TaskCosts(each_task * count / slots, slots)


def _pauses(tasks: Iterable[TaskTimes]) -> tuple[int, list[float]]:
    """Divide the tasks of a host among slots; return their number, and the pauses between tasks.

    Spark has more Python processes than slots if other jobs have needed them, and takes them in
    turn: so a task follows the one that ended last before it, in whichever process.
    """
    free: list[float] = []
    slots = 0
    pauses = []
    for task in sorted(tasks, key=lambda times: times.started_at):
        before = bisect_right(free, task.started_at)
        if before:
            pauses.append(task.started_at - free.pop(before - 1))
        else:
            slots += 1
        insort(free, task.ended_at)
    return slots, pauses
