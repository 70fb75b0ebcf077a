"""Where the time of `df.write` goes: processor time by process, and the rate, beside the JVM sink.

Spark's JVM, the Python workers and the broker share the cores, so that a faster sink may only wait
for another of them. What the sink itself costs is the processor time of its workers above that of
workers that only count the rows.
"""

from __future__ import annotations

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
#: By codec: processor seconds of the workers per million rows, above those that only count, and
#: the rate as a multiple of the JVM sink's.
TARGETS: dict[str, tuple[float | None, float]] = {
    "none": (0.12, 1.9),
    "lz4": (0.14, 1.6),
    "zstd": (None, 2.4),
}
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
    for codec, (above, against_jvm) in TARGETS.items():
        options = {"kafka.compression.type": codec}
        writes = {
            OURS: partial(_usage, setting, rows, OURS, options),
            COUNTING: partial(_usage, setting, rows, COUNTING, {}),
        }
        if setting.has_jvm_connector:
            tuned = partial(_usage, setting, rows, JVM_TUNED, options | TUNED)
            writes = {JVM_TUNED: tuned} | writes
        usages = _medians(writes, setting.rounds)
        for name, usage in usages.items():
            is_ours = name == OURS
            lines.append(
                [
                    f"{codec}: {name}",
                    f"{usage.rate:.2f}",
                    *map(str, usage[1:]),
                    *(_above(usage, usages[COUNTING], above) if is_ours else ("", "")),
                    *(_ratio(usages, against_jvm) if is_ours else ("", "")),
                ]
            )
    heading(
        f"df.write, {setting.rows:,} rows of {NOTED_ROW_BYTES} bytes, {PARTITIONS} partitions, "
        f"medians of {setting.rounds} rounds: million rows/s, and CPU seconds per million rows "
        "(user + system)"
    )
    header = ["sink", "rate", "JVM", "workers", "broker", "workers above", "target"]
    table([*header, "ours / JVM sink", "target"], lines)


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
        cost = _cost(usages[OURS], usages[COUNTING])
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
    sink = {COUNTING: "counting", JVM_TUNED: "kafka", OURS: "pykafka"}[name]
    brokers = setting.broker_processes
    before = (*spark_cpu(brokers), total_cpu(brokers))
    started = time.perf_counter()
    df.write.format(sink).mode("append").options(**options).save()
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


def _cost(ours: Usage, counting: Usage) -> float:
    return sum(ours.workers) - sum(counting.workers)


def _above(ours: Usage, counting: Usage, most: float | None) -> tuple[str, str]:
    cost = _cost(ours, counting)
    return f"{cost:.3f}", verdict(cost, at_most=most) if most is not None else ""


def _ratio(usages: Mapping[str, Usage], target: float) -> tuple[str, str]:
    if JVM_TUNED not in usages:
        return "", ""
    ratio = usages[OURS].rate / usages[JVM_TUNED].rate
    return f"{ratio:.2f}x", verdict(ratio, at_least=target)
