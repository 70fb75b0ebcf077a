"""Streams with numbered rows that Spark's own source reads from Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

if TYPE_CHECKING:
    from tests.support.kafka.real_kafka import KafkaCluster


class NumberedTopic:
    """A topic whose values are the numbers from 0 on, written by an independent client."""

    def __init__(self, kafka: KafkaCluster, partitions: int, *, rows_per_batch: int) -> None:
        """Create the topic, without rows."""
        self.topic = kafka.create_topic(partitions)
        self.options = {
            "format": "kafka",
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(rows_per_batch),
        }
        self.rows = 0
        self._partitions = partitions
        self._servers = kafka.bootstrap_servers

    def add(self, rows: int) -> None:
        """Add rows, to the partitions in turn."""
        producer = Producer({"bootstrap.servers": self._servers, "log_level": 0})
        for row in range(self.rows, self.rows + rows):
            producer.produce(self.topic, f"{row:010d}", partition=row % self._partitions)
        left = producer.flush(60)
        assert 0 == left
        self.rows += rows

    @property
    def numbers(self) -> list[str]:
        """The values of all rows, in order."""
        return [f"{row:010d}" for row in range(self.rows)]

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """The end offsets, by topic and partition."""
        return {
            (self.topic, number): len(range(number, self.rows, self._partitions))
            for number in range(self._partitions)
        }
