"""A program that writes numbered rows once, as a job with a shuffle, and dies as planned.

    python -m tests.support.spark.killed_job '{"rows": ..., "tasks": ..., "topics": [...], ...}'

The rows are spread over `filled` tasks, and round-robin over the topics; the other tasks have no
rows. `stages.json` contains how often each stage was retried.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark.killed_query import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The number of tasks before the shuffle, enough for each executor to run some.
_MAP_TASKS = 4


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    """Run the job."""
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
    """Return how often each stage of all jobs was retried."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
    stages = sorted({stage for job in jobs for stage in job.stageIds})
    return [tracker.getStageInfo(stage).currentAttemptId for stage in stages]


def main() -> None:
    """Run the job that the argument describes."""
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    # Spark must not change the number of tasks.
    spark = start_spark(directory, {"spark.sql.adaptive.enabled": "false", **given["spark"]})
    run(spark, given)
    (directory / "stages.json").write_text(json.dumps(stage_retries(spark)))
    spark.stop()


if __name__ == "__main__":
    main()
