"""The rate of a paced write over any ten seconds, with 1, 10 and 50 tasks.

The tasks are processes, forked from one that has warmed up, since Spark would need minutes to start
50 of them on few cores. They share the pace as the tasks of an executor do, and send nothing before
all of them have started.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.measuring import heading, progress, table, verdict
from spark_kafka_sink import read_arrow
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.spark.sink.pacing import pacer_of
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from tests.support.spark.task_producers import ProducerOfTask

if TYPE_CHECKING:
    from benchmarks.setting import Setting

TASKS = (1, 10, 50)
#: Rows per second, and for how many seconds there are rows.
RATE = 2_000
SECONDS = 15
_WINDOW = 10
#: Tasks that start together connect in the first second, and send little.
_STARTING = 1.0
_STEP = 0.25
_PATIENCE_SECONDS = 300
_MS = 1_000


def run(setting: Setting) -> None:
    """Measure each number of tasks in a process of its own."""
    rows = []
    for tasks in TASKS:
        progress(f"{tasks} tasks at {RATE:,} rows per second")
        topic, warm = (
            setting.kafka.create_topic(4, config={"message.timestamp.type": "LogAppendTime"})
            for _ in range(2)
        )
        servers = setting.kafka.bootstrap_servers
        subprocess.run(
            [sys.executable, "-m", "benchmarks.paced_tasks", servers, topic, warm, str(tasks)],
            check=True,
            timeout=_PATIENCE_SECONDS,
        )
        setting.check_count(topic, RATE * SECONDS // tasks * tasks)
        least, most = _shares(servers, topic)
        rows.append(
            [
                str(tasks),
                f"{least:.3f}",
                verdict(least, at_least=0.95),
                f"{most:.3f}",
                verdict(most, at_most=1.05),
            ]
        )
    heading(f"maxRecordsPerSecond={RATE}, rows in any {_WINDOW} seconds as a share of the limit")
    table(["tasks", "least", "target", "most", "target"], rows)


def _shares(servers: str, topic: str) -> tuple[float, float]:
    """Return the lowest and the highest rate by the broker's time, as a share of the limit."""
    with read_arrow(servers, topic, columns=["timestamp"]) as reader:
        times = reader.read_all()["timestamp"].cast(pa.timestamp("ms")).cast(pa.int64())
    seconds = np.sort(times.to_numpy()) / _MS
    starts = np.arange(seconds[0] + _STARTING, seconds[-1] - _WINDOW, _STEP)
    counts = np.searchsorted(seconds, starts + _WINDOW) - np.searchsorted(seconds, starts)
    return counts.min() / (RATE * _WINDOW), counts.max() / (RATE * _WINDOW)


def _write(options: dict[str, str], tasks: int, directory: str, name: str, gate: Any) -> None:
    """Write the rows of a task, once all have started."""
    parsed = SinkOptions.from_mapping(options)
    pacer = pacer_of(
        parsed.pace,
        name,
        {"spark.master": "local"}.get,
        environ={"SPARK_LOCAL_DIRS": directory},
    )
    rows = RATE * SECONDS // tasks
    gate.wait(_PATIENCE_SECONDS)
    write_rows(
        [pa.record_batch({"value": [f"{row:010d}" for row in range(rows)]})],
        producers=ProducerOfTask(parsed.producer),
        topic=parsed.topic,
        config=parsed.producer,
        pacer=pacer,
    )


def main() -> None:
    """Run the tasks of one write; the arguments are servers, topic, topic to warm up, and tasks."""
    servers, topic, warm, number = sys.argv[1:]
    tasks = int(number)
    context = multiprocessing.get_context("fork")
    options = {"kafka.bootstrap.servers": servers, "topic": warm}
    with tempfile.TemporaryDirectory() as directory:
        _write(options, RATE * SECONDS, directory, "", context.Barrier(1))
        options |= {"topic": topic, "maxRecordsPerSecond": str(RATE)}
        arguments = (options, tasks, directory, uuid.uuid4().hex, context.Barrier(tasks))
        processes = [context.Process(target=_write, args=arguments) for _ in range(tasks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_PATIENCE_SECONDS)
    if any(process.exitcode for process in processes):
        raise SystemExit("a task has failed")


if __name__ == "__main__":
    main()
