"""The cost of exactly_once compared to at_least_once: time in alternating pairs, and requests.

Both write the same rows with the same settings to a new topic each time. The time of exactly_once
is that of the whole job, including the driver's plan and decision and the commit of all
transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import request_counts
from benchmarks.measuring import (
    SPREAD_COLUMNS,
    Spread,
    Trial,
    heading,
    paired_ratios,
    progress,
    table,
    trial,
    verdict,
)
from benchmarks.payloads import SPARK_ROW_BYTES, spark_rows
from benchmarks.request_counts import AT_LEAST_ONCE, EXACTLY_ONCE
from benchmarks.setting import check_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

PARTITIONS = 6
LONG_ROWS = 10_000_000
LEAST_PAIRS = 9
TARGET = 1.05
_PREFIX = "bench"


def run(setting: Setting) -> None:
    """Measure the time, then count requests."""
    rows = LONG_ROWS if setting.long else setting.rows
    pairs = max(LEAST_PAIRS, setting.rounds)
    df = spark_rows(setting.spark, rows).persist()
    progress(f"preparing {rows:,} rows")
    df.count()
    ratios = paired_ratios(
        _writer(setting, df, rows, {"transactionalIdPrefix": _PREFIX}, EXACTLY_ONCE),
        _writer(setting, df, rows, {}, AT_LEAST_ONCE),
        pairs=pairs,
    )
    df.unpersist()
    spread = Spread.of(ratios)
    heading(
        f"{EXACTLY_ONCE} and {AT_LEAST_ONCE}, df.write of {rows:,} rows of {SPARK_ROW_BYTES} "
        f"bytes, lz4, {pairs} alternating pairs"
    )
    table(
        ["ratio of times", *SPREAD_COLUMNS, "target"],
        [["within pairs", *spread.cells(), verdict(spread.median, at_most=TARGET)]],
    )
    request_counts.run_per_task(setting)
    request_counts.run_per_batch()


def _writer(
    setting: Setting, df: DataFrame, rows: int, options: dict[str, str], guarantee: str
) -> Callable[[], Trial]:
    kafka = setting.kafka
    # Each task writes a transaction marker to each partition.
    most_markers = df.rdd.getNumPartitions() * PARTITIONS if guarantee == EXACTLY_ONCE else 0

    def write() -> Trial:
        # Remove deleted files soon: the many topics would fill the disk.
        topic = kafka.create_topic(PARTITIONS, config={"file.delete.delay.ms": "1000"})
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "topic": topic,
            "deliveryGuarantee": guarantee,
            **options,
        }
        with trial(rows, exclude=setting.broker_processes) as result:
            df.write.format("pykafka").mode("append").options(**given).save()
        check_count(kafka, topic, rows, most_markers=most_markers)
        kafka.delete_topics([topic])
        return result

    return write
