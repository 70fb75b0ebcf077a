"""What the tasks of a write cost beside their rows, and how many fewer there could be.

Spark hands each task to a Python worker and takes its result back, and the task itself takes a
producer and waits for its last acknowledgements. With few rows, that is most of a job's time. A
worker sees the first part as the pause between two of its tasks, and measures the second one.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: From this number of tasks on, their number matters: at most some seconds' worth of them.
MANY_TASKS: Final = 50
#: How many tasks for each that can run at the same time even out differences between them.
TASKS_PER_SLOT: Final = 4
#: The share of a write's time from which on its tasks are too many.
_TOO_MUCH: Final = 0.3


class TaskTimes(NamedTuple):
    """When a worker has run a task, in seconds of its monotonic clock."""

    #: The Python process, unique among those of a write.
    worker: str
    started_at: float
    ended_at: float
    #: How long taking a producer and waiting for the last acknowledgements took.
    fixed_seconds: float


class TaskCosts(NamedTuple):
    """The time that starting and ending tasks took of a write."""

    #: Seconds of the write, not of all workers together.
    seconds: float
    #: How many workers have run tasks side by side.
    workers: int

    def advice(self, *, tasks: int, rows: int, elapsed: float | None) -> str | None:
        """Return what fewer tasks would save; None if it is little.

        `elapsed` is the time of the write in seconds; None if it is unknown.
        """
        fewer = TASKS_PER_SLOT * self.workers
        if elapsed is None or tasks <= max(MANY_TASKS, 2 * fewer):
            return None
        taken = min(self.seconds, elapsed)
        if taken < _TOO_MUCH * elapsed:
            return None
        without = elapsed - taken * (1 - fewer / tasks)
        return (
            f"{tasks:,} tasks of about {rows // tasks:,} rows: {taken:,.1f} s of {elapsed:,.1f} s "
            "went into starting and ending them; "
            f"with df.coalesce({fewer}) the write would take about {without:,.1f} s"
        )


def costs_of(times: Iterable[TaskTimes]) -> TaskCosts | None:
    """Return what the tasks of one write cost; None if no worker has run two of them.

    The median pause counts for each task, so that a long one, in which a worker had nothing to do
    or served another job, does not.
    """
    by_worker: dict[str, list[TaskTimes]] = {}
    for each in times:
        by_worker.setdefault(each.worker, []).append(each)
    pauses = [
        max(later.started_at - earlier.ended_at, 0.0)
        for tasks in by_worker.values()
        for earlier, later in pairwise(sorted(tasks, key=lambda one: one.started_at))
    ]
    if not pauses:
        return None
    every = [one for tasks in by_worker.values() for one in tasks]
    each_task = statistics.median(pauses) + statistics.median(one.fixed_seconds for one in every)
    return TaskCosts(each_task * len(every) / len(by_worker), len(by_worker))
