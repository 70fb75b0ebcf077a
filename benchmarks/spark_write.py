"""`df.write` to a real broker, against the counting sink's upper bound and Spark's own JVM sink."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.measuring import Trial, contest, heading, progress, table, trial, verdict
from benchmarks.payloads import SPARK_ROW_BYTES, spark_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

PARTITIONS = 6
#: Targets as a share of the counting sink's rate, by codec.
TARGETS = {"none": 0.4, "lz4": 0.6, "zstd": 0.4}
ONE_ROW_TARGET_SECONDS = 1.5

CEILING = "ceiling"
OURS = "pykafka"
JVM = "JVM sink"
JVM_TUNED = "JVM sink, tuned"
TUNED = {"kafka.linger.ms": "50", "kafka.batch.size": "1000000"}


def run(setting: Setting) -> None:
    """Measure writes with each of the codecs."""
    rows = setting.rows
    df = spark_rows(setting.spark, rows).persist()
    progress(f"preparing {rows:,} rows")
    df.count()
    results = []
    for codec, target in TARGETS.items():
        codec_option = {"kafka.compression.type": codec}
        contestants = {
            CEILING: lambda: _save_nowhere(df, rows),
            OURS: _writer(setting, df, "pykafka", codec_option),
        }
        if setting.has_jvm_connector:
            contestants[JVM] = _writer(setting, df, "kafka", codec_option)
            contestants[JVM_TUNED] = _writer(setting, df, "kafka", codec_option | TUNED)
        best = contest(contestants, rounds=setting.rounds)
        ours, share = best[OURS], best[OURS].rate / best[CEILING].rate
        results.append(
            [
                codec,
                f"{best[CEILING].rate:.2f}",
                f"{ours.rate:.2f}",
                f"{share:.2f}",
                verdict(share, at_least=target),
                *(
                    cell
                    for name in (JVM, JVM_TUNED)
                    if name in best
                    for cell in (f"{best[name].rate:.2f}", f"{ours.rate / best[name].rate:.2f}x")
                ),
                " / ".join(f"{result.cpu_per_million:.2f}" for result in best.values()),
            ]
        )
    df.unpersist()
    heading(
        f"df.write, {rows:,} rows of {SPARK_ROW_BYTES} bytes, best of {setting.rounds} rounds, "
        "million rows/s"
    )
    jvm_columns = (
        [JVM, "ours / theirs", JVM_TUNED, "ours / theirs"] if setting.has_jvm_connector else []
    )
    table(
        [
            "codec",
            CEILING,
            OURS,
            "ratio to ceiling",
            "target",
            *jvm_columns,
            "CPU s per million rows",
        ],
        results,
    )
    print(
        f"CPU seconds are in the order of the columns ({CEILING}, {OURS}"
        + (f", {JVM}, {JVM_TUNED}" if setting.has_jvm_connector else "")
        + ") and include Spark's processes, not the broker."
    )


def run_one_row(setting: Setting) -> None:
    """Measure the fixed cost of a write, without that of its rows."""
    spark, kafka = setting.spark, setting.kafka
    topic = kafka.create_topic()
    df = spark.createDataFrame([("key", "value")], "key string, value string").coalesce(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
    seconds: dict[str, list[float]] = {"noop": [], OURS: []}
    for number in range(3 * setting.rounds + 1):
        progress(f"one row, round {number}")
        for name, times in seconds.items():
            started = time.perf_counter()
            df.write.format(name).mode("append").options(**options).save()
            if number:
                times.append(time.perf_counter() - started)
    progress("")
    kafka.delete_topics([topic])
    noop, ours = (statistics.median(times) for times in seconds.values())
    heading(f"One row, median of {3 * setting.rounds} rounds, seconds")
    target = verdict(ours - noop, at_most=ONE_ROW_TARGET_SECONDS)
    table(
        ["noop sink", OURS, "difference", "target"],
        [[f"{noop:.2f}", f"{ours:.2f}", f"{ours - noop:.2f}", target]],
    )


def _save_nowhere(df: DataFrame, rows: int) -> Trial:
    with trial(rows) as result:
        df.write.format("counting").mode("append").save()
    return result


def _writer(
    setting: Setting, df: DataFrame, sink: str, options: dict[str, str]
) -> Callable[[], Trial]:
    kafka = setting.kafka

    def write() -> Trial:
        topic = kafka.create_topic(PARTITIONS)
        servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
        with trial(setting.rows, exclude=setting.broker_processes) as result:
            df.write.format(sink).mode("append").options(**servers, **options).save()
        setting.check_count(topic, setting.rows)
        kafka.delete_topics([topic])
        return result

    return write
