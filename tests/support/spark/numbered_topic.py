"""Streams with numbered rows from Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

if TYPE_CHECKING:
    from tests.support.kafka.real_kafka import KafkaCluster


class NumberedTopic:
    """A topic whose values are the numbers from 0 on, written by an independent client."""

    def __init__(
        self,
        kafka: KafkaCluster,
        partitions: int,
        *,
        name: str | None = None,
        source: str = "kafka",
        rows_per_batch: int = 20,
    ) -> None:
        """Create the topic, without rows; `options` are for reading it with the format `source`."""
        self.topic = kafka.create_topic(partitions, name=name)
        self.options = {
            "format": source,
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(rows_per_batch),
        }
        self.rows = 0
        self._partitions = partitions
        self._servers = kafka.bootstrap_servers

    def add(self, rows: int, *, partition: int | None = None) -> None:
        """Add rows, to the first partitions in turn or all to one partition."""
        producer = Producer({"bootstrap.servers": self._servers, "log_level": 0})
        for row in range(self.rows, self.rows + rows):
            place = row % self._partitions if partition is None else partition
            producer.produce(self.topic, f"{row:010d}", partition=place)
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
