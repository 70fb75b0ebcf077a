"""A program that runs a stream to its end, in a Spark of its own, and dies where it is told to.

    python -m tests.support.spark.killed_query '{"source": ..., "checkpoint": ..., "options": {}}'

Its sink is ours, with writers that look at the kill plan. A query that fails because a Python
process of its died is started again, in the same Spark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.spark.mortal_sink import MortalSink

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How often a query may fail before that is not by our doing.
MAX_STARTS = 40


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    """Run the query until it has written all that there is."""
    for _ in range(MAX_STARTS):
        query = (
            spark.readStream.options(**given["source"])
            .format(given["source"]["format"])
            .load()
            .selectExpr("cast(value as string) value")
            .repartition(2)
            .writeStream.format("pykafka")
            .options(**given["options"], checkpointLocation=given["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        try:
            # Who started this program ends it if that takes too long; it may sleep on its way.
            query.awaitTermination()
        except StreamingQueryException as error:
            print(error, flush=True)  # noqa: T201 -- for who reads a failed test
        else:
            return
    raise RuntimeError(f"the query failed {MAX_STARTS} times")


def start_spark(directory: Path, settings: Mapping[str, str]) -> SparkSession:
    """Start a local Spark, or what `settings` say, that knows the mortal sink."""
    builder = SparkSession.builder.master("local[2, 4]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(MortalSink)
    return spark


def main() -> None:
    """Do what the argument says."""
    given = json.loads(sys.argv[1])
    spark = start_spark(Path(given["checkpoint"]).parent, given["spark"])
    run(spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
