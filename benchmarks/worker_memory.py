"""The peak memory of a task's Python worker, compared to an idle one.

Each figure comes from a new Spark session in a new process, because workers are reused and a peak
never goes down. `python -m benchmarks.worker_memory FORMAT ROWS [TOPIC BOOTSTRAP_SERVERS]` is that
process; it prints the peaks of its workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.measuring import MILLION, heading, progress, table, verdict
from benchmarks.payloads import spark_rows
from benchmarks.processes import WORKER, command_line, descendants, peak_memory_bytes
from benchmarks.setting import ROOT, start_spark

if TYPE_CHECKING:
    from benchmarks.setting import Setting

PARTITIONS = 6
#: In MiB; the default buffer.memory is 32 of them.
TARGET = 136
SHORT_ROWS = 1_000_000
LONG_ROWS = 50_000_000
_MEGA = 1024 * 1024


def run(setting: Setting) -> None:
    """Measure a worker that only counts, and workers that write few and many rows."""
    idle = _peak_in_new_session("counting", SHORT_ROWS)
    results = [["idle worker (counts rows)", f"{idle / _MEGA:.0f}", "", ""]]
    for rows in (SHORT_ROWS, *([LONG_ROWS] if setting.long else [])):
        topic = setting.kafka.create_topic(PARTITIONS)
        peak = _peak_in_new_session("pykafka", rows, topic, setting.kafka.bootstrap_servers)
        setting.kafka.delete_topics([topic])
        over_idle = (peak - idle) / _MEGA
        results.append(
            [
                f"pykafka, {rows / MILLION:g} million rows",
                f"{peak / _MEGA:.0f}",
                f"{over_idle:.0f}",
                verdict(over_idle, at_most=TARGET),
            ]
        )
    heading("Peak memory of a task's worker, MiB")
    table(["worker", "peak RSS", "above idle", "target"], results)


def _peak_in_new_session(sink: str, rows: int, *place: str) -> float:
    progress(f"measuring a worker: {sink}, {rows:,} rows")
    command = [sys.executable, "-m", "benchmarks.worker_memory", sink, str(rows), *place]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    progress("")
    return max(json.loads(output.splitlines()[-1]))


def main(sink: str, rows: str, topic: str = "", bootstrap_servers: str = "") -> None:
    """Write once, and print the memory peaks of all workers, which still run."""
    spark = start_spark()
    options = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic} if topic else {}
    spark_rows(spark, int(rows)).write.format(sink).mode("append").options(**options).save()
    peaks = [
        peak_memory_bytes(process)
        for process in descendants(os.getpid())
        if WORKER in command_line(process)
    ]
    spark.stop()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
