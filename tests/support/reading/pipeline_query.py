"""A program that copies a topic to another one, exactly once, until it is killed.

    python -m tests.support.reading.pipeline_query '{"source": ..., "sink": ..., ...}'

Both its source and its sink are the package's. Rows stay in their partition, so their order can be
checked; `bad_rows` get a partition that does not exist. A query that fails because a Python process
or the broker died is restarted in the same Spark. Once the file `finish` exists, the program ends
when all rows are copied.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from tests.support.spark.killed_query import read_stream, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_POLL_SECONDS = 0.2
_ENDLESS: dict[str, Any] = {"processingTime": "0 seconds"}
_TO_THE_END: dict[str, Any] = {"availableNow": True}


def start(spark: SparkSession, given: dict[str, Any], trigger: dict[str, Any]) -> StreamingQuery:
    """Start the query."""
    bad = given["bad_rows"]
    every = bad["every"]
    is_bad = f"cast(cast(value as string) as long) % {every} = {every} - 1"
    return (
        read_stream(spark, given["source"])
        .selectExpr("value", f"if({is_bad}, {bad['partition']}, partition) partition")
        .writeStream.format("pykafka")
        .options(**given["sink"], checkpointLocation=given["checkpoint"])
        .trigger(**trigger)
        .start()
    )


def run(spark: SparkSession, given: dict[str, Any]) -> bool:
    """Run the query until it fails or is to finish; return whether it has copied all rows."""
    is_last = Path(given["finish"]).exists()
    query = start(spark, given, _TO_THE_END if is_last else _ENDLESS)
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            if not is_last and Path(given["finish"]).exists():
                query.stop()
    except StreamingQueryException as error:
        print(error, flush=True)  # noqa: T201 -- for the output of failed tests
        return False
    return is_last


def main() -> None:
    """Run the query that the argument describes."""
    given = json.loads(sys.argv[1])
    spark = start_spark(Path(given["checkpoint"]).parent, given["spark"])
    while not run(spark, given):
        pass
    spark.stop()


if __name__ == "__main__":
    main()
