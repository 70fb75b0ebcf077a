"""Streams with numbered rows from files, one file in each micro-batch."""

from __future__ import annotations

import itertools
import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

#: The longest time that a query may take for any awaited step, in seconds.
PATIENCE_SECONDS = 120
_STARTS = 5
#: What the error says if a source's Python process has not started within Spark's ten seconds.
LATE_SOURCE = "failed to connect back"


class NumberedFiles:
    """A stream's source: a directory with files of the numbers from 0 on, one per line."""

    def __init__(self, directory: Path) -> None:
        """Create the directory, without files."""
        self.directory = directory / "input"
        self.directory.mkdir()
        self.rows = 0
        self._files = 0

    def add(self, rows: int = 10, files: int = 1) -> None:
        """Add files with this many rows each."""
        for _ in range(files):
            lines = "".join(f"{self.rows + row:010d}\n" for row in range(rows))
            # The rename makes the whole file visible at once: Spark ignores names with a leading
            # dot.
            hidden = self.directory / f".{self._files:06d}.txt"
            hidden.write_text(lines)
            hidden.rename(self.directory / f"{self._files:06d}.txt")
            self.rows += rows
            self._files += 1

    @property
    def numbers(self) -> list[str]:
        """The values of all rows, in order."""
        return [f"{row:010d}" for row in range(self.rows)]

    @property
    def options(self) -> dict[str, str]:
        """The options with which a program reads the files, one in each micro-batch."""
        return {"format": "text", "path": str(self.directory), "maxFilesPerTrigger": "1"}

    def read(self, spark: SparkSession, partitions: int = 2) -> DataFrame:
        """Read the files as a stream with a column `value`, one file in each micro-batch."""
        reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        return reader.text(str(self.directory)).repartition(partitions)


class Checkpoint:
    """A query's checkpoint, and the ways in which a test can change it."""

    def __init__(self, directory: Path) -> None:
        """Choose a directory, which Spark will create."""
        self.path = directory / "checkpoint"

    def forget_last_commit(self) -> int:
        """Remove the last micro-batch from Spark's commit log; return its number.

        The checkpoint then looks as if the driver had died after the sink's commit, and before
        Spark's own.
        """
        last = max(self._numbers("commits"))
        self._remove("commits", last)
        return last

    def roll_back(self, batches: int) -> None:
        """Restore the state of some batches ago."""
        for _ in range(batches):
            last = max(self._numbers("offsets"))
            for kind in ("offsets", "commits", "sources/0"):
                self._remove(kind, last)

    def delete(self) -> None:
        """Delete the checkpoint."""
        shutil.rmtree(self.path)

    def _numbers(self, kind: str) -> list[int]:
        return [int(file.name) for file in (self.path / kind).iterdir() if file.name.isdecimal()]

    def _remove(self, kind: str, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (self.path / kind / name).unlink(missing_ok=True)


def to_kafka(df: DataFrame, checkpoint: Checkpoint, **options: Any) -> DataStreamWriter:
    """Create a stream's writer; `options` have their own names."""
    given = {"checkpointLocation": str(checkpoint.path), **options}
    return df.writeStream.format("pykafka").options(**given)


def start(writer: DataStreamWriter, trigger: Mapping[str, Any]) -> StreamingQuery:
    """Start a query, and wait until it has its sources or has failed.

    Spark gives a source's Python process ten seconds to start, which is too little on a busy
    machine. A query that fails for this reason has done nothing, and is started again.
    """
    for number in itertools.count(1):
        query = writer.trigger(**trigger).start()
        wait_until(
            lambda query=query: not query.status["message"].startswith("Initializing"),
            seconds=PATIENCE_SECONDS,
            what="the sources of a query",
        )
        if number == _STARTS or LATE_SOURCE not in str(query.exception()):
            break
        query.stop()
    return query


def run_to_end(
    writer: DataStreamWriter, trigger: Mapping[str, Any] = MappingProxyType({"availableNow": True})
) -> StreamingQuery:
    """Run a query, by default over all available rows, to its end; raises the query's error."""
    query = start(writer, trigger)
    try:
        if not query.awaitTermination(PATIENCE_SECONDS):
            raise TimeoutError(f"the query goes on for {PATIENCE_SECONDS} s: {query.status}")
    finally:
        query.stop()
    return query


def wait_for_batch(query: StreamingQuery, batch_id: int) -> None:
    """Wait until a query has finished a micro-batch; raises the query's error if it fails."""

    def is_done() -> bool:
        error = query.exception()
        if error is not None:
            raise error
        progress = query.lastProgress
        return progress is not None and progress["batchId"] >= batch_id

    wait_until(is_done, seconds=PATIENCE_SECONDS, what=f"batch {batch_id}")
