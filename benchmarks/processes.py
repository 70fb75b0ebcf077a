"""CPU time and memory of our processes, from Linux's /proc; elsewhere they are given as NaN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(exclude: Sequence[int] = ()) -> float:
    """Sum up the CPU time of this process and all below it, those that have ended included.

    Processes in `exclude`, and all below these, do not count.
    """
    if not _PROC.is_dir():
        return float("nan")
    ticks = 0
    for process in descendants(os.getpid(), exclude):
        fields = _stat(process)
        # utime, stime, and the same of children that ended and were waited for.
        ticks += sum(int(field) for field in fields[11:15]) if fields else 0
    return ticks / _TICKS


def peak_memory_bytes(process: int) -> float:
    """Give the largest resident set that a process has ever had."""
    try:
        lines = (_PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


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
