"""Writes and reads in many small tasks, with PySpark's TCP sockets and with Unix domain sockets.

Spark talks to its Python workers over one or the other (`spark.python.unix.domain.socket.enabled`,
off by default). A task of Python costs a hand-over from the JVM to the worker and back, whatever it
does; so sinks and a source that do nothing run beside ours.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from benchmarks.measuring import Trial, alternate, heading, progress, table, trial, verdict
from benchmarks.payloads import spark_rows
from benchmarks.request_counts import EXACTLY_ONCE
from benchmarks.spark_write import JVM, JVM_TUNED, NOWHERE, OURS, TUNED, write_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.setting import Setting

Name = TypeVar("Name")
NOTHING = "does nothing"
ONCE = "exactly once"
_LZ4 = {"kafka.compression.type": "lz4"}
#: The sinks, as formats with options.
SINKS: dict[str, tuple[str, dict[str, str]]] = {
    NOTHING: (NOWHERE, {}),
    OURS: ("pykafka", _LZ4),
    ONCE: (
        "pykafka",
        _LZ4 | {"deliveryGuarantee": EXACTLY_ONCE, "transactionalIdPrefix": "tasks"},
    ),
    JVM_TUNED: ("kafka", _LZ4 | TUNED),
    JVM: ("kafka", _LZ4),
}
TCP = "TCP"
UNIX = "Unix"
SOCKETS = {TCP: "false", UNIX: "true"}


class Job(NamedTuple):
    """A write, with its targets over Unix domain sockets."""

    rows: int
    tasks: int
    #: The least rate as a share of the tuned JVM sink's.
    of_jvm: float | None = None
    #: The most time of exactly once as a multiple of at least once.
    of_at_least_once: float | None = None


JOBS = (
    Job(2_000_000, 2),
    Job(2_000_000, 200, of_jvm=0.9, of_at_least_once=1.2),
    Job(200_000, 200, of_jvm=0.5, of_at_least_once=1.2),
)
READ_PARTITIONS = (6, 300)
READ_ROWS = 300_000
#: What a task may cost beyond its rows, in seconds, and the share that the rows may take longer.
TASK_SECONDS = 0.003
ROWS_SHARE = 1.2
#: How much longer reading may take without the Unix domain socket.
TCP_SHARE = 2.0


def run(setting: Setting) -> None:
    """Measure writes of many tasks, then reads, over each kind of socket."""
    sinks = [name for name in SINKS if setting.has_jvm_connector or SINKS[name][0] != "kafka"]
    topics = {partitions: _fill(setting, partitions) for partitions in READ_PARTITIONS}
    writes: dict[tuple[Job, str], dict[str, float]] = {}
    reads = {}
    for sockets, enabled in SOCKETS.items():
        setting.restart_spark({"spark.python.unix.domain.socket.enabled": enabled})
        for job in JOBS:
            writes[job, sockets] = _write(setting, job, sinks)
        reads[sockets] = _read(setting, topics)
    setting.restart_spark({})
    setting.kafka.delete_topics(topics.values())
    _report_writes(setting, sinks, writes)
    _report_reads(setting, reads)


def _write(setting: Setting, job: Job, sinks: list[str]) -> dict[str, float]:
    progress(f"preparing {job.rows:,} rows in {job.tasks} partitions")
    df = spark_rows(setting.spark, job.rows, partitions=job.tasks).persist()
    df.count()
    times = _medians(
        {name: partial(write_topic, setting, df, job.rows, *SINKS[name]) for name in sinks},
        setting.rounds,
    )
    df.unpersist()
    return times


def _report_writes(
    setting: Setting, sinks: list[str], writes: dict[tuple[Job, str], dict[str, float]]
) -> None:
    heading(f"df.write in tasks, lz4, seconds, median of {setting.rounds} rounds")
    table(
        ["write", "sockets", *sinks, "ours / JVM, tuned", "exactly once / ours"],
        [
            [
                f"{job.rows:,} rows, {job.tasks} tasks",
                sockets,
                *(f"{times[name]:.2f}" for name in sinks),
                *(_write_verdicts(job, times) if sockets == UNIX else ("", "")),
            ]
            for (job, sockets), times in writes.items()
        ],
    )


def _write_verdicts(job: Job, times: dict[str, float]) -> list[str]:
    against = ""
    if JVM_TUNED in times:
        ratio = times[JVM_TUNED] / times[OURS]
        against = f"{ratio:.2f}x"
        if job.of_jvm is not None:
            against += " " + verdict(ratio, at_least=job.of_jvm)
    share = times[ONCE] / times[OURS]
    once = f"{share:.2f}"
    if job.of_at_least_once is not None:
        once += " " + verdict(share, at_most=job.of_at_least_once)
    return [against, once]


def _fill(setting: Setting, partitions: int) -> str:
    """Return a topic with the same number of rows in each of its partitions."""
    progress(f"writing {READ_ROWS:,} rows to {partitions} partitions")
    topic = setting.kafka.create_topic(partitions)
    rows = spark_rows(setting.spark, READ_ROWS)
    rows = rows.selectExpr("*", f"cast(substr(value, 10, 8) as int) % {partitions} as partition")
    rows.write.format("pykafka").mode("append").options(
        **{"kafka.bootstrap.servers": setting.kafka.bootstrap_servers, "topic": topic} | _LZ4
    ).save()
    setting.check_count(topic, READ_ROWS)
    return topic


def _read(setting: Setting, topics: dict[int, str]) -> dict[tuple[str, int], float]:
    return _medians(
        {
            (kind, partitions): _reader(setting, kind, topic, partitions)
            for partitions, topic in topics.items()
            for kind in (NOTHING, OURS)
        },
        setting.rounds,
    )


def _report_reads(setting: Setting, reads: dict[str, dict[tuple[str, int], float]]) -> None:
    heading(f"spark.read of {READ_ROWS:,} rows, seconds, median of {setting.rounds} rounds")
    header = list(reads[UNIX])
    table(
        ["sockets", *(f"{kind}, {partitions} tasks" for kind, partitions in header)],
        [[name, *(f"{times[each]:.2f}" for each in header)] for name, times in reads.items()],
    )
    few, many = ((OURS, partitions) for partitions in READ_PARTITIONS)
    at_most = round(ROWS_SHARE * reads[UNIX][few] + READ_PARTITIONS[1] * TASK_SECONDS, 2)
    over_tcp = reads[TCP][many] / reads[UNIX][many]
    print(
        f"{many[1]} tasks over Unix domain sockets, in seconds: "
        f"{verdict(reads[UNIX][many], at_most=at_most)}; over TCP {over_tcp:.2f} times as long: "
        f"{verdict(over_tcp, at_most=TCP_SHARE)}"
    )


def _medians(contestants: dict[Name, Callable[[], Trial]], rounds: int) -> dict[Name, float]:
    results = alternate(contestants, rounds=rounds)
    return {
        name: statistics.median(each.seconds for each in trials) for name, trials in results.items()
    }


def _reader(setting: Setting, kind: str, topic: str, partitions: int) -> Callable[[], Trial]:
    def read() -> Trial:
        reader = setting.spark.read
        if kind == NOTHING:
            df = reader.format("generated").options(rows=READ_ROWS, partitions=partitions).load()
        else:
            df = (
                reader.format("pykafka")
                .option("kafka.bootstrap.servers", setting.kafka.bootstrap_servers)
                .option("subscribe", topic)
                .load()
            )
        with trial(READ_ROWS) as result:
            df.write.format("noop").mode("overwrite").save()
        return result

    return read
