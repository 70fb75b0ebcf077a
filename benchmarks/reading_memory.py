"""The peak memory of a Python worker that reads: flat, however many rows there are.

As in `worker_memory`, each figure comes from a new Spark session in a new process, here
`python -m benchmarks.reading_memory ROWS [TOPIC SERVERS]`; without a topic, rows are generated.
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

PARTITIONS = 2
SHORT_ROWS = 1_000_000
LONG_ROWS = 50_000_000
#: The peak of many rows may be this many times the peak of few rows.
TARGET = 1.1
_MEGA = 1024 * 1024


def run(setting: Setting) -> None:
    """Measure workers that read few and many rows, and one that only makes them."""
    idle = _peak_in_new_session(SHORT_ROWS)
    lines = [["generated rows", f"{idle / _MEGA:.0f}", "", "", ""]]
    short = None
    for rows in (SHORT_ROWS, LONG_ROWS if setting.long else setting.rows):
        peak = _peak_of_reading(setting, rows)
        short = short or peak
        lines.append(
            [
                f"pykafka, {rows / MILLION:g} million rows",
                f"{peak / _MEGA:.0f}",
                f"{(peak - idle) / _MEGA:.0f}",
                f"{peak / short:.2f}",
                verdict(peak / short, at_most=TARGET),
            ]
        )
    heading("Peak memory of a reading task's worker, MiB")
    table(["worker", "peak RSS", "above generated", "many / few", "target"], lines)


def _peak_of_reading(setting: Setting, rows: int) -> float:
    progress(f"writing {rows:,} rows")
    topic = setting.kafka.create_topic(PARTITIONS)
    options = {
        "kafka.bootstrap.servers": setting.kafka.bootstrap_servers,
        "kafka.compression.type": "lz4",
        "topic": topic,
    }
    frame = spark_rows(setting.spark, rows)
    frame.write.format("pykafka").mode("append").options(**options).save()
    peak = _peak_in_new_session(rows, topic, setting.kafka.bootstrap_servers)
    setting.kafka.delete_topics([topic])
    return peak


def _peak_in_new_session(rows: int, *place: str) -> float:
    progress(f"measuring a worker that reads {rows:,} rows")
    command = [sys.executable, "-m", "benchmarks.reading_memory", str(rows), *place]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    progress("")
    return max(json.loads(output.splitlines()[-1]))


def main(rows: str, topic: str = "", bootstrap_servers: str = "") -> None:
    """Read once, and print the memory peaks of all workers, which still run."""
    spark = start_spark()
    if topic:
        reader = spark.read.format("pykafka").options(
            **{"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic}
        )
    else:
        reader = spark.read.format("generated").options(rows=rows, partitions=PARTITIONS)
    reader.load().write.format("noop").mode("overwrite").save()
    peaks = [
        peak_memory_bytes(process)
        for process in descendants(os.getpid())
        if WORKER in command_line(process)
    ]
    spark.stop()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
