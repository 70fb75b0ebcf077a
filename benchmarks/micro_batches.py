"""What a micro-batch takes, beside a sink in Python that does nothing; and when its rows are seen.

Time of micro-batches: numbers that Spark makes up, batch after batch without a pause, as long as
each query reports them (`triggerExecution` of StreamingQueryProgress). Row to visible: a file with
one row appears every so often, with the time in it; a consumer of another client
(confluent-kafka, read_committed) notes when it gets that row. Rows come at any moment, and most of
them while a micro-batch runs: they wait for the next one, so one and a half is what to expect.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka
import numpy as np

from benchmarks.measuring import SPREAD_COLUMNS, Spread, heading, progress, table, verdict
from benchmarks.payloads import SPARK_ROW_BYTES
from benchmarks.request_counts import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.support.real_kafka import wait_until
from tests.support.streams import wait_for_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.setting import Setting

NOTHING = "counting"
SINKS = (NOTHING, AT_LEAST_ONCE, EXACTLY_ONCE)
PARTITIONS = 6
TARGET = 1.5
#: Of each query: the first ones start workers and connect.
WARM_UP_BATCHES, BATCHES = 5, 20
#: A micro-batch has this share of `--rows`.
ROWS_SHARE = 1 / 200
#: A warm-up row is seen before the next one comes, so each has a micro-batch of its own.
WARM_UP_ROWS, ROWS, ROWS_APART_SECONDS = 5, 100, 0.05
_PATIENCE_SECONDS = 60


def run(setting: Setting) -> None:
    """Measure both."""
    # A query is stopped in the middle of a micro-batch, and Spark tells of that as of a failure;
    # one that fails by itself is raised here.
    setting.spark.sparkContext.setLogLevel("OFF")
    rows = max(1, int(setting.rows * ROWS_SHARE))
    seconds: dict[str, list[float]] = {sink: [] for sink in SINKS}
    for number in range(setting.rounds + 1):
        for sink, found in seconds.items():
            progress(
                f"round {number}/{setting.rounds}: {sink}" if number else f"warming up: {sink}"
            )
            batch_seconds = _time_batches(setting, sink, rows)
            if number:
                found.append(batch_seconds)
    visible = _measure_visibility(setting)
    setting.spark.sparkContext.setLogLevel("ERROR")
    progress("")
    heading(
        f"Micro-batches of {rows:,} rows, median of {BATCHES} in each of {setting.rounds} rounds, "
        "as a ratio to a sink in Python that does nothing"
    )
    table(
        ["sink", "milliseconds", *SPREAD_COLUMNS, "target"],
        [_batch_line(sink, seconds[sink], seconds[NOTHING]) for sink in SINKS],
    )
    heading(
        f"From row to visible for a read_committed consumer, {setting.rounds * ROWS} rows, "
        f"one every {ROWS_APART_SECONDS * 1000:.0f} ms"
    )
    table(
        ["sink", "micro-batch, ms", "p50, ms", "p99, ms", "of a micro-batch: p50", "p99"],
        [_visible_line(sink, *found) for sink, found in visible.items()],
    )


def _batch_line(sink: str, seconds: Sequence[float], nothing: Sequence[float]) -> list[str]:
    milliseconds = f"{median(seconds) * 1000:.0f}"
    if sink == NOTHING:
        return [sink, milliseconds, "1", "", "", ""]
    ratios = [ours / theirs for ours, theirs in zip(seconds, nothing, strict=True)]
    spread = Spread.of(ratios)
    return [sink, milliseconds, *spread.cells(), verdict(spread.median, at_most=TARGET)]


def _visible_line(sink: str, batch_seconds: float, latencies: Sequence[float]) -> list[str]:
    p50, p99 = np.percentile(latencies, [50, 99])
    return [
        sink,
        *(f"{seconds * 1000:.0f}" for seconds in (batch_seconds, p50, p99)),
        *(f"{seconds / batch_seconds:.2f}" for seconds in (p50, p99)),
    ]


def batch_seconds(reports: Iterable[Mapping[str, Any]], *, first_batch: int = 0) -> list[float]:
    """Give how long micro-batches with rows took, from `first_batch` on.

    `reports` are a query's progress: triggers that found nothing report, too, and a micro-batch is
    reported once.
    """
    return [
        report["durationMs"]["triggerExecution"] / 1000
        for report in reports
        if report["batchId"] >= first_batch and report["numInputRows"] > 0
    ]


def _time_batches(setting: Setting, sink: str, rows: int) -> float:
    """Run a query of its own; give the median time of a micro-batch."""
    numbers = (
        setting.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .load()
    )
    digits = f"lpad(cast(value as string), {SPARK_ROW_BYTES}, '0') as value"
    topic = setting.kafka.create_topic(PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as checkpoint:
        query = _start(setting, numbers.selectExpr(digits), sink, topic, checkpoint)
        try:
            wait_for_batch(query, WARM_UP_BATCHES + BATCHES - 1)
        finally:
            query.stop()
        found = batch_seconds(query.recentProgress, first_batch=WARM_UP_BATCHES)
    if sink != NOTHING:
        _check_at_least(setting, topic, rows * (WARM_UP_BATCHES + BATCHES))
    return median(found)


def _check_at_least(setting: Setting, topic: str, rows: int) -> None:
    written = sum(setting.kafka.end_offsets(topic).values())
    if written < rows:
        raise RuntimeError(f"{written} of {rows} rows are in {topic}")


def _measure_visibility(setting: Setting) -> dict[str, tuple[float, list[float]]]:
    """Give the median micro-batch and all rows' seconds, by sink; rounds alternate."""
    batches: dict[str, list[float]] = {AT_LEAST_ONCE: [], EXACTLY_ONCE: []}
    latencies: dict[str, list[float]] = {sink: [] for sink in batches}
    for number in range(1, setting.rounds + 1):
        for sink in batches:
            progress(f"row to visible, round {number}/{setting.rounds}: {sink}")
            batch, seen = _watch_rows(setting, sink)
            batches[sink] += batch
            latencies[sink] += seen
    return {sink: (median(batches[sink]), latencies[sink]) for sink in batches}


def _watch_rows(setting: Setting, sink: str) -> tuple[list[float], list[float]]:
    topic = setting.kafka.create_topic()
    with (
        tempfile.TemporaryDirectory(prefix="stream-") as directory,
        Watcher(setting.kafka.bootstrap_servers, topic) as watcher,
    ):
        source = Path(directory) / "input"
        source.mkdir()
        rows = setting.spark.readStream.schema("value string").text(str(source))
        query = _start(setting, rows, sink, topic, f"{directory}/checkpoint")
        try:
            for number in range(WARM_UP_ROWS):
                _add_row(source, number)
                watcher.wait_for(number + 1, query)
            for number in range(WARM_UP_ROWS, WARM_UP_ROWS + ROWS):
                time.sleep(ROWS_APART_SECONDS)
                _add_row(source, number)
            watcher.wait_for(WARM_UP_ROWS + ROWS, query)
        finally:
            query.stop()
        reports = query.recentProgress
    return batch_seconds(reports, first_batch=WARM_UP_ROWS), watcher.seconds[WARM_UP_ROWS:]


def _add_row(directory: Path, number: int) -> None:
    # Appears at once with its row: names with a dot are not looked at.
    hidden = directory / f".{number:06d}.txt"
    hidden.write_text(f"{time.time_ns()}\n")
    hidden.rename(directory / f"{number:06d}.txt")


def _start(
    setting: Setting, df: DataFrame, sink: str, topic: str, checkpoint: str
) -> StreamingQuery:
    """Start a query that begins a micro-batch as soon as the one before is done."""
    options = {
        "kafka.bootstrap.servers": setting.kafka.bootstrap_servers,
        "topic": topic,
        "deliveryGuarantee": sink,
        **({"transactionalIdPrefix": topic} if sink == EXACTLY_ONCE else {}),
    }
    writer = df.writeStream.format("counting")
    if sink != NOTHING:
        writer = df.writeStream.format("pykafka").options(**options)
    return (
        writer.option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(processingTime="0 seconds")
        .start()
    )


class Watcher:
    """A read_committed consumer on a thread of its own: how old each row is when it gets it."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Begin at the end of the topic's one partition."""
        self.seconds: list[float] = []
        self._errors: list[Exception] = []
        self._is_over = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        place = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
        self._consumer.assign([place])
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        """Watch."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop."""
        self._is_over.set()
        self._thread.join(_PATIENCE_SECONDS)
        self._consumer.close()

    def wait_for(self, rows: int, query: StreamingQuery) -> None:
        """Wait until so many rows have been seen; raises what the consumer or the query met."""

        def are_here() -> bool:
            if (error := query.exception()) is not None:
                raise error
            if self._errors:
                raise self._errors[0]
            return len(self.seconds) >= rows

        wait_until(are_here, seconds=_PATIENCE_SECONDS, what=f"{rows} visible rows")

    def _watch(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self._errors.append(confluent_kafka.KafkaException(error))
                return
            self.seconds.append((time.time_ns() - int(message.value() or b"0")) / 1e9)
