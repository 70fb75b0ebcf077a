"""Where the time of `df.write` goes: processor time by process, and the rate, beside the JVM sink.

Spark's JVM, the Python workers and the broker share the cores, so that a faster sink may only wait
for another of them. What the sink itself costs is the processor time of its workers above that of
workers that only count the rows. Seconds depend on the machine, so this cost is compared with that
of a lean sink, which sends the same rows as plainly as possible.
"""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measuring import MILLION, alternate, heading, progress, table, verdict
from benchmarks.payloads import NOTED_ROW_BYTES, spark_rows
from benchmarks.processes import CpuSeconds, spark_cpu, total_cpu
from benchmarks.spark_write import JVM_TUNED, OURS, TUNED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

PARTITIONS = 4
COUNTING = "count only"
LEAN = "lean sink"
FORMATS = {JVM_TUNED: "kafka", OURS: "pykafka", LEAN: "lean", COUNTING: "counting"}
#: The rows of the second table, with lz4: columns in place of those of the first.
SHAPES = {
    "key, value": ("key", "value"),
    "null keys": ("cast(null as string) as key", "value"),
    "timestamp": ("key", "value", "timestamp_millis(1700000000000 + cast(key as long)) timestamp"),
    "topic by column": ("key", "value", "'{topic}' as topic"),
    "headers": (
        "key",
        "value",
        "array(struct('name' as key, cast('a value of 20 bytes.' as binary) as value)) headers",
    ),
}
#: What other shapes may cost the workers, as a multiple of the first.
SHAPE_TARGET = 1.3


class Targets(NamedTuple):
    """What our sink should reach with one codec."""

    #: The cost of its workers, as a multiple of the lean sink's.
    lean: float | None
    #: Its rate, as a multiple of the JVM sink's.
    jvm: float


TARGETS = {"none": Targets(1.33, 1.9), "lz4": Targets(1.4, 1.6), "zstd": Targets(None, 2.4)}


class Usage(NamedTuple):
    """The rate of one write, and the processor time that each kind of process spent on it."""

    rate: float
    jvm: CpuSeconds
    workers: CpuSeconds
    broker: CpuSeconds

    @classmethod
    def median(cls, usages: Sequence[Usage]) -> Usage:
        """Return the medians of several writes, each value by itself."""
        return cls(
            statistics.median(usage.rate for usage in usages),
            *(
                CpuSeconds(*(statistics.median(part) for part in zip(*kind, strict=True)))
                for kind in (
                    [usage.jvm for usage in usages],
                    [usage.workers for usage in usages],
                    [usage.broker for usage in usages],
                )
            ),
        )


def run(setting: Setting) -> None:
    """Measure writes with each codec, and then with rows of other shapes."""
    rows = spark_rows(setting.spark, setting.rows, has_note=True).persist()
    progress(f"preparing {setting.rows:,} rows")
    rows.count()
    _run_codecs(setting, rows)
    _run_shapes(setting, rows)
    rows.unpersist()


def _run_codecs(setting: Setting, rows: DataFrame) -> None:
    lines = []
    for codec, targets in TARGETS.items():
        options = {"kafka.compression.type": codec}
        writes = {
            OURS: partial(_usage, setting, rows, OURS, options),
            LEAN: partial(_usage, setting, rows, LEAN, options | {"partitions": str(PARTITIONS)}),
            COUNTING: partial(_usage, setting, rows, COUNTING, {}),
        }
        if setting.has_jvm_connector:
            tuned = partial(_usage, setting, rows, JVM_TUNED, options | TUNED)
            writes = {JVM_TUNED: tuned} | writes
        usages = _medians(writes, setting.rounds)
        lines += [
            [
                f"{codec}: {name}",
                f"{usage.rate:.2f}",
                *map(str, usage[1:]),
                *comparisons(name, usages, targets),
            ]
            for name, usage in usages.items()
        ]
    heading(
        f"df.write, {setting.rows:,} rows of {NOTED_ROW_BYTES} bytes, {PARTITIONS} partitions, "
        f"medians of {setting.rounds} rounds: million rows/s, and CPU seconds per million rows "
        "(user + system)"
    )
    header = ["sink", "rate", "JVM", "workers", "broker", "workers above"]
    table([*header, "of the lean sink's", "target", "rate / JVM sink", "target"], lines)


def _run_shapes(setting: Setting, rows: DataFrame) -> None:
    options = {"kafka.compression.type": "lz4"}
    lines = []
    plain = None
    for shape, columns in SHAPES.items():
        usages = _medians(
            {
                name: partial(_usage, setting, rows, name, options, columns)
                for name in (OURS, COUNTING)
            },
            setting.rounds,
        )
        cost = _cost(usages, OURS)
        plain = plain or cost
        lines.append(
            [
                shape,
                f"{usages[OURS].rate:.2f}",
                *(str(usages[name].workers) for name in (OURS, COUNTING)),
                f"{cost:.3f}",
                f"{cost / plain:.2f}x",
                verdict(cost / plain, at_most=SHAPE_TARGET),
            ]
        )
    heading("The same with lz4, rows of other shapes: CPU seconds of the workers")
    header = ["columns", "rate", "workers", "count only", "workers above", "of the first"]
    table([*header, "target"], lines)


def _medians(writes: Mapping[str, Callable[[], Usage]], rounds: int) -> dict[str, Usage]:
    results = alternate(writes, rounds=rounds)
    return {name: Usage.median(usages) for name, usages in results.items()}


def _usage(
    setting: Setting,
    rows: DataFrame,
    name: str,
    options: dict[str, str],
    columns: Sequence[str] = ("*",),
) -> Usage:
    """Write once; raises RuntimeError unless all rows are in the topic then."""
    topic = "" if name == COUNTING else setting.kafka.create_topic(PARTITIONS)
    df = rows.selectExpr(*(column.format(topic=topic) for column in columns))
    if topic:
        options = {"kafka.bootstrap.servers": setting.kafka.bootstrap_servers, **options}
        if "topic" not in df.columns:
            options["topic"] = topic
    brokers = setting.broker_processes
    before = (*spark_cpu(brokers), total_cpu(brokers))
    started = time.perf_counter()
    df.write.format(FORMATS[name]).mode("append").options(**options).save()
    seconds = time.perf_counter() - started
    after = (*spark_cpu(brokers), total_cpu(brokers))
    if topic:
        setting.check_count(topic, setting.rows)
        setting.kafka.delete_topics([topic])
    per_million = MILLION / setting.rows
    return Usage(
        setting.rows / seconds / MILLION,
        *(
            CpuSeconds(*((b - a) * per_million for a, b in zip(earlier, later, strict=True)))
            for earlier, later in zip(before, after, strict=True)
        ),
    )


def comparisons(name: str, usages: Mapping[str, Usage], targets: Targets) -> list[str]:
    """Return a sink's cost as cells, beside the lean sink's cost and the JVM sink's rate.

    Only our sink has targets. The lean sink's rate shows how much could be reached at all.
    """
    if name == OURS:
        return [
            f"{_cost(usages, OURS):.3f}",
            *_against_lean(usages, targets.lean),
            *_against_jvm(usages, OURS, targets.jvm),
        ]
    if name == LEAN:
        return [f"{_cost(usages, LEAN):.3f}", "", "", *_against_jvm(usages, LEAN, None)]
    return [""] * 5


def _cost(usages: Mapping[str, Usage], name: str) -> float:
    """Return the processor time of a sink's workers above those that only count."""
    return sum(usages[name].workers) - sum(usages[COUNTING].workers)


def _against_lean(usages: Mapping[str, Usage], target: float | None) -> tuple[str, str]:
    lean_cost = _cost(usages, LEAN)
    # In a very short run, it may be lost in the noise.
    multiple = _cost(usages, OURS) / lean_cost if lean_cost > 0 else math.nan
    return f"{multiple:.2f}x", "" if target is None else verdict(multiple, at_most=target)


def _against_jvm(usages: Mapping[str, Usage], name: str, target: float | None) -> tuple[str, str]:
    if JVM_TUNED not in usages:
        return "", ""
    multiple = usages[name].rate / usages[JVM_TUNED].rate
    return f"{multiple:.2f}x", "" if target is None else verdict(multiple, at_least=target)
