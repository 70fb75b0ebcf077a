"""A program that writes numbered rows once, as a job with a shuffle, and dies where it is told to.

    python -m tests.support.spark.killed_job '{"rows": ..., "tasks": ..., "topics": [...], ...}'

Rows go to as few tasks as `filled` says, and to the topics in turn; the other tasks have none. How
often stages were tried again is told in `stages.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark.killed_query import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Of the stage before the shuffle: some for each executor.
_MAP_TASKS = 4


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    """Write."""
    topics = ", ".join(f"'{topic}'" for topic in given["topics"])
    (
        spark.range(given["rows"], numPartitions=_MAP_TASKS)
        .selectExpr(
            "format_string('%010d', id) value",
            f"element_at(array({topics}), int(id % {len(given['topics'])}) + 1) topic",
            f"id % {given['filled']} bucket",
        )
        .repartition(given["tasks"], "bucket")
        .select("value", "topic")
        .write.format("pykafka")
        .mode("append")
        .options(**given["options"])
        .save()
    )


def stage_retries(spark: SparkSession) -> list[int]:
    """Tell of each stage of all jobs how often it was tried again."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
    stages = sorted({stage for job in jobs for stage in job.stageIds})
    return [tracker.getStageInfo(stage).currentAttemptId for stage in stages]


def main() -> None:
    """Do what the argument says."""
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    # Spark is to leave the number of tasks alone.
    spark = start_spark(directory, {"spark.sql.adaptive.enabled": "false", **given["spark"]})
    run(spark, given)
    (directory / "stages.json").write_text(json.dumps(stage_retries(spark)))
    spark.stop()


if __name__ == "__main__":
    main()
