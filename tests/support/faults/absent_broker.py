"""A broker that is down when a stream begins a micro-batch: the embedded one, or Kafka."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.support.kafka.readers import read_with_confluent
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.streams import (
    Checkpoint,
    NumberedFiles,
    run_to_end,
    to_kafka,
    wait_for_batch,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.support.kafka.real_kafka import KafkaCluster


WRITE_TASKS = 2
#: Much less than the ten minutes for which the tasks wait, yet enough for Spark on a busy machine.
STOP_SECONDS = 120


class AbsentBroker:
    """A stream that has written one micro-batch, and whose only broker is stopped afterwards."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, directory: Path) -> None:
        """Write the first micro-batch, and stop the broker."""
        self._spark = spark
        self._kafka = kafka
        self.topic = kafka.create_topic(2)
        self.files = NumberedFiles(directory)
        self._checkpoint = Checkpoint(directory)
        self.files.add(10)
        run_to_end(self._writer("before"))
        [self.broker] = kafka.brokers
        self.broker.stop()
        self.files.add(10)

    def _writer(self, client_id: str):
        return to_kafka(
            self.files.read(self._spark, partitions=WRITE_TASKS),
            self._checkpoint,
            topic=self.topic,
            # A producer with another client id has to fetch metadata again.
            **{
                "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
                "kafka.client.id": client_id,
                "kafka.max.block.ms": "600000",
                "kafka.delivery.timeout.ms": "600000",
            },
        )

    def start_query(self) -> StreamingQuery:
        """Restart the stream, and wait until its write tasks run."""
        query = self._writer("after").start()

        def has_tasks() -> bool:
            error = query.exception()
            if error is not None:
                raise error
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            # The stages before the write have one task each.
            return any(stage and stage.numTasks == WRITE_TASKS for stage in stages)

        wait_until(has_tasks, seconds=120, what="tasks of the micro-batch")
        return query

    def continues_once_the_broker_is_back(self) -> None:
        """Check that the stream waits for its broker, and then writes all rows."""
        query = self.start_query()
        self.broker.start()
        wait_for_batch(query, 1)
        query.stop()
        assert self.files.numbers == sorted(
            (record.value or b"").decode()
            for record in read_with_confluent(self._kafka.bootstrap_servers, self.topic)
        )

    def can_be_stopped_meanwhile(self) -> None:
        """Check that a query whose tasks wait for a broker stops long before they time out."""
        query = self.start_query()
        stopping = threading.Thread(target=query.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
        self.broker.start()
        assert not stopping.is_alive()
