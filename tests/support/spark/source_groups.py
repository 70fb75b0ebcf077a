"""Consumer groups for which a stream commits its progress, read by an independent client."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_kafka_sink.spark.data_source import KafkaSink
from tests.support.kafka.real_kafka import ask_until_answered, wait_until
from tests.support.spark.micro_batches import SCHEMA, arrow_of, task_context, travel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SECONDS = 120
#: The errors of a coordinator whose topic is being created or read.
_LOADING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1760000000000,"conf":{}}'


def committed_offsets(bootstrap_servers: str, group_id: str) -> dict[tuple[str, int], int]:
    """Return a group's committed offsets, by topic and partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": group_id, "log_level": 0}
    )
    try:
        topics = consumer.list_topics(timeout=_SECONDS).topics.values()
        asked = [
            TopicPartition(topic.topic, partition)
            for topic in topics
            for partition in topic.partitions
        ]
        # The first question of all creates the coordinator's topic.
        committed = ask_until_answered(
            lambda: consumer.committed(asked, timeout=_SECONDS), _LOADING
        )
    finally:
        consumer.close()
    return {
        (place.topic, place.partition): place.offset for place in committed if place.offset >= 0
    }


@contextmanager
def joined_consumer(
    bootstrap_servers: str, group_id: str, topic: str, **settings: str
) -> Iterator[None]:
    """Join the group with a consumer that reads the topic and commits nothing; leave it at the end.

    `settings` have the names of librdkafka's settings, with underscores for dots.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group_id,
            "enable.auto.commit": False,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    try:
        consumer.subscribe([topic])

        def is_in() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) > 0

        wait_until(is_in, seconds=_SECONDS, what=f"a member of group {group_id}")
        yield
    finally:
        consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def is_empty() -> bool:
        described = admin.describe_consumer_groups([group_id], request_timeout=_SECONDS)
        return len(described[group_id].result().members) == 0

    wait_until(is_empty, seconds=_SECONDS, what=f"the member of group {group_id} to be out")


class SourceStream:
    """A stream from Kafka that consists only of its checkpoint."""

    def __init__(
        self, bootstrap_servers: str, checkpoint: Path, group_id: str, **options: Any
    ) -> None:
        """Create the directory for offsets, as Spark does."""
        self._offsets = checkpoint / "offsets"
        self._offsets.mkdir(parents=True)
        self._options = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "kafka.retry.backoff.ms": "5",
            "checkpointLocation": str(checkpoint),
            "sourceConsumerGroup": group_id,
            **options,
        }

    def note(self, batch_id: int, *sources: str) -> None:
        """Write the offsets of a micro-batch, a line for each source."""
        text = "\n".join(["v1", METADATA, *sources])
        (self._offsets / str(batch_id)).write_text(text)

    def writer(self) -> Any:
        """Create a writer, as Spark does before each step."""
        return KafkaSink(CaseInsensitiveDict(self._options)).streamWriter(SCHEMA, overwrite=False)

    def run(self, batch_id: int, *values: str) -> None:
        """Run a micro-batch of one task."""
        planned = travel(self.writer())
        properties = {
            "sql.streaming.queryId": "query-1",
            "streaming.sql.batchId": str(batch_id),
        }
        with task_context(0, properties):
            message = travel(planned.write(arrow_of(values)))
        self.writer().commit([message], batch_id)
