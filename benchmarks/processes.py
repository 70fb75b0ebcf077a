"""CPU time and memory of our processes, from /proc on Linux; NaN on other systems."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROC = Path("/proc")
#: What the command lines of Spark's processes contain.
WORKER = "pyspark.daemon"
_JVM = "org.apache.spark.deploy.SparkSubmit"
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """The CPU time that a process has used so far, in clock ticks."""

    parent: int
    own: int
    #: CPU time of ended descendants that were waited for, as the kernel adds them up.
    waited_for: int


def cpu_times(exclude: Sequence[int] = ()) -> dict[int, CpuTime] | None:
    """Read the CPU times of this process and its descendants; None if there is no /proc.

    Processes in `exclude` and their descendants are left out.
    """
    if not _PROC.is_dir():
        return None
    times = {}
    for process in descendants(os.getpid(), exclude):
        if fields := _stat(process):
            user, system, waited_user, waited_system = map(int, fields[11:15])
            times[process] = CpuTime(int(fields[1]), user + system, waited_user + waited_system)
    return times


def cpu_seconds_between(
    before: Mapping[int, CpuTime] | None, after: Mapping[int, CpuTime] | None
) -> float:
    """Return the CPU seconds that were used between two readings.

    When a process ends, all of its time, including that before the first reading, is added to the
    process that waits for it. The time of a process that none of ours waited for, such as an idle
    worker that Spark has stopped, is lost.
    """
    if before is None or after is None:
        return float("nan")
    brought = dict.fromkeys(after, 0)
    for process, time in before.items():
        if process in after:
            continue
        heir = time.parent
        while heir in before and heir not in after:
            heir = before[heir].parent
        if heir in brought:
            brought[heir] += time.own + time.waited_for
    ticks = 0
    for process, time in after.items():
        earlier = before.get(process, CpuTime(0, 0, 0))
        ticks += time.own - earlier.own
        ticks += max(time.waited_for - earlier.waited_for - brought[process], 0)
    return ticks / _TICKS


class CpuSeconds(NamedTuple):
    """CPU time in user mode and in the operating system."""

    user: float
    system: float

    def __str__(self) -> str:
        """Return both, in hundredths."""
        return f"{self.user:.2f} + {self.system:.2f}"


def total_cpu(processes: Sequence[int]) -> CpuSeconds:
    """Return the CPU time of processes so far, and of children that they have waited for."""
    user = system = 0
    for process in processes:
        if fields := _stat(process):
            mine_user, mine_system, theirs_user, theirs_system = map(int, fields[11:15])
            user += mine_user + theirs_user
            system += mine_system + theirs_system
    return CpuSeconds(user / _TICKS, system / _TICKS)


def spark_cpu(exclude: Sequence[int] = ()) -> tuple[CpuSeconds, CpuSeconds]:
    """Return the CPU time so far of Spark's JVM, and of its Python workers with their daemon.

    An ended worker still counts, with its daemon. Processes in `exclude` and their descendants are
    left out. The times are NaN if there is no /proc.
    """
    if not _PROC.is_dir():
        return CpuSeconds(math.nan, math.nan), CpuSeconds(math.nan, math.nan)
    commands = {it: command_line(it) for it in descendants(os.getpid(), exclude)}
    workers = [it for it, command in commands.items() if WORKER in command]
    jvms = [it for it, command in commands.items() if _JVM in command]
    return _own_cpu(jvms), total_cpu(workers)


def _own_cpu(processes: Sequence[int]) -> CpuSeconds:
    times = [_stat(process)[11:13] for process in processes]
    return CpuSeconds(*(sum(int(time[n]) for time in times if time) / _TICKS for n in range(2)))


def own_cpu_seconds(process: int) -> float:
    """Return the CPU seconds that all threads of a process have used so far."""
    fields = _stat(process)
    return sum(map(int, fields[11:13])) / _TICKS if fields else float("nan")


def memory_bytes(process: int) -> float:
    """Return the current resident set size of a process."""
    return _status_bytes(process, "VmRSS:")


def peak_memory_bytes(process: int) -> float:
    """Return the peak resident set size of a process."""
    return _status_bytes(process, "VmHWM:")


def _status_bytes(process: int, field: str) -> float:
    try:
        lines = (_PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def command_line(process: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return (_PROC / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def descendants(root: int, exclude: Sequence[int] = ()) -> list[int]:
    """Return a process and its descendants, without those in `exclude` and below."""
    children: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*"):
        if fields := _stat(int(path.name)):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = []
    waiting = [root]
    while waiting:
        process = waiting.pop()
        if process not in exclude:
            found.append(process)
            waiting += children.get(process, [])
    return found


def _stat(process: int) -> list[str]:
    """Return the fields of /proc/N/stat from `state` on; none if the process has ended."""
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
