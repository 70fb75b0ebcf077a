"""`df.write` to a real broker, against the counting sink's upper bound and Spark's own JVM sink."""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measuring import (
    Trial,
    alternate,
    contest,
    heading,
    progress,
    table,
    trial,
    verdict,
)
from benchmarks.payloads import SPARK_ROW_BYTES, spark_rows
from benchmarks.request_counts import EXACTLY_ONCE
from benchmarks.setting import check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

PARTITIONS = 6
#: Targets as a share of the counting sink's rate, by codec.
TARGETS = {"none": 0.4, "lz4": 0.6, "zstd": 0.4}
WARM = "warm"
FRESH = "fresh"
#: Targets of a write of one row, in seconds above a sink that does nothing, by its workers.
ONE_ROW_TARGETS = {WARM: 0.2, FRESH: 0.5}

CEILING = "ceiling"
#: The sink in Python that does nothing.
NOWHERE = "counting"
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
    """Measure the fixed cost of a write beside a Python sink that does nothing.

    A fresh worker starts without any module of ours, but finds its kernels in the cache.
    """
    kafka = setting.kafka
    topic = kafka.create_topic()
    row = setting.spark.createDataFrame([("key", "value")], "key string, value string").coalesce(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}

    def seconds(sink: str) -> float:
        started = time.perf_counter()
        row.write.format(sink).mode("append").options(**options).save()
        return time.perf_counter() - started

    rounds = 3 * setting.rounds
    results = []
    for workers, target in ONE_ROW_TARGETS.items():
        with _worker_reuse(setting, reused=workers == WARM):
            sinks = {name: partial(seconds, name) for name in (NOWHERE, OURS)}
            times = alternate(sinks, rounds=rounds)
        nothing, ours = (statistics.median(times[name]) for name in sinks)
        difference = ours - nothing
        results.append(
            [
                workers,
                f"{nothing:.2f}",
                f"{ours:.2f}",
                f"{difference:.2f}",
                verdict(difference, at_most=target),
            ]
        )
    setting.check_count(topic, len(ONE_ROW_TARGETS) * (rounds + 1))
    kafka.delete_topics([topic])
    heading(f"One row, median of {rounds} rounds, seconds")
    table(["workers", "sink that does nothing", OURS, "difference", "target"], results)


@contextmanager
def _worker_reuse(setting: Setting, *, reused: bool) -> Iterator[None]:
    """Set whether tasks run in Python workers of earlier tasks, without a new session."""
    # Spark reads it for each task, but offers no way to set it in a running session.
    configuration = setting.spark.sparkContext._jsc.sc().conf()  # noqa: SLF001
    configuration.set("spark.python.worker.reuse", str(reused).lower())
    try:
        yield
    finally:
        configuration.set("spark.python.worker.reuse", "true")


def _save_nowhere(df: DataFrame, rows: int) -> Trial:
    with trial(rows) as result:
        df.write.format(NOWHERE).mode("append").save()
    return result


def _writer(
    setting: Setting, df: DataFrame, sink: str, options: dict[str, str]
) -> Callable[[], Trial]:
    return partial(write_topic, setting, df, setting.rows, sink, options)


def write_topic(
    setting: Setting, df: DataFrame, rows: int, sink: str, options: Mapping[str, str]
) -> Trial:
    """Write the rows of a DataFrame to a new topic, and check that all of them are in it."""
    kafka = setting.kafka
    # Remove deleted files soon: the many topics would fill the disk.
    topic = kafka.create_topic(PARTITIONS, config={"file.delete.delay.ms": "1000"})
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
    with trial(rows, exclude=setting.broker_processes) as result:
        df.write.format(sink).mode("append").options(**servers, **options).save()
    if sink != NOWHERE:
        # In exactly once, each task writes a transaction marker to each partition.
        is_exactly_once = options.get("deliveryGuarantee") == EXACTLY_ONCE
        most_markers = df.rdd.getNumPartitions() * PARTITIONS if is_exactly_once else 0
        check_count(kafka, topic, rows, most_markers=most_markers)
    kafka.delete_topics([topic])
    return result
