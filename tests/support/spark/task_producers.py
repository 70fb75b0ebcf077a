"""A source of producers that serve one task each, so that tests see them closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.spark.sink.partition_writer import close_quietly, start_producer

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.spark.sink.partition_writer import Start


class ProducerOfTask:
    """An implementation of `Producers` that starts a producer and closes it after its task."""

    def __init__(self, config: ProducerConfig, start: Start = start_producer) -> None:
        """Store the settings; nothing is started yet."""
        self._config = config
        self._start = start

    def take(self) -> KafkaProducer:
        """Start a producer."""
        return self._start(self._config)

    def finished(self, producer: KafkaProducer) -> None:
        """Close the producer."""
        close_quietly(producer)

    def failed(self, producer: KafkaProducer) -> None:
        """Close the producer."""
        close_quietly(producer)


class TransactionOfTask(ProducerOfTask):
    """The same with a transaction, which is committed after a write that succeeds."""

    def take(self) -> KafkaProducer:
        """Start a producer, and a transaction."""
        producer = super().take()
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    def finished(self, producer: KafkaProducer) -> None:
        """Commit, and close the producer."""
        producer.commit_transaction()
        super().finished(producer)
