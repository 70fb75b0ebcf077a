"""The cost of exactly_once compared to at_least_once: time in alternating pairs, and requests.

Both write the same rows with the same settings to a new topic each time. The time of exactly_once
is that of the whole job, including the driver's plan and decision and the commit of all
transactions.
"""

from __future__ import annotations

from functools import partial
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
    verdict,
)
from benchmarks.payloads import SPARK_ROW_BYTES, spark_rows
from benchmarks.request_counts import AT_LEAST_ONCE, EXACTLY_ONCE
from benchmarks.spark_write import OURS, write_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

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
    given = {"deliveryGuarantee": guarantee, **options}
    return partial(write_topic, setting, df, rows, OURS, given)
