"""CPU time and memory of our processes, from Linux's /proc; elsewhere they are given as NaN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """What a process has used so far, in clock ticks."""

    parent: int
    own: int
    #: Of its children that have ended and that it has waited for, and of theirs.
    waited_for: int


def cpu_times(exclude: Sequence[int] = ()) -> dict[int, CpuTime] | None:
    """Read the CPU time of this process and all below it; None where there is no /proc.

    Processes in `exclude`, and all below these, do not count.
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
    """Count the CPU seconds that were used between two readings.

    A process that ended in between brings all its time to the one that waited for it, also what
    it had used before. One that nobody of ours waited for, such as an idle worker that Spark let
    go, takes its time with it.
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


def own_cpu_seconds(process: int) -> float:
    """Give the CPU time that a process has used so far, all its threads together."""
    fields = _stat(process)
    return sum(map(int, fields[11:13])) / _TICKS if fields else float("nan")


def memory_bytes(process: int) -> float:
    """Give the resident set of a process now."""
    return _status_bytes(process, "VmRSS:")


def peak_memory_bytes(process: int) -> float:
    """Give the largest resident set that a process has ever had."""
    return _status_bytes(process, "VmHWM:")


def _status_bytes(process: int, field: str) -> float:
    try:
        lines = (_PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def command_line(process: int) -> str:
    """Give the command line of a process, empty when it has ended."""
    try:
        return (_PROC / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def descendants(root: int, exclude: Sequence[int] = ()) -> list[int]:
    """List a process and all below it."""
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
    """Give the fields of /proc/N/stat from `state` on; none when the process has ended."""
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
