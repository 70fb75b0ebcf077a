"""The time of a micro-batch, against a Python sink that does nothing, and until rows are visible.

Time of micro-batches: generated numbers, batch after batch without a pause, with the durations that
each query reports (`triggerExecution` of StreamingQueryProgress). Row to visible: a file with one
row, the current time, appears at regular intervals, and a consumer of another client
(confluent-kafka, read_committed) records when it receives that row. Most rows arrive while a
micro-batch runs and wait for the next one, so about one and a half micro-batches are expected.
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
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.streams import wait_for_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.setting import Setting

NOTHING = "counting"
SINKS = (NOTHING, AT_LEAST_ONCE, EXACTLY_ONCE)
PARTITIONS = 6
TARGETS = {AT_LEAST_ONCE: 1.1, EXACTLY_ONCE: 1.15}
#: Numbers of micro-batches of each query; the first ones start workers and connect.
WARM_UP_BATCHES, BATCHES = 5, 20
#: Rows of a micro-batch, as a share of `--rows`.
ROWS_SHARE = 1 / 200
#: Each warm-up row is visible before the next is added, so each has its own micro-batch.
WARM_UP_ROWS, ROWS, ROWS_APART_SECONDS = 5, 100, 0.05
_PATIENCE_SECONDS = 60


def run(setting: Setting) -> None:
    """Measure the time of micro-batches, and the time until rows are visible."""
    # Queries are stopped in the middle of a micro-batch, which Spark logs as a failure; a real
    # failure of a query is raised here.
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
        "relative to a Python sink that does nothing"
    )
    table(
        ["sink", "milliseconds", *SPREAD_COLUMNS, "target"],
        [_batch_line(sink, seconds[sink], seconds[NOTHING]) for sink in SINKS],
    )
    heading(
        f"Time until a row is visible to a read_committed consumer, {setting.rounds * ROWS} rows, "
        f"one every {ROWS_APART_SECONDS * 1000:.0f} ms"
    )
    table(
        ["sink", "micro-batch, ms", "p50, ms", "p99, ms", "p50 / micro-batch", "p99"],
        [_visible_line(sink, *found) for sink, found in visible.items()],
    )


def _batch_line(sink: str, seconds: Sequence[float], nothing: Sequence[float]) -> list[str]:
    milliseconds = f"{median(seconds) * 1000:.0f}"
    if sink == NOTHING:
        return [sink, milliseconds, "1", "", "", ""]
    ratios = [ours / theirs for ours, theirs in zip(seconds, nothing, strict=True)]
    spread = Spread.of(ratios)
    return [sink, milliseconds, *spread.cells(), verdict(spread.median, at_most=TARGETS[sink])]


def _visible_line(sink: str, batch_seconds: float, latencies: Sequence[float]) -> list[str]:
    p50, p99 = np.percentile(latencies, [50, 99])
    return [
        sink,
        *(f"{seconds * 1000:.0f}" for seconds in (batch_seconds, p50, p99)),
        *(f"{seconds / batch_seconds:.2f}" for seconds in (p50, p99)),
    ]


def batch_seconds(reports: Iterable[Mapping[str, Any]], *, first_batch: int = 0) -> list[float]:
    """Return the durations of micro-batches with rows in seconds, from `first_batch` on.

    `reports` are the progress reports of a query: one for each micro-batch, and those of triggers
    that found no rows.
    """
    return [
        report["durationMs"]["triggerExecution"] / 1000
        for report in reports
        if report["batchId"] >= first_batch and report["numInputRows"] > 0
    ]


def _time_batches(setting: Setting, sink: str, rows: int) -> float:
    """Run a new query; return the median time of its micro-batches in seconds."""
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
        raise RuntimeError(f"{topic} has {written} of {rows} rows")


def _measure_visibility(setting: Setting) -> dict[str, tuple[float, list[float]]]:
    """Return the median time of micro-batches and the latencies of all rows, by sink.

    The sinks alternate from round to round.
    """
    batches: dict[str, list[float]] = {AT_LEAST_ONCE: [], EXACTLY_ONCE: []}
    latencies: dict[str, list[float]] = {sink: [] for sink in batches}
    for number in range(1, setting.rounds + 1):
        for sink in batches:
            progress(f"time until visible, round {number}/{setting.rounds}: {sink}")
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
    # Renamed when complete: Spark ignores names that begin with a dot.
    hidden = directory / f".{number:06d}.txt"
    hidden.write_text(f"{time.time_ns()}\n")
    hidden.rename(directory / f"{number:06d}.txt")


def _start(
    setting: Setting, df: DataFrame, sink: str, topic: str, checkpoint: str
) -> StreamingQuery:
    """Start a query that runs each micro-batch as soon as the previous one is done."""
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
    """A read_committed consumer on its own thread that records the age of each row it receives."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Create a consumer at the beginning of the topic's only partition."""
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
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the thread and close the consumer."""
        self._is_over.set()
        self._thread.join(_PATIENCE_SECONDS)
        self._consumer.close()

    def wait_for(self, rows: int, query: StreamingQuery) -> None:
        """Wait until so many rows were received; raise an error of the consumer or the query."""

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
