"""A program that runs a stream to its end, in its own Spark, and dies as planned.

    python -m tests.support.spark.killed_query '{"source": ..., "checkpoint": ..., "options": {}}'

Its sink is the package's, with writers that follow the kill plan. A query that fails as planned is
restarted in the same Spark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.exactly_once.kill_plan import KillPlan
from tests.support.spark.mortal_sink import MortalSink
from tests.support.spark.streams import LATE_SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

#: How a query may fail without a planned death; after it was frozen it is not the only one.
_OTHER_REASONS = ("another driver has taken over", LATE_SOURCE)


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    """Run the query until it has written all rows, or fails for another reason than the plan."""
    plan = KillPlan.of_environment()
    while True:
        planned = plan.left
        query = (
            read_stream(spark, given["source"])
            .selectExpr("cast(value as string) value")
            .repartition(2)
            .writeStream.format("pykafka")
            .options(**given["options"], checkpointLocation=given["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        try:
            # No timeout: the parent kills this program if it takes too long, and a stall may be
            # planned.
            query.awaitTermination()
        except StreamingQueryException as error:
            print(error, flush=True)  # noqa: T201 -- for the output of failed tests
            if plan.left == planned and not any(map(str(error).__contains__, _OTHER_REASONS)):
                raise
        else:
            return


def read_stream(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """Return the stream of a source, whose format is one of its options."""
    options = dict(source)
    return spark.readStream.format(options.pop("format")).options(**options).load()


def start_spark(directory: Path, settings: Mapping[str, str]) -> SparkSession:
    """Start a Spark, local unless `settings` differ, in which the mortal sink is registered."""
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
    """Run the query that the argument describes."""
    given = json.loads(sys.argv[1])
    spark = start_spark(Path(given["checkpoint"]).parent, given["spark"])
    run(spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
