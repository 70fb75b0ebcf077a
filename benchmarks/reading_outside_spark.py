"""`read_arrow` against a `consume` loop of confluent-kafka, each on one core.

Each run is a new process, `python -m benchmarks.reading_outside_spark CLIENT TOPIC SERVERS`, which
prints the rows and seconds of its second reading; the first one warms up. The process is pinned to
one core, and the broker to the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka

from benchmarks.measuring import Trial, contest, heading, table, verdict
from benchmarks.setting import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.setting import Setting

OURS = "read_arrow"
CONFLUENT = "confluent-kafka"
TARGET = 5.0
_CONSUMED_AT_ONCE = 10_000


def run(setting: Setting, topic: str) -> None:
    """Measure both clients in alternating rounds."""

    def measured(client: str) -> Trial:
        rows, seconds = _in_new_process(client, topic, setting.kafka.bootstrap_servers)
        if rows != setting.rows:
            raise RuntimeError(f"{client} has read {rows} of {setting.rows} rows")
        return Trial(rows, seconds=seconds)

    *others, _ = sorted(os.sched_getaffinity(0))
    with pinned(setting.broker_processes, others):
        best = contest(
            {client: lambda client=client: measured(client) for client in (OURS, CONFLUENT)},
            rounds=setting.rounds,
        )
    ours, theirs = best[OURS].rate, best[CONFLUENT].rate
    heading(f"Without Spark, one core each, {setting.rows:,} rows, lz4, million rows/s")
    table(
        [OURS, f"{CONFLUENT}, consume()", "ours / theirs", "target"],
        [
            [
                f"{ours:.2f}",
                f"{theirs:.2f}",
                f"{ours / theirs:.2f}x",
                verdict(ours / theirs, at_least=TARGET),
            ]
        ],
    )


@contextmanager
def pinned(processes: Sequence[int], cores: Sequence[int]) -> Iterator[None]:
    """Run all threads of processes on some cores only, as long as the block runs."""
    before = os.sched_getaffinity(0)
    _pin(processes, cores or before)
    try:
        yield
    finally:
        _pin(processes, before)


def _pin(processes: Sequence[int], cores: Sequence[int] | set[int]) -> None:
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


def _in_new_process(*arguments: str) -> tuple[int, float]:
    command = [sys.executable, "-m", "benchmarks.reading_outside_spark", *arguments]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    rows, seconds = json.loads(output.splitlines()[-1])
    return rows, seconds


def _read_arrow(topic: str, bootstrap_servers: str) -> int:
    from spark_kafka_sink.consumer.read_arrow import read_arrow  # noqa: PLC0415  # after pinning

    return sum(batch.num_rows for batch in read_arrow(bootstrap_servers, topic=topic))


def _consume(topic: str, bootstrap_servers: str) -> int:
    """Read the keys and values of a topic as Python objects."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 1_000_000,
        }
    )
    begin = confluent_kafka.OFFSET_BEGINNING
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, each, begin) for each in partitions])
    rows = ended = 0
    while ended < len(partitions):
        for message in consumer.consume(_CONSUMED_AT_ONCE, timeout=0.1):
            error = message.error()
            if error is None:
                message.key(), message.value()
                rows += 1
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
                ended += 1
            else:
                raise confluent_kafka.KafkaException(error)
    consumer.close()
    return rows


def main(client: str, topic: str, bootstrap_servers: str) -> None:
    """Read a topic twice on the last core; print the rows and seconds of the second time."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    read = {OURS: _read_arrow, CONFLUENT: _consume}[client]
    read(topic, bootstrap_servers)
    started = time.perf_counter()
    rows = read(topic, bootstrap_servers)
    print(json.dumps([rows, time.perf_counter() - started]))


if __name__ == "__main__":
    main(*sys.argv[1:])
