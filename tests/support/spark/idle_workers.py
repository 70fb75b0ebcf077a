"""Kill the Python workers of a Spark session, idle ones as Spark does after a minute.

After a minute without a task, Spark's Python daemon sends them SIGKILL. That minute is not
configurable, and tests should not have to wait for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 120


def end_idle_workers(spark: SparkSession) -> list[int]:
    """Kill all Python workers of a local session that runs no tasks; return their process ids."""
    return _end([worker for daemon in _daemons(spark) for worker in _children(daemon)])


def end_workers(spark: SparkSession, module: str) -> list[int]:
    """Kill the Python workers that run a module of PySpark, also busy ones; return their ids."""
    name = module.encode()
    daemons = _daemons(spark)
    # Spark starts those of streams itself, without a daemon.
    others = [child for child in _children(_java(spark)) if child not in daemons]
    forked = [w for daemon in daemons if name in _command(daemon) for w in _children(daemon)]
    return _end([*forked, *(other for other in others if name in _command(other))])


def _java(spark: SparkSession) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def _daemons(spark: SparkSession) -> list[int]:
    return [child for child in _children(_java(spark)) if b"pyspark.daemon" in _command(child)]


def _end(workers: list[int]) -> list[int]:
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    # To Spark, a process that its parent has not waited for yet is alive.
    wait_until(
        lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers),
        seconds=_SECONDS,
        what="the end of workers",
    )
    return workers


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The format is pid (command) state ppid ...; a command may contain any characters.
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return found


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
