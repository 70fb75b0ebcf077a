"""A program that copies a topic to another one, exactly once, until it is killed.

    python -m tests.support.reading.pipeline_query '{"source": ..., "sink": ..., ...}'

Both its source and its sink are the package's. Rows stay in their partition, so their order can be
checked. A query that fails because a Python process or the broker died is restarted in the same
Spark. With `"trigger": {"availableNow": true}`, the program ends when all rows are copied.
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


def start(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    """Start the query."""
    return (
        read_stream(spark, given["source"])
        .select("value", "partition")
        .writeStream.format("pykafka")
        .options(**given["sink"], checkpointLocation=given["checkpoint"])
        .trigger(**given["trigger"])
        .start()
    )


def main() -> None:
    """Run the query that the argument describes."""
    given = json.loads(sys.argv[1])
    spark = start_spark(Path(given["checkpoint"]).parent, given["spark"])
    while True:
        try:
            start(spark, given).awaitTermination()
        except StreamingQueryException as error:
            print(error, flush=True)  # noqa: T201 -- for the output of failed tests
        else:
            break
    spark.stop()


if __name__ == "__main__":
    main()
