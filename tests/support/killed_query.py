"""A program that runs a stream to its end, in a Spark of its own, and dies where it is told to.

    python -m tests.support.killed_query '{"input": ..., "checkpoint": ..., "options": {...}}'

Its sink is ours, with writers that look at the kill plan at each named point of the protocol, after
a commit, and in the tasks before anything is produced and after all is flushed. A query that fails
because a Python process of its died is started again, in the same Spark.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.budget import Budget
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.stream_writer import KafkaStreamWriter
from tests.support.kill_plan import KillPlan
from tests.support.streams import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.exactly_once.points import Point

#: Places in a task; those of the driver are the values of `Point`.
BEFORE_PRODUCE = "task: before produce"
AFTER_FLUSH = "task: after flush"
#: On the driver, when the sink has done all, and Spark has noted nothing.
BEFORE_SPARKS_COMMIT = "before Spark's commit log"
#: How often a query may fail before that is not by our doing.
MAX_STARTS = 40


class MortalWriter(KafkaStreamWriter):
    """A writer that dies where the plan says."""

    def _observe(self, point: Point) -> None:
        KillPlan.of_environment().reached(point.value, lambda: look(self._options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        """Write, and die on the way if it is planned."""
        plan = KillPlan.of_environment()

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                plan.reached(BEFORE_PRODUCE)
                yield batch

        message = super().write(rows())
        if message.rows:
            plan.reached(AFTER_FLUSH)
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Commit, and die right after it if it is planned."""
        super().commit(messages, batchId)
        KillPlan.of_environment().reached(BEFORE_SPARKS_COMMIT)


class MortalSink(KafkaSink):
    """The sink with such writers; Spark knows it by the same name."""

    def streamWriter(self, schema: Any, overwrite: bool) -> MortalWriter:  # noqa: N802, FBT001
        """See KafkaSink."""
        made = super().streamWriter(schema, overwrite)
        made.__class__ = MortalWriter
        return made


def look(options: SinkOptions) -> dict[str, Any]:
    """See what a driver leaves behind that dies now, through connections of its own."""
    exactly_once = options.exactly_once
    assert exactly_once is not None
    with AdminClient(options.producer) as admin:
        budget = Budget.of(time.time, PATIENCE_SECONDS)
        topic, prefix = exactly_once.ledger_topic, exactly_once.prefix
        state = Ledger(admin, topic=topic, prefix=prefix, clock=time.time).read(budget)
        listed = recovery.list_open(admin, prefix, budget)
        return {
            "open": len(listed),
            "states": [record.write.state.value for record in state.writes.values()],
            "last": [record.write.batch_id for record in state.writes.values()],
        }


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    """Run the query until it has written all that there is."""
    for _ in range(MAX_STARTS):
        files = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        query = (
            files.text(given["input"])
            .repartition(2)
            .writeStream.format("pykafka")
            .options(**given["options"], checkpointLocation=given["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        try:
            has_ended = query.awaitTermination(2 * PATIENCE_SECONDS)
        except StreamingQueryException as error:
            print(str(error)[:2000], flush=True)  # noqa: T201 -- for who reads a failed test
        else:
            if not has_ended:
                raise TimeoutError(f"the query does not end: {query.status}")
            return
    raise RuntimeError(f"the query failed {MAX_STARTS} times")


def main() -> None:
    """Do what the argument says."""
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2, 4]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(given["checkpoint"]).parent / "warehouse"),
        **given["spark"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(MortalSink)
    run(spark, given)
    spark.stop()


if __name__ == "__main__":
    main()
